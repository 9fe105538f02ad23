"""Where queues go on whose messages have all expired, on a peer that never had them.

A peer that joins its group late copies the entries that are left. Of a queue without any it knows nothing;
as the next leader it would number its messages from 0 again, below what groups have consumed. So a slave
asks its master. What it is told is kept in memory; where it was not, the groups' offsets say how far
a queue must have been. Source: none; a slave of RocketMQ 4.6.0 begins at 0.
"""

from __future__ import annotations

from rocketpy.errors import BrokerError
from rocketpy.protocol.bodies import TopicStatsTable
from rocketpy.protocol.codes import RequestCode
from rocketpy_broker.replication.dledger.ledger_store import LedgerStore
from rocketpy_broker.services.cluster.slave_sync import Ask
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.metadata.topics import TopicTable


class ExpiredQueueOffsets:
    """What one broker knows of such queues."""

    def __init__(self, store: LedgerStore, topics: TopicTable, offsets: ConsumerOffsets) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._asked: dict[str, int] = {}
        """Where the log began here when the master was asked, by topic: what came later is here."""

    async def copy_from_master(self, ask: Ask) -> None:
        """Ask the master for what is not known here. Raises RocketError."""
        begin = self._store.min_physical_offset
        for topic in self._unknown(begin):
            try:
                answer = await ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
            except BrokerError:  # it has no such topic
                answer = b"{}"
            if not answer:
                return
            self._asked[topic] = begin
            for queue, offsets in TopicStatsTable.decode(answer).offset_table.items():
                self._next_offsets[queue.topic, queue.queue_id] = offsets.max_offset

    def knows(self, topic: str) -> bool:
        """Whether the master was asked about that topic, and nothing was lost here since."""
        return self._asked.get(topic) == self._store.min_physical_offset

    def _unknown(self, begin: int) -> list[str]:
        """Topics with a queue that is empty here, while the log lacks what came before `begin`."""
        if begin <= 0:
            return []
        return [
            topic
            for topic in self._topics.names
            if self._asked.get(topic) != begin
            and any(self._is_empty(topic, at) for at in self._queues(topic))
        ]

    def _queues(self, topic: str) -> range:
        config = self._topics.get(topic)
        return range(0 if config is None else max(config.read_queue_nums, config.write_queue_nums))

    def _is_empty(self, topic: str, queue_id: int) -> bool:
        queue = self._store.queues.queues.get((topic, queue_id))
        return queue is None or queue.max_physical_offset < 0

    def restore(self) -> None:
        """Let the queues that are empty here go on where they were, as this broker leads now.

        Raises StoreError.
        """
        if self._store.min_physical_offset <= 0:
            return
        next_offsets = dict(self._next_offsets)
        for key, queues in self._offsets.snapshot().offset_table.items():
            topic, _, _ = key.rpartition("@")
            known = self._queues(topic)
            for queue_id, offset in queues.items():
                if queue_id in known:
                    next_offsets[topic, queue_id] = max(offset, next_offsets.get((topic, queue_id), 0))
        for (topic, queue_id), number in next_offsets.items():
            if number > 0 and self._is_empty(topic, queue_id):
                self._store.begin_queue(topic, queue_id, number)
