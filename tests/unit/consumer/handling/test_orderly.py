"""Orderly consumption keeps the order of a queue, and stops without its lock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from rocketpy.consumer.config import PushConfig
from rocketpy.consumer.fetch.process_queue import ProcessQueue
from rocketpy.consumer.fetch.puller import Puller
from rocketpy.consumer.handling.handler import HandlerAdapter
from rocketpy.consumer.handling.orderly import OrderlyConsumeService
from rocketpy.consumer.listeners import ProcessListeners
from rocketpy.consumer.outcomes import Later
from rocketpy.consumer.stats import ConsumerStats
from rocketpy.message import MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.runtime.tasks import Tasks
from tests.unit.consumer.fetch.test_process_queue import message
from tests.waiting import LIMIT_S


class OnePuller:
    """A puller without a broker: its queue has only the messages that a test adds."""

    def __init__(self) -> None:
        self.process_queue = ProcessQueue(MessageQueue("T", "b", 0), 0, 0)

    def wake(self) -> None:
        """Do nothing: there is no broker to pull from."""


class Rig:
    """A service with one queue. handled: offsets in the order of the calls. fails: offsets that fail once."""

    def __init__(self) -> None:
        self.handled: list[int] = []
        self.fails: set[int] = set()
        self.suspend_ms = 10
        self.now_ms = 0.0
        self.puller = cast(Puller, OnePuller())
        self.lock_requests = 0
        self.refuses_locks = False
        self.tasks = Tasks("a consumer")
        config = PushConfig(orderly=True)
        adapter = HandlerAdapter(self._handle, None, ProcessListeners((), "g", config))
        no_broker: Any = None
        self.service = OrderlyConsumeService(
            adapter, config, no_broker, ConsumerStats(0), self.tasks, lambda: self.now_ms, self._lock
        )

    async def _handle(self, one: MessageExt) -> Later | None:
        await asyncio.sleep(0)
        self.handled.append(one.queue_offset)
        if one.queue_offset in self.fails:
            self.fails.remove(one.queue_offset)
            return Later(suspend_ms=self.suspend_ms)
        return None

    async def _lock(self, puller: Puller) -> bool:
        self.lock_requests += 1
        if self.refuses_locks:
            return False
        puller.process_queue.locked_ms = int(self.now_ms)
        return True

    def submit(self, *offsets: int) -> None:
        """Add pulled messages."""
        messages = [message(offset) for offset in offsets]
        self.puller.process_queue.add(messages, offsets[-1] + 1)
        self.service.submit(self.puller, messages)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for handlers."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():  # noqa: ASYNC110 - handlers change it
                await asyncio.sleep(0)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A service whose queue is locked."""
    made = Rig()
    made.puller.process_queue.locked_ms = 0
    yield made
    await made.service.close(1)
    await made.tasks.close()


async def test_a_failed_message_blocks_later_ones(rig: Rig) -> None:
    """Later messages of a queue would overtake it."""
    rig.fails = {1}
    rig.submit(0, 1, 2)
    rig.submit(3, 4)
    await rig.until(lambda: rig.puller.process_queue.commit_offset == 5)
    assert rig.handled == [0, 1, 1, 2, 3, 4]


async def test_an_expired_lock_is_requested_before_the_next_call(rig: Rig) -> None:
    """Two members would handle a queue at the same time."""
    rig.now_ms = 31_000
    rig.submit(0, 1)
    await asyncio.sleep(0)
    assert not rig.handled
    await rig.until(lambda: rig.handled == [0, 1])
    assert rig.lock_requests == 1


async def test_a_revoked_queue_is_released_after_its_handler(rig: Rig) -> None:
    """The next owner would begin while the handler still runs, or the rest be handled twice."""
    rig.submit(0, 1, 2)
    await rig.until(rig.service.in_progress)
    await asyncio.sleep(0)
    rig.puller.process_queue.drop()
    await rig.service.wait_released(rig.puller)
    assert not rig.service.in_progress()
    assert rig.handled == [0]


@pytest.mark.parametrize("is_locked", [False, True])
async def test_the_pause_of_a_queue_ends_with_the_service(rig: Rig, *, is_locked: bool) -> None:
    """A close would take seconds, and report a handler although none runs."""
    await paused(rig, is_locked=is_locked)
    assert not await rig.service.close(2)


@pytest.mark.parametrize("is_locked", [False, True])
async def test_the_pause_of_a_queue_ends_when_it_is_revoked(rig: Rig, *, is_locked: bool) -> None:
    """Its next owner would wait for up to 30 s."""
    await paused(rig, is_locked=is_locked)
    rig.puller.process_queue.drop()
    async with asyncio.timeout(2):
        await rig.service.wait_released(rig.puller)
    assert not rig.service.in_progress()


async def test_a_queue_pauses_at_least_10_ms(rig: Rig) -> None:
    """A handler that fails with `suspend_ms` 0 would be called in an endless loop."""
    rig.fails, rig.suspend_ms = {0}, 0
    began_s = time.monotonic()
    rig.submit(0)
    await rig.until(lambda: len(rig.handled) == 2)
    assert time.monotonic() - began_s >= 0.009


async def paused(rig: Rig, *, is_locked: bool) -> None:
    """Have a queue pause: after a failed message, or because the broker refuses the lock."""
    rig.fails, rig.suspend_ms = {0}, 30_000
    if not is_locked:
        rig.now_ms, rig.refuses_locks = 31_000, True
    rig.submit(0, 1)
    await rig.until(lambda: rig.handled if is_locked else rig.lock_requests)
