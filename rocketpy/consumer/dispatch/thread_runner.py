"""ThreadRunner: plain handlers on threads.

Threads that are at the messages of one pull share one iterator, so that each message is one thread's. What a
thread has done it puts on a list of its own, which only grows; the event loop takes what is new when it is
told to, and looks by itself now and then, since a thread may be held up before it has told.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from operator import length_hint
from threading import Lock
from typing import Any, Final

from rocketpy.consumer.dispatch.handler_threads import HandlerThreadPool
from rocketpy.consumer.dispatch.runner import (
    Called,
    CompletedCalls,
    OnCompleted,
    RunningCall,
    arguments_of,
    in_progress,
    note,
)
from rocketpy.consumer.fetch.puller import Puller
from rocketpy.consumer.outcomes import (
    ACKNOWLEDGED,
    ConsumeResult,
    HandlerResult,
    HandlingResult,
    failure_result,
    to_handling_result,
)
from rocketpy.message.message import MessageExt
from rocketpy.runtime.tasks import Tasks

log = logging.getLogger("rocketpy.consumer")

_TICK_S: Final = 0.001
"""How long what waits for threads may stand still before more of them are woken."""
_TICK_MAX_S: Final = 0.128
_TELL_MS: Final = 1.0
"""After so long a thread tells the event loop what it has done."""
_DONE: Final = ConsumeResult.SUCCESS


class _Share:
    """Messages of one queue that wait. arguments: of the calls that nobody has begun, for all threads."""

    __slots__ = ("arguments", "messages", "puller")

    def __init__(self, puller: Puller, messages: list[MessageExt], arguments: Sequence[Any]) -> None:
        self.puller: Final = puller
        self.messages: Final = messages
        self.arguments: Final[Iterator[Any]] = iter(arguments)


class _Part:
    """What one thread does of a share; a call that it makes now is the `RunningCall`.

    done: arguments of the calls that are done with all their messages. until_ms: when the last of them ended
    that was told of. is_over: nothing more comes. told, told_ms: how much of it the event loop has seen.
    """

    __slots__ = (
        "_abandoned", "_takes_one", "argument", "done", "is_over", "share", "started_ms", "told", "told_ms",
        "until_ms",
    )  # fmt: skip

    def __init__(self, share: _Share, now_ms: float, *, takes_one: bool) -> None:
        self.share: Final = share
        self.done: Final[list[Any]] = []
        self.argument: Any = None
        self.started_ms = self.until_ms = self.told_ms = now_ms
        self.told = 0
        self.is_over = False
        self._takes_one = takes_one
        self._abandoned: Any = None

    @property
    def puller(self) -> Puller:
        """See `RunningCall`."""
        return self.share.puller

    def in_progress(self) -> Sequence[MessageExt]:
        """See `RunningCall`."""
        argument = self.argument
        return () if argument is None else self.messages_of([argument])

    def abandon(self) -> Sequence[MessageExt]:
        """See `RunningCall`."""
        argument = self.argument  # the thread may come to its next call meanwhile: one or the other
        if argument is None or self._abandoned is argument:
            return ()
        self._abandoned = argument
        return self.messages_of([argument])

    def is_abandoned(self, argument: object) -> bool:
        """Whether a call's messages were taken away from it."""
        return self._abandoned is argument

    def news(self) -> tuple[Sequence[MessageExt], int, float]:
        """Messages done with since the last time, calls, and how long they took."""
        until_ms, done = self.until_ms, len(self.done)
        calls, took_ms = done - self.told, until_ms - self.told_ms
        if calls == done and self._takes_one and done == len(self.share.messages):
            messages: Sequence[MessageExt] = self.share.messages  # all that a pull brought, in one piece
        else:
            messages = self.messages_of(self.done[self.told : done])
        self.told, self.told_ms = done, until_ms
        return messages, calls, took_ms

    def messages_of(self, arguments: list[Any]) -> Sequence[MessageExt]:
        """What these calls are for."""
        return arguments if self._takes_one else [message for batch in arguments for message in batch]


class ThreadRunner:
    """Runs handlers on up to `width` threads. batch: messages a call."""

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
        self._parts: dict[_Part, None] = {}
        self._failed: deque[CompletedCalls] = deque()
        self._lock = Lock()
        self._flushing = False
        self._workers = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._ticking: asyncio.TimerHandle | None = None
        self._pause_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._pool = HandlerThreadPool(width)

    def submit(self, puller: Puller, messages: list[MessageExt]) -> None:
        """See `HandlerRunner`."""
        self._waiting.append(_Share(puller, messages, arguments_of(self._called, messages, self._batch)))
        if self._workers == 0:
            self._join(1)
        if self._ticking is None or self._pause_s > _TICK_S:
            self._tick_in(_TICK_S)

    def running(self) -> Sequence[RunningCall]:
        """See `HandlerRunner`."""
        return [part for part in list(self._parts) if not part.is_over]

    async def close(self, timeout_s: float) -> Sequence[MessageExt]:
        """See `HandlerRunner`."""
        with self._lock:
            shares = list(self._waiting)
            self._waiting.clear()
        for share in shares:
            deque(share.arguments, maxlen=0)  # those that threads are at, too
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        if self._ticking is not None:
            self._ticking.cancel()
        self._pool.shutdown()
        self._flush()
        return in_progress(self)

    # -- on a thread --------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while (share := self._next_share()) is not None:
                part = _Part(share, self._clock(), takes_one=self._called.takes_one)
                self._parts[part] = None
                try:
                    self._go_through(part)
                finally:
                    part.argument = None
                    part.is_over = True
                    self._wake()
        finally:
            self._to_loop(self._left)

    def _next_share(self) -> _Share | None:
        """The first of which something waits still."""
        with self._lock:
            while self._waiting:
                share = self._waiting[0]
                if length_hint(share.arguments) and not share.puller.process_queue.dropped:
                    return share
                self._waiting.popleft()
        return None

    def _go_through(self, part: _Part) -> None:
        """Make calls for what waits of a share, until other threads or this one have made the last."""
        call, clock, process_queue, done = (
            self._called.current(),
            self._clock,
            part.puller.process_queue,
            part.done.append,
        )
        told_ms = now_ms = part.started_ms
        for argument in part.share.arguments:  # this loop is what each message pays
            if process_queue.dropped:
                break
            part.started_ms = now_ms
            part.argument = argument
            try:
                returned = call(argument)
                result = ACKNOWLEDGED if returned is None or returned is _DONE else self._verdict(returned)
            except BaseException as error:  # sys.exit() as well: here it would only end this thread
                log.exception("a handler failed on %s; they come again", part.messages_of([argument]))
                result = failure_result(error)
            now_ms = clock()
            if part.is_abandoned(argument):
                continue
            if result is ACKNOWLEDGED:
                done(argument)
            else:
                messages = part.messages_of([argument])
                self._failed.append(
                    CompletedCalls(part.puller, messages, result, now_ms - part.started_ms, 1)
                )
            if now_ms - told_ms >= _TELL_MS:
                part.until_ms = told_ms = now_ms
                self._wake()
        part.until_ms = now_ms

    def _verdict(self, returned: Any) -> HandlingResult:
        return to_handling_result(_awaited_in(self._loop, returned))

    def _wake(self) -> None:
        """Have the event loop take what is new; it clears the flag before it takes, so nothing is left."""
        if not self._flushing:
            self._flushing = True
            self._to_loop(self._flush)

    def _to_loop(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop ended before a handler that took too long
            self._loop.call_soon_threadsafe(self._tasks.run, call)

    # -- in the event loop --------------------------------------------------------------------

    def _join(self, count: int) -> None:
        for _ in range(min(count, self._width - self._workers)):
            self._workers += 1
            self._idle.clear()
            self._pool.submit(self._work)

    def _left(self) -> None:
        self._workers -= 1
        if self._waiting:
            self._join(1)
        elif self._workers == 0:
            self._idle.set()

    def _tick_in(self, pause_s: float) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        self._pause_s = pause_s
        self._ticking = self._loop.call_later(pause_s, self._tasks.run, self._tick, self._left_to_do())

    def _left_to_do(self) -> int:
        with self._lock:
            return sum([length_hint(share.arguments) for share in self._waiting])

    def _tick(self, before: int) -> None:
        """Twice as many workers when what waits does not get less by itself; take what was not told of."""
        self._ticking = None
        left = self._left_to_do()
        if left and (left >= before or self._workers == 0):
            self._join(min(max(self._workers, 1), left))
        self._flush()
        if left:
            self._tick_in(_TICK_S)
        elif self._parts:
            self._tick_in(min(2 * self._pause_s, _TICK_MAX_S))

    def _flush(self) -> None:
        self._flushing = False
        finished: list[CompletedCalls] = []
        for part in list(self._parts):
            is_over = part.is_over  # read first: what is over has put all on its list
            messages, calls, took_ms = part.news()
            if calls:
                note(finished, part.puller, messages, ACKNOWLEDGED, took_ms, calls)
            if is_over:
                del self._parts[part]
        with contextlib.suppress(IndexError):
            while True:
                finished.append(self._failed.popleft())
        if finished:
            self._tell(finished)


def call_on_thread(
    call: Callable[[Sequence[MessageExt]], HandlerResult | Awaitable[HandlerResult]],
    messages: Sequence[MessageExt],
    loop: asyncio.AbstractEventLoop,
) -> HandlingResult:
    """Call a handler on the thread that this runs on. What it returns to wait for is awaited in the loop."""
    try:
        returned = _awaited_in(loop, call(messages))
    except BaseException as error:  # see `ThreadRunner`
        log.exception("a handler failed on %s", messages)
        return failure_result(error)
    return to_handling_result(returned)


def _awaited_in(loop: asyncio.AbstractEventLoop, returned: Any) -> Any:
    """What comes of it where a plain function made a coroutine."""
    if returned is not None and inspect.isawaitable(returned):
        return asyncio.run_coroutine_threadsafe(_awaited(returned), loop).result()
    return returned


async def _awaited(returned: Awaitable[object]) -> object:
    return await returned
