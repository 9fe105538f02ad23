"""Calls a function when messages are due, and again after an error.

Due times are wall-clock times, so the timer is short: a change of the clock is noticed after a second.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final

from rocketpy.errors import StoreError
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.store.busy import StoreBusy
from rocketpy_broker.store.files.disk import Clock
from rocketpy_broker.store.upkeep.driver import StoreDriver

log = logging.getLogger("rocketpy.broker.delay")

_TIMER_MAX_MS: Final = 1000
_RETRY_MS: Final = 1000
_BUSY_RETRY_MS: Final = 50
"""Interval of `OverloadDetector`, after which an overloaded store may accept messages again."""


class DueCalls:
    """Calls `deliver` with the current time, between `start` and `stop`.

    deliver: returns when to call it next, in ms; None to wait for `wake_at`. Raises StoreError. what: names
    the messages in the log and in the health of the broker.
    """

    def __init__(
        self,
        tasks: Tasks,
        driver: StoreDriver,
        clock: Clock,
        deliver: Callable[[int], int | None],
        what: str,
    ) -> None:
        self._tasks = tasks
        self._driver = driver
        self._clock = clock
        self._deliver = deliver
        self._what = what
        self._job = f"delivery of {what}"
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms: float = math.inf
        """What the timer is for; infinite without one."""
        self._is_running = False

    def start(self) -> None:
        """Call `deliver` now, and then when it is due."""
        self._is_running = True
        self.wake_at(self._clock())

    def stop(self) -> None:
        """Call `deliver` no more."""
        self._is_running = False
        self._driver.jobs.ended(self._job)
        self._due_ms = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wake_at(self, due_ms: int) -> None:
        """Call `deliver` at `due_ms` or earlier. Does nothing unless it runs."""
        if not self._is_running or due_ms >= self._due_ms:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + min(max(due_ms - self._clock(), 0), _TIMER_MAX_MS) / 1000
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._due_ms = due_ms
        self._timer = self._tasks.call_at(when, self._call)

    def _call(self) -> None:
        self._timer, self._due_ms = None, math.inf
        now_ms = self._clock()
        try:
            due_ms = self._deliver(now_ms)
        except StoreBusy:
            self.wake_at(now_ms + _BUSY_RETRY_MS)
            return
        except StoreError as error:
            self._driver.jobs.ended(self._job, error)
            log.error("cannot deliver %s, trying again in %d ms: %s", self._what, _RETRY_MS, error)
            self.wake_at(now_ms + _RETRY_MS)
            return
        self._driver.jobs.ended(self._job)
        if due_ms is not None:
            self.wake_at(due_ms)
