"""Handlers that close their own consumer, or move its offsets: none waits for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rocketpy import ConsumeFrom, MessageExt, Producer, PushConfig, PushConsumer
from rocketpy.sync import PushConsumer as BlockingPushConsumer
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.sdk_groups import FIRST, committed, send, texts
from tests.waiting import LIMIT_S, until

LATER_MS = (LIMIT_S + 30) * 1000
"""Longer than a case waits."""

Closer = Callable[[PushConsumer], Awaitable[object]]


async def directly(consumer: PushConsumer) -> object:
    return await consumer.close()


async def among_others(consumer: PushConsumer) -> object:
    closed, _ = await asyncio.gather(consumer.close(), asyncio.sleep(0))
    return closed


async def with_timeout(consumer: PushConsumer) -> object:
    return await asyncio.wait_for(consumer.close(), LIMIT_S)


async def by_task(consumer: PushConsumer) -> object:
    closing = asyncio.ensure_future(consumer.close())
    return await closing


def configured(orderly: bool) -> PushConfig:
    return PushConfig(orderly=orderly, consume_from=ConsumeFrom.FIRST_OFFSET, close_timeout_ms=LATER_MS)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("close", [directly, among_others, with_timeout, by_task])
async def test_an_async_handler_closes_its_consumer(
    cluster: EmbeddedCluster, producer: Producer, close: Closer, orderly: bool
) -> None:
    """The close would wait for the handler, and the handler for the close; its message came again."""
    await send(producer, *texts("last", 1))
    returned: list[object] = []

    async def handle(_: MessageExt) -> None:
        returned.append(await close(consumer))

    consumer = PushConsumer("g", cluster.namesrv_address, handler=handle, config=configured(orderly))
    consumer.subscribe("T")
    await consumer.start()
    async with asyncio.timeout(LIMIT_S):
        await until(lambda: returned)
        assert await consumer.close()
    assert returned == [False]
    assert committed(cluster) == 1


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_handler_on_a_thread_closes_its_consumer(
    cluster: EmbeddedCluster, producer: Producer, orderly: bool
) -> None:
    """As above, for a plain function that calls into the event loop."""
    await send(producer, *texts("last", 1))
    loop = asyncio.get_running_loop()
    returned: list[object] = []

    def handle(_: MessageExt) -> None:
        returned.append(asyncio.run_coroutine_threadsafe(consumer.close(), loop).result(LIMIT_S))

    consumer = PushConsumer("g", cluster.namesrv_address, handler=handle, config=configured(orderly))
    consumer.subscribe("T")
    await consumer.start()
    async with asyncio.timeout(LIMIT_S):
        await until(lambda: returned)
        assert await consumer.close()
    assert (returned, committed(cluster)) == ([False], 1)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_handler_closes_a_blocking_consumer(
    cluster: EmbeddedCluster, producer: Producer, orderly: bool
) -> None:
    """As above, for the blocking consumer."""
    await send(producer, *texts("last", 1))
    returned: list[object] = []

    def handle(_: MessageExt) -> None:
        returned.append(consumer.close())

    consumer = BlockingPushConsumer("g", cluster.namesrv_address, handler=handle, config=configured(orderly))
    consumer.subscribe("T")
    await asyncio.to_thread(consumer.start)
    async with asyncio.timeout(LIMIT_S):
        await until(lambda: returned)
        assert await asyncio.to_thread(consumer.close)
    assert (returned, committed(cluster)) == ([False], 1)


async def test_a_task_outlives_its_handler_and_closes(cluster: EmbeddedCluster, producer: Producer) -> None:
    """A task that a handler has started could not wait for the close, and the program would end too early."""
    await send(producer, *texts("last", 1))
    handled = asyncio.Event()
    closing: list[asyncio.Task[bool]] = []

    async def close() -> bool:
        await until(lambda: committed(cluster) == 1)
        return await consumer.close()

    async def handle(_: MessageExt) -> None:
        closing.append(asyncio.ensure_future(close()))
        handled.set()

    config = PushConfig(consume_from=FIRST, persist_interval_ms=10, close_timeout_ms=LATER_MS)
    consumer = PushConsumer("g", cluster.namesrv_address, handler=handle, config=config)
    consumer.subscribe("T")
    await consumer.start()
    async with asyncio.timeout(LIMIT_S):
        await handled.wait()
        assert await closing[0]
    assert consumer._closing is not None
    assert consumer._closing.done()


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_handler_moves_its_own_queue(
    cluster: EmbeddedCluster, producer: Producer, orderly: bool
) -> None:
    """A handler that repeats its queue would wait for its own end, forever."""
    await send(producer, *texts("again", 1))
    seen: list[Any] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.queue_offset)
        if len(seen) == 1:
            await consumer.seek(message.queue, 0)

    consumer = PushConsumer("g", cluster.namesrv_address, handler=handle, config=configured(orderly))
    consumer.subscribe("T")
    async with asyncio.timeout(LIMIT_S), consumer:
        await until(lambda: len(seen) == 2)
    assert seen == [0, 0]
