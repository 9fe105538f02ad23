"""Changes the role of a broker in a DLedger group, when `dledger_role` has decided it.

Source: BrokerController.changeToMaster, changeToSlave of RocketMQ 4.6.0. Differs: a new master knows all
topics and groups with messages. A new master of 4.6.0 responds TOPIC_NOT_EXIST for topics that it had
not copied from the old one (QUIRKS 68).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from typing import Final

from rocketpy.protocol.bodies import MASTER_ID
from rocketpy.protocol.message.properties import RETRY_TOPIC_PREFIX
from rocketpy_broker.broker.consumer_services import BrokerContext, ConsumerServices
from rocketpy_broker.broker.delivery_services import DeliveryServices
from rocketpy_broker.broker.expired_queue_offsets import ExpiredQueueOffsets
from rocketpy_broker.services.cluster.slave_sync import SlaveSync
from rocketpy_broker.services.metadata.lost_state import group_of_retries, restore_topics

log = logging.getLogger("rocketpy.broker.dledger")

_REGISTER_AGAIN_S: Final = (0.5, 2.0, 5.0, 10.0)
"""Delays in seconds after a change of the leader, at which a broker registers again. The responses of name
servers contain the address of the new master once it has registered."""


@dataclass(eq=False)
class RoleChangeHandler:
    """Changes the role of a broker."""

    context: InitVar[BrokerContext]
    consumers: ConsumerServices
    delivery: DeliveryServices
    sync: SlaveSync
    expired_offsets: ExpiredQueueOffsets
    register: Callable[[int | None], None]
    """Registers the broker with an id, or with its current id for None."""

    def __post_init__(self, context: BrokerContext) -> None:
        config, self._store, _, self._topics, self._tasks, _ = context
        self._slave_id = config.dledger.slave_id
        self._timers: list[asyncio.TimerHandle] = []

    async def load_delays(self) -> None:
        """Load the progress of delayed messages; `prepare_master` follows. Raises RocketError."""
        await self.delivery.delay.load_as_leader()

    def prepare_master(self) -> None:
        """Load the state that a master needs. The broker accepts messages afterwards. Raises RocketError."""
        self._topics.limit_deletions(self._store.max_physical_offset)
        self._add_missing_topics()
        self.expired_offsets.restore()
        self.delivery.reload_transactions()

    async def change_to_master(self) -> None:
        """Start the work of a master. Raises RocketError; a second call continues after an error."""
        await self.sync.close()
        self._cancel_timers()
        self.register(MASTER_ID)
        self.delivery.run()

    async def change_to_slave(self) -> None:
        """Start the work of a slave. The store already rejects messages.

        Raises RocketError; a second call continues after an error.
        """
        self.register(self._slave_id)
        await self.delivery.stop()
        self.sync.start()

    def leader_changed(self) -> None:
        """Stop copying from the old master, and register again to find the new one."""
        self.sync.unfollow()
        self._cancel_timers()
        self._timers = [self._tasks.call_later(delay_s, self.register, None) for delay_s in _REGISTER_AGAIN_S]

    def close(self) -> None:
        """Stop the timers."""
        self._cancel_timers()

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _add_missing_topics(self) -> None:
        """Add topics and groups that only the log has, as the copy from the last leader may be old."""
        restored = restore_topics(self._store, self._topics)
        for what, names in (("topics", restored.created), ("queues of topics", restored.enlarged)):
            if names:
                log.warning(
                    "restored %s from the log that were not copied from the last leader: %s",
                    what,
                    ", ".join(names),
                )
        known = set(self._topics.names)
        for topic in restored.created:
            if topic.startswith(RETRY_TOPIC_PREFIX):
                self.consumers.groups.find(group_of_retries(topic, known))
