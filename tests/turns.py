"""Counts the work that an event loop does in one iteration, while other clients wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Turns:
    """Wraps a function, and counts its calls between two iterations of the event loop.

    total: number of calls. longest: largest number of calls in one iteration. Call `stop` at the end.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.total = self.longest = self._now = 0
        self._function = function
        self._tick()

    def __call__(self, *args: Any, **how: Any) -> Any:
        self.total += 1
        self._now += 1
        self.longest = max(self.longest, self._now)
        return self._function(*args, **how)

    def _tick(self) -> None:
        self._now = 0
        self._timer = asyncio.get_running_loop().call_soon(self._tick)

    def stop(self) -> None:
        """Stop counting iterations."""
        self._timer.cancel()
