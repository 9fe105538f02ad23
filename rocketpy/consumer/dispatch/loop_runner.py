"""LoopRunner: handlers in the event loop, of which most end without waiting for anything.

A worker takes a stretch of what waits, calls the handler for one after the other, and says at the end that
all are done with: one stretch costs a few microseconds, a message in it next to nothing. Whether a handler
was held up shows one turn of the loop later, when its worker has not come to the end: then the worker keeps
that one call, what it did before counts at once, and the rest of the stretch is anybody's again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rocketpy.consumer.dispatch.runner import (
    Called,
    CompletedCalls,
    OnCompleted,
    RunningCall,
    arguments_of,
    in_progress,
    is_end_of_task,
    note,
)
from rocketpy.consumer.fetch.puller import Puller
from rocketpy.consumer.outcomes import (
    ACKNOWLEDGED,
    ConsumeResult,
    HandlingResult,
    failure_result,
    to_handling_result,
)
from rocketpy.message.message import MessageExt
from rocketpy.runtime.tasks import Tasks

log = logging.getLogger("rocketpy.consumer")

_STRETCH_MAX: Final = 64
"""Calls in a stretch; after one was held up one, then twice as many each time, up to this."""
_TURN_S: Final = 0.001
"""After a stretch that ends so long after its turn of the event loop began, others get theirs."""
_DONE: Final = ConsumeResult.SUCCESS


class _Share:
    """Messages of one queue that wait, from `at` on."""

    __slots__ = ("at", "messages", "puller")

    def __init__(self, puller: Puller, messages: list[MessageExt]) -> None:
        self.puller: Final = puller
        self.messages: Final = messages
        self.at = 0


class _Worker:
    """One worker, and the stretch that it is at.

    messages: of the stretch. arguments: of the calls that are still to be made. count: calls of the stretch;
    0 between two. began_ms: when it began, or what of it was not told of yet. The others: see `RunningCall`.
    """

    __slots__ = (
        "arguments", "began_ms", "count", "is_abandoned", "is_held_up", "messages", "puller", "started_ms",
    )  # fmt: skip

    puller: Puller

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []
        self.arguments: Iterator[Any] = iter(())
        self.count = 0
        self.began_ms = 0.0
        self.started_ms = 0.0
        self.is_held_up = False
        self.is_abandoned = False

    def in_progress(self) -> Sequence[MessageExt]:
        """See `RunningCall`."""
        return self.messages

    def abandon(self) -> Sequence[MessageExt]:
        """See `RunningCall`."""
        messages = () if self.is_abandoned else self.messages
        self.is_abandoned = True
        return messages


class LoopRunner:
    """Runs handlers in the event loop, `width` at a time. batch: messages a call."""

    def __init__(
        self,
        called: Called,
        batch: int,
        width: int,
        finished: OnCompleted,
        clock: Callable[[], float],
        tasks: Tasks,
    ) -> None:
        self._called = called
        self._batch = batch
        self._width = width
        self._tell = finished
        self._clock = clock
        self._tasks = tasks
        self._waiting: deque[_Share] = deque()
        self._workers: dict[asyncio.Task[None], None] = {}
        self._at_work: dict[_Worker, None] = {}
        self._free = 0  # workers that are neither held up nor at rest
        self._resting: asyncio.Future[None] | None = None
        self._stretch = _STRETCH_MAX
        self._looking = False
        self._closing = False
        self._finished: list[CompletedCalls] = []
        self._loop = asyncio.get_running_loop()

    def submit(self, puller: Puller, messages: list[MessageExt]) -> None:
        """See `HandlerRunner`."""
        self._waiting.append(_Share(puller, messages))
        if not self._free:
            self._join()

    def running(self) -> Sequence[RunningCall]:
        """See `HandlerRunner`."""
        return [worker for worker in self._at_work if worker.is_held_up]

    async def close(self, timeout_s: float) -> Sequence[MessageExt]:
        """See `HandlerRunner`."""
        self._closing = True
        self._waiting.clear()
        self._wake()
        workers = set(self._workers)
        late = (await asyncio.wait(workers, timeout=timeout_s))[1] if workers else set()
        left = in_progress(self) if late else ()
        for worker in late:
            worker.cancel()
        if late:
            await asyncio.wait(late, timeout=1)
        self._flush()
        return left

    # -- workers ------------------------------------------------------------------------------

    def _join(self) -> None:
        if self._waiting and not self._wake() and not self._closing and len(self._workers) < self._width:
            self._free += 1
            task = self._tasks.spawn(self._work(), "handlers")
            self._workers[task] = None
            task.add_done_callback(self._left)

    def _wake(self) -> bool:
        """Have the worker go on that has nothing to do, if there is one."""
        if self._resting is None:
            return False
        if not self._resting.done():
            self._resting.set_result(None)
        self._resting = None
        self._free += 1
        return True

    def _left(self, task: asyncio.Task[None]) -> None:
        del self._workers[task]
        if not self._free:
            self._join()

    async def _work(self) -> None:
        worker = _Worker()
        self._at_work[worker] = None
        try:
            await self._handle_all(worker)
            while not self._closing and self._resting is None:
                await self._rest()
                await self._handle_all(worker)
        finally:
            del self._at_work[worker]
            if not worker.is_held_up:
                self._free -= 1

    async def _rest(self) -> None:
        """Wait for messages: one worker does, as a new one would cost more."""
        self._free -= 1
        resting = self._resting = self._loop.create_future()
        try:
            await resting
        except asyncio.CancelledError:
            if self._resting is resting:
                self._resting = None
                self._free += 1
            raise

    async def _handle_all(self, worker: _Worker) -> None:
        worker.began_ms = self._clock()
        turn_s = time.monotonic()  # the clock, the event loop's, may stand still for a turn: uvloop's does
        while self._waiting:
            share = self._waiting[0]
            if share.puller.process_queue.dropped:
                self._waiting.popleft()
                continue
            self._take(worker, share)
            if await self._go_through(worker):
                turn_s = time.monotonic()
            elif time.monotonic() - turn_s >= _TURN_S:
                await asyncio.sleep(0)
                worker.began_ms, turn_s = self._clock(), time.monotonic()

    def _take(self, worker: _Worker, share: _Share) -> None:
        """Give a worker the next stretch of a share."""
        at, stop = share.at, share.at + self._stretch * self._batch
        messages = share.messages
        if stop < len(messages):
            share.at = stop
        else:
            self._waiting.popleft()
        if at or stop < len(messages):
            messages = messages[at:stop]
        worker.puller, worker.messages = share.puller, messages
        arguments = arguments_of(self._called, messages, self._batch)
        worker.arguments, worker.count = iter(arguments), len(arguments)
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._tasks.run, self._look)

    async def _go_through(self, worker: _Worker) -> bool:
        """Make the calls of a worker's stretch. Returns whether it was held up."""
        call, is_async = self._called.current(), self._called.is_async
        result = ACKNOWLEDGED
        returned: Any
        try:
            for argument in worker.arguments:  # this loop is what each message pays
                returned = call(argument)
                if is_async or (
                    returned is not None and returned is not _DONE and inspect.isawaitable(returned)
                ):
                    returned = await returned
                if returned is not None and returned is not _DONE:
                    self._keep_one(worker)
                    result = to_handling_result(returned)
                    break
        except BaseException as error:
            self._keep_one(worker)
            if is_end_of_task(error):
                raise
            log.exception("a handler failed on %s; they come again", worker.messages)
            result = failure_result(error)
        was_held_up = worker.is_held_up
        self._ended(worker, result)
        return was_held_up

    def _ended(self, worker: _Worker, result: HandlingResult) -> None:
        if worker.is_abandoned:
            worker.began_ms = self._clock()
        else:
            self._end(worker, worker.messages, result, worker.count)
        worker.count = 0
        if worker.is_held_up:
            worker.is_held_up = worker.is_abandoned = False
            self._free += 1
        elif self._stretch < _STRETCH_MAX:
            self._stretch *= 2

    def _look(self) -> None:
        """Find the workers that are held up, a turn of the loop after one has begun a stretch."""
        self._looking = False
        for worker in reversed(self._at_work):
            if worker.count and not worker.is_held_up:
                worker.is_held_up = True
                self._keep_one(worker)
                worker.started_ms = worker.began_ms
                self._free -= 1
                self._stretch = 1
        if not self._free:
            self._join()

    def _keep_one(self, worker: _Worker) -> None:
        """Leave a worker the call that it is at; those before it have ended, those behind it wait again."""
        if worker.count == 1:
            return
        ended = worker.count - 1 - sum(1 for _ in worker.arguments)
        messages, at = worker.messages, ended * self._batch
        behind = messages[at + self._batch :]
        if behind and not self._closing:
            self._waiting.appendleft(_Share(worker.puller, behind))
        if ended:
            self._end(worker, messages[:at], ACKNOWLEDGED, ended)
        worker.messages, worker.count = messages[at : at + self._batch], 1

    # -- what is told -------------------------------------------------------------------------

    def _end(self, worker: _Worker, messages: list[MessageExt], result: HandlingResult, calls: int) -> None:
        if not self._finished:
            self._loop.call_soon(self._tasks.run, self._flush)
        now_ms = self._clock()
        note(self._finished, worker.puller, messages, result, now_ms - worker.began_ms, calls)
        worker.began_ms = now_ms

    def _flush(self) -> None:
        finished, self._finished = self._finished, []
        if finished:
            self._tell(finished)
