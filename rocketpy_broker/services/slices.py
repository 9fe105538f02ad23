"""Runs long work of a server in slices, so that its event loop serves other clients in between.

Some work takes time in proportion to what clients have left in the server: held pulls, locks, offsets. As one
piece, it would delay every other client. Work is a generator that yields once the slice is over. All work of
a server shares one slice in each iteration of the loop. RocketMQ has threads for this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from rocketpy.runtime.tasks import Tasks

SLICE_MS: Final = 2
"""Duration of the slice in each iteration of the loop. Work in a slice may exceed it by its last step."""


class Slices:
    """The slices of one server. tasks: of the server. now_ms: a monotonic clock.

    Work should call `is_over` after each step, and yield if it returns True. An exception that leaves it
    fails the server, or is raised by `start`.
    """

    def __init__(self, tasks: Tasks, now_ms: Callable[[], float]) -> None:
        self.now_ms = now_ms
        self._tasks = tasks
        self._works: deque[Iterator[None]] = deque()
        self._end_ms: float | None = None
        """When the slice of this iteration of the loop is over; None before it has begun."""
        self._is_running = False

    def start(self, work: Iterator[None]) -> None:
        """Run work: now if the slice is not over, and the rest in the next iterations of the loop.

        Several works take turns.
        """
        self._works.append(work)
        if self._end_ms is None:
            self._begin()
        if not self._is_running and not self.is_over():
            self._run()

    def is_over(self) -> bool:
        """Whether the current slice is over."""
        return self._end_ms is None or self.now_ms() >= self._end_ms

    def _begin(self) -> None:
        self._end_ms = self.now_ms() + SLICE_MS
        self._tasks.call_soon(self._next)

    def _next(self) -> None:
        self._end_ms = None
        if self._works:
            self._begin()
            self._run()

    def _run(self) -> None:
        self._is_running = True
        try:
            while self._works:
                work = self._works.popleft()
                if next(work, work) is None:  # it has yielded
                    self._works.append(work)
                if self.is_over():
                    return
        finally:
            self._is_running = False
