"""The consumer groups of one broker and their settings: subscriptionGroup.json.

Source: SubscriptionGroupManager of RocketMQ 4.6.0. Differs: names are checked, and the number of groups is
limited. A group that a consumer creates is saved periodically, so consumers cannot cause a write for each
request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from rocketpy.errors import GroupInvalid, UsageError
from rocketpy.protocol.bodies import (
    PERM_READ,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.config.model import ConsumeConfig
from rocketpy_broker.services.metadata.offsets import check_group_name
from rocketpy_broker.services.metadata.persistent_table import PersistentTable, TableChange
from rocketpy_broker.services.metadata.topics import check_topic_name
from rocketpy_broker.store.files.disk import Clock, Disk, system_clock

log = logging.getLogger("rocketpy.broker.groups")


class SubscriptionGroupTable(PersistentTable[SubscriptionGroupConfig, SubscriptionGroupWrapper]):
    """The groups by name.

    config: whether `find` creates missing groups, and the limit of groups. retry_queues_max: of one group.
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
        super().__init__(
            path,
            tasks,
            {name: SubscriptionGroupConfig(group_name=name) for name in SYSTEM_GROUPS},
            wrapper=SubscriptionGroupWrapper,
            field="subscription_group_table",
            clock=clock,
            disk=disk,
        )
        self._config = config
        self._retry_queues_max = retry_queues_max
        self._creating: set[str] = set()
        """New groups that `update` is saving."""
        self.forbidden: dict[str, dict[str, int]] = {}
        """See `SubscriptionGroupWrapper.forbidden_table`."""

    def _wrap(
        self, table: dict[str, SubscriptionGroupConfig], version: DataVersion
    ) -> SubscriptionGroupWrapper:
        return replace(super()._wrap(table, version), forbidden_table=self.forbidden)

    def _loaded(self, wrapper: SubscriptionGroupWrapper) -> None:
        self.forbidden = wrapper.forbidden_table

    def may_read(self, group: str, topic: str) -> bool:
        """Return whether an operator allows a group to read a topic."""
        return not self.forbidden.get(group, {}).get(topic, 0) & PERM_READ

    async def set_readable(self, group: str, topic: str, *, readable: bool) -> None:
        """Allow or forbid a group to read a topic, and save that.

        Raises GroupInvalid, TopicInvalid, StoreError.
        """
        check_group_name(group)
        check_topic_name(topic)
        bits = self.forbidden.get(group, {}).get(topic, 0)
        bits = bits & ~PERM_READ if readable else bits | PERM_READ
        of_group = {**self.forbidden.get(group, {}), topic: bits}
        if not bits:
            del of_group[topic]
        self._set_forbidden({**self.forbidden, group: of_group})
        await self.saver.save(TableChange())

    def _set_forbidden(self, table: dict[str, dict[str, int]]) -> None:
        self.forbidden = {group: topics for group, topics in table.items() if topics}
        self.version = self.version.next(self._clock())

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group, which is created if it is missing; None if that is not allowed."""
        group = self._table.get(name)
        if group is not None:
            return group
        if not (self._config.auto_create_group or name.startswith(SYSTEM_GROUP_PREFIX)):
            return None
        try:
            check_group_name(name)
            self._check_room(name)
        except UsageError as error:
            log.info("cannot create a consumer group: %s", error)
            return None
        group = SubscriptionGroupConfig(group_name=name)
        self._put_unsaved({name: group})
        log.info("created consumer group %s", name)
        return group

    async def update(self, group: SubscriptionGroupConfig) -> None:
        """Create or change a group, and save it.

        Raises GroupInvalid, StoreError; then nothing has changed.
        """
        is_new = self.check(group)
        name = group.group_name
        if is_new:
            self._creating.add(name)
        try:
            await self.saver.save(TableChange({name: group}))
        finally:
            if is_new:
                self._creating.discard(name)

    def check(self, group: SubscriptionGroupConfig) -> bool:
        """Return whether a group is new. Raises GroupInvalid for one that `update` would reject."""
        name = group.group_name
        check_group_name(name)
        existing = self._table.get(name)
        is_new = existing is None and name not in self._creating
        if is_new:
            self._check_room(name)
        current = 0 if existing is None else existing.retry_queue_nums
        if group.retry_queue_nums > max(self._retry_queues_max, current):
            raise GroupInvalid(
                f"group {name}: {group.retry_queue_nums} retry queues; at most {self._retry_queues_max} are "
                "allowed (maxTopicQueues)"
            )
        return is_new

    def _check_room(self, name: str) -> None:
        count = len(self._table) + len(self._creating) - len(SYSTEM_GROUPS)
        if count >= self._config.groups_max:
            raise GroupInvalid(
                f"group {name} is not created: this broker has {count} groups besides the system groups, and "
                f"maxConsumerGroups is {self._config.groups_max}. Delete groups, or raise the limit"
            )

    def add(self, names: Iterable[str]) -> list[str]:
        """Create those of these groups that are missing, with default settings; return their names.

        The caller has checked the names. The groups are saved with the next `save`.
        """
        new = [name for name in names if name not in self._table]
        if new:
            self._put_unsaved({name: SubscriptionGroupConfig(group_name=name) for name in new})
        return new

    async def delete(self, name: str) -> bool:
        """Remove a group, and save that; False if it does not exist. Raises StoreError."""
        if name not in self._table:
            return False
        if name in self.forbidden:
            self._set_forbidden({**self.forbidden, name: {}})
        await self.saver.save(TableChange(removed=(name,)))
        return True

    async def adopt(self, wrapper: SubscriptionGroupWrapper) -> None:
        """Take over a master's groups, if its version differs. Raises StoreError."""
        if wrapper.data_version != self.version:
            self.forbidden = wrapper.forbidden_table
        await self._adopt(wrapper.subscription_group_table, wrapper.data_version)
