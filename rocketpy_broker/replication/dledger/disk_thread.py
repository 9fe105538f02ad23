"""A thread for the disk calls that would block the event loop.

It replaces a ThreadPoolExecutor, whose two futures for each call take longer than a small flush. With one
client, a message waits for three such calls, one after the other (tools/bench/dledger.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextvars import Context
from queue import SimpleQueue

Done = Callable[[BaseException | None], None]
"""Called in the loop when the work has ended, with the exception that it raised, or None."""


class DiskThread:
    """Runs functions one after the other in a thread, until `close`. Must be created in the loop's thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[Callable[[], None], Done] | None] = SimpleQueue()
        self._pending = 0
        self._closed: asyncio.Future[None] | None = None
        # A daemon thread, so that a program can end without `close`. `close` waits for pending work.
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def run(self, work: Callable[[], None], done: Done) -> None:
        """Run `work` in the thread after all earlier work; then call `done` in the loop."""
        self._pending += 1
        self._queue.put((work, done))

    async def close(self) -> None:
        """Wait until all work is done, and end the thread."""
        if self._pending:
            self._closed = self._loop.create_future()
            await self._closed
        self._queue.put(None)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            work, done = item
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:  # noqa: BLE001 - passed to `done`
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._ended, done, error, context=Context())

    def _ended(self, done: Done, error: BaseException | None) -> None:
        self._pending -= 1
        try:
            done(error)
        finally:
            if not self._pending and self._closed is not None:
                self._closed.set_result(None)
