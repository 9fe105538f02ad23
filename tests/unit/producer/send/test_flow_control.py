"""Limits of messages in flight: which sends are accepted, which wait, and in which order."""

from __future__ import annotations

import asyncio

import pytest

from rocketpy.errors import ClientClosed, FlowControlled
from rocketpy.producer.send.flow_control import InFlightLimiter


def filled(count: int, size: int) -> InFlightLimiter:
    """A limiter of 4 messages and 100 bytes with this usage."""
    limiter = InFlightLimiter(4, 100)
    limiter.count, limiter.bytes = count, size
    return limiter


@pytest.mark.parametrize(
    ("count", "held", "size", "refused"),
    [
        (0, 0, 100, False), (0, 0, 500, False), (1, 10, 90, False), (1, 10, 91, True),
        (3, 50, 50, False), (4, 50, 1, True), (5, 50, 1, True),
    ],
)  # fmt: skip
async def test_which_sends_wait(count: int, held: int, size: int, *, refused: bool) -> None:
    """A producer would take more memory than its limits allow, or wait below them."""
    limiter = filled(count, held)
    assert limiter.would_block(size) is refused
    waiting = asyncio.ensure_future(limiter.wait(size, 60_000))
    for _ in range(5):
        await asyncio.sleep(0)
    assert waiting.done() is not refused
    limiter.release(held, count)
    assert 1 <= await waiting <= 60_000


async def test_the_longest_waiter_is_next() -> None:
    """A long message would wait forever while short ones pass it."""
    limiter = filled(4, 100)
    order: list[int] = []

    async def come(size: int) -> None:
        await limiter.wait(size, 60_000)
        order.append(size)
        limiter.acquire(size)

    tasks = [asyncio.ensure_future(come(size)) for size in (80, 30, 10)]
    await asyncio.sleep(0)
    assert limiter.would_block(1)
    limiter.release(50, 2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == []  # 50 bytes are free, and the first waiter needs 80
    limiter.release(50, 2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == [80]  # 30 more would be 110
    limiter.release(80)
    await asyncio.gather(*tasks)
    assert order == [80, 30, 10]
    assert (limiter.count, limiter.bytes) == (2, 40)


async def test_the_limit_holds_while_many_wait() -> None:
    """A producer would have more messages in flight than its limit after each response."""
    limiter = InFlightLimiter(2, 1000)
    limiter.count = 2
    most = 0

    async def come() -> None:
        nonlocal most
        await limiter.wait(1, 60_000)
        limiter.count += 1
        most = max(most, limiter.count)

    tasks = [asyncio.ensure_future(come()) for _ in range(6)]
    for _ in tasks:
        for _ in range(5):
            await asyncio.sleep(0)
        limiter.release(0)
    await asyncio.gather(*tasks)
    assert most == 2


async def test_granted_places_count() -> None:
    """A woken waiter and a later caller would both take the same place."""
    limiter = filled(4, 40)
    waiting = [asyncio.ensure_future(limiter.wait(40, 60_000)) for _ in range(2)]
    await asyncio.sleep(0)
    limiter.release(20, 2)
    assert limiter.would_block(1)  # 20 bytes and two granted messages of 40
    assert await asyncio.gather(*waiting)
    assert not limiter.would_block(80)


async def test_a_close_wakes_the_waiters() -> None:
    """A send would hang while its producer is being closed."""
    limiter = filled(4, 100)
    waiting = asyncio.ensure_future(limiter.wait(1, 60_000))
    await asyncio.sleep(0)
    limiter.close(ClientClosed("closed"))
    with pytest.raises(ClientClosed):
        await waiting
    with pytest.raises(ClientClosed):
        limiter.check(1)


async def test_a_wait_ends_with_its_time() -> None:
    """A send would take longer than its timeout."""
    limiter = filled(4, 100)
    with pytest.raises(FlowControlled, match="after 10 ms: 4 messages with 100 bytes"):
        await limiter.wait(1, 10)
    assert (limiter.count, limiter.bytes) == (4, 100)
    with pytest.raises(FlowControlled, match="limits are 4 and 100"):
        limiter.check(1)
