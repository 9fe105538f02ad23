"""The event loop in a background thread that runs the blocking clients of `rocketpy.sync`."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextvars import Context, ContextVar
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from rocketpy.errors import ClientClosed, InvariantError, UsageError

log: Final = logging.getLogger("rocketpy.client")

P = ParamSpec("P")
T = TypeVar("T")

_CLEAN_UP_S: Final = 3.0
"""How long Ctrl-C waits for the clean-up of the interrupted call; another one ends the wait."""
_calling_thread: Final = ContextVar[threading.Thread]("calling_thread")


class LoopThread:
    """The thread with the event loop of all blocking clients. It ends with the process."""

    _current: LoopThread | None = None
    _creation_lock = threading.Lock()

    def __init__(self) -> None:
        self.pid: int = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._calls: deque[Callable[[], None]] = deque()
        self._is_scheduled = False
        self._thread = threading.Thread(target=self._serve, name="rocketpy", daemon=True)
        self._thread.start()

    @classmethod
    def get(cls) -> LoopThread:
        """Return the loop thread of this process; a forked child gets its own."""
        with cls._creation_lock:
            if cls._current is None:
                cls._current = cls()
            return cls._current

    @classmethod
    def forget_parent(cls) -> None:
        """Let a forked child create its own loop thread.

        The parent's thread does not run in the child, and another thread may have held the lock.
        """
        cls._current = None
        cls._creation_lock = threading.Lock()

    def _serve(self) -> None:
        while True:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # For example, sys.exit() in a callback: all other clients would wait for this loop forever.
                log.exception(
                    "a callback tried to end the thread that all clients share; the thread continues"
                )
            else:
                return

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine and wait for its result. Ctrl-C cancels it, and waits until it has ended.

        Raises UsageError in the background thread, ClientClosed in a forked child, and TimeoutError after
        `timeout_s`.
        """
        if self.is_current:
            work.close()
            raise UsageError(
                "a blocking method was called in the event loop of the blocking clients, for example in a "
                "callback or an async handler. It would wait for itself. Use a method that returns a future, "
                "such as send_async, or call it on another thread"
            )
        token = _calling_thread.set(threading.current_thread())
        try:
            future = self.submit(work)
        finally:
            _calling_thread.reset(token)
        try:
            return future.result(timeout_s)
        except BaseException:  # Ctrl-C, the timeout, or the coroutine's own error
            if future.cancel() and timeout_s is None:
                self._wait_for_end(work)
            raise

    def _wait_for_end(self, work: Coroutine[Any, Any, object]) -> None:
        """Wait until a cancelled coroutine has cleaned up; otherwise it could meet the caller's next call."""

        async def wait() -> None:
            if running := [task for task in asyncio.all_tasks() if task.get_coro() is work]:
                await asyncio.wait(running)

        with contextlib.suppress(TimeoutError):
            self.submit(wait()).result(_CLEAN_UP_S)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine and return the future of its result. Raises ClientClosed in a forked child."""
        try:
            self.check_process()
        except ClientClosed:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function in the loop with the caller's context. Calls in quick succession share one wake-up.

        Raises ClientClosed in a forked child.
        """
        self.check_process()
        self._calls.append(partial(contextvars.copy_context().run, function))
        # Two threads may both find it unset: the second `_call_all` then finds no calls.
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._call_all, context=Context())
            except BaseException:  # Ctrl-C: the next call must schedule `_call_all`
                self._is_scheduled = False
                raise

    def _call_all(self) -> None:
        self._is_scheduled = False  # before the queue is emptied: a call that comes later schedules again
        while self._calls:
            call = self._calls.popleft()
            try:
                call()
            except InvariantError:
                if self._calls:
                    self._loop.call_soon(self._call_all, context=Context())
                raise
            except BaseException:  # a callback of the application may raise anything
                # The calls after this one must still be made.
                log.exception("a call that another thread scheduled in the event loop failed")

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread. It must not wait for the loop then."""
        return threading.current_thread() is self._thread

    @property
    def is_forked_copy(self) -> bool:
        """Whether this object was copied into a forked child, where the thread does not run."""
        return self.pid != os.getpid()

    def check_process(self) -> None:
        """Raise ClientClosed in a forked child."""
        if self.is_forked_copy:
            raise ClientClosed.after_fork(self.pid)


def calling_thread() -> threading.Thread:
    """Return the thread that waits in `LoopThread.run` for the calling coroutine."""
    return _calling_thread.get()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=LoopThread.forget_parent)


async def as_coroutine(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a coroutine."""
    return function(*args, **kwargs)


def run_without_waiting(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing, without an event loop."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    work.close()
    raise InvariantError("a coroutine waits for something, but its client was not started")


def iterate(loop: LoopThread, items: AsyncIterator[T]) -> Generator[T, None, None]:
    """Yield the items of an asynchronous iterator, each when the caller asks for it."""

    async def next_item() -> list[T]:
        async for item in items:
            return [item]
        return []

    async def close() -> None:
        if isinstance(items, AsyncGenerator):
            await items.aclose()

    try:
        while found := loop.run(next_item()):
            yield found[0]
    finally:
        loop.run(close())
