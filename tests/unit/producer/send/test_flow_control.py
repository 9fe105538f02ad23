"""Limits of messages in flight: which sends are accepted, which wait, and in which order."""

from __future__ import annotations

import asyncio

import pytest

from rocketpy.errors import ClientClosed, FlowControlled
from rocketpy.producer.send.flow_control import InFlightLimiter, SendWindow


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


def test_a_send_that_cannot_get_its_response_in_time_is_not_written() -> None:
    """It would end as unknown, although it could have ended as not sent."""
    window = SendWindow(8000)
    window.in_flight = 1000
    for rtt_ms in (400, 800, 400):
        window.measure(rtt_ms, 1000)
    # RFC 6298: the mean is 443.75 ms, and the mean deviation 171.875 ms.
    assert window.is_late(8000, 1131)
    assert not window.is_late(8000, 1132)
    assert not window.is_late(2262, 1131), "in the first half of its time it is always written"
    window.in_flight = 2000  # twice as much as when 400 ms were measured
    assert window.is_late(8000, 1600)
    assert not window.is_late(8000, 1601)


@pytest.mark.parametrize(
    ("rtt_ms", "grows_by"),
    [(600, 1 << 14), (900, 1 << 14), (901, 0), (1000, 0), (1001, "less")],
)
def test_the_window_follows_the_round_trips(rtt_ms: float, grows_by: int | str) -> None:
    """A broker far away would get one request at a time, or a slow one more than it can store in time."""
    window = SendWindow(8000)
    window.measure(400, 1000)
    assert window.limit == 1 << 16, "nothing had to wait"
    window.was_full = True
    window.measure(500, 1000)
    assert window.limit == 1 << 17
    window = SendWindow(8000)
    window.was_full = True
    window.measure(600, 1000)
    assert window.limit == (1 << 16) + (1 << 14)
    window.limit, window.was_full = 1 << 20, True
    window.measure(rtt_ms, 1 << 20)
    if grows_by == "less":
        assert window.limit == int((1 << 20) * 1000 / rtt_ms)
    else:
        assert window.limit - (1 << 20) == grows_by
