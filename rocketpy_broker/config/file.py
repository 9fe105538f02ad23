"""Reads broker.conf and namesrv.conf: RocketMQ's own keys, into our configuration.

Every key of 4.6.0 is in one of the tables below: with a meaning here, without one (and why), or
refused because ignoring it would break a promise that the file makes. Unknown keys are warned about, and
refused where they are keys of access control or TLS in other letters.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from rocketpy.config import Credentials
from rocketpy.errors import ConfigInvalid
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
from rocketpy_broker.config.listen import client_files, listen_config
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
_REMOTE: Final = "remoteConfigUpdateEnable"
_TLS_FILE: Final = "tls.config.file"
"""A key that names another file, RocketMQ's tls.properties; what the naming file itself says goes before."""
_SECURITY_KEYS: Final = frozenset({
    "aclEnable", "aclSignatureV2Required", "rocketmq.acl.plain.file", "haSecret", "dLegerSecret",
    "replicaCertNames", _TLS_FILE,
    *(name for name in LISTEN_KEYS if name.startswith("tls.")),
})  # fmt: skip
"""Keys without which a server would be more open than its file says."""
_SIMILARITY_MIN: Final = 0.8
"""How much so a known key is what an unknown one may mean; less, and keys of later versions find one, too."""


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
    """Return the configuration of a broker from a broker.conf and settings that go before it.

    overrides: RocketMQ's keys as in the file, and their texts, or numbers and booleans; source: what errors
    call them. Without namesrvAddr in either, the environment's NAMESRV_ADDR counts. Raises ConfigInvalid
    naming file and line, OSError.
    """
    given = _read_all(path, overrides, source)
    values, places = _collect(given, {**LISTEN_KEYS, **BROKER_KEYS, **STORE_KEYS})
    with _Blame(places):
        registration = values["registration"]
        registration["credentials"] = _credentials(values["listen"])
        registration["ssl"] = client_files(values["listen"])
        if "namesrv" not in registration and os.environ.get("NAMESRV_ADDR"):
            registration["namesrv"] = BROKER_KEYS["namesrvAddr"].read(os.environ["NAMESRV_ADDR"])
        return BrokerConfig(
            listen=listen_config(values["listen"], DEFAULT_BROKER_PORT, _path(path)),
            store=_store(values),
            updatable_file=_updatable(path),
            **{name: config(**values[name]) for name, config in BROKER_GROUPS.items()},
            **values["broker"],
        )


def _credentials(listen: Mapping[str, Any]) -> Credentials | None:
    """Return with what a broker signs: as the environment says, and as it wants others to sign."""
    found = Credentials.from_environment()
    if found is None or not listen.get("requires_signature_v2"):
        return found
    return replace(found, signature_version=2)


def load_namesrv_config(
    path: str | Path | None = None,
    overrides: Mapping[str, SettingValue] | None = None,
    *,
    source: str = "settings",
) -> NamesrvConfig:
    """Return the configuration of a name server; see `load_broker_config`.

    Without kvConfigPath the settings are kept where RocketMQ keeps them: ~/namesrv/kvConfig.json.
    """
    values, places = _collect(_read_all(path, overrides, source), {**LISTEN_KEYS, **NAMESRV_KEYS})
    with _Blame(places):
        settings = {"kv_config_path": Path.home() / "namesrv" / "kvConfig.json", **values["namesrv"]}
        listen = listen_config(values["listen"], DEFAULT_NAMESRV_PORT, _path(path))
        metrics = MetricsConfig(**values["metrics"])
        return NamesrvConfig(listen=listen, updatable_file=_updatable(path), metrics=metrics, **settings)


def _read_all(
    path: str | Path | None, overrides: Mapping[str, SettingValue] | None, source: str
) -> list[_Setting]:
    given = [] if path is None else _read(path)
    given += [_override(key, value, source) for key, value in (overrides or {}).items()]
    more = [_read(one.value) for one in given if one.key == _TLS_FILE]
    return [*(setting for file in more for setting in file), *given]


def _override(key: str, value: SettingValue, source: str) -> _Setting:
    try:
        return _Setting(key, to_text(value), source)
    except TypeError as error:
        raise ConfigInvalid(f"{source}: {key}: {error}") from None


def _read(path: str | Path) -> list[_Setting]:
    return [_Setting(one.key, one.value, f"{path}:{one.line}") for one in read_file(path)]


def _updatable(path: str | Path | None) -> Path | None:
    """The file, if it says itself that it may be changed; the command line cannot say so."""
    if path is None:
        return None
    said = [one for one in _read(path) if one.key == _REMOTE]
    if said and said[-1].value.strip() not in ("true", "false"):
        raise ConfigInvalid(f"{said[-1].place}: {_REMOTE}={said[-1].value}: true or false is expected")
    return Path(path) if said and said[-1].value.strip() == "true" else None


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def _collect(given: Iterable[_Setting], keys: Mapping[str, Key]) -> tuple[_Values, dict[str, str]]:
    """Sort the settings into groups of constructor arguments; the last of a key counts."""
    values: _Values = {key.group: {} for key in (*LISTEN_KEYS.values(), *keys.values())}
    places: dict[str, str] = {}
    for key_name, text, place in given:
        key = keys.get(key_name)
        if key_name in (_TLS_FILE, _REMOTE):
            continue
        if key is None:
            _check_other_key(key_name, text, place, known=keys)
            continue
        try:
            values[key.group][key.field] = key.read(text)
        except (ValueError, ConfigInvalid) as error:
            raise ConfigInvalid(f"{place}: {key_name}={text}: {error}") from None
        places[key_name] = place
    return values, places


def _check_other_key(key: str, text: str, place: str, *, known: Iterable[str]) -> None:
    accepted = UNSUPPORTED_KEYS.get(key)
    if accepted is not None:
        if text.strip() not in accepted:
            raise ConfigInvalid(
                f"{place}: {key}={text}: this broker cannot do that yet, and would break a promise by "
                f"ignoring it; known: {', '.join(map(repr, accepted))}"
            )
    elif key in IGNORED_KEYS:
        log.info("%s: %s has no meaning here: %s", place, key, IGNORED_KEYS[key])
    else:
        _report_unknown_key(key, place, {name.lower(): name for name in (*known, _TLS_FILE, _REMOTE)})


def _report_unknown_key(key: str, place: str, names: Mapping[str, str]) -> None:
    """Warn, as RocketMQ's later versions have more keys. names: the known ones by their small letters.

    Raises ConfigInvalid for what can only be meant to guard the server.
    """
    meant = names.get(key.lower())
    if meant in _SECURITY_KEYS:
        raise ConfigInvalid(f"{place}: unknown key {key}: write {meant}; ignored, it would guard nothing")
    near = get_close_matches(key.lower(), names, n=1, cutoff=_SIMILARITY_MIN)
    hint = f"; did you mean {names[near[0]]}?" if near else ""
    log.warning("%s: unknown key %s is ignored%s", place, key, hint)


class _Blame:
    """Adds where a setting was read to an error that names its key."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ConfigInvalid):
            words = str(error).split()
            place = next((self._places[word] for word in words if word in self._places), None)
            if place is not None:
                raise ConfigInvalid(f"{place}: {error}") from None


def _store(values: _Values) -> StoreConfig:
    groups = {name: config(**values[name]) for name, config in STORE_GROUPS.items()}
    return StoreConfig(**{"root": Path.home() / "store", **values["store"]}, **groups)
