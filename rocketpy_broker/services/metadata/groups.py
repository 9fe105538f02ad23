"""The consumer groups that a broker knows, and what each may do: subscriptionGroup.json.

Source: SubscriptionGroupManager of RocketMQ 4.6.0. Differs: names are checked; a group made because a
consumer named it is saved with the next periodic save, not with a write a consumer can cause at will; there
is a limit to how many there are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rocketpy.errors import GroupInvalid, UsageError
from rocketpy.protocol.bodies import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.config.model import ConsumeConfig
from rocketpy_broker.services.metadata.offsets import check_group_name
from rocketpy_broker.services.metadata.persistent_table import PersistentTable, TableChange
from rocketpy_broker.store.files.disk import Clock, Disk, system_clock

log = logging.getLogger("rocketpy.broker.groups")

SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
)  # fmt: skip
"""Groups that every broker has."""

SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"


class SubscriptionGroupTable(PersistentTable[SubscriptionGroupConfig, SubscriptionGroupWrapper]):
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
        """Groups that operators began to create."""

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group, made if need be; None when it is not there and may not be made."""
        group = self._table.get(name)
        if group is not None:
            return group
        if not (self._config.auto_create_group or name.startswith(SYSTEM_GROUP_PREFIX)):
            return None
        try:
            check_group_name(name)
            self._check_room(name)
        except UsageError as error:
            log.info("no group is made: %s", error)
            return None
        group = SubscriptionGroupConfig(group_name=name)
        self._put_unsaved({name: group})
        log.info("created consumer group %s", name)
        return group

    def are_missing(self, names: Iterable[str]) -> int:
        """How many of these groups are not there."""
        return sum(name not in self._table for name in names)

    async def update(self, group: SubscriptionGroupConfig) -> None:
        """Create or change a group, and save that.

        Raises GroupInvalid, StoreError; nothing has changed then.
        """
        name = group.group_name
        check_group_name(name)
        existing = self._table.get(name)
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
            await self.saver.save(TableChange({name: group}))
        finally:
            if is_new:
                self._creating.discard(name)

    def _check_room(self, name: str) -> None:
        count = len(self._table) + len(self._creating)
        if count - len(SYSTEM_GROUPS) >= self._config.groups_max:
            raise GroupInvalid(
                f"group {name} is not created: this broker has {count} groups, the limit of "
                f"maxConsumerGroups is {self._config.groups_max}. Delete groups, or raise the limit"
            )

    def add(self, names: Iterable[str]) -> list[str]:
        """Use groups with checked names and default settings, where they are missing; returns those names.

        `save` saves them.
        """
        new = [name for name in names if name not in self._table]
        if new:
            self._put_unsaved({name: SubscriptionGroupConfig(group_name=name) for name in new})
        return new

    async def delete(self, name: str) -> bool:
        """Remove a group, and save that; False when it is not there. Raises StoreError."""
        if name not in self._table:
            return False
        await self.saver.save(TableChange(removed=(name,)))
        return True

    async def adopt(self, wrapper: SubscriptionGroupWrapper) -> None:
        """Take over a master's groups, if its version differs. Raises StoreError."""
        await self._adopt(wrapper.subscription_group_table, wrapper.data_version)
