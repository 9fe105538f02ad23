"""The consumer groups that a broker knows, and what each may do: subscriptionGroup.json.

Source: SubscriptionGroupManager of RocketMQ 4.6.0. Differs: names are checked; a group made because a
consumer named it is saved with the next periodic save, not with a write a consumer can cause at will; there
is a limit to how many there are.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from rocketpy.errors import GroupInvalid, RemoteProtocolError, StoreError, UsageError
from rocketpy.protocol.bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupWrapper
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.config.model import ConsumeConfig
from rocketpy_broker.services.metadata.offsets import check_group_name
from rocketpy_broker.store.files.batch_saver import BatchSaver
from rocketpy_broker.store.files.clock import Clock, system_clock
from rocketpy_broker.store.files.disk import Disk, OsDisk
from rocketpy_broker.store.files.state_file import format_table, load_state, save_state

log = logging.getLogger("rocketpy.broker.groups")

SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
)  # fmt: skip
"""Groups that every broker has."""

_SYSTEM_PREFIX: Final = "CID_RMQ_SYS_"


class _Change(NamedTuple):
    """A change of the table. version: of a master's table, which `put` is then; it replaces this one."""

    put: Mapping[str, SubscriptionGroupConfig] = {}
    gone: Iterable[str] = ()
    version: DataVersion | None = None

    def gone_from(self, table: Mapping[str, SubscriptionGroupConfig]) -> Iterable[str]:
        """Return the names that it takes out of this table."""
        return self.gone if self.version is None else table.keys() - self.put.keys()


class SubscriptionGroupTable:
    """The groups by name, with the version that slaves compare.

    config: whether `find` makes a group that is not there, and how many there may be. retry_queues_max: how
    many queues for retries a group may have.
    """

    def __init__(
        self,
        path: Path,
        tasks: Tasks,
        config: ConsumeConfig,
        *,
        retry_queues_max: int,
        clock: Clock = system_clock,
        disk: Disk | None = None,
    ) -> None:
        self.path = path
        self.is_missing = False
        """Did `load` find no file?"""
        self._config = config
        self._retry_queues_max = retry_queues_max
        self._clock = clock
        self._disk = disk or OsDisk()
        self.saver: BatchSaver[_Change] = BatchSaver(
            tasks, "subscriptionGroup.json", prepare=self._prepare, use=self._use
        )
        self._groups = {name: SubscriptionGroupConfig(group_name=name) for name in SYSTEM_GROUPS}
        self.version = DataVersion(timestamp=clock(), counter=0)
        self._saving_versions = self.version, self.version
        """Of the save under way, or of the last: before and after it."""
        self._encoded: tuple[DataVersion, bytes] | None = None
        self.is_changed = False
        """Whether something is not saved."""
        self._creating: set[str] = set()
        """Groups that operators began to make."""

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
        if not (self._config.auto_create_group or name.startswith(_SYSTEM_PREFIX)):
            return None
        try:
            check_group_name(name)
            self._check_room(name)
        except UsageError as error:
            log.info("no group is made: %s", error)
            return None
        group = self._groups[name] = SubscriptionGroupConfig(group_name=name)
        self._count_change()
        log.info("created consumer group %s", name)
        return group

    def are_missing(self, names: Iterable[str]) -> int:
        """How many of these groups are not there."""
        return sum(name not in self._groups for name in names)

    async def update(self, group: SubscriptionGroupConfig) -> None:
        """Create or change a group, and save that.

        Raises GroupInvalid, StoreError; nothing has changed then.
        """
        name = group.group_name
        check_group_name(name)
        existing = self._groups.get(name)
        is_new = existing is None and name not in self._creating
        if is_new:
            self._check_room(name)
        was = 0 if existing is None else existing.retry_queue_nums
        if group.retry_queue_nums > max(self._retry_queues_max, was):
            raise GroupInvalid(
                f"group {name}: {group.retry_queue_nums} retry queues; up to {self._retry_queues_max} are "
                "possible (maxTopicQueues)"
            )
        if is_new:
            self._creating.add(name)
        try:
            await self.saver.save(_Change({name: group}))
        finally:
            if is_new:
                self._creating.discard(name)

    def _check_room(self, name: str) -> None:
        count = len(self._groups) + len(self._creating)
        if count - len(SYSTEM_GROUPS) >= self._config.groups_max:
            raise GroupInvalid(
                f"group {name} is not created: this broker has {count} groups, the limit of "
                f"maxConsumerGroups is {self._config.groups_max}. Delete groups, or raise the limit"
            )

    def add(self, names: Iterable[str]) -> list[str]:
        """Use groups with checked names and default settings, where they are missing; returns those names.

        `save` saves them.
        """
        new = [name for name in names if name not in self._groups]
        if new:
            self._groups.update({name: SubscriptionGroupConfig(group_name=name) for name in new})
            self._count_change()
        return new

    async def delete(self, name: str) -> bool:
        """Remove a group, and save that; False when it is not there. Raises StoreError."""
        if name not in self._groups:
            return False
        await self.saver.save(_Change(gone=(name,)))
        return True

    async def adopt(self, wrapper: SubscriptionGroupWrapper) -> None:
        """Have exactly a master's groups, if its version is another. Raises StoreError."""
        if wrapper.data_version != self.version:
            table = wrapper.subscription_group_table
            await self.saver.save(_Change(table, version=wrapper.data_version))

    def snapshot(self) -> SubscriptionGroupWrapper:
        """Return all of them, with their version."""
        return SubscriptionGroupWrapper(
            subscription_group_table=dict(self._groups), data_version=self.version
        )

    def encode(self) -> bytes:
        """Return the text of `snapshot`, which is made once for each version."""
        if self._encoded is None or self._encoded[0] is not self.version:
            self._encoded = self.version, self.snapshot().encode()
        return self._encoded[1]

    async def save(self) -> None:
        """Write the file if something changed; a failure is logged, and the next call tries again."""
        if self.is_changed:
            with contextlib.suppress(StoreError):
                await self.saver.save(_Change())

    # -- saving: first the file, then the table -------------------------------------------------------

    def _prepare(self, changes: Sequence[_Change]) -> Callable[[], None]:
        groups = dict(self._groups)
        is_other = any(change.put or change.gone for change in changes)
        version = self.version.next(self._clock()) if is_other else self.version
        for change in changes:
            groups.update(change.put)
            for name in change.gone_from(groups):
                groups.pop(name, None)
            version = change.version or version
        self._saving_versions = self.version, version
        self.is_changed = False
        wrapper = SubscriptionGroupWrapper(subscription_group_table=groups, data_version=version)
        return partial(self._write, wrapper)

    def _write(self, wrapper: SubscriptionGroupWrapper) -> None:
        """Replace the file; for a thread. Raises StoreError."""
        try:
            save_state(self._disk, self.path, format_table(wrapper, "subscription_group_table"))
        except StoreError:
            self.is_changed = True
            raise

    def _use(self, changes: Sequence[_Change]) -> None:
        before, after = self._saving_versions
        # Where `find` made groups meanwhile, the table is another one than the file.
        self.version = after if self.version == before else self.version.next(self._clock())
        for change in changes:
            self._groups.update(change.put)
            for name in change.gone_from(self._groups):
                self._groups.pop(name, None)

    def _count_change(self) -> None:
        self.version = self.version.next(self._clock())
        self.is_changed = True


def _decode(data: bytes) -> SubscriptionGroupWrapper:
    """Raises ValueError for what is no subscriptionGroup.json."""
    try:
        return SubscriptionGroupWrapper.decode(data)
    except RemoteProtocolError as error:
        raise ValueError(str(error)) from error
