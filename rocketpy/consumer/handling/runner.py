"""Handler runners: workers that call handlers, in the event loop or on threads.

The states of a call:

    waiting, in a chunk of a pull --> running, in one worker --> ended --> reported in the event loop

A worker makes one call after the other, and up to `PushConfig.concurrency` workers do so concurrently. While
handlers return immediately, one worker makes all calls, so fast handlers need no task or thread per message.
Workers in the event loop are tasks; more start when all of them are suspended in their handlers. Workers on
threads are jobs of a thread pool; more start when few calls began since the last check.

Workers only record in `RunningCalls` what they do. The event loop reads it, and reports the ended calls of an
iteration together.

A task for each call and a semaphore would be simpler, but a task takes twice the time of all other work for a
message. Differs from RocketMQ, which submits every batch to a thread pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from threading import Lock
from typing import Any, Final, NamedTuple, cast

from rocketpy.consumer.config import PushConfig
from rocketpy.consumer.fetch.puller import Puller
from rocketpy.consumer.handling.handler import HandlerAdapter, wait_in_loop
from rocketpy.consumer.handling.handler_threads import HandlerThreadPool
from rocketpy.consumer.outcomes import (
    ACKNOWLEDGED,
    ConsumeResult,
    HandlingResult,
    to_handling_result,
)
from rocketpy.message.message import MessageExt
from rocketpy.runtime.tasks import Tasks, run_in_context

_TIME_SLICE_S: Final = 0.001
"""After this time a worker in the event loop yields, and a thread reports its ended calls."""
_CHUNK_CALLS: Final = 32
"""Maximum calls of a chunk. A worker in the event loop may yield after each chunk."""
_CHECK_S: Final = 0.001
"""How long calls may wait for threads before more threads start."""
_QUICK_CALLS: Final = 4
"""A thread that begins fewer calls between two checks has a slow handler."""
_COLLECT_S: Final = 0.1
"""How often calls are reported that ended before a long call of the same thread."""
_SUCCESS: Final = ConsumeResult.SUCCESS


class CompletedCalls(NamedTuple):
    """Calls for messages of one queue with the same result."""

    puller: Puller
    messages: Sequence[MessageExt]
    result: HandlingResult
    took_ms: float
    """Duration of all calls together."""
    calls: int


OnCompleted = Callable[[list[CompletedCalls]], None]


class _Chunk(NamedTuple):
    """Calls for messages of one pull."""

    puller: Puller
    waiting: deque[Any]
    """The arguments of the calls that no worker has begun."""


class RunningCalls:
    """The calls that one worker makes of a chunk, one after the other. Its worker may be a thread."""

    __slots__ = (
        "_abandoned",
        "_reported",
        "_reported_s",
        "_takes_one",
        "argument",
        "chunk",
        "done",
        "failed",
        "is_over",
        "started_s",
        "was_suspended",
    )

    def __init__(self, chunk: _Chunk, *, takes_one: bool) -> None:
        self.chunk: Final = chunk
        self.done: Final[list[Any]] = []
        """Arguments of the calls that succeeded, of which the first `_reported` are reported."""
        self.failed: Final[deque[CompletedCalls]] = deque()
        """Calls whose messages are redelivered, and that are not reported."""
        self.argument: Any = None
        """Of the current call; None before the first call and after the last one."""
        self.started_s: float = time.monotonic()
        """When the current call began."""
        self.was_suspended: bool = False
        """Whether other code has run in the event loop since the current call began."""
        self.is_over: bool = False
        """Whether the worker has left the chunk."""
        self._abandoned: Any = None
        self._reported = 0
        self._reported_s = self.started_s
        self._takes_one = takes_one

    @property
    def puller(self) -> Puller:
        """The puller of the messages' queue."""
        return self.chunk.puller

    def in_progress(self) -> Sequence[MessageExt]:
        """Return the messages of the current call."""
        argument = self.argument
        return () if argument is None else self.messages_of([argument])

    def abandon(self) -> Sequence[MessageExt]:
        """Detach the messages of the current call and ignore its eventual result.

        Each message is returned at most once.
        """
        argument = self.argument  # read once: the thread may begin its next call now
        if argument is None or self._abandoned is argument:
            return ()
        self._abandoned, self.was_suspended = argument, True
        return self.messages_of([argument])

    def end_call(self, argument: Any, result: HandlingResult) -> None:
        """Record the result of the current call, unless its messages are abandoned."""
        now_s = time.monotonic()
        if self._abandoned is not argument:
            if result is ACKNOWLEDGED:
                self.done.append(argument)
            else:
                messages, took_ms = self.messages_of([argument]), (now_s - self.started_s) * 1000
                self.failed.append(CompletedCalls(self.puller, messages, result, took_ms, 1))
        self.started_s, self.was_suspended = now_s, False

    def leave(self) -> None:
        """Record that the worker makes no more of these calls."""
        self.started_s = time.monotonic()
        self.argument = None
        self.is_over = True

    def take_completed(self) -> Sequence[CompletedCalls]:
        """Return the calls that have ended since the last report."""
        ended_s, count, failed = self.started_s, len(self.done), len(self.failed)
        if count == self._reported and not failed:
            return ()
        completed = [self.failed.popleft() for _ in range(failed)]
        took_ms = (ended_s - self._reported_s) * 1000 - sum([calls.took_ms for calls in completed])
        if count > self._reported:
            messages = self.messages_of(self.done[self._reported : count])
            calls = CompletedCalls(self.puller, messages, ACKNOWLEDGED, took_ms, count - self._reported)
            completed.append(calls)
        self._reported, self._reported_s = count, ended_s
        return completed

    def messages_of(self, arguments: list[Any]) -> Sequence[MessageExt]:
        """Return the messages of some calls."""
        return arguments if self._takes_one else [message for batch in arguments for message in batch]


class HandlerRunner:
    """Base class of `LoopRunner` and `ThreadRunner`.

    config: only `batch_size` and `concurrency` are used. on_completed: called in the event loop with
    the calls that ended.
    """

    def __init__(
        self, adapter: HandlerAdapter, config: PushConfig, on_completed: OnCompleted, tasks: Tasks
    ) -> None:
        self._adapter = adapter
        self._batch = config.batch_size
        self._width = config.concurrency
        self._on_completed = on_completed
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        """For `_chunks`, from which threads take calls."""
        self._chunks: deque[_Chunk] = deque()
        self._running: dict[RunningCalls, None] = {}
        self._workers: set[asyncio.Future[None]] = set()
        self._reported = asyncio.Event()
        self._submitted = 0
        self._is_closing = False
        self._is_cancelling = False
        """Whether `close` has cancelled the unfinished calls."""

    def submit(self, puller: Puller, messages: list[MessageExt]) -> None:
        """Start to handle messages, in about this order."""
        if self._is_closing:
            return
        arguments: Sequence[Any] = messages
        if not self._adapter.takes_one:
            batch = self._batch
            arguments = [messages[at : at + batch] for at in range(0, len(messages), batch)]
        self._submitted += len(arguments)
        for at in range(0, len(arguments), _CHUNK_CALLS):
            self._chunks.append(_Chunk(puller, deque(arguments[at : at + _CHUNK_CALLS])))
        self._start_workers()

    def running(self) -> list[RunningCalls]:
        """Return the `RunningCalls` that are in a call now."""
        return [running for running in list(self._running) if running.argument is not None]

    def in_progress(self) -> Sequence[MessageExt]:
        """Return the messages that handlers are called with now."""
        return [message for running in self.running() for message in running.in_progress()]

    async def wait_ended(self, puller: Puller) -> None:
        """Wait until the running calls for a queue have ended and are reported."""
        while any(running.puller is puller for running in list(self._running)):
            self._reported.clear()
            await self._reported.wait()

    async def close(self, timeout_s: float) -> Sequence[MessageExt]:
        """Begin no more calls and wait for those that run. Return the messages of unfinished ones."""
        self._is_closing = True
        with self._lock:
            for chunk in self._chunks:
                chunk.waiting.clear()
        late = (await asyncio.wait(self._workers, timeout=timeout_s))[1] if self._workers else set()
        left = self.in_progress() if late else ()
        self._is_cancelling = True
        self._tasks.cancel_soon(*late)
        if late:
            await asyncio.wait(late, timeout=1)
        self.report()
        return left

    def _start_workers(self) -> None:
        """Start workers if calls wait, and the others are too slow for them."""
        raise NotImplementedError

    def _next_calls(self) -> RunningCalls | None:
        """Begin with the first chunk of waiting calls; return None without one."""
        with self._lock:
            while self._chunks:
                chunk = self._chunks[0]
                if chunk.waiting and not chunk.puller.process_queue.dropped:
                    running = RunningCalls(chunk, takes_one=self._adapter.takes_one)
                    self._running[running] = None
                    return running
                self._chunks.popleft()
        return None

    def _count_waiting(self) -> int:
        with self._lock:
            return sum([len(chunk.waiting) for chunk in self._chunks])

    def report(self) -> None:
        """Report the calls that have ended since the last report."""
        completed: list[CompletedCalls] = []
        for running in list(self._running):
            is_over = running.is_over  # read first: a thread sets it after its last call
            completed += running.take_completed()
            if is_over:
                del self._running[running]
            running.was_suspended = True
        if completed:
            self._on_completed(completed)
        self._reported.set()


class LoopRunner(HandlerRunner):
    """Calls handlers in the event loop. Its workers are tasks, which wait while there are no calls.

    A task for each pull costs 5 % more (tools.bench.push).
    """

    def __init__(
        self, adapter: HandlerAdapter, config: PushConfig, on_completed: OnCompleted, tasks: Tasks
    ) -> None:
        super().__init__(adapter, config, on_completed, tasks)
        self._idle: list[asyncio.Future[None]] = []
        self._ends_iteration = False
        """Whether `_end_iteration` is scheduled."""
        self._iteration_s = 0.0
        """When the first call of this iteration of the event loop began or ended."""

    async def close(self, timeout_s: float) -> Sequence[MessageExt]:
        """Close the runner and end its tasks."""
        self._is_closing = True
        while self._idle:
            self._idle.pop().set_result(None)
        return await super().close(timeout_s)

    def _start_workers(self) -> None:
        """Start as many workers as there are, if calls wait and all workers are suspended in handlers."""
        working = len(self._workers) - len(self._idle)
        free = self._width - working
        if not free or not self._chunks or working > len(self.running()):
            return  # a worker that is between two calls makes the next one
        for _ in range(min(max(working, 1), free, self._count_waiting())):
            if self._idle:
                self._idle.pop().set_result(None)
            else:
                worker = self._tasks.spawn(self._work(), "handlers")
                self._workers.add(worker)
                worker.add_done_callback(self._worker_ended, context=Context())

    async def _work(self) -> None:
        """Make calls until `close`.

        The application may cancel this task in its handler. Then another worker makes the other calls.
        """
        task = cast("asyncio.Task[None]", asyncio.current_task())
        with contextlib.suppress(asyncio.CancelledError):
            while not self._is_closing and not task.cancelling():
                running = self._next_calls()
                if running is None:
                    await self._wait_for_calls()
                    continue
                self._end_iteration_soon(running.started_s)
                try:
                    await self._make_calls(running, task)
                finally:
                    running.leave()
                if running.started_s - self._iteration_s > _TIME_SLICE_S:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)  # for a handler that ended before its cancellation arrived

    def _worker_ended(self, worker: asyncio.Future[None]) -> None:
        self._workers.discard(worker)
        self._tasks.run(self._end_iteration)

    async def _wait_for_calls(self) -> None:
        idle = self._loop.create_future()
        self._idle.append(idle)
        try:
            await idle
        finally:
            if idle in self._idle:  # the application has cancelled the task
                self._idle.remove(idle)

    async def _make_calls(self, running: RunningCalls, task: asyncio.Task[None]) -> None:
        """Make the calls of a chunk. Each gets an unchanged copy of the adapter's context."""
        (puller, waiting), base = running.chunk, self._adapter.context
        while waiting and not puller.process_queue.dropped and not task.cancelling():
            context = base.copy()
            await run_in_context(context, self._call_in_context(running, context, task))

    async def _call_in_context(
        self, running: RunningCalls, context: Context, task: asyncio.Task[None]
    ) -> None:
        """Make calls in the current context until one leaves a variable changed.

        A context for each call would take 7 % of the time of a message (tools.bench.push).
        """
        adapter, (puller, waiting) = self._adapter, running.chunk
        call, is_async, base = adapter.function(), adapter.is_async, adapter.context
        process_queue, done = puller.process_queue, running.done.append
        while waiting and not process_queue.dropped:  # hot path: runs for each message
            argument = running.argument = waiting.popleft()
            result = ACKNOWLEDGED
            try:
                returned: Any = call(argument)
                if is_async or (
                    returned is not None and returned is not _SUCCESS and inspect.isawaitable(returned)
                ):
                    returned = await returned
                if returned is not None and returned is not _SUCCESS:
                    result = to_handling_result(returned)
            except BaseException as error:  # noqa: BLE001 - the application's code may raise anything
                # If the application cancels the task, the call has failed. If `close` does, it is unfinished.
                is_foreign = isinstance(error, asyncio.CancelledError) and not self._is_cancelling
                owner = None if is_foreign else task
                result = adapter.failed(running.messages_of([argument]), error, owner)
            if result is ACKNOWLEDGED and not running.was_suspended:
                done(argument)  # without the clock, which costs more than the other steps
            else:
                running.end_call(argument, result)
                self._end_iteration_soon(running.started_s)
                if task.cancelling():
                    break
            try:
                if context != base:
                    break
            except Exception:  # noqa: BLE001 - the application's values may raise anything when compared
                break

    def _end_iteration_soon(self, now_s: float) -> None:
        if not self._ends_iteration:
            self._ends_iteration, self._iteration_s = True, now_s
            self._tasks.call_soon(self._end_iteration)

    def _end_iteration(self) -> None:
        """Report the calls of this iteration of the event loop, and start workers for the waiting ones."""
        self._ends_iteration = False
        self.report()
        self._start_workers()


class ThreadRunner(HandlerRunner):
    """Calls plain handlers on threads. Its workers are jobs of a thread pool, and end when no calls wait."""

    def __init__(
        self, adapter: HandlerAdapter, config: PushConfig, on_completed: OnCompleted, tasks: Tasks
    ) -> None:
        super().__init__(adapter, config, on_completed, tasks)
        self._pool = HandlerThreadPool(config.concurrency)
        self._reports = False
        """Whether a thread has scheduled a report."""
        self._check: asyncio.TimerHandle | None = None
        self._check_pause_s = 0.0
        self._begun = 0
        """How many of the submitted calls had begun at the last check."""

    async def close(self, timeout_s: float) -> Sequence[MessageExt]:
        """Close the runner and end its threads."""
        left = await super().close(timeout_s)
        if self._check is not None:
            self._check.cancel()
        self._pool.shutdown()
        return left

    def _start_workers(self) -> None:
        """Start a job if calls wait and there is none; more follow when a check finds the others slow."""
        if not self._workers:
            self._start_jobs(1)
        self._check_within(_CHECK_S)

    def _start_jobs(self, count: int) -> None:
        for _ in range(min(count, self._width - len(self._workers), self._count_waiting())):
            job = self._loop.run_in_executor(self._pool, self._work)
            self._workers.add(job)
            job.add_done_callback(self._job_ended, context=Context())

    def _job_ended(self, job: asyncio.Future[None]) -> None:
        self._workers.discard(job)
        if not job.cancelled():
            self._tasks.run(job.result)  # an error fails the component
        self._tasks.run(self.report)
        self._start_workers()

    def _check_within(self, pause_s: float) -> None:
        if self._check is not None:
            if self._check_pause_s <= pause_s:
                return
            self._check.cancel()
        self._check_pause_s = pause_s
        self._check = self._tasks.call_later(pause_s, self._check_jobs) if self._workers else None

    def _check_jobs(self) -> None:
        """Report ended calls, and double the number of jobs if they began few of the waiting calls."""
        self._check = None
        self.report()
        waiting = self._count_waiting()
        begun, self._begun = self._submitted - waiting - self._begun, self._submitted - waiting
        if begun < _QUICK_CALLS * len(self._workers):
            self._start_jobs(len(self._workers))
        can_grow = waiting and len(self._workers) < self._width
        self._check_within(_CHECK_S if can_grow else _COLLECT_S)

    def report(self) -> None:
        self._reports = False
        super().report()

    # -- on threads ---------------------------------------------------------------------------

    def _work(self) -> None:
        """Make calls until none waits."""
        while (running := self._next_calls()) is not None:
            try:
                self._make_calls(running)
            finally:
                running.leave()

    def _make_calls(self, running: RunningCalls) -> None:
        adapter, (puller, waiting) = self._adapter, running.chunk
        call, copy_context, process_queue = adapter.function(), adapter.context.copy, puller.process_queue
        report_s = running.started_s + _TIME_SLICE_S
        while True:  # hot path: runs for each message
            try:
                argument = running.argument = waiting.popleft()
            except IndexError:  # another thread has taken the last one
                break
            if process_queue.dropped or self._is_closing:
                break  # checked after `argument` is set: the event loop takes the message for started, or not
            try:
                context = copy_context()
                returned = context.run(call, argument)
                if returned is None or returned is _SUCCESS:
                    result = ACKNOWLEDGED
                else:
                    result = to_handling_result(wait_in_loop(returned, self._loop, context))
            except BaseException as error:  # noqa: BLE001 - sys.exit() as well: here it would only end this thread
                result = adapter.failed_on_thread(running.messages_of([argument]), error)
            running.end_call(argument, result)
            if running.started_s > report_s and not self._reports:
                report_s = running.started_s + _TIME_SLICE_S
                self._report_soon()

    def _report_soon(self) -> None:
        self._reports = True
        with contextlib.suppress(RuntimeError):  # the event loop ended before this handler
            self._loop.call_soon_threadsafe(self._tasks.run, self.report, context=Context())
