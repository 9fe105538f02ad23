"""Profiles: named clusters in ``~/.config/rocketpy.toml``.

```toml
[default]
namesrv = "127.0.0.1:9876"

[production]
namesrv = "tls://mq-1.example.com:9876;tls://mq-2.example.com:9876"
access_key = "reports"
secret_key = "..."
namespace = "shop"
tls_ca = "/etc/rocketpy/ca.pem"
```

Each field has an environment variable, such as ROCKETPY_NAMESRV, which overrides the file. Clients in
programs read the variables, but no profiles (decision 0031).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from rocketpy.config import ClientConfig, resolve
from rocketpy.environment import SETTINGS, Source, environment_sources
from rocketpy.errors import ConfigInvalid

DEFAULT_PROFILE: Final = "default"
DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
"""The address of the name server that `rocketpy dev` starts."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that a command uses."""

    client: ClientConfig
    """The configuration of clients for it."""
    profile: str
    """The name of the profile that describes it; empty without a profile."""
    is_default: bool = False
    """Whether no source gives an address, so that it is that of `rocketpy dev`."""

    def __str__(self) -> str:
        namespace = f", namespace {self.client.namespace}" if self.client.namespace else ""
        profile = f"profile {self.profile}" if self.profile else "no profile"
        return f"{self.client.namesrv} ({profile}{namespace})"


def find_cluster(namesrv: str | None, profile: str | None, environment: Mapping[str, str]) -> Cluster:
    """Return the cluster to use. Each setting comes from the first source that gives it.

    The sources are the command line, rocketpy's variables, the profile, and RocketMQ's variables.

    Args:
        namesrv: The name servers from the command line.
        profile: The profile from the command line. None: ROCKETPY_PROFILE, or the profile ``default`` if it
            exists.
        environment: Variables of the process.

    Raises:
        ConfigInvalid: The file cannot be read, has no such profile, or a field is invalid.
    """
    name = profile or environment.get("ROCKETPY_PROFILE") or None
    found = _read_profile(name, environment)
    used = name or (DEFAULT_PROFILE if found is not None else "")
    names = {setting: f"{setting} of profile {used}" for setting in SETTINGS}
    own, rocketmq = environment_sources(environment)
    client = resolve(ClientConfig(namesrv=namesrv or ""), (own, Source(found or {}, names), rocketmq))
    if client.namesrv:
        return Cluster(client, used)
    return Cluster(client.at(DEFAULT_NAMESRV), used, is_default=True)


def profiles_path(environment: Mapping[str, str]) -> Path:
    """Return the file with the profiles, which may not exist."""
    given = environment.get("ROCKETPY_CONFIG")
    return Path(given) if given else Path.home() / ".config" / "rocketpy.toml"


def _read_profile(name: str | None, environment: Mapping[str, str]) -> dict[str, str] | None:
    """Return the fields of a profile; None when the default profile does not exist."""
    given = environment.get("ROCKETPY_CONFIG")
    path = profiles_path(environment)
    try:
        profiles: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):  # the home of a service may be /dev/null
        if name is None and not given:
            return None
        raise ConfigInvalid(f"profile {name or 'default'} was not found: {path} does not exist") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigInvalid(f"{path} cannot be read: {error}") from None
    if name is None and DEFAULT_PROFILE not in profiles:
        return None
    profile = profiles.get(name or DEFAULT_PROFILE)
    if not isinstance(profile, dict):
        known = ", ".join(key for key, value in profiles.items() if isinstance(value, dict)) or "none"
        raise ConfigInvalid(f"{path} has no profile [{name or DEFAULT_PROFILE}]; it has {known}")
    for field, value in profile.items():
        if field not in SETTINGS:
            near = get_close_matches(field, SETTINGS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the fields are {', '.join(SETTINGS)}"
            raise ConfigInvalid(
                f"{path}: profile {name or DEFAULT_PROFILE} has the unknown field {field}; {hint}"
            )
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise ConfigInvalid(f"{path}: {field} is {value!r}; it must be a string")
    return {field: str(value) for field, value in profile.items()}
