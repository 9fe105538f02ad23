"""An event loop with a simulated clock: it never waits for a timer, but moves its clock to it."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

_GRACE_S = 0.0005
"""Real time for which sockets may become ready before the clock moves on."""
_ITERATIONS_MAX = 1000
"""Iterations at one time, after which the clock moves. A timer that fires a rounding error early repeats."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Runs real sockets and callbacks, while only timers let time pass.

    A busy machine takes longer, but sees the same times.
    """

    def __init__(self) -> None:
        self._now = 1000.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self._now

    def leap(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop
        self._iterations = 0
        self._since = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self._iterations = self._iterations + 1 if self._since == self._loop.time() else 0
        self._since = self._loop.time()
        if self._iterations > _ITERATIONS_MAX:
            self._loop.leap(1e-6)
        if timeout is None:
            return super().select()
        ready = super().select(min(timeout, _GRACE_S))
        if not ready and timeout > 0:
            self._loop.leap(timeout)
        return ready
