"""ExpiredQueueOffsets: the next offsets of queues of which a late peer has no entries."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from rocketpy.errors import BrokerError
from rocketpy.protocol.bodies import MessageQueue, TopicConfig, TopicOffset, TopicStatsTable
from rocketpy.protocol.codes import ResponseCode
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.broker.expired_queue_offsets import ExpiredQueueOffsets
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.replication.dledger.ledger_store import LedgerStore
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.metadata.topics import TopicTable
from rocketpy_broker.store import StoreConfig


async def test_a_topic_that_the_master_lacks_does_not_hide_the_others(tmp_path: Path) -> None:
    """As the next leader, the peer would number messages from 0 again, below the offsets of its groups."""
    topics = TopicTable(
        BrokerConfig(store=StoreConfig(root=tmp_path), name="b"), tmp_path / "topics.json", Tasks("a broker")
    )
    for name in ("A", "B"):
        await topics.update(TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1))
    begun: dict[tuple[str, int], int] = {}
    store: Any = SimpleNamespace(
        min_physical_offset=4096,
        queues=SimpleNamespace(queues={}),
        begin_queue=lambda topic, queue_id, offset: begun.update({(topic, queue_id): offset}),
    )
    offsets = ConsumerOffsets(tmp_path / "offsets.json")
    offsets.commit("g", "B", 0, 7)
    offsets.commit("g", "C", 0, 9)  # of a deleted topic
    expired = ExpiredQueueOffsets(cast(LedgerStore, store), topics, offsets)
    asked: list[str] = []

    async def request(_code: int, fields: dict[str, str] | None) -> bytes:
        topic = (fields or {})["topic"]
        asked.append(topic)
        if topic == "A":
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, "no topic A", "h:1")
        found = (
            {MessageQueue(topic, "b", 0): TopicOffset(min_offset=5, max_offset=12)} if topic == "B" else {}
        )
        return TopicStatsTable(offset_table=found).encode()

    for _ in range(2):
        await expired.copy_from_master(request)
    assert asked.count("A") == asked.count("B") == 1  # again only when more entries have expired
    assert expired.knows("A")
    assert expired.knows("B")
    expired.restore()
    assert begun == {("B", 0): 12}
    store.min_physical_offset = 8192
    assert not expired.knows("B")
    await expired.copy_from_master(request)
    assert asked.count("B") == 2
