"""Bounds of what is in flight: who is let through, who waits, and in which order."""

from __future__ import annotations

import asyncio

import pytest

from rocketpy.errors import ClientClosed, FlowControlled
from rocketpy.producer.send.flow_control import Room


def filled(count: int, size: int) -> Room:
    """A room for 4 messages and 100 bytes that holds so many already."""
    room = Room(4, 100)
    room.count, room.bytes = count, size
    return room


@pytest.mark.parametrize(
    ("count", "held", "size", "refused"),
    [
        (0, 0, 100, False), (0, 0, 500, False), (1, 10, 90, False), (1, 10, 91, True),
        (3, 50, 50, False), (4, 50, 1, True), (5, 50, 1, True),
    ],
)  # fmt: skip
async def test_who_finds_room(count: int, held: int, size: int, *, refused: bool) -> None:
    """A producer would take more memory than its bounds say, or stand still with room left."""
    room = filled(count, held)
    assert room.refuses(size) is refused
    waiting = asyncio.ensure_future(room.wait(size, 60_000))
    for _ in range(5):
        await asyncio.sleep(0)
    assert waiting.done() is not refused
    room.free(held, count)
    assert 1 <= await waiting <= 60_000


async def test_room_is_promised_to_who_waits_longest() -> None:
    """A long message would wait for ever behind short ones that keep coming."""
    room = filled(4, 100)
    order: list[int] = []

    async def come(size: int) -> None:
        await room.wait(size, 60_000)
        order.append(size)
        room.count += 1
        room.bytes += size

    tasks = [asyncio.ensure_future(come(size)) for size in (80, 30, 10)]
    await asyncio.sleep(0)
    assert room.refuses(1)
    room.free(50, 2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == []  # 50 bytes are free, and the first of them wants 80
    room.free(50, 2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == [80]  # 30 more would be 110
    room.free(80)
    await asyncio.gather(*tasks)
    assert order == [80, 30, 10]
    assert (room.count, room.bytes) == (2, 40)


async def test_the_bound_holds_while_many_wait() -> None:
    """A producer would have more messages in flight than its bound, whenever one is answered."""
    room = Room(2, 1000)
    room.count = 2
    most = 0

    async def come() -> None:
        nonlocal most
        await room.wait(1, 60_000)
        room.count += 1
        most = max(most, room.count)

    tasks = [asyncio.ensure_future(come()) for _ in range(6)]
    for _ in tasks:
        for _ in range(5):
            await asyncio.sleep(0)
        room.free(0)
    await asyncio.gather(*tasks)
    assert most == 2


async def test_promised_room_counts() -> None:
    """Those who were promised room and those who come by would both take it."""
    room = filled(4, 40)
    waiting = [asyncio.ensure_future(room.wait(40, 60_000)) for _ in range(2)]
    await asyncio.sleep(0)
    room.free(20, 2)
    assert room.refuses(1)  # 20 bytes and two messages of 40 that were promised
    assert await asyncio.gather(*waiting)
    assert not room.refuses(80)


async def test_nobody_waits_in_a_closed_room() -> None:
    """A send would hang while its producer is being closed."""
    room = filled(4, 100)
    waiting = asyncio.ensure_future(room.wait(1, 60_000))
    await asyncio.sleep(0)
    room.close(ClientClosed("closed"))
    with pytest.raises(ClientClosed):
        await waiting
    with pytest.raises(ClientClosed):
        room.check(1)


async def test_without_room_a_wait_ends_with_its_time() -> None:
    """A send would take longer than its time-out."""
    room = filled(4, 100)
    with pytest.raises(FlowControlled, match="no room within 10 ms: 4 sends with 100 bytes"):
        await room.wait(1, 10)
    with pytest.raises(FlowControlled, match="bounds are 4 and 100"):
        room.check(1)
