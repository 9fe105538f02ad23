"""A thread for the disk calls that would block the event loop.

It replaces a ThreadPoolExecutor, whose two futures per call take longer than a small flush. With one client,
a message waits for three of these calls in turn (tests/bench/dledger.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue

Done = Callable[[BaseException | None], None]
"""Called in the loop when the work has ended, with the error that it raised."""


class DiskThread:
    """Does one piece of work after the other, until `close`. Must be created in the loop's thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._works: SimpleQueue[tuple[Callable[[], None], Done] | None] = SimpleQueue()
        self._open = 0
        self._closed: asyncio.Future[None] | None = None
        # A daemon, since `close` waits for pending work, and a program without a `close` must be able to end.
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def run(self, work: Callable[[], None], done: Done) -> None:
        """Do this after all earlier work."""
        self._open += 1
        self._works.put((work, done))

    async def close(self) -> None:
        """Wait until all work is done, and end the thread."""
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
            except BaseException as raised:  # noqa: BLE001 - passed to `done`
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._ended, done, error)

    def _ended(self, done: Done, error: BaseException | None) -> None:
        self._open -= 1
        try:
            done(error)
        finally:
            if not self._open and self._closed is not None:
                self._closed.set_result(None)
