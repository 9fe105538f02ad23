"""Signals that request the stop of a process, and those that only repeat such a request.

A first signal asks for a clean stop, a second one cuts it short. A supervisor may send one request twice, and
must not cut the stop short.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Coroutine
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

_SAME_STOP_S: Final = 0.5
"""GNU timeout sends a signal to its child and then to the whole group; a terminal and a parent may both send
one. Two signals of a person are further apart, or a third one follows."""


class StopSignals:
    """The signals that request the stop of a process."""

    def __init__(self) -> None:
        self._first_s: float | None = None

    def is_repetition(self) -> bool:
        """Record a signal, and return whether it belongs to the same request as the first one."""
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
            return False
        return now_s - self._first_s < _SAME_STOP_S


async def cancelled_by_signals(work: Coroutine[Any, Any, T], interrupts: list[int]) -> T:
    """Run `work`; SIGTERM and SIGINT cancel it. A SIGINT is also appended to `interrupts`."""
    loop, task = asyncio.get_running_loop(), cast("asyncio.Task[T]", asyncio.current_task())
    stop = StopSignals()

    def terminate() -> None:
        if not stop.is_repetition():
            task.cancel()

    def interrupt() -> None:
        if stop.is_repetition():
            return
        if interrupts:
            raise KeyboardInterrupt
        interrupts.append(signal.SIGINT)
        task.cancel()

    # Event loops on Windows have no signal handlers, and only the main thread can set them.
    with contextlib.suppress(NotImplementedError, RuntimeError):
        loop.add_signal_handler(signal.SIGTERM, terminate)
        # asyncio.run's own SIGINT handling does not suffice: while a thread reads standard input, the
        # interpreter occasionally misses the signal.
        loop.add_signal_handler(signal.SIGINT, interrupt)
    return await work
