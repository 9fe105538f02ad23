"""The consumer groups that a broker knows, and what each may do: subscriptionGroup.json.

Source: SubscriptionGroupManager of RocketMQ 4.6.0. Differs: names are checked; a group made because a
consumer named it is saved with the next periodic save, not with a write a consumer can cause at will.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from rocketpy.errors import RemoteProtocolError, StoreError, UsageError
from rocketpy.protocol.bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupWrapper
from rocketpy_broker.services.offsets import check_group_name
from rocketpy_broker.store.clock import Clock, system_clock
from rocketpy_broker.store.disk import Disk, OsDisk
from rocketpy_broker.store.state_file import load_state, save_aside, save_state

__all__ = ["SYSTEM_GROUPS", "SubscriptionGroups"]

log = logging.getLogger("rocketpy.broker.groups")

SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
)  # fmt: skip
"""Groups that every broker has."""

_SYSTEM_PREFIX: Final = "CID_RMQ_SYS_"
_AUTO_CREATED_MAX: Final = 100_000
"""Ours: more groups than this are only made by an operator."""


class SubscriptionGroups:
    """The groups by name, with the version that slaves compare.

    auto_create: whether `find` makes a group that is not there.
    """

    def __init__(
        self, path: Path, *, auto_create: bool, clock: Clock = system_clock, disk: Disk | None = None
    ) -> None:
        self.path = path
        self.is_missing = False
        """Did `load` find no file?"""
        self._auto_create = auto_create
        self._clock = clock
        self._disk = disk or OsDisk()
        self._groups = {name: SubscriptionGroupConfig(group_name=name) for name in SYSTEM_GROUPS}
        self.version = DataVersion(timestamp=clock(), counter=0)
        self.is_changed = False
        """Whether something is not saved."""
        self._writing = threading.Lock()
        self._replaced = 0
        """How often all of them were replaced: a save that began before would undo that."""

    def load(self) -> None:
        """Read subscriptionGroup.json, if there is one. Raises StoreDamaged."""
        saved = load_state(self._disk, self.path, _decode)
        self.is_missing = saved is None
        if saved is not None:
            self._groups.update(saved.subscription_group_table)
            self.version = saved.data_version

    @property
    def names(self) -> list[str]:
        """All groups."""
        return list(self._groups)

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group; None for one that is not there."""
        return self._groups.get(name)

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group, made if need be; None when it is not there and may not be made."""
        group = self._groups.get(name)
        if group is not None:
            return group
        if (
            not (self._auto_create or name.startswith(_SYSTEM_PREFIX))
            or len(self._groups) > _AUTO_CREATED_MAX
        ):
            return None
        try:
            check_group_name(name)
        except UsageError as error:
            log.info("no group is made: %s", error)
            return None
        group = self._groups[name] = SubscriptionGroupConfig(group_name=name)
        self._count_change()
        log.info("created consumer group %s", name)
        return group

    def update(self, group: SubscriptionGroupConfig) -> None:
        """Create or change a group. Raises GroupInvalid, StoreError; then nothing has changed."""
        check_group_name(group.group_name)
        self._replace({**self._groups, group.group_name: group})

    def add(self, names: Iterable[str]) -> list[str]:
        """Create those groups that are not there, with default settings; returns their names.

        names: were checked. Raises StoreError; then nothing has changed.
        """
        new = [name for name in names if name not in self._groups]
        if new:
            self._replace(
                {**self._groups, **{name: SubscriptionGroupConfig(group_name=name) for name in new}}
            )
        return new

    def delete(self, name: str) -> bool:
        """Remove a group; False when it is not there. Raises StoreError."""
        if name not in self._groups:
            return False
        self._replace({other: group for other, group in self._groups.items() if other != name})
        return True

    def adopt(self, wrapper: SubscriptionGroupWrapper) -> None:
        """Have exactly a master's groups, if its version is another. Raises StoreError."""
        if wrapper.data_version != self.version:
            self._replace(dict(wrapper.subscription_group_table), wrapper.data_version)

    def snapshot(self) -> SubscriptionGroupWrapper:
        """Return all of them, with their version."""
        return SubscriptionGroupWrapper(
            subscription_group_table=dict(self._groups), data_version=self.version
        )

    async def save(self) -> None:
        """Write the file if something changed; failures are logged and tried again at the next call."""
        if not self.is_changed:
            return
        self.is_changed = False
        try:
            await save_aside(partial(self._save_unless_replaced, self._replaced, _text(self.snapshot())))
        except StoreError as error:
            self.is_changed = True
            log.error("consumer groups are not saved: %s", error)

    def _replace(
        self, groups: dict[str, SubscriptionGroupConfig], version: DataVersion | None = None
    ) -> None:
        """Save first, then use: what was answered survives a restart."""
        version = version or self.version.next(self._clock())
        wrapper = SubscriptionGroupWrapper(subscription_group_table=groups, data_version=version)
        with self._writing:
            save_state(self._disk, self.path, _text(wrapper))
            self._groups, self.version, self.is_changed = groups, version, False
            self._replaced += 1

    def _save_unless_replaced(self, replaced: int, text: bytes) -> None:
        """Write what `save` found; for a thread. Raises StoreError."""
        with self._writing:
            if replaced == self._replaced:
                save_state(self._disk, self.path, text)

    def _count_change(self) -> None:
        self.version = self.version.next(self._clock())
        self.is_changed = True


def _text(wrapper: SubscriptionGroupWrapper) -> bytes:
    return msgspec.json.format(wrapper.encode(), indent=2)


def _decode(data: bytes) -> SubscriptionGroupWrapper:
    """Raises ValueError for what is no subscriptionGroup.json."""
    try:
        return SubscriptionGroupWrapper.decode(data)
    except RemoteProtocolError as error:
        raise ValueError(str(error)) from error
