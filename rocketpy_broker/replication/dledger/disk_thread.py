"""A thread for the disk calls that an event loop must not wait for.

An executor would do, but its futures and their copies cost more than what they are for: with one client, a
message waits for three of these hand-overs, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue

Done = Callable[[BaseException | None], None]
"""Told in the loop that the work has ended, and what it raised."""


class DiskThread:
    """Does one piece of work after the other, until `close`. To be made in the loop's thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._works: SimpleQueue[tuple[Callable[[], None], Done] | None] = SimpleQueue()
        self._open = 0
        self._closed: asyncio.Future[None] | None = None
        # A daemon: who closes waits for what is under way, and a program that ends otherwise shall end.
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def run(self, work: Callable[[], None], done: Done) -> None:
        """Do this when all before it is done."""
        self._open += 1
        self._works.put((work, done))

    async def close(self) -> None:
        """Wait until everything is done, and end."""
        if self._open:
            self._closed = self._loop.create_future()
            await self._closed
        self._works.put(None)

    def _work(self) -> None:
        while (item := self._works.get()) is not None:
            work, done = item
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:  # noqa: BLE001 - told to whoever gave the work
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self._ended, done, error)

    def _ended(self, done: Done, error: BaseException | None) -> None:
        self._open -= 1
        try:
            done(error)
        finally:
            if not self._open and self._closed is not None:
                self._closed.set_result(None)
