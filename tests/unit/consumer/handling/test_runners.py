"""How runners call handlers with the messages of a pull, in the event loop and in threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketpy.consumer.config import PushConfig
from rocketpy.consumer.fetch.puller import Puller
from rocketpy.consumer.handling.handler import HandlerAdapter
from rocketpy.consumer.handling.runner import (
    CompletedCalls,
    HandlerRunner,
    LoopRunner,
    RunningCalls,
    ThreadRunner,
)
from rocketpy.consumer.listeners import ProcessListeners
from rocketpy.consumer.outcomes import ConsumeResult, Later
from rocketpy.message import MessageExt
from rocketpy.runtime.tasks import Tasks
from tests.unit.consumer.fetch.test_process_queue import message
from tests.waiting import LIMIT_S, until


class Rig:
    """A runner with a handler that tests control, message by message.

    held_up: offsets whose handlers wait for `free`. works: called by each handler on the loop. says: offset
    to the result or exception of its handler. handled: offsets in the order of the calls. done: offsets of
    the messages that need no retry.
    """

    def __init__(self, kind: str, batch: int = 1, width: int = 2, handler: Any = None) -> None:
        self.held_up: set[int] = set()
        self.says: dict[int, object] = {}
        self.works: Callable[[], None] = lambda: None
        self.handled: list[int] = []
        self.ended: list[CompletedCalls] = []
        self.puller = cast(Puller, SimpleNamespace(process_queue=SimpleNamespace(dropped=False)))
        self._gates = {offset: threading.Event() for offset in range(100)}
        self._tasks = Tasks("a consumer")
        handler = handler or (self._handle_async if kind == "loop" else self._handle)
        listeners = ProcessListeners((), "g", PushConfig())
        adapter = (
            HandlerAdapter(handler, None, listeners)
            if batch == 1
            else HandlerAdapter(None, self._batch(kind), listeners)
        )
        config = PushConfig(batch_size=batch, concurrency=width)
        self.runner: HandlerRunner = (
            LoopRunner(adapter, config, self._finished, self._tasks)
            if kind == "loop"
            else ThreadRunner(adapter, config, self._finished, self._tasks)
        )

    @property
    def done(self) -> list[int]:
        """Offsets of handled messages that need no retry, sorted."""
        return sorted(
            one.queue_offset
            for ended in self.ended
            for one in list(ended.messages)[: ended.result.done]  # None: all of them
        )

    def submit(self, *offsets: int) -> None:
        """Have messages handled."""
        self.runner.submit(self.puller, [message(offset) for offset in offsets])

    def free(self, offset: int) -> None:
        """Let a blocked handler end."""
        self._gates[offset].set()

    def _batch(self, kind: str) -> Any:
        async def handle_async(messages: list[MessageExt]) -> Any:
            for one in messages:
                await self._handle_async(one)

        def handle(messages: list[MessageExt]) -> Any:
            for one in messages:
                self._handle(one)

        return handle_async if kind == "loop" else handle

    def _handle(self, one: MessageExt) -> Any:
        self.handled.append(one.queue_offset)
        if one.queue_offset in self.held_up:
            self._gates[one.queue_offset].wait(30)
        return self._said(one)

    async def _handle_async(self, one: MessageExt) -> Any:
        self.works()
        self.handled.append(one.queue_offset)
        if one.queue_offset in self.held_up:
            await until(self._gates[one.queue_offset].is_set)
        return self._said(one)

    def _said(self, one: MessageExt) -> object:
        returned = self.says.get(one.queue_offset)
        if isinstance(returned, BaseException):
            raise returned
        return returned

    def _finished(self, ended: list[CompletedCalls]) -> None:
        self.ended += ended

    async def close(self) -> None:
        """End all blocked handlers."""
        for gate in self._gates.values():
            gate.set()
        await self.runner.close(30)
        await self._tasks.close()


@pytest.fixture(params=["loop", "threads"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """Each kind of runner, with two workers."""
    made = Rig(request.param)
    yield made
    await made.close()


async def test_a_blocked_handler_blocks_no_other(rig: Rig) -> None:
    """Messages after a slow one would wait for it, or earlier ones would be delivered again after a crash."""
    rig.held_up = {2}
    rig.submit(*range(5))
    rig.submit(*range(5, 8))
    await until(lambda: rig.done == [0, 1, 3, 4, 5, 6, 7])
    rig.free(2)
    await until(lambda: rig.done == list(range(8)))
    assert sorted(rig.handled) == list(range(8))


async def test_calls_that_end_during_a_report_are_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their messages would stay unsettled: the offset of the queue would be stuck."""
    rig = Rig("threads", width=1)
    rig.held_up = {1}
    rig.submit(0, 1, 2)
    await until(lambda: rig.handled == [0, 1])
    take = RunningCalls.take_completed

    def take_and_let_the_thread_end(running: RunningCalls) -> Sequence[CompletedCalls]:
        completed = take(running)
        rig.free(1)
        ends_s = time.monotonic() + LIMIT_S
        while not running.is_over and time.monotonic() < ends_s:
            time.sleep(0.001)
        return completed

    monkeypatch.setattr(RunningCalls, "take_completed", take_and_let_the_thread_end)
    await until(lambda: rig.done == [0, 1, 2])
    await rig.close()


async def test_only_the_failed_message_is_delivered_again(rig: Rig) -> None:
    """A failure would be assigned to another message, or the rest of its pull would be lost."""
    rig.says = {
        1: ValueError("no"),
        3: ConsumeResult.LATER,
        4: ConsumeResult.SUCCESS,
        6: Later(delay_level=4),
        7: "?",
    }
    rig.submit(*range(9))
    await until(lambda: sum(len(ended.messages) for ended in rig.ended) == 9)
    assert rig.done == [0, 2, 4, 5, 8]
    assert sum(ended.calls for ended in rig.ended) == 9
    levels = {
        ended.messages[0].queue_offset: ended.result.later.delay_level
        for ended in rig.ended
        if ended.result.done is not None
    }
    assert levels == {1: 0, 3: 0, 6: 4, 7: 0}


async def test_a_cancellation_inside_a_handler_counts_as_its_failure(rig: Rig) -> None:
    """The message would stay in progress, and in the end nothing more of its queue would be pulled."""
    rig.says = {1: asyncio.CancelledError(), 3: asyncio.CancelledError()}
    rig.submit(*range(5))
    await until(lambda: sum(len(ended.messages) for ended in rig.ended) == 5)
    assert rig.done == [0, 2, 4]
    rig.submit(*range(5, 9))
    await until(lambda: rig.done == [0, 2, 4, 5, 6, 7, 8])


class Stop(BaseException):
    """Exceptions of test runners and some frameworks that do not derive from Exception."""


async def test_a_handler_that_raises_no_exception_has_failed_too(rig: Rig) -> None:
    """The message would stay in progress, and no log line would say so."""
    error = Stop() if isinstance(rig.runner, LoopRunner) else SystemExit(3)
    rig.says = {1: error, 3: error}
    rig.submit(*range(5))
    await until(lambda: sum(len(ended.messages) for ended in rig.ended) == 5)
    assert rig.done == [0, 2, 4]
    rig.submit(*range(5, 9))
    await until(lambda: rig.done == [0, 2, 4, 5, 6, 7, 8])


async def test_messages_of_a_revoked_queue_are_not_handled(rig: Rig) -> None:
    """Messages of a revoked queue would be handled here as well, long after."""
    rig.held_up = {1, 2}
    rig.submit(*range(6))
    await until(lambda: len(rig.handled) == 3)
    rig.puller.process_queue.dropped = True
    rig.free(1)
    rig.free(2)
    await until(lambda: rig.done == [0, 1, 2])
    await rig.close()
    assert sorted(rig.handled) == [0, 1, 2]


async def test_results_for_a_revoked_queue_do_not_count(rig: Rig) -> None:
    """A message that was sent back while its handler ran would count twice, or the next one with it."""
    rig.held_up = {1}
    rig.submit(0, 1)
    await until(lambda: rig.done == [0] and rig.runner.running())
    (work,) = rig.runner.running()
    assert [one.queue_offset for one in work.abandon()] == [1]
    assert not work.abandon()
    rig.free(1)
    rig.submit(*range(10, 15))
    await until(lambda: rig.done == [0, *range(10, 15)])
    rig.submit(*range(20, 25))
    await until(lambda: rig.done == [0, *range(10, 15), *range(20, 25)])


async def test_a_close_starts_no_further_handler(rig: Rig) -> None:
    """A consumer that leaves would begin with messages that the next owner has already."""
    rig.held_up = {1, 2}
    rig.submit(*range(6))
    rig.submit(*range(6, 9))
    await until(lambda: len(rig.handled) == 3)
    closing = asyncio.ensure_future(rig.runner.close(30))
    await asyncio.sleep(0)
    rig.free(1)
    rig.free(2)
    assert not await closing
    assert sorted(rig.handled) == [0, 1, 2]
    assert rig.done == [0, 1, 2]


async def test_busy_handlers_leave_the_event_loop_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats would wait until all pulled messages are handled, and the consumer would look dead."""
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: 1.0)  # as with uvloop: the clock stands still for a turn
    rig = Rig("loop")
    rig.works = partial(time.sleep, 0.0001)
    turns: list[int] = []
    rig.submit(*range(1000))

    def turn() -> None:
        turns.append(len(rig.handled))
        if len(rig.handled) < 1000:
            loop.call_soon(turn)

    turn()
    while len(rig.handled) < 1000:  # noqa: ASYNC110 - each iteration of the loop is one step
        await asyncio.sleep(0)
    assert len(set(turns)) > 5
    monkeypatch.undo()
    await rig.close()


async def test_handlers_that_compute_run_in_one_worker() -> None:
    """Each worker would use a time slice of its own, and heartbeats would wait for twenty of them."""
    loop = asyncio.get_running_loop()
    rig = Rig("loop", width=20)
    rig.works = partial(time.sleep, 0.0005)
    counts = [0]
    for start in range(0, 640, 64):
        rig.submit(*range(start, start + 64))

    def turn() -> None:
        counts.append(len(rig.handled))
        if len(rig.handled) < 640:
            loop.call_soon(turn)

    turn()
    await until(lambda: counts[-1] == 640)
    assert max(after - before for before, after in pairwise(counts)) <= 32
    await rig.close()


async def test_slow_handlers_keep_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers that wait for each other, or for a server, would become fewer after each call."""
    together = threading.Barrier(4)

    def handle(_: MessageExt) -> None:
        together.wait(LIMIT_S)
        time.sleep(0.002)  # longer than a time slice

    rig = Rig("threads", width=4, handler=handle)
    rig.submit(*range(80))
    await until(lambda: len(rig.done) >= 8)
    monkeypatch.setattr("rocketpy.consumer.handling.runner._CHECK_S", LIMIT_S)  # no more threads start
    await until(lambda: len(rig.done) == 80)
    await rig.close()


async def test_quick_handlers_are_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a pull would wait for an iteration of the event loop, although handlers take no time."""
    monkeypatch.setattr("rocketpy.consumer.handling.runner.time", SimpleNamespace(monotonic=lambda: 1.0))
    rig = Rig("loop")
    others: list[int] = []
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon(lambda: others.append(len(rig.handled)))

    rig.works = work
    rig.submit(*range(1000))
    await until(lambda: len(others) == 1000)
    monkeypatch.undo()
    assert set(others) == {1000}
    await rig.close()


@pytest.mark.parametrize("kind", ["loop", "threads"])
async def test_batches_that_are_blocked(kind: str) -> None:
    """Batches would be cut differently, or be taken for each other, once one is slow."""
    rig = Rig(kind, batch=3)
    rig.held_up = {4}
    rig.submit(*range(10))
    await until(lambda: rig.done == [0, 1, 2, 6, 7, 8, 9])
    rig.free(4)
    await until(lambda: rig.done == list(range(10)))
    assert sum(ended.calls for ended in rig.ended) == 4
    await rig.close()


@pytest.mark.parametrize("kind", ["loop", "threads"])
async def test_a_slow_handler_keeps_the_event_loop_idle(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer whose handlers wait would use a whole CPU meanwhile."""
    loop = asyncio.get_running_loop()
    go_on, may_return = asyncio.Event(), threading.Event()
    handled: list[int] = []

    async def wait(one: MessageExt) -> None:
        handled.append(one.queue_offset)
        await go_on.wait()

    def block(one: MessageExt) -> None:
        handled.append(one.queue_offset)
        may_return.wait(LIMIT_S)

    config, tasks = PushConfig(concurrency=4), Tasks("a consumer")
    adapter = HandlerAdapter(wait if kind == "loop" else block, None, ProcessListeners((), "g", PushConfig()))
    runner = (LoopRunner if kind == "loop" else ThreadRunner)(adapter, config, lambda _: None, tasks)
    puller = cast(Puller, SimpleNamespace(process_queue=SimpleNamespace(dropped=False)))
    runner.submit(puller, [message(0), message(1)])
    await until(lambda: len(handled) == 2)
    scheduled: list[object] = []
    for name in ("call_soon", "call_later"):
        schedule = getattr(loop, name)

        def count(*args: Any, schedule: Any = schedule, **kwargs: Any) -> Any:
            scheduled.append(args)
            return schedule(*args, **kwargs)

        monkeypatch.setattr(loop, name, count)
    await asyncio.sleep(0.05)
    monkeypatch.undo()
    assert len(scheduled) < 10
    runner.submit(puller, [message(2)])
    await until(lambda: len(handled) == 3)  # a third worker starts
    go_on.set()
    may_return.set()
    assert not await runner.close(LIMIT_S)
    await tasks.close()


async def test_a_handler_whose_task_is_destroyed(caplog: pytest.LogCaptureFixture) -> None:
    """At the end of a program, a handler that still waits would be reported as failed."""
    closed: list[str] = []

    async def handle(_: MessageExt) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            closed.append("closed")

    adapter = HandlerAdapter(handle, None, ProcessListeners((), "g", PushConfig()))
    call = adapter.handle([message(0)], threads=False)
    task = asyncio.create_task(call)
    await asyncio.sleep(0)
    call.close()  # as the garbage collector does, after the event loop has ended
    assert closed == ["closed"]
    assert caplog.records == []
    task.cancel()
    await asyncio.wait({task})
    assert task.exception() is not None
