"""Which source a client setting comes from: an argument, the environment, or a profile of the command.

Each setting comes from the first source that gives it. Clients, the command ``rocketpy``, the Spark connector
and the servers have the same order of sources; `docs/reference/configuration.md` has the table.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

PREFIX: Final = "ROCKETPY_"
ROCKETMQ_VARIABLES: Final = {
    "namesrv": "NAMESRV_ADDR",
    "access_key": "ROCKETMQ_ACCESS_KEY",
    "secret_key": "ROCKETMQ_SECRET_KEY",
    "security_token": "ROCKETMQ_SECURITY_TOKEN",
    "signature_version": "ROCKETMQ_SIGNATURE_VERSION",
}
"""Setting -> the variable that is read last."""
TLS_SETTINGS: Final = {
    "tls_ca": "trust_cert_path",
    "tls_cert": "cert_path",
    "tls_key": "key_path",
    "tls_key_password_file": "key_password_file",
}
"""Setting -> argument of `TlsFiles`."""
SETTINGS: Final = (
    "namesrv",
    "access_key",
    "secret_key",
    "security_token",
    "signature_version",
    "namespace",
    *TLS_SETTINGS,
)
"""The settings that a source may give, by their names in a profile."""
VARIABLES: Final = {setting: PREFIX + setting.upper() for setting in SETTINGS}
"""Setting -> the variable that is read before profiles."""
_OWNERS: Final = {
    "secret_key": "access_key",
    "security_token": "access_key",
    "tls_key": "tls_cert",
    "tls_key_password_file": "tls_cert",
}
"""What belongs to a certain account or certificate, and is never taken from a source below that one's."""


@dataclass(frozen=True, slots=True)
class Source:
    """Something that gives settings, such as the environment."""

    values: Mapping[str, str]
    """Setting -> its text. An empty one counts as not given."""
    names: Mapping[str, str]
    """Setting -> what users call it here, for error texts."""


class Found(NamedTuple):
    """A setting, and where it was found."""

    value: str
    source: Source


def environment_sources(environment: Mapping[str, str] | None = None) -> tuple[Source, Source]:
    """Return the variables of rocketpy, and those that are read after profiles. None: of this process."""
    variables = os.environ if environment is None else environment
    first, last = (
        Source({setting: variables.get(name, "") for setting, name in names.items()}, names)
        for names in (VARIABLES, ROCKETMQ_VARIABLES)
    )
    return first, last


def find_settings(sources: Iterable[Source]) -> dict[str, Found]:
    """Return each setting from the first source that gives it."""
    found: dict[str, Found] = {}
    for source in sources:
        above = frozenset(found)
        for setting, value in source.values.items():
            if value and setting not in found and _OWNERS.get(setting) not in above:
                found[setting] = Found(value, source)
    return found


def no_name_server(argument: str) -> str:
    """Return the error text if no source gives name servers. argument: how to pass them."""
    variables = f"{VARIABLES['namesrv']} or {ROCKETMQ_VARIABLES['namesrv']}"
    return f"no name server: pass {argument}, or set {variables}"
