"""Messages that the broker itself puts into a queue, when their topic has fewer queues than was expected."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from rocketpy import ConsumeResult, LocalTransactionState, Message, Producer
from rocketpy.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import CreateTopicRequestHeader
from rocketpy_broker import Broker, EmbeddedCluster
from tests.integration.raw_client import RawClient
from tests.integration.sdk_groups import SETTINGS, Seen, consuming
from tests.waiting import until

COUNT = 24


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """A broker with topic T of four queues."""
    async with EmbeddedCluster(settings=SETTINGS) as running:
        await running.brokers[0].topics.update(queues("T", 4))
        yield running


@pytest.fixture
def broker(cluster: EmbeddedCluster) -> Broker:
    return cluster.brokers[0]


def queues(topic: str, reads: int, writes: int | None = None) -> TopicConfig:
    """Return a topic with these numbers of queues."""
    return TopicConfig(
        topic_name=topic, read_queue_nums=reads, write_queue_nums=reads if writes is None else writes
    )


@pytest.mark.parametrize(("reads", "writes"), [(1, 1), (2, 4), (4, 2)])
async def test_every_retry_is_delivered(
    cluster: EmbeddedCluster, broker: Broker, reads: int, writes: int
) -> None:
    """A part of the failed messages would be stored in queues that no consumer reads."""
    await broker.topics.update(queues("%RETRY%g", reads, writes))
    await broker.consumers.groups.update(SubscriptionGroupConfig(group_name="g", retry_queue_nums=4))
    failing = Seen(lambda message: ConsumeResult.LATER if not message.reconsume_times else None)
    async with consuming(cluster, failing), Producer("p", cluster.namesrv_address) as producer:
        for number in range(COUNT):
            await producer.send(Message("T", b"%d" % number))
        await until(lambda: len(failing.bodies) == COUNT and set(failing.bodies.values()) == {2})


@pytest.mark.parametrize("reads", [0, 1])
async def test_mqadmin_adds_queues_to_a_retry_topic(broker: Broker, reads: int) -> None:
    """After updateSubGroup -q 4, retries would be stored in queues that the retry topic does not have."""
    await broker.topics.update(queues("%RETRY%g", reads))
    async with await RawClient.open(str(broker.address)) as client:
        for retry_queues in (4, 2):
            body = SubscriptionGroupConfig(group_name="g", retry_queue_nums=retry_queues).encode()
            response = await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
            assert response.code == ResponseCode.SUCCESS
            assert broker.topics.get("%RETRY%g") == queues("%RETRY%g", 4)
        body = SubscriptionGroupConfig(group_name="bad/name", retry_queue_nums=8).encode()
        response = await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        assert response.code != ResponseCode.SUCCESS
    group = broker.consumers.groups.get("g")
    assert group is not None
    assert group.retry_queue_nums == 2


async def test_committed_messages_are_delivered(cluster: EmbeddedCluster, broker: Broker) -> None:
    """A transaction that was open while its topic lost queues would commit messages that nobody reads."""
    shrunk = asyncio.Event()
    open_transactions: list[Message] = []

    async def work(message: Message) -> LocalTransactionState:
        open_transactions.append(message)
        await shrunk.wait()
        return LocalTransactionState.COMMIT

    async with Producer("p", cluster.namesrv_address) as producer:
        producer.check_transactions(lambda _: LocalTransactionState.UNKNOWN)
        sends = [
            asyncio.ensure_future(
                producer.send_in_transaction(Message("T", b"%d" % number), local_transaction=work)
            )
            for number in range(8)
        ]
        await until(lambda: len(open_transactions) == 8)
        await broker.topics.update(queues("T", 1))
        shrunk.set()
        await asyncio.gather(*sends)
        seen = Seen()
        async with consuming(cluster, seen):
            await seen.until(8)


async def test_a_topic_that_loses_queues_is_logged(
    cluster: EmbeddedCluster, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """UpdateTopic with fewer queues would make messages unreadable, and nobody would be told."""
    caplog.set_level(logging.WARNING, "rocketpy.broker.admin")

    async def update(reads: int, writes: int) -> list[str]:
        header = CreateTopicRequestHeader(
            topic="T",
            default_topic="TBW102",
            read_queue_nums=reads,
            write_queue_nums=writes,
            perm=6,
            topic_filter_type="SINGLE_TAG",
        )
        caplog.clear()
        async with await RawClient.open(str(broker.address)) as client:
            assert (await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0
        return [record.getMessage().partition(": ")[2] for record in caplog.records]

    assert await update(6, 6) == []
    assert await update(4, 4) == []  # the others have no messages
    (said,) = await update(2, 3)
    assert said.startswith("consumers do not read the messages in 1 other queues, 2 to 2, until")
    await update(4, 4)
    async with Producer("p", cluster.namesrv_address) as producer:
        for queue in await producer.fetch_publish_message_queues("T"):
            await producer.send(Message("T", b"x"), queue=queue)
    broker.store.dispatch()
    assert await update(4, 2) == []
    (said,) = await update(2, 2)
    assert said.startswith("consumers do not read the messages in 2 other queues, 2 to 3, until")
