"""The bounds of what a producer holds: so many messages and so many bytes, and a queue for those who wait."""

from __future__ import annotations

import asyncio
from collections import deque

from rocketpy.errors import FlowControlled, RocketError


class InFlightLimiter:
    """Counts what is in flight, and lets callers wait, in their order, until there is room.

    count, bytes: what is in flight now; whoever takes room adds to them. closed: why nothing is let in, or
    None. A place given to someone who waits is kept for them until they run, so nobody overtakes them.
    """

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self.count = 0
        self.bytes = 0
        self.closed: RocketError | None = None
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._promised = 0
        self._promised_bytes = 0

    def refuses(self, size: int) -> bool:
        """Whether a body of `size` bytes must wait: there is no room, or others wait for it already.

        One message is always let through, however large.
        """
        count = self.count + self._promised
        return (
            count >= self._max_count
            or (count > 0 and self.bytes + self._promised_bytes + size > self._max_bytes)
            or self.closed is not None
            or bool(self._waiting)
        )

    def check(self, size: int) -> None:
        """Raise FlowControlled, or why this is closed, when `refuses`."""
        if self.closed is not None:
            raise self.closed
        if self.refuses(size):
            raise FlowControlled(
                f"{self._state()}, the bounds are {self._max_count} and {self._max_bytes}; "
                "`await producer.drain()`, or use `send`, which waits"
            )

    async def wait(self, size: int, timeout_ms: int) -> int:
        """Wait for room; return what is left of the time, at least 1 ms.

        Who waits longest goes first. The room is to be taken in the same turn of the loop. Raises
        FlowControlled after the time, or why this is closed.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / 1000
        turn = loop.create_future()
        self._waiting.append((turn, size))
        self._give()
        try:
            async with asyncio.timeout_at(until):
                await turn
        except TimeoutError:
            raise FlowControlled(f"no room within {timeout_ms} ms: {self._state()}") from None
        finally:
            self._end_wait(turn, size)
            loop.call_soon(self._give)
        if self.closed is not None:
            raise self.closed
        return max(1, int((until - loop.time()) * 1000))

    def free(self, size: int, count: int = 1) -> None:
        """So many are no longer in flight."""
        self.count -= count
        self.bytes -= size
        if self._waiting:
            self._give()

    def close(self, reason: RocketError) -> None:
        """Let nothing in any more; those who wait are told."""
        self.closed = reason
        self._give()

    def _is_over(self, size: int) -> bool:
        """Whether a body of `size` bytes goes beyond the bounds. (`refuses` says it again, being hot.)"""
        count = self.count + self._promised
        return count >= self._max_count or (
            count > 0 and self.bytes + self._promised_bytes + size > self._max_bytes
        )

    def _give(self) -> None:
        """Promise room to those who wait, as far as there is any."""
        while self._waiting:
            turn, size = self._waiting[0]
            if not turn.done() and self.closed is None and self._is_over(size):
                return
            self._waiting.popleft()
            if not turn.done():
                self._promised += 1
                self._promised_bytes += size
                turn.set_result(None)

    def _end_wait(self, turn: asyncio.Future[None], size: int) -> None:
        """Someone no longer waits: the room they were promised, if any, is theirs to take now, or free."""
        if turn.done() and not turn.cancelled():
            self._promised -= 1
            self._promised_bytes -= size

    def _state(self) -> str:
        return f"{self.count} sends with {self.bytes} bytes are in flight"
