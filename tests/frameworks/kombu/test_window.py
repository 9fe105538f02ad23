"""The prefetch count."""

from __future__ import annotations

import asyncio

import pytest

from rocketpy_kombu.window import Window

pytestmark = pytest.mark.frameworks


def busy(readers: int, prefetch: int = 0) -> Window:
    """The window of a channel that has taken many messages."""
    window = Window()
    window.readers = readers
    window.set_prefetch(prefetch)
    for _ in range(100):
        window.delivered()
        window.return_unused(-1)
        window.settled()
    return window


async def turns() -> None:
    """Let everything run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_channel_requests_no_more_than_its_prefetch_count() -> None:
    """A worker would hold tasks that idle workers could run."""
    window = busy(1, prefetch=3)
    assert await window.reserve() == 3
    waiting = asyncio.ensure_future(window.reserve())
    await turns()
    assert not waiting.done()
    window.return_unused(1)  # the brokers had two
    assert await waiting == 1
    window.return_unused(1)
    window.delivered()
    window.delivered()
    assert await window.reserve() == 1
    window.return_unused(1)
    window.settled()
    assert await window.reserve() == 2


async def test_queues_share_the_prefetch_count() -> None:
    """One queue would take all places, and the tasks of the others would wait."""
    window = busy(4, prefetch=9)
    assert [await window.reserve() for _ in range(4)] == [2, 1, 1, 1]


async def test_a_channel_without_a_prefetch_count_is_bounded() -> None:
    """A worker would read a whole topic into its memory."""
    window = busy(1)
    assert [await window.reserve(), await window.reserve()] == [32, 32]
    waiting = asyncio.ensure_future(window.reserve())
    await turns()
    assert not waiting.done()
    window.delivered()
    assert await waiting == 1


async def test_a_channel_reads_ahead_what_it_has_taken() -> None:
    """What it does not take is released at its end, which counts as a delivery."""
    window = Window()
    window.readers = 1
    counts = []
    for _ in range(6):
        window.wait_for_one()
        counts.append(await window.reserve())
        for _ in range(counts[-1]):
            window.delivered()
            window.settled()
    assert counts == [1, 1, 1, 2, 4, 8]
    window = Window()
    window.readers = 1
    window.wait_for_one()
    assert await window.reserve() == 1
    waiting = asyncio.ensure_future(window.reserve())
    window.delivered()
    await turns()
    assert not waiting.done()
    window.wait_for_one()
    assert await waiting == 1


async def test_an_application_that_waits_gets_a_message_of_each_queue() -> None:
    """The queue that has one might not be asked."""
    window = Window()
    window.readers = 3
    waiting = [asyncio.ensure_future(window.reserve()) for _ in range(4)]
    await turns()
    assert not any(one.done() for one in waiting)
    window.wait_for_one()
    assert [await one for one in waiting[:3]] == [1, 1, 1]
    assert not waiting[3].done()
    waiting[3].cancel()
