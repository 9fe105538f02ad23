"""What a broker does when its DLedger group makes it the master, or a slave.

Source: BrokerController.changeToMaster, changeToSlave of RocketMQ 4.6.0. Differs: a new master knows every
topic and group of which there are messages; 4.6.0's answers TOPIC_NOT_EXIST until the next copy (QUIRKS 68).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from rocketpy.protocol.bodies import MASTER_ID, RETRY_TOPIC_PREFIX
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.broker.consumer_services import ConsumerServices
from rocketpy_broker.broker.delivery_services import DeliveryServices
from rocketpy_broker.broker.expired_queue_offsets import ExpiredQueueOffsets
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.services.cluster.registration import Registrar
from rocketpy_broker.services.cluster.slave_sync import SlaveSync
from rocketpy_broker.services.metadata.lost_state import restore_topics
from rocketpy_broker.services.metadata.topics import TopicTable
from rocketpy_broker.store import MessageStore

log = logging.getLogger("rocketpy.broker.dledger")

_REGISTER_AGAIN_S: Final = (0.5, 2.0, 5.0, 10.0)
"""A slave asks name servers for its new master so long after it has heard of one: that one registers, too."""


class RoleChangeHandler:
    """Changes the role of a broker. registrar: set once the broker registers."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        consumers: ConsumerServices,
        deferred: DeliveryServices,
        sync: SlaveSync,
        expired_offsets: ExpiredQueueOffsets,
        tasks: Tasks,
    ) -> None:
        self._slave_id = config.dledger.slave_id
        self._store = store
        self._topics = topics
        self._consumers = consumers
        self._deferred = deferred
        self._sync = sync
        self._tasks = tasks
        self._expired_offsets = expired_offsets
        self.registrar: Registrar | None = None
        self._timers: list[asyncio.TimerHandle] = []

    def prepare_master(self) -> None:
        """Read what a master must know; messages are accepted once this returns. Raises RocketError."""
        self._add_missing_topics()
        self._expired_offsets.restore()
        self._deferred.reload()

    async def change_to_master(self) -> None:
        """Start the work of a master."""
        await self._sync.close()
        self._cancel_timers()
        self._register(MASTER_ID)
        self._deferred.run()

    async def change_to_slave(self) -> None:
        """Start the work of a slave; the store rejects messages by now."""
        self._register(self._slave_id)
        await self._deferred.close()
        self._sync.start()

    def leader_changed(self) -> None:
        """Find the new master, as another peer leads than before."""
        self._sync.forget()
        self._cancel_timers()
        loop = asyncio.get_running_loop()
        self._timers = [
            loop.call_later(delay_s, self._tasks.run, self._register_again) for delay_s in _REGISTER_AGAIN_S
        ]

    def close(self) -> None:
        """Ask no more."""
        self._cancel_timers()

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _register_again(self) -> None:
        if self.registrar is not None:
            self._register(self.registrar.broker_id)

    def _register(self, broker_id: int) -> None:
        if self.registrar is not None:
            self.registrar.refresh(broker_id)

    def _add_missing_topics(self) -> None:
        """Know the topics and groups that only the log knows; the copy of the last leader's may be old."""
        made = restore_topics(self._store, self._topics)
        if made:
            log.warning("topics were not copied from the last leader and are made again: %s", ", ".join(made))
        for topic in made:
            if topic.startswith(RETRY_TOPIC_PREFIX):
                self._consumers.groups.find(topic.removeprefix(RETRY_TOPIC_PREFIX))
