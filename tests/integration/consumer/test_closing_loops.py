"""A SimpleConsumer is closed while the bodies of its loops work on messages."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rocketpy import ClientConfig, ConsumeFrom, MessageExt, SimpleConfig, SimpleConsumer, sync
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.pop_cases import FIRST, MINUTE, SECOND, ServersInThread, receive, send
from tests.waiting import LIMIT_S, until

LATER_MS = (LIMIT_S + 30) * 1000
"""Longer than a case waits."""

Step = Callable[[SimpleConsumer, MessageExt], Awaitable[object]]


def configured(close_timeout_ms: int = LATER_MS) -> SimpleConfig:
    return SimpleConfig(
        consume_from=ConsumeFrom.FIRST_OFFSET, extend_ms=3000, close_timeout_ms=close_timeout_ms
    )


def make(cluster: EmbeddedCluster, close_timeout_ms: int = LATER_MS) -> SimpleConsumer:
    consumer = SimpleConsumer("g", cluster.namesrv_address, config=configured(close_timeout_ms))
    consumer.subscribe("T")
    return consumer


@asynccontextmanager
async def another(cluster: EmbeddedCluster) -> AsyncIterator[SimpleConsumer]:
    """Another member of the group."""
    client = ClientConfig(instance_name="other")
    async with SimpleConsumer("g", cluster.namesrv_address, config=FIRST, client=client) as other:
        other.subscribe("T")
        yield other


async def by_itself(_: SimpleConsumer, __: MessageExt) -> None:
    """The end of the body acknowledges its message."""


async def by_ack(consumer: SimpleConsumer, message: MessageExt) -> None:
    await consumer.ack(message)
    await asyncio.Event().wait()


async def by_ack_many(consumer: SimpleConsumer, message: MessageExt) -> None:
    await consumer.ack_many([message])
    await asyncio.Event().wait()


@pytest.mark.parametrize("end", [by_itself, by_ack, by_ack_many])
async def test_close_waits_for_a_body(cluster: EmbeddedCluster, end: Step) -> None:
    """Its message would go to another member while it is worked on, and its acknowledgement would fail."""
    consumer = make(cluster)
    await consumer.start()
    began, may_end = asyncio.Event(), asyncio.Event()

    async def loop() -> None:
        async for message in consumer:
            began.set()
            await may_end.wait()
            await end(consumer, message)

    await send(cluster.namesrv_address, "T", "x")
    looping = asyncio.ensure_future(loop())
    await began.wait()
    closing = asyncio.ensure_future(consumer.close())
    async with another(cluster) as other:
        wait = 4 * SECOND if end is by_itself else SECOND  # once longer than the invisible time
        assert await other.receive(1, MINUTE, wait) == []
        assert not closing.done()
        may_end.set()
        assert await closing
        assert await other.receive(1, MINUTE, 2 * SECOND) == []
    looping.cancel()
    await asyncio.gather(looping, return_exceptions=True)


async def test_close_gives_back_what_takes_too_long(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that stops could wait for ever, or report that all was done."""
    consumer = make(cluster, close_timeout_ms=100)
    await consumer.start()
    began = asyncio.Event()

    async def loop() -> None:
        async for _ in consumer:
            began.set()
            await asyncio.Event().wait()

    await send(cluster.namesrv_address, "T", "x")
    looping = asyncio.ensure_future(loop())
    await began.wait()
    assert not await consumer.close()
    assert "closed while loops worked on" in caplog.text
    async with another(cluster) as other:
        (message,) = await receive(other, 1)
        assert message.delivery_attempt == 2
    looping.cancel()
    await asyncio.gather(looping, return_exceptions=True)


async def test_close_gives_back_at_once_what_no_body_has(cluster: EmbeddedCluster) -> None:
    """A message that arrives during the close would be hidden from other members until its end."""
    consumer = make(cluster)
    await consumer.start()
    seen: list[bytes] = []
    may_end = asyncio.Event()

    async def loop() -> None:
        async for message in consumer:
            seen.append(message.body)
            await may_end.wait()

    await send(cluster.namesrv_address, "T", "works")
    loops = [asyncio.ensure_future(loop()) for _ in range(2)]
    await until(lambda: seen)
    closing = asyncio.ensure_future(consumer.close())
    await asyncio.sleep(0)
    await send(cluster.namesrv_address, "T", "late")
    async with another(cluster) as other:
        (message,) = await receive(other, 1)
        assert message.body == b"late"
        assert not closing.done()
        may_end.set()
        assert await closing
    await asyncio.gather(*loops)
    assert seen == [b"works"]


async def directly(consumer: SimpleConsumer, _: MessageExt) -> object:
    return await consumer.close()


async def with_timeout(consumer: SimpleConsumer, _: MessageExt) -> object:
    return await asyncio.wait_for(consumer.close(), LIMIT_S)


async def among_others(consumer: SimpleConsumer, _: MessageExt) -> object:
    closed, _ignored = await asyncio.gather(consumer.close(), asyncio.sleep(0))
    return closed


async def after_an_acknowledgement(consumer: SimpleConsumer, message: MessageExt) -> object:
    await consumer.ack(message)
    return await consumer.close()


@pytest.mark.parametrize("close", [directly, with_timeout, among_others, after_an_acknowledgement])
async def test_a_body_closes_its_consumer(cluster: EmbeddedCluster, close: Step) -> None:
    """The close would wait for the body, and the body for the close."""
    consumer = make(cluster)
    await consumer.start()
    await send(cluster.namesrv_address, "T", "x")
    async with asyncio.timeout(LIMIT_S):
        async for message in consumer:
            assert await close(consumer, message)
    async with another(cluster) as other:
        again = await other.receive(1, MINUTE, 3 * SECOND)
        assert len(again) == (close is not after_an_acknowledgement)


async def test_two_bodies_close_their_consumer(cluster: EmbeddedCluster) -> None:
    """The close would wait for the second body, and that one for the close."""
    consumer = make(cluster)
    await consumer.start()
    both = asyncio.Barrier(2)

    async def loop() -> None:
        async for _ in consumer:
            await both.wait()
            assert await consumer.close()

    await send(cluster.namesrv_address, "T", *"ab")
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(loop(), loop())


async def test_a_loop_in_a_loop_closes_both_consumers(cluster: EmbeddedCluster) -> None:
    """The close of the outer one would wait for the body that calls it."""
    await send(cluster.namesrv_address, "T", "outer")
    await send(cluster.namesrv_address, "U", "inner")
    outer = make(cluster)
    client = ClientConfig(instance_name="inner")
    inner = SimpleConsumer("h", cluster.namesrv_address, config=configured(), client=client)
    inner.subscribe("U")
    async with asyncio.timeout(LIMIT_S), outer, inner:
        async for _ in outer:
            async for _ in inner:
                assert await outer.close()
                assert await inner.close()


async def break_off(consumer: SimpleConsumer) -> None:
    async for _ in consumer:
        break


async def fail(consumer: SimpleConsumer) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async for _ in consumer:
            raise ZeroDivisionError


async def leave_open(consumer: SimpleConsumer) -> None:
    opened.append(aiter(consumer))
    await anext(opened[-1])


opened: list[Any] = []
"""Iterators that nobody continues."""


@pytest.mark.parametrize("leave", [break_off, fail, leave_open])
async def test_close_waits_for_no_loop_that_was_left(
    cluster: EmbeddedCluster, leave: Callable[[SimpleConsumer], Awaitable[None]]
) -> None:
    """The program would take `close_timeout_ms` to end, for nothing."""
    await send(cluster.namesrv_address, "T", "x")
    async with asyncio.timeout(LIMIT_S):
        async with make(cluster) as consumer:
            await leave(consumer)
        async with another(cluster) as other:
            await receive(other, 1)
    opened.clear()


@pytest.mark.parametrize("closes", ["another thread", "the body"])
def test_blocking_loops(closes: str) -> None:
    """As for the asyncio form: a message would be worked on twice, or the close would wait for nothing."""
    servers = ServersInThread()
    may_end = threading.Event()
    try:
        namesrv = servers.cluster.namesrv_address
        consumer = sync.SimpleConsumer("g", namesrv, config=configured())
        consumer.subscribe("T")
        consumer.start()
        servers.run(send(namesrv, "T", "x"))
        began = threading.Event()
        closed: list[bool] = []

        def loop() -> None:
            for _ in consumer:
                began.set()
                may_end.wait(LIMIT_S)
                if closes == "the body":
                    closed.append(consumer.close())

        looping = threading.Thread(target=loop)
        looping.start()
        assert began.wait(LIMIT_S)
        if closes == "the body":
            may_end.set()
        else:
            closing = threading.Thread(target=lambda: closed.append(consumer.close()))
            closing.start()
            client = ClientConfig(instance_name="other")
            with sync.SimpleConsumer("g", namesrv, config=FIRST, client=client) as other:
                other.subscribe("T")
                assert other.receive(1, MINUTE, 2 * SECOND) == []
                assert closing.is_alive()
                may_end.set()
                closing.join(LIMIT_S)
                assert other.receive(1, MINUTE, 2 * SECOND) == []
        looping.join(LIMIT_S)
        assert closed == [True]
    finally:
        may_end.set()
        servers.stop()


async def test_close_does_not_wait_for_its_caller_that_steps_in_other_tasks(cluster: EmbeddedCluster) -> None:
    """`wait_for(anext(...))` makes a task on Python 3.11; `close` would wait for its caller."""
    consumer = make(cluster)
    await consumer.start()
    await send(cluster.namesrv_address, "T", "x")
    messages = aiter(consumer)

    async def step() -> MessageExt:
        return await anext(messages)

    message = await asyncio.create_task(step())
    assert await asyncio.wait_for(consumer.close(), LIMIT_S)
    assert message.receipt is None
