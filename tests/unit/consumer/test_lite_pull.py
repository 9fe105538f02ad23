"""LitePullConsumer over memory://: polls, commits, assigned and paused queues."""

from __future__ import annotations

import asyncio

import pytest

from rocketpy import ConsumeFrom, LitePullConfig, LitePullConsumer, MessageExt, MessageQueue
from rocketpy.errors import UsageError
from rocketpy_broker import EmbeddedCluster
from tests.unit.consumer.group.members import send
from tests.waiting import LIMIT_S

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(4)]


def consumer_of(cluster: EmbeddedCluster, **settings: object) -> LitePullConsumer:
    """A consumer of group g that starts at the first messages."""
    config = LitePullConfig(consume_from=ConsumeFrom.FIRST_OFFSET, **settings)  # type: ignore[arg-type] # of any setting
    return LitePullConsumer("g", cluster.namesrv_address, config=config)


async def poll(consumer: LitePullConsumer, count: int) -> list[MessageExt]:
    """Poll until there are so many messages."""
    found: list[MessageExt] = []
    async with asyncio.timeout(LIMIT_S):
        while len(found) < count:
            found += await consumer.poll(timeout_ms=100)
    return found


async def test_polled_messages_are_committed_by_the_next_poll(cluster: EmbeddedCluster) -> None:
    """After a restart, messages in progress would be lost, or handled ones delivered a second time."""
    await send(cluster, *(b"%d" % number for number in range(4)))
    consumer = consumer_of(cluster)
    consumer.subscribe("T")
    async with consumer:
        assert {message.body for message in await poll(consumer, 4)} == {b"0", b"1", b"2", b"3"}
        assert await consumer.poll(timeout_ms=1) == []
    offsets = cluster.brokers[0].consumers.offsets
    assert offsets.queues("g", "T") == dict.fromkeys(range(4), 1)


async def test_commits_of_the_application_are_the_only_ones(cluster: EmbeddedCluster) -> None:
    """Messages would be lost when an application that commits offsets itself stops before its commit."""
    await send(cluster, *(b"%d" % number for number in range(4)))
    consumer = consumer_of(cluster, auto_commit=False, persist_interval_ms=10)
    consumer.subscribe("T")
    offsets = cluster.brokers[0].consumers.offsets
    async with consumer:
        await poll(consumer, 4)
        await consumer.poll(timeout_ms=50)
        assert sum(offsets.queues("g", "T").values()) == 0
        await consumer.commit({QUEUES[0]: 1})
        assert offsets.get("g", "T", 0) == 1
        await consumer.commit()
        assert offsets.queues("g", "T") == dict.fromkeys(range(4), 1)
        assert [await consumer.committed(queue) for queue in QUEUES] == [1] * 4


async def test_a_poll_returns_as_many_as_asked(cluster: EmbeddedCluster) -> None:
    """An application that has room for one message would have to keep the others, or lose them."""
    await send(cluster, *(b"%d" % number for number in range(4)))
    consumer = consumer_of(cluster)
    consumer.subscribe("T")
    async with consumer:
        async with asyncio.timeout(LIMIT_S):
            while not (polled := await consumer.poll(timeout_ms=100, max_count=1)):
                pass
        assert len(polled) == 1
        await consumer.commit()
        with pytest.raises(UsageError, match="max_count is 0"):
            await consumer.poll(max_count=0)
    assert sum(cluster.brokers[0].consumers.offsets.queues("g", "T").values()) == 1


async def test_assigned_queues_are_sought_and_paused(cluster: EmbeddedCluster) -> None:
    """An application that manages its queues would get messages of others, or of a paused queue."""
    await send(cluster, *(b"%d" % number for number in range(8)))
    consumer = consumer_of(cluster)
    async with consumer:
        await consumer.assign(QUEUES[:1])
        assert [message.queue_offset for message in await poll(consumer, 2)] == [0, 1]
        await consumer.seek(QUEUES[0], 1)
        assert [message.queue_offset for message in await poll(consumer, 1)] == [1]
        consumer.pause(QUEUES[:1])
        await consumer.seek(QUEUES[0], 0)
        assert await consumer.poll(timeout_ms=20) == []
        consumer.resume(QUEUES[:1])
        assert len(await poll(consumer, 2)) == 2
        with pytest.raises(UsageError):
            await consumer.seek(QUEUES[1], 0)


async def test_messages_are_iterated(cluster: EmbeddedCluster) -> None:
    """A loop over the messages of a consumer would end, or get a message twice."""
    await send(cluster, *(b"%d" % number for number in range(4)))
    consumer = consumer_of(cluster)
    consumer.subscribe("T")
    bodies = []
    async with consumer, asyncio.timeout(LIMIT_S):
        async for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 4:
                break
    assert sorted(bodies) == [b"0", b"1", b"2", b"3"]
