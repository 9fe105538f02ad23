"""Next offsets of queues whose messages have all expired, for peers that joined late.

Such a peer copies only the entries that remain. It has no entries of these queues. As the next leader it
would number their messages from 0 again, below the offsets of consumer groups. Therefore a slave requests the
next offsets from its master and keeps them in memory. Without a response, the offsets of consumer groups give
a minimum.

Source: none; a slave of RocketMQ 4.6.0 starts at 0.
"""

from __future__ import annotations

from rocketpy.errors import BrokerError
from rocketpy.protocol.bodies import TopicStatsTable
from rocketpy.protocol.codes import RequestCode
from rocketpy_broker.replication.dledger.ledger_store import LedgerStore
from rocketpy_broker.services.cluster.slave_sync import RequestTable
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.metadata.topics import TopicTable, queue_count


class ExpiredQueueOffsets:
    """Next offsets of expired queues in one broker."""

    def __init__(self, store: LedgerStore, topics: TopicTable, offsets: ConsumerOffsets) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._requested: dict[str, int] = {}
        """Topic -> start of the log when the master was asked. The log has all later entries."""

    async def copy_from_master(self, request: RequestTable) -> None:
        """Request unknown next offsets from the master. Raises RocketError."""
        begin = self._store.min_physical_offset
        for topic in self._unknown(begin):
            try:
                body = await request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
            except BrokerError:  # the master does not have the topic
                body = b"{}"
            if not body:
                return
            self._requested[topic] = begin
            for queue, offsets in TopicStatsTable.decode(body).offset_table.items():
                self._next_offsets[queue.topic, queue.queue_id] = offsets.max_offset

    def knows(self, topic: str) -> bool:
        """Whether the offsets of a topic are known, and no entries have expired since."""
        return self._requested.get(topic) == self._store.min_physical_offset

    def _unknown(self, begin: int) -> list[str]:
        """Return topics with an empty queue, if the log lacks entries before `begin`."""
        if begin <= 0:
            return []
        return [
            topic
            for topic in self._topics.names
            if self._requested.get(topic) != begin
            and any(self._is_empty(topic, at) for at in self._queues(topic))
        ]

    def _queues(self, topic: str) -> range:
        config = self._topics.get(topic)
        return range(0 if config is None else queue_count(config))

    def _is_empty(self, topic: str, queue_id: int) -> bool:
        queue = self._store.queues.queues.get((topic, queue_id))
        return queue is None or queue.max_physical_offset < 0

    def restore(self) -> None:
        """Set the next offsets of empty queues when this broker becomes the leader. Raises StoreError."""
        if self._store.min_physical_offset <= 0:
            return
        next_offsets = dict(self._next_offsets)
        for key, queues in self._offsets.snapshot().offset_table.items():
            topic, _, _ = key.rpartition("@")
            known = self._queues(topic)
            for queue_id, offset in queues.items():
                if queue_id in known:
                    next_offsets[topic, queue_id] = max(offset, next_offsets.get((topic, queue_id), 0))
        for (topic, queue_id), offset in next_offsets.items():
            if offset > 0 and self._is_empty(topic, queue_id):
                self._store.begin_queue(topic, queue_id, offset)
