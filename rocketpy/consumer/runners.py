"""Runners: where handlers run. In the event loop for ``async def``, on threads for plain functions.

Both start workers as they are needed. One worker goes through everything that waits as long as handlers end
at once; each time one is held up, by an await or by a blocking call, another worker joins, up to a
bound. So quick handlers cost no task, thread or wake-up a message, and slow ones run side by side.

Differs from RocketMQ, which hands every batch to a pool of threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

from rocketpy.consumer.outcomes import ACKNOWLEDGED, Said, Verdict, verdict_of, verdict_of_error
from rocketpy.consumer.pulling import Puller
from rocketpy.message import MessageExt
from rocketpy.tasks import Tasks

__all__ = ["Ended", "LoopRunner", "Runner", "ThreadRunner", "Work", "is_async", "verdict_on_thread"]

log = logging.getLogger("rocketpy.consumer")

_YIELD_AFTER: Final = 64
"""Handlers that one worker runs in a row before the event loop gets its turn."""
_TICK_S: Final = 0.001
"""How long what waits for threads may stand still before more of them are woken."""

Call = Callable[[Sequence[MessageExt]], "Said | Awaitable[Said]"]
Waiting = tuple[Puller, Sequence[MessageExt]]
"""Messages of one queue for one call of the handler."""


class Work:
    """A call of the handler that a worker makes. started_ms: when it began, 0 while it has not.

    abandoned: it took too long; what it says in the end does not count any more.
    """

    __slots__ = ("abandoned", "messages", "puller", "started_ms")

    def __init__(self, waiting: Waiting) -> None:
        self.puller, self.messages = waiting
        self.started_ms = 0.0
        self.abandoned = False


class Ended:
    """Calls that ended, for messages of one queue: one, or several in a row that are done with all of them.

    took_ms: of all together.
    """

    __slots__ = ("calls", "messages", "puller", "took_ms", "verdict")

    def __init__(
        self, puller: Puller, messages: Sequence[MessageExt], verdict: Verdict, took_ms: float
    ) -> None:
        self.puller = puller
        self.messages = list(messages)
        self.verdict = verdict
        self.took_ms = took_ms
        self.calls = 1


Finished = Callable[[list[Ended]], None]


def _note(
    finished: list[Ended], puller: Puller, messages: Sequence[MessageExt], verdict: Verdict, took_ms: float
) -> None:
    """Enter a call that ended: together with the one before it if they go the same way."""
    last = finished[-1] if finished else None
    if last is not None and verdict is ACKNOWLEDGED and last.verdict is verdict and last.puller is puller:
        last.messages += messages
        last.took_ms += took_ms
        last.calls += 1
    else:
        finished.append(Ended(puller, messages, verdict, took_ms))


class Runner(Protocol):
    """Runs handlers. What they said is told to `finished`, in the event loop, several at once."""

    def submit(self, calls: Iterable[Waiting]) -> None:
        """Make these calls when there is a free worker, in about this order."""

    def running(self) -> list[Work]:
        """The calls that have begun and not ended."""

    async def close(self, timeout_s: float) -> bool:
        """Begin no more; wait for those that run. Returns whether all ended in time."""


def is_async(handler: object) -> bool:
    """Whether a handler is an ``async def``, or an object whose call is one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - its kind is asked, not whether it is there
    )


class LoopRunner:
    """Runs handlers in the event loop, `width` at a time."""

    def __init__(
        self, call: Call, width: int, finished: Finished, clock: Callable[[], float], tasks: Tasks
    ) -> None:
        self._call = call
        self._width = width
        self._tell = finished
        self._clock = clock
        self._tasks = tasks
        self._waiting: deque[Waiting] = deque()
        self._running: dict[Work, None] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._active = 0
        self._starting = False
        self._finished: list[Ended] = []
        self._loop = asyncio.get_running_loop()

    def submit(self, calls: Iterable[Waiting]) -> None:
        """See `Runner`."""
        self._waiting.extend(calls)
        self._join()

    def running(self) -> list[Work]:
        """See `Runner`."""
        return list(self._running)

    async def close(self, timeout_s: float) -> bool:
        """See `Runner`."""
        self._waiting.clear()
        workers = set(self._workers)
        late = (await asyncio.wait(workers, timeout=timeout_s))[1] if workers else set()
        for worker in late:
            worker.cancel()
        if late:
            await asyncio.wait(late, timeout=1)
        self._flush()
        return not late

    def _join(self) -> None:
        """Start a worker, unless one has not come to its first message yet."""
        if self._waiting and not self._starting and self._active < self._width:
            self._starting = True
            self._active += 1
            worker = self._tasks.spawn(self._work(), "handlers")
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        self._starting = False
        try:
            await self._handle_all()
        finally:
            self._active -= 1

    async def _handle_all(self) -> None:
        waiting, clock = self._waiting, self._clock
        work: Work | None = None  # one for all calls here, until it is abandoned: it costs as much as a call
        now_ms = clock()
        since = 0
        try:
            while waiting:
                puller, messages = call = waiting.popleft()
                if puller.held.dropped:
                    continue
                if work is None:
                    work = Work(call)
                    self._running[work] = None
                else:
                    work.puller, work.messages = call
                work.started_ms = now_ms
                try:
                    said = self._call(messages)
                    if said is not None and inspect.isawaitable(said):
                        if waiting and not self._starting:
                            self._join()
                        said = await said
                    verdict = ACKNOWLEDGED if said is None else verdict_of(said)
                except Exception as error:
                    log.exception("a handler failed on %s; they come again", messages)
                    verdict = verdict_of_error(error)
                now_ms = clock()
                if work.abandoned:
                    del self._running[work]
                    work = None
                else:
                    self._end(puller, messages, verdict, now_ms - work.started_ms)
                    work.started_ms = 0.0
                since += 1
                if since >= _YIELD_AFTER:
                    since = 0
                    await asyncio.sleep(0)
                    now_ms = clock()
        finally:
            if work is not None:
                del self._running[work]

    def _end(self, puller: Puller, messages: Sequence[MessageExt], verdict: Verdict, took_ms: float) -> None:
        if not self._finished:
            self._loop.call_soon(self._flush)
        _note(self._finished, puller, messages, verdict, took_ms)

    def _flush(self) -> None:
        finished, self._finished = self._finished, []
        if finished:
            self._tell(finished)


class ThreadRunner:
    """Runs handlers on up to `width` threads."""

    def __init__(self, call: Call, width: int, finished: Finished, clock: Callable[[], float]) -> None:
        self._call = call
        self._width = width
        self._tell = finished
        self._clock = clock
        self._waiting: deque[Waiting] = deque()
        self._running: dict[Work, None] = {}
        self._finished: deque[tuple[Work, Verdict, float]] = deque()
        self._flushing = False
        self._workers = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._ticking: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(width, "rocketpy-handler")

    def submit(self, calls: Iterable[Waiting]) -> None:
        """See `Runner`."""
        self._waiting.extend(calls)
        if self._workers == 0:
            self._join(1)
        if self._ticking is None:
            self._ticking = self._loop.call_later(_TICK_S, self._tick, len(self._waiting))

    def running(self) -> list[Work]:
        """See `Runner`."""
        return list(self._running)

    async def close(self, timeout_s: float) -> bool:
        """See `Runner`."""
        self._waiting.clear()
        if self._ticking is not None:
            self._ticking.cancel()
        in_time = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            in_time = False
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._flush()
        return in_time

    def _tick(self, before: int) -> None:
        """Twice as many workers when what waits does not get less by itself."""
        self._ticking = None
        left = len(self._waiting)
        if left:
            if left >= before or self._workers == 0:
                self._join(min(max(self._workers, 1), left))
            self._ticking = self._loop.call_later(_TICK_S, self._tick, left)

    def _join(self, count: int) -> None:
        for _ in range(min(count, self._width - self._workers)):
            self._workers += 1
            self._idle.clear()
            self._pool.submit(self._work)

    # -- on a thread --------------------------------------------------------------------------

    def _work(self) -> None:
        waiting = self._waiting
        try:
            while True:
                try:
                    call = waiting.popleft()
                except IndexError:
                    break
                if not call[0].held.dropped:
                    self._run(Work(call))
        finally:
            self._to_loop(self._left)

    def _run(self, work: Work) -> None:
        work.started_ms = self._clock()
        self._running[work] = None
        try:
            verdict = verdict_on_thread(self._call, work.messages, self._loop)
        finally:
            del self._running[work]
        # Appended before the flag is read, which the loop clears before it takes: nothing is left behind.
        self._finished.append((work, verdict, self._clock()))
        if not self._flushing:
            self._flushing = True
            self._to_loop(self._flush)

    def _to_loop(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop ended before a handler that took too long
            self._loop.call_soon_threadsafe(call)

    # -- in the event loop --------------------------------------------------------------------

    def _left(self) -> None:
        self._workers -= 1
        if self._waiting:
            self._join(1)
        elif self._workers == 0:
            self._idle.set()

    def _flush(self) -> None:
        self._flushing = False
        finished: list[Ended] = []
        with contextlib.suppress(IndexError):
            while True:
                work, verdict, ended_ms = self._finished.popleft()
                if not work.abandoned:
                    _note(finished, work.puller, work.messages, verdict, ended_ms - work.started_ms)
        if finished:
            self._tell(finished)


def verdict_on_thread(call: Call, messages: Sequence[MessageExt], loop: asyncio.AbstractEventLoop) -> Verdict:
    """Call a handler on the thread that this runs on. What it returns to wait for is awaited in the loop."""
    try:
        said: Any = call(messages)
        if said is not None and inspect.isawaitable(said):  # a plain function that made a coroutine
            said = asyncio.run_coroutine_threadsafe(_awaited(said), loop).result()
    except Exception as error:
        log.exception("a handler failed on %s; they come again", messages)
        return verdict_of_error(error)
    return verdict_of(said)


async def _awaited(said: Awaitable[object]) -> object:
    return await said
