"""The prefetch count."""

from __future__ import annotations

import asyncio

import pytest

from rocketpy_kombu.window import Window

pytestmark = pytest.mark.frameworks


async def turns() -> None:
    """Let everything run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_channel_requests_no_more_than_its_prefetch_count() -> None:
    """A worker would hold tasks that idle workers could run."""
    window = Window()
    window.readers = 1
    window.set_prefetch(3)
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
    window = Window()
    window.readers = 4
    window.set_prefetch(9)
    assert [await window.reserve() for _ in range(4)] == [2, 1, 1, 1]


async def test_a_channel_without_a_prefetch_count_is_bounded() -> None:
    """A worker would read a whole topic into its memory."""
    window = Window()
    window.readers = 1
    assert [await window.reserve(), await window.reserve()] == [32, 32]
    waiting = asyncio.ensure_future(window.reserve())
    await turns()
    assert not waiting.done()
    window.delivered()
    assert await waiting == 1
