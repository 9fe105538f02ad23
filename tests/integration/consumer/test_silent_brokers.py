"""Consumers while a broker accepts requests and does not respond."""

from __future__ import annotations

import asyncio

import pytest

from rocketpy import (
    ConsumeFrom,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
    Sharing,
    SimpleConfig,
    SimpleConsumer,
)
from rocketpy.protocol.codes import RequestCode
from tests.integration.consumer.silent import silent_brokers
from tests.integration.pop_cases import send
from tests.waiting import LIMIT_S, until

EVERYTHING = range(1 << 31)
FOREVER_MS = 600_000


async def test_a_silent_broker_does_not_stop_the_extensions_of_others() -> None:
    """Long jobs of all brokers would come to a second worker, once one broker does not respond."""
    may_end = asyncio.Event()
    started: list[str] = []

    async def handle(message: MessageExt) -> None:
        started.append(message.queue.broker_name)
        await may_end.wait()

    config = PushConfig(
        sharing=Sharing.MESSAGES,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        concurrency=200,
        invisible_ms=2000,
        close_timeout_ms=0,
    )
    async with silent_brokers(2) as (cluster, (silent, other)):
        silent.codes = {RequestCode.CHANGE_MESSAGE_INVISIBLETIME}
        consumer = PushConsumer("g", cluster.namesrv_address, handle, config=config)
        consumer.subscribe("T")
        async with (
            Producer("p", cluster.namesrv_address, config=ProducerConfig(batching=False)) as producer,
            consumer,
        ):
            queues = sorted(await producer.fetch_publish_message_queues("T"))
            for _ in range(70):  # more than are extended together
                await producer.send(Message("T", b"x"), queue=queues[0])
            await until(lambda: len(started) >= 70)
            await producer.send(Message("T", b"x"), queue=queues[1])
            await until(lambda: other.counts[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] >= 4)
            assert started.count(queues[1].broker_name) == 1
            may_end.set()


async def test_close_of_a_simple_consumer_does_not_wait_for_a_silent_broker() -> None:
    """A worker that stops would be killed by its service manager."""
    config = SimpleConfig(
        consume_from=ConsumeFrom.FIRST_OFFSET, request_timeout_ms=FOREVER_MS, extend_ms=2000
    )
    async with silent_brokers() as (cluster, (silent,)):
        await send(cluster.namesrv_address, "T", "x")
        consumer = SimpleConsumer("g", cluster.namesrv_address, config=config)
        consumer.subscribe("T")
        await consumer.start()
        messages = aiter(consumer)
        await anext(messages)
        silent.codes = {RequestCode.CHANGE_MESSAGE_INVISIBLETIME}
        before = silent.counts[RequestCode.CHANGE_MESSAGE_INVISIBLETIME]
        await until(lambda: silent.counts[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] > before)
        silent.codes = EVERYTHING
        assert await asyncio.wait_for(consumer.close(), LIMIT_S)


@pytest.mark.parametrize("sharing", Sharing)
async def test_close_of_a_push_consumer_does_not_wait_for_a_silent_broker(
    monkeypatch: pytest.MonkeyPatch, sharing: Sharing
) -> None:
    """A worker that stops would be killed by its service manager."""
    monkeypatch.setattr("rocketpy.consumer.pop.sharing._REQUEST_TIMEOUT_MS", FOREVER_MS)
    monkeypatch.setattr("rocketpy.consumer.fetch.consumer_api._OFFSET_TIMEOUT_MS", FOREVER_MS)
    started: list[MessageExt] = []

    async def handle(messages: list[MessageExt]) -> None:
        started.extend(messages)
        if len(started) > 1:
            await asyncio.Event().wait()

    config = PushConfig(
        sharing=sharing,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        concurrency=1,
        batch_size=2,
        invisible_ms=2000,
        close_timeout_ms=0,
    )
    async with silent_brokers() as (cluster, (silent,)):
        consumer = PushConsumer("g", cluster.namesrv_address, batch_handler=handle, config=config)
        consumer.subscribe("T")
        await consumer.start()
        await send(cluster.namesrv_address, "T", "a")
        await until(lambda: len(started) == 1)
        await send(cluster.namesrv_address, "T", "b")
        await until(lambda: len(started) == 2)
        await send(cluster.namesrv_address, "T", "c")
        await until(lambda: sum(one.process_queue.count for one in consumer.member.pullers.values()) == 2)
        silent.codes = EVERYTHING
        assert not await asyncio.wait_for(consumer.close(), LIMIT_S)


async def test_close_of_a_polling_consumer_does_not_wait_for_a_silent_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that stops would be killed by its service manager."""
    monkeypatch.setattr("rocketpy.consumer.fetch.consumer_api._OFFSET_TIMEOUT_MS", FOREVER_MS)
    config = LitePullConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
    async with silent_brokers() as (cluster, (silent,)):
        consumer = LitePullConsumer("g", cluster.namesrv_address, config=config)
        consumer.subscribe("T")
        await consumer.start()
        await send(cluster.namesrv_address, "T", "a")
        async with asyncio.timeout(LIMIT_S):
            while not await consumer.poll():
                pass
        silent.codes = EVERYTHING
        assert await asyncio.wait_for(consumer.close(), LIMIT_S)
