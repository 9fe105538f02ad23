"""An event loop in a thread of its own, on which the blocking clients of `rocketpy.sync` run."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from rocketpy.errors import ClientClosed, InvariantError, UsageError

log = logging.getLogger("rocketpy.client")

T = TypeVar("T")


class Background:
    """An event loop in a thread, for all blocking clients of the process. It lives as long as the process."""

    _current: Background | None = None
    _making = threading.Lock()

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._calls: deque[Callable[[], None]] = deque()
        self._thread = threading.Thread(target=self._serve, name="rocketpy", daemon=True)
        self._thread.start()

    @classmethod
    def get(cls) -> Background:
        """The one of this process; a forked child gets its own."""
        with cls._making:
            if cls._current is None or cls._current.pid != os.getpid():
                cls._current = cls()
            return cls._current

    def _serve(self) -> None:
        while True:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # A callback's sys.exit(), say: all others would wait for ever for what this loop does.
                log.exception("a callback wanted to end the thread that all clients share; it goes on")
            else:
                return

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine. Ctrl-C while waiting cancels it.

        Raises UsageError in the background thread, and ClientClosed in a forked child.
        """
        if self.is_current:
            work.close()
            raise UsageError(
                "a blocking method was called in the thread that works for all blocking clients, as in a "
                "callback or an async handler; it would wait for itself. Take a method that returns a "
                "future, such as send_async, or call it on a thread of your own"
            )
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine; return the future of what it returns. Raises ClientClosed in a forked child."""
        try:
            self._check_process()
        except ClientClosed:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[[], None]) -> None:
        """Have a function called soon, in the caller's context. Calls in quick succession cost one wake-up.

        Raises ClientClosed in a forked child.
        """
        self._check_process()
        self._calls.append(partial(contextvars.copy_context().run, function))
        if len(self._calls) == 1:
            self._loop.call_soon_threadsafe(self._call_all)

    def _call_all(self) -> None:
        # The length was 1 for whoever scheduled this, so it must be taken down to 0 and not left at the end.
        while self._calls:
            try:
                self._calls[0]()
            except InvariantError:
                if len(self._calls) > 1:  # nobody else schedules this while a call waits
                    self._loop.call_soon(self._call_all)
                raise
            except BaseException:
                # What waits behind it would wait for ever: nobody schedules this while there is something.
                log.exception("a call from another thread failed")
            finally:
                self._calls.popleft()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread, where nothing may wait for it."""
        return threading.current_thread() is self._thread

    def _check_process(self) -> None:
        if self.pid != os.getpid():
            raise ClientClosed("this client was made before a fork; make a new one in the child process")


async def later(function: Callable[[], T]) -> T:
    """A function as a coroutine."""
    return function()
