"""Settings that operators read from afar, and the few that they may change.

A change needs `remoteConfigUpdateEnable=true` in the server's own file; then a key on the list with a value
of its kind. No key on a list names a path, an address or a program (CVE-2023-33246, CVE-2023-37582). A change
is written to that file before it counts. Source: Configuration of RocketMQ 4.6.0, which takes anything.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.bodies import DataVersion
from rocketpy_broker.config import BrokerConfig, NamesrvConfig
from rocketpy_broker.config_keys import BROKER_KEYS, NAMESRV_KEYS, STORE_KEYS, Key, Value, text_of
from rocketpy_broker.properties_file import change_file, read_settings
from rocketpy_broker.store.clock import Clock, system_clock

__all__ = ["LiveConfig", "broker_settings", "namesrv_settings"]

_BROKER_CHANGES: Final = frozenset({
    "brokerPermission", "autoCreateTopicEnable", "rejectTransactionMessage", "storeReplyMessageEnable",
    "longPollingEnable", "shortPollingTimeMills", "notifyConsumerIdsChangedEnable", "slaveReadEnable",
    "enablePropertyFilter", "filterSupportRetry", "fileReservedTime", "deleteWhen", "diskMaxUsedSpaceRatio",
})  # fmt: skip
"""Keys whose fields are read each time they matter, so that a change counts at once."""
_NAMESRV_CHANGES: Final = frozenset({"orderMessageEnable"})
_SHOWN: Final = (bool, int, str, Enum)
"""Kinds of values that are shown; paths, addresses and certificates are not."""


class LiveConfig:
    """The settings of one running server.

    keys: those that are shown. groups: the configuration objects by the group of a key. changes: the keys
    that may be changed. path: the file that keeps them; None: nothing may be changed.
    """

    def __init__(
        self,
        keys: Mapping[str, Key],
        groups: Mapping[str, Any],
        changes: frozenset[str],
        path: Path | None,
        *,
        clock: Clock = system_clock,
    ) -> None:
        self._keys = keys
        self._groups = groups
        self._changes = changes
        self._path = path
        self._clock = clock
        self._one_by_one = asyncio.Lock()
        self.version = DataVersion(timestamp=clock())

    def text(self) -> str:
        """Every setting that is shown, as in a properties file."""
        return "".join(f"{name}={value}\n" for name, value in sorted(self._values().items()))

    def _values(self) -> dict[str, str]:
        found = {
            name: getattr(self._groups[key.group], key.field)
            for name, key in self._keys.items()
            if key.group in self._groups
        }
        return {name: _text(value) for name, value in found.items() if isinstance(value, _SHOWN)}

    async def update(self, text: str) -> frozenset[str]:
        """Change settings, all of them or none; return the keys that are other than before.

        text: a properties file. Raises ConfigInvalid, OSError.
        """
        if self._path is None:
            raise ConfigInvalid("remoteConfigUpdateEnable is not true in this server's own file")
        async with self._one_by_one:
            return await self._update(self._path, text)

    async def _update(self, path: Path, text: str) -> frozenset[str]:
        wanted = {setting.key: setting.value.strip() for setting in read_settings(text, "request")}
        before = self._values()
        groups: dict[str, Any] = {}
        for name, value in wanted.items():
            if name not in self._changes:
                raise ConfigInvalid(f"{name} cannot be changed remotely")
            key = self._keys[name]
            group = groups.get(key.group, self._groups[key.group])
            try:
                groups[key.group] = dataclasses.replace(group, **{key.field: key.read(value)})
            except ValueError as error:
                raise ConfigInvalid(f"{name}={value}: {error}") from None
        await asyncio.to_thread(change_file, path, wanted)
        for name in wanted:
            key = self._keys[name]
            # Frozen for everyone else: this is the one place where a running server's settings change.
            object.__setattr__(self._groups[key.group], key.field, getattr(groups[key.group], key.field))
        self.version = self.version.next(self._clock())
        after = self._values()
        return frozenset(name for name in wanted if before.get(name) != after.get(name))


def broker_settings(config: BrokerConfig) -> LiveConfig:
    """Those of a broker."""
    store = config.store
    groups = {
        "broker": config, "registration": config.registration, "topics": config.topics, "send": config.send,
        "transactions": config.transactions, "consume": config.consume, "store": store,
        "commit_log": store.commit_log, "consume_queue": store.consume_queue, "index": store.index,
        "flush": store.flush, "read": store.read, "recovery": store.recovery, "retention": store.retention,
        "busy": store.busy,
    }  # fmt: skip
    return LiveConfig({**BROKER_KEYS, **STORE_KEYS}, groups, _BROKER_CHANGES, config.updatable_file)


def namesrv_settings(config: NamesrvConfig) -> LiveConfig:
    """Those of a name server."""
    return LiveConfig(NAMESRV_KEYS, {"namesrv": config}, _NAMESRV_CHANGES, config.updatable_file)


def _text(value: Value | Enum) -> str:
    return value.name if isinstance(value, Enum) else text_of(value)
