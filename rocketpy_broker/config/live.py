"""Settings that administrators read by request, and the few that they may change.

A change needs `remoteConfigUpdateEnable=true` in the server's own file, and a key that allows it
(`Setting.change`). No such key names a path, an address or a program, weakens an acknowledgement, or changes
the layout of files (CVE-2023-33246, CVE-2023-37582). The file is written before the change applies.

Source: Configuration of RocketMQ 4.6.0, which accepts any change.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from dataclasses import KW_ONLY, InitVar, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.bodies import DataVersion
from rocketpy.protocol.java import trim
from rocketpy.transport import Address
from rocketpy_broker.config.keys import (
    BROKER_GROUPS,
    BROKER_KEYS,
    IGNORED_BROKER_DEFAULTS,
    IGNORED_KEYS,
    IGNORED_NAMESRV_DEFAULTS,
    LISTEN_KEYS,
    NAMESRV_KEYS,
    STORE_GROUPS,
    STORE_KEYS,
    to_text,
)
from rocketpy_broker.config.model import BrokerConfig, ListenConfig, NamesrvConfig
from rocketpy_broker.store.files.disk import Clock, system_clock
from rocketpy_broker.store.files.properties import change_file, read_settings
from rocketpy_broker.store.setting import Change, Key

_NOT_HARMLESS: Final = frozenset(
    {
        "filterServerNums",
        "messageStorePlugIn",
        "configStorePath",
        "useTLS",
        "fetchNamesrvAddrByAddressServer",
    }
)
"""Keys without an effect here that start programs, load classes, or set trust in RocketMQ."""
_IGNORED: Final = {
    name: why
    for name, why in IGNORED_KEYS.items()
    if name not in _NOT_HARMLESS and not name.startswith("tls.")
}
"""Keys of 4.6.0 that may be set although they have no effect, with the reason."""


class Update(NamedTuple):
    """Result of an update."""

    changed: frozenset[str]
    """Keys with a new value."""
    notes: tuple[str, ...]
    """Sentences for the operator."""


@dataclass(eq=False)
class LiveConfig:
    """The settings of one running server."""

    keys: Mapping[str, Key]
    """The keys that are shown."""
    groups: Mapping[str, Any]
    """The configuration object of each group."""
    path: Path | None
    """The file of the settings; None if nothing may change."""
    _: KW_ONLY
    fixed: InitVar[Mapping[str, str]]
    """Texts of more settings to show."""
    clock: Clock = system_clock

    def __post_init__(self, fixed: Mapping[str, str]) -> None:
        self._fixed = dict(fixed)
        self._lock = asyncio.Lock()
        self._next: dict[str, dict[str, Any]] = {}
        """Values of each group that the file has for the next start."""
        self.version = DataVersion(timestamp=self.clock())

    def text(self) -> str:
        """Return every setting that is shown, as in a properties file.

        RocketMQ's tools read some keys without a check, so keys that have no effect are included.
        """
        shown = self._fixed | self._values()
        return "".join(f"{name}={value}\n" for name, value in sorted(shown.items()))

    def _values(self) -> dict[str, str]:
        found = {
            name: key.show(getattr(self.groups[key.group], key.field))
            for name, key in self.keys.items()
            if key.group in self.groups and not key.is_private
        }
        return {name: _text(value) for name, value in found.items() if value is not None}

    async def update(self, text: str) -> Update:
        """Change all settings in a properties file, or none of them. Raises ConfigInvalid, OSError."""
        if self.path is None:
            raise ConfigInvalid("remoteConfigUpdateEnable is not true in this server's own file")
        async with self._lock:
            return await self._update(self.path, text)

    async def _update(self, path: Path, text: str) -> Update:
        given = {setting.key: trim(setting.value) for setting in read_settings(text, "request")}
        wanted = {name: value for name, value in given.items() if name not in _IGNORED}
        before = self._values()
        values = {name: dict(fields) for name, fields in self._next.items()}
        for name, value in wanted.items():
            key = self.keys.get(name)
            if key is None or key.change is Change.NEVER:
                raise ConfigInvalid(f"{name} cannot be changed remotely")
            try:
                values.setdefault(key.group, {})[key.field] = key.read(value)
            except ValueError as error:
                raise ConfigInvalid(f"{name}={value}: {error}") from None
        # All values of a group at once, as at the next start: limits of one setting may depend on another.
        groups = {name: dataclasses.replace(self.groups[name], **fields) for name, fields in values.items()}
        unused = {name: value for name, value in given.items() if name in _IGNORED}
        if given:
            await asyncio.to_thread(change_file, path, wanted | unused)
        self._fixed |= unused
        changes = {name: self.keys[name] for name in wanted}
        for key in changes.values():
            if key.change is not Change.LIVE:
                self._next.setdefault(key.group, {})[key.field] = values[key.group][key.field]
                continue
            # Configuration is frozen elsewhere: only here do settings of a running server change.
            object.__setattr__(self.groups[key.group], key.field, getattr(groups[key.group], key.field))
        self.version = self.version.next(self.clock())
        after = self._values()
        changed = frozenset(name for name in wanted if before.get(name) != after.get(name))
        later = sorted(name for name, key in changes.items() if key.change is Change.NEXT_START)
        notes = [f"{', '.join(later)}: written to the file, applies at the next start"] if later else []
        notes += [f"{name} has no effect: {_IGNORED[name]}" for name in given if name in _IGNORED]
        return Update(changed, tuple(notes))


def broker_live_config(config: BrokerConfig) -> LiveConfig:
    """Return the settings of a broker."""
    store = config.store
    groups = {
        "broker": config,
        "store": store,
        **{name: getattr(config, name) for name in BROKER_GROUPS},
        **{name: getattr(store, name) for name in STORE_GROUPS},
    }
    keys = {**BROKER_KEYS, **STORE_KEYS}
    defaults = {
        "haListenPort": config.listen.address.port + 1,
        "storePathCommitLog": store.commit_log_directory,
    }
    if not config.listen.is_wildcard:
        defaults |= dict.fromkeys(
            ("brokerIP1", "brokerIP2"), config.advertised_host or config.listen.address.host
        )
    fixed = IGNORED_BROKER_DEFAULTS | config.without_effect | _listen_texts(config.listen)
    fixed |= {name: _text(value) for name, value in defaults.items()}
    return LiveConfig(keys, groups, config.updatable_file, fixed=fixed)


def namesrv_live_config(config: NamesrvConfig) -> LiveConfig:
    """Return the settings of a name server."""
    return LiveConfig(
        NAMESRV_KEYS,
        {"namesrv": config, "metrics": config.metrics},
        config.updatable_file,
        fixed=IGNORED_NAMESRV_DEFAULTS | config.without_effect | _listen_texts(config.listen),
    )


def _listen_texts(listen: ListenConfig) -> dict[str, str]:
    """Return the keys of a listening port with their texts: address, access control, TLS, limits."""
    options = listen.options
    tls = "disabled" if options.ssl is None else "permissive" if options.also_plain else "enforcing"
    limits = {
        name: key.show(getattr(listen if hasattr(listen, key.field) else options, key.field))
        for name, key in LISTEN_KEYS.items()
        if hasattr(listen, key.field) or hasattr(options, key.field)
    }
    settings: dict[str, Any] = {
        "bindAddress": listen.address.host,
        "listenPort": listen.address.port,
        "aclEnable": listen.acl_file is not None,
        "authenticationEnabled": listen.users is not None,
        "authorizationEnabled": listen.users is not None and listen.users.authorizes,
        "tls.server.mode": tls,
        **limits,
    }
    return {name: _text(value) for name, value in settings.items() if isinstance(value, bool | int | str)}


def _text(value: Any) -> str:
    """Return a value as a file would have it."""
    match value:
        case Enum():
            return value.name
        case tuple() | frozenset():
            return ";".join(map(str, value))
        case dict():  # the peers of a DLedger group
            return ";".join(f"{peer}-{address}" for peer, address in value.items())
        case Path() | Address():
            return str(value)
    return to_text(value)
