"""Handler runners: workers that call handlers, in the event loop (``async def``) or on threads.

The calls for a pull are divided into chunks. The workers of a chunk share one iterator, so that each call is
made once. A single worker makes all calls while handlers return immediately. When workers begin only a few
of the waiting calls between two checks, more workers start, up to `PushConfig.concurrency`. So fast handlers
need no task or thread per message, and slow handlers run concurrently.

Differs from RocketMQ, which submits every batch to a thread pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context, copy_context
from operator import length_hint
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
from rocketpy.runtime.tasks import Tasks, is_cancelled, run_in_context

log: Final = logging.getLogger("rocketpy.consumer")

_TIME_SLICE_S: Final = 0.001
"""After this time a worker in the event loop yields, and a thread reports its completed calls."""
_CHECK_S: Final = 0.001
"""How long calls may wait for threads before more threads start."""
_CHUNK_CALLS: Final = 64
"""Maximum calls of a chunk. A worker in the event loop may yield after each chunk."""
_QUICK_CALLS: Final = 4
"""A worker that begins fewer calls between two checks is blocked, or its handler is slow."""
_COLLECT_S: Final = 0.1
"""How often completed calls of blocked threads are collected."""
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
    calls: Iterator[Any]
    """The arguments of the calls that no worker has begun."""


class RunningCalls:
    """The calls that one worker makes of a chunk, one after the other.

    argument: of the current call; None between calls. abandoned: the argument of the last call that `abandon`
    detached. started_s: when the current call began, by `time.monotonic`. done: arguments of the calls that
    succeeded, of which the first `_reported` are reported. reported_s: end of the reported durations.
    is_over: the worker has left the chunk. was_interrupted: `_flush` or `abandon` ran since the current call
    began, so its end is timed and checked.
    """

    __slots__ = (
        "_reported",
        "_takes_one",
        "abandoned",
        "argument",
        "chunk",
        "done",
        "is_over",
        "reported_s",
        "started_s",
        "was_interrupted",
    )

    def __init__(self, chunk: _Chunk, now_s: float, *, takes_one: bool) -> None:
        self.chunk: Final = chunk
        self.done: Final[list[Any]] = []
        self.argument: Any = None
        self.abandoned: Any = None
        self.started_s: float = now_s
        self.reported_s: float = now_s
        self.is_over: bool = False
        self.was_interrupted: bool = False
        self._reported = 0
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
        if argument is None or self.abandoned is argument:
            return ()
        self.abandoned, self.was_interrupted = argument, True
        return self.messages_of([argument])

    def take_completed(self) -> CompletedCalls | None:
        """Return the calls that succeeded since the last report; None if there are none."""
        ended_s, count = self.started_s, len(self.done)
        calls, took_ms = count - self._reported, (ended_s - self.reported_s) * 1000
        if not calls:
            return None
        messages = self.messages_of(self.done[self._reported : count])
        self._reported, self.reported_s = count, ended_s
        return CompletedCalls(self.puller, messages, ACKNOWLEDGED, took_ms, calls)

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
        self._lock = Lock()  # protects `_waiting`, from which threads take chunks
        self._waiting: deque[_Chunk] = deque()
        self._running: dict[RunningCalls, None] = {}
        self._failed: deque[CompletedCalls] = deque()
        self._workers: set[asyncio.Future[None]] = set()
        self._flushing = False
        self._flushed = asyncio.Event()
        self._is_closing = False
        self._check: asyncio.Handle | None = None
        self._waiting_before = 0  # calls at the last check, and those submitted since

    def submit(self, puller: Puller, messages: list[MessageExt]) -> None:
        """Start to handle messages, in about this order."""
        if self._is_closing:
            return
        arguments: Sequence[Any] = messages
        if not self._adapter.takes_one:
            batch = self._batch
            arguments = [messages[at : at + batch] for at in range(0, len(messages), batch)]
        self._waiting_before += len(arguments)
        for at in range(0, len(arguments), _CHUNK_CALLS):
            self._waiting.append(_Chunk(puller, iter(arguments[at : at + _CHUNK_CALLS])))
        if self._workers:
            self._schedule_check()
        else:
            self._start_workers(1)

    def running(self) -> list[RunningCalls]:
        """Return the `RunningCalls` that are in a call now."""
        return [running for running in list(self._running) if running.argument is not None]

    def in_progress(self) -> Sequence[MessageExt]:
        """Return the messages that handlers are called with now."""
        return [message for running in self.running() for message in running.in_progress()]

    async def wait_ended(self, puller: Puller) -> None:
        """Wait until the running calls for a queue have ended and are reported."""
        while any(running.puller is puller for running in list(self._running)):
            self._flushed.clear()
            await self._flushed.wait()

    async def close(self, timeout_s: float) -> Sequence[MessageExt]:
        """Begin no more calls and wait for those that run. Return the messages of unfinished ones."""
        self._is_closing = True
        with self._lock:
            chunks = list(self._waiting)
            self._waiting.clear()
        for chunk in chunks:
            deque(chunk.calls, maxlen=0)  # exhaust the iterator, which workers share
        late = (await asyncio.wait(self._workers, timeout=timeout_s))[1] if self._workers else set()
        left = self.in_progress() if late else ()
        self._tasks.cancel_soon(*late)
        if late:
            await asyncio.wait(late, timeout=1)
        if self._check is not None:
            self._check.cancel()
        self._flush()
        return left

    # -- for subclasses -----------------------------------------------------------------------

    def _start_worker(self) -> asyncio.Future[None]:
        """Start a worker that makes calls until none is waiting; return its future."""
        raise NotImplementedError

    def _schedule_check(self) -> None:
        """Schedule `_check_workers` after a delay in which an unblocked worker would begin another call."""
        raise NotImplementedError

    def _next_chunk(self) -> RunningCalls | None:
        """Return a new `RunningCalls` of the first chunk with waiting calls; None without such a chunk."""
        with self._lock:
            while self._waiting:
                chunk = self._waiting[0]
                if length_hint(chunk.calls) and not chunk.puller.process_queue.dropped:
                    running = RunningCalls(chunk, time.monotonic(), takes_one=self._adapter.takes_one)
                    self._running[running] = None
                    return running
                self._waiting.popleft()
        return None

    def _failed_call(self, running: RunningCalls, argument: Any, result: HandlingResult) -> None:
        """Record a call whose messages are redelivered."""
        now_s = time.monotonic()
        messages, took_ms = running.messages_of([argument]), (now_s - running.started_s) * 1000
        self._failed.append(CompletedCalls(running.puller, messages, result, took_ms, 1))
        running.reported_s += now_s - running.started_s  # the time of this call is reported here
        running.started_s = now_s

    # -- in the event loop --------------------------------------------------------------------

    def _start_workers(self, count: int) -> None:
        for _ in range(count):
            self._workers.add(self._start_worker())
        self._schedule_check()

    def _worker_ended(self, worker: asyncio.Future[None]) -> None:
        self._workers.discard(worker)
        self._tasks.run(self._flush)
        if self._waiting and not self._workers:
            self._start_workers(1)

    def _count_waiting(self) -> int:
        """Return the number of waiting calls. Chunks at the front without any are removed first."""
        with self._lock:
            while self._waiting and not length_hint(self._waiting[0].calls):
                self._waiting.popleft()
            return sum([length_hint(chunk.calls) for chunk in self._waiting])

    def _check_workers(self) -> None:
        """Double the number of workers if they began few of the calls that were waiting at the last check."""
        self._check = None
        waiting, workers = self._count_waiting(), len(self._workers)
        begun, self._waiting_before = self._waiting_before - waiting, waiting
        if waiting and workers < self._width and begun < _QUICK_CALLS * workers:
            self._start_workers(min(workers, self._width - workers, waiting))
        else:
            self._schedule_check()

    def _flush(self) -> None:
        """Report the calls that have ended."""
        self._flushing = False
        completed: list[CompletedCalls] = []
        for running in list(self._running):
            is_over = running.is_over  # read first: a thread sets it after its last call
            calls = running.take_completed()
            if calls is not None:
                completed.append(calls)
            if is_over:
                del self._running[running]
            running.was_interrupted = True
        while self._failed:
            completed.append(self._failed.popleft())
        if completed:
            self._on_completed(completed)
        self._flushed.set()


class LoopRunner(HandlerRunner):
    """Calls handlers in the event loop."""

    _idle: tuple[asyncio.Task[None], asyncio.Future[None]] | None = None
    """An idle worker and the future that wakes it. A task for each pull costs 5 % more (tools.bench.push)."""

    def _start_worker(self) -> asyncio.Task[None]:
        if self._idle is not None:
            (worker, wakeup), self._idle = self._idle, None
            wakeup.set_result(None)
            return worker
        worker = self._tasks.spawn(self._work(), "handlers")
        worker.add_done_callback(self._worker_ended, context=Context())
        return worker

    async def _work(self) -> None:
        worker = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            while True:
                await self._call_chunks()
                if self._idle is not None or self._is_closing:
                    return
                self._workers.discard(worker)
                self._idle = worker, self._loop.create_future()
                await self._idle[1]
        except asyncio.CancelledError:
            if self._is_closing or not is_cancelled(worker):
                raise
            # The application has cancelled its handler's task. Another worker makes the other calls.
            if self._idle is not None and self._idle[0] is worker:
                self._idle = None

    async def _call_chunks(self) -> None:
        # Not the event loop's clock, which uvloop updates once per iteration.
        slice_start_s = time.monotonic()
        while (running := self._next_chunk()) is not None:
            self._flush_soon()  # if the first call waits: reports earlier ones, marks this one as interrupted
            try:
                await self._call_all(running)
            except asyncio.CancelledError as error:
                if not self._is_closing:  # see `_work`
                    failed = self._adapter.failed_on_thread(running.in_progress(), error)
                    self._end_call(running, running.argument, failed)
                raise
            finally:
                running.started_s = time.monotonic()
                running.argument = None
                running.is_over = True
                self._flush_soon()
            if running.started_s - slice_start_s >= _TIME_SLICE_S:
                await asyncio.sleep(0)
                slice_start_s = time.monotonic()

    async def _call_all(self, running: RunningCalls) -> None:
        context, calls = self._adapter.context, running.chunk.calls
        while length_hint(calls) and not running.puller.process_queue.dropped:
            await run_in_context(context.copy(), self._call_in_context(running, context))

    async def _call_in_context(self, running: RunningCalls, context: Context) -> None:
        """Make calls in the current context, a copy of `context`, until one leaves a variable changed.

        A copy for each call would take 7 % of the time of a message (tools.bench.push).
        """
        call, is_async, done = self._adapter.function(), self._adapter.is_async, running.done.append
        task = asyncio.current_task()
        returned: Any
        result: HandlingResult | None
        for argument in running.chunk.calls:  # hot path: runs for each message
            running.argument = argument
            try:
                returned = call(argument)
                if is_async or (
                    returned is not None and returned is not _SUCCESS and inspect.isawaitable(returned)
                ):
                    returned = await returned
                if returned is not None and returned is not _SUCCESS:
                    result = to_handling_result(returned)
                elif running.was_interrupted:
                    result = ACKNOWLEDGED
                else:  # nothing else has run since the last call
                    done(argument)
                    result = None
            except BaseException as error:  # noqa: BLE001 - the application's code may raise anything
                result = self._adapter.failed(running.messages_of([argument]), error, task)
            if result is not None:
                self._end_call(running, argument, result)
                if running.puller.process_queue.dropped:
                    break
            try:
                if copy_context() != context:
                    break
            except Exception:  # noqa: BLE001 - the application's values may raise anything when compared
                break

    def _end_call(self, running: RunningCalls, argument: Any, result: HandlingResult) -> None:
        """Record the result of a call during which other code may have run."""
        if running.abandoned is not argument:
            if result is ACKNOWLEDGED:
                running.done.append(argument)
            else:
                self._failed_call(running, argument, result)
        if running.was_interrupted:
            # Once per event loop iteration: the clock costs more than the rest of the loop.
            running.was_interrupted = False
            running.started_s = time.monotonic()
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._tasks.call_soon(self._flush)

    def _schedule_check(self) -> None:
        if self._check is None and self._waiting and len(self._workers) < self._width:
            self._check = self._tasks.call_soon(self._check_workers)


class ThreadRunner(HandlerRunner):
    """Calls plain handlers on threads."""

    def __init__(
        self, adapter: HandlerAdapter, config: PushConfig, on_completed: OnCompleted, tasks: Tasks
    ) -> None:
        super().__init__(adapter, config, on_completed, tasks)
        self._pool = HandlerThreadPool(config.concurrency)
        self._pause_s = 0.0

    async def close(self, timeout_s: float) -> Sequence[MessageExt]:
        """Close the runner and end its threads."""
        left = await super().close(timeout_s)
        self._pool.shutdown()
        return left

    def _start_worker(self) -> asyncio.Future[None]:
        worker = self._loop.run_in_executor(self._pool, self._work)
        worker.add_done_callback(self._worker_ended, context=Context())
        return worker

    def _worker_ended(self, worker: asyncio.Future[None]) -> None:
        if not worker.cancelled():
            self._tasks.run(worker.result)  # an error fails the component
        super()._worker_ended(worker)

    def _work(self) -> None:
        while (running := self._next_chunk()) is not None:
            try:
                self._call_all(running)
            finally:
                running.argument = None
                running.is_over = True

    def _call_all(self, running: RunningCalls) -> None:
        call, loop, monotonic = self._adapter.function(), self._loop, time.monotonic
        copy_context = self._adapter.context.copy
        process_queue, done = running.puller.process_queue, running.done.append
        reported_s = running.started_s
        for argument in running.chunk.calls:  # hot path: runs for each message
            if process_queue.dropped:
                break
            running.argument = argument
            try:
                context = copy_context()
                returned = context.run(call, argument)
                if returned is None or returned is _SUCCESS:
                    result = ACKNOWLEDGED
                else:
                    result = to_handling_result(wait_in_loop(returned, loop, context))
            except BaseException as error:  # noqa: BLE001 - sys.exit() as well: here it would only end this thread
                result = self._adapter.failed_on_thread(running.messages_of([argument]), error)
            now_s = monotonic()
            if running.abandoned is not argument:
                if result is ACKNOWLEDGED:
                    done(argument)
                else:
                    self._failed_call(running, argument, result)
            running.started_s = now_s
            if now_s - reported_s >= _TIME_SLICE_S and not self._flushing:
                reported_s, self._flushing = now_s, True
                with contextlib.suppress(RuntimeError):  # the event loop ended before this handler
                    loop.call_soon_threadsafe(self._tasks.run, self._flush, context=Context())

    def _schedule_check(self) -> None:
        pause_s = _CHECK_S if self._waiting else _COLLECT_S
        if self._check is not None:
            if self._pause_s <= pause_s:
                return
            self._check.cancel()
        if self._workers:
            self._pause_s = pause_s
            self._check = self._tasks.call_later(pause_s, self._check_workers)

    def _check_workers(self) -> None:
        self._flush()
        super()._check_workers()
