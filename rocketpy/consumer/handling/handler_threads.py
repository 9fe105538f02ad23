"""HandlerThreadPool: a thread pool for handlers, whose daemon threads do not delay the interpreter's exit.

ThreadPoolExecutor joins its threads at exit. A handler that never returns would keep a program alive after it
has closed its consumer. With daemon threads the program exits, and the messages are redelivered.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class HandlerThreadPool(Executor):
    """Up to `max_workers` daemon threads, started on demand. Further calls wait in an unbounded queue."""

    def __init__(self, max_workers: int) -> None:
        self._max_workers: Final = max_workers
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[object], Callable[[], object]]] = deque()
        self._threads = 0
        self._idle = 0
        self._is_shut_down = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call in a thread; see `Executor.submit`. Raises RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        with self._changed:
            if self._is_shut_down:
                raise RuntimeError("cannot submit a call: the thread pool for handlers is shut down")
            self._waiting.append((future, partial(fn, *args, **kwargs)))  # type: ignore[arg-type] # Future is invariant
            if self._idle >= len(self._waiting):
                self._changed.notify()
            elif self._threads < self._max_workers:
                self._threads += 1
                name = f"rocketpy-handler_{self._threads}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:
        """Cancel waiting calls and end idle threads, without waiting for running calls.

        wait, cancel_futures: ignored; `Executor.shutdown` has them.
        """
        with self._changed:
            self._is_shut_down = True
            for future, _ in self._waiting:
                future.cancel()
            self._waiting.clear()
            self._changed.notify_all()

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            future, call = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - the future raises it
                future.set_exception(error)
            else:
                future.set_result(result)
            del work, future, call  # an idle thread keeps no message alive

    def _next(self) -> tuple[Future[object], Callable[[], object]] | None:
        with self._changed:
            self._idle += 1
            while not self._waiting and not self._is_shut_down:
                self._changed.wait()
            self._idle -= 1
            return self._waiting.popleft() if self._waiting else None
