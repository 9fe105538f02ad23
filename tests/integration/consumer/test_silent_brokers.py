"""Consumers while a broker accepts requests and does not respond."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

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
    sync,
)
from rocketpy.errors import RequestTimeout
from rocketpy.protocol.codes import RequestCode
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.consumer.silent import silent_brokers
from tests.integration.pop_cases import SECOND, ServersInThread, receive, send
from tests.waiting import LIMIT_S, until

EVERYTHING = range(1 << 31)
FOREVER_MS = 600_000
POPPING = {RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION}


async def test_a_silent_broker_does_not_stop_the_extensions_of_others() -> None:
    """Long jobs of all brokers would come to a second worker, once one broker does not respond."""
    may_end = asyncio.Event()
    started: list[str] = []

    async def handle(message: MessageExt) -> None:
        started.append(message.queue.broker_name)
        await may_end.wait()

    async with silent_brokers(2) as (cluster, (silent, other)):
        silent.codes = {RequestCode.CHANGE_MESSAGE_INVISIBLETIME}
        consumer = sharing_consumer(cluster, handle, concurrency=200, invisible_ms=2000)
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


async def test_a_silent_broker_does_not_delay_acknowledgements_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would wait for the extension of a message that ended at the same time, and expire meanwhile."""
    monkeypatch.setattr("rocketpy.consumer.pop.sharing._REQUEST_TIMEOUT_MS", FOREVER_MS)
    may_end = asyncio.Event()
    started: list[MessageExt] = []

    async def handle(message: MessageExt) -> None:
        started.append(message)
        await may_end.wait()

    async with silent_brokers(2) as (cluster, (silent, other)):
        silent.codes = {RequestCode.CHANGE_MESSAGE_INVISIBLETIME}
        async with sharing_consumer(cluster, handle, invisible_ms=2000):
            await fill(cluster, 1)
            await until(lambda: len(started) == 2)
            await until(lambda: silent.counts[RequestCode.CHANGE_MESSAGE_INVISIBLETIME])
            may_end.set()
            await until(
                lambda: other.counts[RequestCode.ACK_MESSAGE] + other.counts[RequestCode.BATCH_ACK_MESSAGE]
            )
            assert len(started) == 2, "it came again before it was acknowledged"


async def fill(cluster: EmbeddedCluster, count: int) -> None:
    """Send this number of messages to each broker."""
    async with Producer("p", cluster.namesrv_address, config=ProducerConfig(batching=False)) as producer:
        for queue in await producer.fetch_publish_message_queues("T"):
            await asyncio.gather(*(producer.send(Message("T", b"x"), queue=queue) for _ in range(count)))


def sharing_consumer(
    cluster: EmbeddedCluster, handle: Callable[[MessageExt], Awaitable[None]], **settings: Any
) -> PushConsumer:
    """A consumer that shares messages, and waits for no handler when it is closed."""
    config = PushConfig(
        sharing=Sharing.MESSAGES, consume_from=ConsumeFrom.FIRST_OFFSET, close_timeout_ms=0, **settings
    )
    consumer = PushConsumer("g", cluster.namesrv_address, handle, config=config)
    consumer.subscribe("T")
    return consumer


def noting(seen: list[MessageExt]) -> Callable[[MessageExt], Awaitable[None]]:
    """A handler that notes its messages."""

    async def handle(message: MessageExt) -> None:
        seen.append(message)

    return handle


@pytest.mark.parametrize("concurrency", [1, 20])
async def test_a_broker_that_never_answers_takes_no_place(
    monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    """Its pop would hold all places of handlers, and messages of other brokers would wait."""
    monkeypatch.setattr("rocketpy.consumer.pop.sharing._REQUEST_TIMEOUT_MS", FOREVER_MS)
    seen: list[MessageExt] = []
    async with silent_brokers(2) as (cluster, (silent, _)):
        await fill(cluster, 50)
        silent.codes = POPPING
        async with sharing_consumer(cluster, noting(seen), concurrency=concurrency):
            await until(lambda: silent.counts[RequestCode.NOTIFICATION])
            await until(lambda: len(seen) == 50)
            assert len({message.queue.broker_name for message in seen}) == 1


async def test_a_broker_that_answers_no_more_takes_places_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take all places again after each timeout: other brokers had a small part of the time."""
    monkeypatch.setattr("rocketpy.consumer.pop.sharing._REQUEST_TIMEOUT_MS", 300)
    seen: list[MessageExt] = []
    async with (
        silent_brokers(2) as (cluster, (silent, _)),
        sharing_consumer(cluster, noting(seen), concurrency=2),
    ):
        await fill(cluster, 10)
        await until(lambda: len(seen) == 20)
        silent.codes = POPPING
        before = silent.counts.copy()
        await fill(cluster, 10)  # wakes its pops
        await until(lambda: silent.counts[RequestCode.NOTIFICATION] >= before[RequestCode.NOTIFICATION] + 4)
        await until(lambda: len(seen) == 30)
        popped = silent.counts[RequestCode.POP_MESSAGE] - before[RequestCode.POP_MESSAGE]
        assert popped <= 2, "one for the topic, and one for the retry topic"
        silent.codes = ()
        await until(lambda: len(seen) == 40)


@pytest.mark.parametrize(("concurrency", "timeout_ms"), [(2, FOREVER_MS), (1, 300)])
async def test_a_broker_that_only_announces_messages_leaves_places_to_others(
    monkeypatch: pytest.MonkeyPatch, concurrency: int, timeout_ms: int
) -> None:
    """A broker whose disk does not respond answers what needs no disk; its pops would hold all places."""
    monkeypatch.setattr("rocketpy.consumer.pop.sharing._REQUEST_TIMEOUT_MS", timeout_ms)
    monkeypatch.setattr("rocketpy.consumer.pop.sharing._TRIAL_PAUSE", 600)
    seen: list[MessageExt] = []
    async with silent_brokers(2) as (cluster, (silent, _)):
        await fill(cluster, 50)
        silent.codes = {RequestCode.POP_MESSAGE}
        async with sharing_consumer(cluster, noting(seen), concurrency=concurrency):
            await until(lambda: silent.counts[RequestCode.POP_MESSAGE])
            await until(lambda: len(seen) == 50)
            assert silent.counts[RequestCode.POP_MESSAGE] == 1


def simple_consumer(cluster: EmbeddedCluster, timeout_ms: int) -> SimpleConsumer:
    config = SimpleConfig(consume_from=ConsumeFrom.FIRST_OFFSET, request_timeout_ms=timeout_ms)
    consumer = SimpleConsumer("g", cluster.namesrv_address, config=config)
    consumer.subscribe("T")
    return consumer


@pytest.mark.parametrize("codes", [POPPING, {RequestCode.POP_MESSAGE}], ids=["all", "pops only"])
async def test_calls_ask_other_brokers_than_a_silent_one(codes: set[int]) -> None:
    """Each call would ask the silent broker first, until its timeout: workers had nothing to do."""
    async with silent_brokers(2) as (cluster, (silent, _)):
        await fill(cluster, 50)
        silent.codes = codes
        async with simple_consumer(cluster, 300) as consumer:
            found = await receive(consumer, 50)
            assert len({message.queue.broker_name for message in found}) == 1
            await consumer.ack_many(found)
            if codes == POPPING:
                assert silent.counts[RequestCode.POP_MESSAGE] <= 1


async def test_a_broker_that_answers_again_is_asked_again() -> None:
    """Its messages would wait while another broker always has some."""
    async with silent_brokers(2) as (cluster, (silent, _)):
        silent.codes = POPPING
        async with simple_consumer(cluster, 200) as consumer:
            await fill(cluster, 100)
            names = {message.queue.broker_name for message in await receive(consumer, 5)}
            assert len(names) == 1
            await until(lambda: silent.counts[RequestCode.NOTIFICATION] >= 2)
            assert any("no messages of T from broker" in text for text in consumer.health().problems)
            silent.codes = ()
            async with asyncio.timeout(LIMIT_S):
                while len(names) == 1:
                    names |= {message.queue.broker_name for message in await receive(consumer, 1)}
            await receive(consumer, 2)
            assert consumer.health().problems == ()


async def test_a_call_fails_when_no_broker_answers() -> None:
    """It would find nothing without an error."""
    async with silent_brokers() as (cluster, (silent,)):
        silent.codes = POPPING
        async with simple_consumer(cluster, 300) as consumer:
            for wait in (0 * SECOND, 0 * SECOND, 1 * SECOND):
                with pytest.raises(RequestTimeout):
                    await asyncio.wait_for(consumer.receive(1, wait=wait), LIMIT_S)


async def test_a_blocked_event_loop_gives_no_message_back() -> None:
    """The response is in the socket, and its message would come again, as its second delivery."""
    servers = ServersInThread()
    try:
        namesrv = servers.cluster.namesrv_address
        with sync.Producer("p", namesrv) as producer:
            async with simple_consumer(servers.cluster, 5000) as consumer:
                receiving = asyncio.create_task(consumer.receive(1, wait=1 * SECOND))
                holds = servers.cluster.brokers[0].delivery._polling.holds  # type: ignore[union-attr]
                await until(lambda: len(holds) == 1)
                producer.send(Message("T", b"x"))  # it blocks the loop, like the rest of an application
                time.sleep(2.5)  # noqa: ASYNC251
                (message,) = await receiving
                assert message.delivery_attempt == 1
                await consumer.ack(message)
    finally:
        servers.stop()


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
