"""How many messages a channel may still receive: kombu's prefetch count."""

from __future__ import annotations

import asyncio
from typing import Final

_BUFFERED_MAX: Final = 64
"""The most messages that may wait for kombu without a prefetch count, or with a larger one."""
_REQUEST_MAX: Final = 32
"""The most messages that RocketMQ delivers in one response."""


class Window:
    """Counts the messages of one channel. Used in the event loop only.

    A channel that has reached its prefetch count requests no messages: other workers can have them. Messages
    that wait for kombu are released when the channel ends, which counts as a delivery. So only a channel that
    has taken some reads others ahead.
    """

    def __init__(self) -> None:
        self.readers = 0
        """How many queues the channel consumes."""
        self._prefetch = 0
        self._undelivered = 0
        self._unacknowledged = 0
        self._is_waited_for = False
        """Whether the application waits for a message."""
        self._taken = 0
        """How many messages the application has got since it began to consume, as far as that matters."""
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    def set_prefetch(self, count: int) -> None:
        """Change the prefetch count; 0 for no limit."""
        self._prefetch = count
        self._changed.set()

    def end_reader(self) -> None:
        """Note that the channel consumes a queue less."""
        self.readers -= 1
        if not self.readers:
            self._taken = 0

    def wait_for_one(self) -> None:
        """Note that the application waits for a message of any queue."""
        self._is_waited_for = True
        self._changed.set()

    async def reserve(self) -> int:
        """Wait until messages may be requested; return their number, in the order of the calls.

        The number is this caller's share if the channel consumes several queues.
        """
        async with self._turn:
            while (free := self._free()) < 1:
                self._changed.clear()
                await self._changed.wait()
            count = max(1, min(free // max(self.readers, 1), _REQUEST_MAX))
            self._undelivered += count
            return count

    def return_unused(self, count: int) -> None:
        """Give back what was reserved, or left the channel before its delivery."""
        self._undelivered -= count
        self._changed.set()

    def delivered(self) -> None:
        """Note that the application has a message, and will acknowledge it."""
        self._undelivered -= 1
        self._unacknowledged += 1
        self._is_waited_for = False
        self._taken = min(self._taken + 1, _BUFFERED_MAX + 1)
        self._changed.set()

    def settled(self) -> None:
        """Note that the application has acknowledged, rejected or released a message."""
        self._unacknowledged -= 1
        self._changed.set()

    def _free(self) -> int:
        ahead = max(self._taken - 1, self.readers if self._is_waited_for else 0)
        buffer = min(ahead, _BUFFERED_MAX) - self._undelivered
        if not self._prefetch:
            return buffer
        return min(buffer, self._prefetch - self._undelivered - self._unacknowledged)
