"""Reads broker.conf and namesrv.conf, which have RocketMQ's own keys, into configuration objects.

Every key of 4.6.0 is in one of the tables of `keys`. It is supported, or ignored, or rejected because
ignoring it would be unsafe. An unknown key causes a warning. It is rejected if it may be meant to protect the
server: a misspelt key of access control or TLS, or a key with invisible characters.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from rocketpy.config import Credentials, tls_files
from rocketpy.environment import Found, environment_sources, find_settings
from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.java import trim
from rocketpy.runtime.text import did_you_mean
from rocketpy_broker.config.keys import (
    BROKER_GROUPS,
    BROKER_KEYS,
    IGNORED_KEYS,
    LISTEN_KEYS,
    NAMESRV_KEYS,
    STORE_GROUPS,
    STORE_KEYS,
    UNSUPPORTED_KEYS,
    SettingValue,
    to_text,
)
from rocketpy_broker.config.listen import client_files, inner_credentials, listen_config
from rocketpy_broker.config.model import (
    DEFAULT_BROKER_PORT,
    DEFAULT_NAMESRV_PORT,
    BrokerConfig,
    MetricsConfig,
    NamesrvConfig,
)
from rocketpy_broker.store.config import StoreConfig
from rocketpy_broker.store.files.properties import read_file
from rocketpy_broker.store.setting import Key

log = logging.getLogger("rocketpy.broker.config")

_Values = dict[str, dict[str, Any]]
"""Constructor arguments by group."""
_WITHOUT_EFFECT: Final = "without_effect"
"""Name of the group of keys in IGNORED_KEYS."""
_REMOTE: Final = "remoteConfigUpdateEnable"
_TLS_FILE: Final = "tls.config.file"
"""Key with the path of RocketMQ's tls.properties. All other settings take precedence over that file."""
_SECURITY_KEYS: Final = frozenset({
    "aclEnable", "aclSignatureV2Required", "rocketmq.acl.plain.file", "haSecret", "dLegerSecret",
    "replicaCertNames", "authenticationEnabled", "authorizationEnabled", "authConfigPath",
    "initAuthenticationUser", "innerClientAuthenticationCredentials", "migrateAuthFromV1Enabled", _TLS_FILE,
    *(name for name in LISTEN_KEYS if name.startswith("tls.")),
})  # fmt: skip
"""Keys that protect a server."""
SECRET_VALUES: Final = frozenset({"initAuthenticationUser", "innerClientAuthenticationCredentials"})
"""Keys whose values hold a password, so that no error shows them."""
_SECURITY_WORDS: Final = ("acl", "auth", "secret", "tls")
"""Parts of keys that protect a server, also in later versions of RocketMQ."""
_SIMILARITY_MIN: Final = 0.8
"""Below this, keys of later RocketMQ versions would be taken for misspelled ones."""


def _plain(key: str) -> str:
    """Return a key without the punctuation and the upper case that users may get wrong."""
    return "".join(filter(str.isalnum, key.lower()))


_PLAIN_SECURITY_KEYS: Final = {_plain(key): key for key in _SECURITY_KEYS}


class _Setting(NamedTuple):
    key: str
    value: str
    place: str
    """Where it was read, for messages: ``broker.conf:12``."""


def load_broker_config(
    path: str | Path | None = None,
    overrides: Mapping[str, SettingValue] | None = None,
    *,
    source: str = "settings",
) -> BrokerConfig:
    """Return the configuration of a broker.

    The environment gives name servers, account and TLS files of the broker's own connections that neither
    the file nor the overrides give (`rocketpy.environment`).

    Args:
        path: A broker.conf; None for the defaults.
        overrides: RocketMQ's keys, with texts as in the file, numbers or booleans. They take precedence.
        source: Name of the overrides in error messages.

    Raises:
        ConfigInvalid: A setting is wrong; the message names file and line.
        OSError: The file cannot be read.
    """
    settings = _read_all(path, overrides, source)
    values, places = _collect(settings, {**LISTEN_KEYS, **BROKER_KEYS, **STORE_KEYS})
    with _naming_place(places):
        registration = values["registration"]
        found = find_settings(environment_sources())
        registration["credentials"] = _credentials(found, values["listen"])
        registration["ssl"] = client_files(values["listen"]) or tls_files(found)
        if "namesrv" not in registration and "namesrv" in found:
            registration["namesrv"] = BROKER_KEYS["namesrvAddr"].read(found["namesrv"].value)
        store = {name: config(**values[name]) for name, config in STORE_GROUPS.items()}
        root = values["store"].get("root", Path.home() / "store")
        return BrokerConfig(
            listen=listen_config(
                values["listen"], DEFAULT_BROKER_PORT, path, users_path=Path(root, "config")
            ),
            store=StoreConfig(**{"root": root, **values["store"]}, **store),
            updatable_file=_updatable(path),
            without_effect=values[_WITHOUT_EFFECT],
            **{name: config(**values[name]) for name, config in BROKER_GROUPS.items()},
            **values["broker"],
        )


def _credentials(found: Mapping[str, Found], listen: Mapping[str, Any]) -> Credentials | None:
    """Return the account of the broker's own requests, of the file or of the environment.

    It signs as the broker requires of its clients.
    """
    account = inner_credentials(listen) or Credentials.of_settings(found)
    if account is None or not listen.get("requires_signature_v2"):
        return account
    return replace(account, signature_version=2)


def load_namesrv_config(
    path: str | Path | None = None,
    overrides: Mapping[str, SettingValue] | None = None,
    *,
    source: str = "settings",
) -> NamesrvConfig:
    """Return the configuration of a name server; arguments and errors as of `load_broker_config`.

    Without kvConfigPath, key-value settings are stored where RocketMQ stores them: ~/namesrv/kvConfig.json.
    """
    values, places = _collect(_read_all(path, overrides, source), {**LISTEN_KEYS, **NAMESRV_KEYS})
    with _naming_place(places):
        return NamesrvConfig(
            listen=listen_config(values["listen"], DEFAULT_NAMESRV_PORT, path),
            updatable_file=_updatable(path),
            without_effect=values[_WITHOUT_EFFECT],
            metrics=MetricsConfig(**values["metrics"]),
            **{"kv_config_path": Path.home() / "namesrv" / "kvConfig.json", **values["namesrv"]},
        )


def _read_all(
    path: str | Path | None, overrides: Mapping[str, SettingValue] | None, source: str
) -> list[_Setting]:
    """Return the settings; a later one takes precedence."""
    settings = [] if path is None else _read(path)
    for key, value in (overrides or {}).items():
        try:
            settings.append(_Setting(key, to_text(value), source))
        except TypeError as error:
            raise ConfigInvalid(f"{source}: {key}: {error}") from None
    tls_files = [_read(setting.value) for setting in settings if setting.key == _TLS_FILE]
    return [*(setting for file in tls_files for setting in file), *settings]


def _read(path: str | Path) -> list[_Setting]:
    return [_Setting(setting.key, setting.value, f"{path}:{setting.line}") for setting in read_file(path)]


def _updatable(path: str | Path | None) -> Path | None:
    """Return the file if it allows changes by request. Only the file itself can allow them."""
    found = [] if path is None else [setting for setting in _read(path) if setting.key == _REMOTE]
    if path is None or not found:
        return None
    value = found[-1].value.strip()
    if value not in ("true", "false"):
        raise ConfigInvalid(f"{found[-1].place}: {_REMOTE}={value}: true or false is expected")
    return Path(path) if value == "true" else None


def _collect(settings: Iterable[_Setting], keys: Mapping[str, Key]) -> tuple[_Values, dict[str, str]]:
    """Return the values by group, and the place of each key; the last setting of a key counts."""
    values: _Values = {key.group: {} for key in (*LISTEN_KEYS.values(), *keys.values())}
    values[_WITHOUT_EFFECT] = {}
    places: dict[str, str] = {}
    for name, text, place in settings:
        key = keys.get(name)
        if name in (_TLS_FILE, _REMOTE):
            continue
        if key is None:
            _check_other_key(name, text, place, known=keys)
            if name in IGNORED_KEYS:
                values[_WITHOUT_EFFECT][name] = trim(text)
            continue
        try:
            values[key.group][key.field] = key.read(text)
        except (ValueError, ConfigInvalid) as error:
            shown = name if name in SECRET_VALUES else f"{name}={text}"
            raise ConfigInvalid(f"{place}: {shown}: {error}") from None
        places[name] = place
    return values, places


def _check_other_key(key: str, text: str, place: str, *, known: Iterable[str]) -> None:
    accepted = UNSUPPORTED_KEYS.get(key)
    if accepted is not None:
        if text.strip() not in accepted:
            raise ConfigInvalid(
                f"{place}: {key}={text} is not supported, and ignoring it would be unsafe; "
                f"supported values: {', '.join(map(repr, accepted))}"
            )
    elif key in IGNORED_KEYS:
        log.info("%s: %s has no effect: %s", place, key, IGNORED_KEYS[key])
    else:
        _report_unknown_key(key, place, (*known, _TLS_FILE, _REMOTE))


def _report_unknown_key(key: str, place: str, known: Collection[str]) -> None:
    """Warn about a key, as later versions of RocketMQ have more keys.

    Raises ConfigInvalid for a key that may be meant to protect the server.
    """
    if not (key.isascii() and key.isprintable()):
        raise ConfigInvalid(
            f"{place}: unknown key {key!a}: it has a character that no key has, such as a byte order mark or "
            "a blank without width; remove it"
        )
    plain = _plain(key)
    meant = get_close_matches(plain, _PLAIN_SECURITY_KEYS, n=1, cutoff=_SIMILARITY_MIN)
    if meant or any(word in plain for word in _SECURITY_WORDS):
        name = _PLAIN_SECURITY_KEYS[meant[0]] if meant else ""
        remedy = f"write {name}" if name else "remove it"
        if name and name not in known:
            remedy = f"remove it, because {name} is a setting of brokers"
        shown = key if key == key.strip() else repr(key)
        raise ConfigInvalid(
            f"{place}: unknown key {shown}: {remedy}; an ignored key would not protect the server"
        )
    hint = did_you_mean(key, known, most=1, similarity=_SIMILARITY_MIN)
    log.warning("%s: unknown key %s is ignored%s", place, key, hint)


@contextmanager
def _naming_place(places: Mapping[str, str]) -> Iterator[None]:
    """Add the place of a setting to an error that names its key."""
    try:
        yield
    except ConfigInvalid as error:
        place = next((places[word] for word in str(error).split() if word in places), None)
        if place is None:
            raise
        raise ConfigInvalid(f"{place}: {error}") from None
