"""Calls functions periodically from the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rocketpy.errors import InvariantError
from rocketpy.runtime.tasks import Tasks

log = logging.getLogger("rocketpy.broker")


class PeriodicCalls:
    """One timer for each function. tasks: of the server, which fails after an InvariantError."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    def every(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function at this interval from now on. An exception is logged, and the calls continue."""

        def run() -> None:
            self._timers[function] = self._tasks.call_later(seconds, run)
            try:
                function()
            except InvariantError as error:
                self._tasks.fail(getattr(function, "__qualname__", repr(function)), error)
            except Exception:  # other calls must continue: clients, locks and held pulls must still expire
                log.exception("%s failed", function)

        self._timers[function] = self._tasks.call_later(seconds, run)

    def close(self) -> None:
        """Stop all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
