"""Limits of what is in flight: of a whole producer, where callers wait in a queue, and to each broker."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context
from typing import Final

from rocketpy.errors import FlowControlled, RocketError


class InFlightLimiter:
    """Counts messages in flight. Above a limit, callers wait in order.

    A place granted to a waiter already counts before the waiter runs, so that no later caller overtakes it.
    """

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self.count: int = 0
        """Messages in flight."""
        self.bytes: int = 0
        """Bytes of their bodies."""
        self.closed: RocketError | None = None
        """Why sends are rejected, or None."""
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    def would_block(self, size: int) -> bool:
        """Return whether a body of `size` bytes must wait.

        It must when a limit is reached, others wait already, or the limiter is closed. With nothing in
        flight, a body of any size may be sent.
        """
        count = self.count
        return (
            count >= self._max_count
            or (count > 0 and self.bytes + size > self._max_bytes)
            or self.closed is not None
            or bool(self._waiting)
        )

    def check(self, size: int) -> None:
        """Raise FlowControlled, or the reason of the close, when a body of `size` bytes would block."""
        if self.closed is not None:
            raise self.closed
        if self.would_block(size):
            raise FlowControlled(
                f"{self._state()}; the limits are {self._max_count} and {self._max_bytes}. "
                "Call `await producer.drain()` first, or use `send`, which waits"
            )

    async def wait(self, size: int, timeout_ms: int) -> int:
        """Wait until a body of `size` bytes may be sent; return the rest of `timeout_ms`, at least 1 ms.

        The caller must call `acquire` in the same event loop iteration. Raises FlowControlled after
        `timeout_ms`, or the reason of the close.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / 1000
        granted = loop.create_future()
        self._waiting.append((granted, size))
        self._grant()
        try:
            async with asyncio.timeout_at(until):
                await granted
        except TimeoutError:
            raise FlowControlled(
                f"still above a limit of the producer after {timeout_ms} ms: {self._state()}"
            ) from None
        finally:
            if granted.done() and not granted.cancelled():
                self.count -= 1
                self.bytes -= size
            loop.call_soon(self._grant, context=Context())
        if self.closed is not None:
            raise self.closed
        return max(1, int((until - loop.time()) * 1000))

    def acquire(self, size: int) -> None:
        """Count one more body in flight."""
        self.count += 1
        self.bytes += size

    def release(self, size: int, count: int = 1) -> None:
        """Count `count` bodies of together `size` bytes as no longer in flight."""
        self.count -= count
        self.bytes -= size
        if self._waiting:
            self._grant()

    def close(self, reason: RocketError) -> None:
        """Reject new sends, and wake waiters with the reason."""
        self.closed = reason
        self._grant()

    def _grant(self) -> None:
        """Grant places to waiters in order, as far as the limits allow."""
        while self._waiting:
            granted, size = self._waiting[0]
            over = self.count >= self._max_count or (self.count > 0 and self.bytes + size > self._max_bytes)
            if over and not granted.done() and self.closed is None:
                return
            self._waiting.popleft()
            if not granted.done():
                self.acquire(size)
                granted.set_result(None)

    def _state(self) -> str:
        return f"{self.count} messages with {self.bytes} bytes are in flight"


class SendWindow:
    """Limits what is written to one broker at once, from its measured round trips.

    A request that waits in the broker's receive buffer cannot be taken back: when its timeout passes there,
    nobody knows whether it will be stored. So no more is written than a broker handles in an eighth of the
    timeout. The rest waits in the producer, and ends as not sent. The limit doubles with each round trip up
    to half of that time, and shrinks above it. If the broker takes that long when little is in flight, the
    limit grows in steps.

    timeout_ms: the usual timeout of a send.

    Source: TCP Vegas for the limit, RFC 6298 for the expected round trip.
    """

    _MIN: Final = 1 << 16
    _MAX: Final = 1 << 30

    def __init__(self, timeout_ms: float) -> None:
        self.in_flight: int = 0
        """Bytes that were written and have no response yet, with an estimate for the overhead of each
        message.
        """
        self.timed: bool = False
        """Whether the round trip of a request is being measured, of one at a time."""
        self.limit: int = self._MIN
        """Maximum of `in_flight`; with nothing in flight, a request of any size may be written."""
        self.was_full: bool = False
        """Whether a request had to wait since the last measurement."""
        self._target_ms = timeout_ms / 8
        self._mean_ms = self._deviation_ms = self._last_ms = 0.0
        self._last_load = 1
        """What was in flight when the last measured request was written."""
        self._best_ms = float("inf")
        """The shortest round trip so far."""

    def is_late(self, timeout_ms: float, left_ms: float) -> bool:
        """Return whether a send should not be written, since its response would come after its timeout.

        timeout_ms, left_ms: the time that the send had at its start, and has now. In its first half it is
        always written: the broker may be faster than before.
        """
        if left_ms * 2 >= timeout_ms:
            return False
        by_load_ms = 2 * self._last_ms * self.in_flight / self._last_load
        return left_ms <= max(self._mean_ms + 4 * self._deviation_ms, 2 * self._last_ms, by_load_ms)

    def measure(self, rtt_ms: float, load: int) -> None:
        """Learn from one round trip, or from a timeout. load: what was in flight when it began."""
        if not self._mean_ms:
            self._mean_ms, self._deviation_ms = rtt_ms, rtt_ms / 2
        self._deviation_ms += (abs(rtt_ms - self._mean_ms) - self._deviation_ms) / 4
        self._mean_ms += (rtt_ms - self._mean_ms) / 8
        self._last_ms, self._last_load = rtt_ms, load
        self._best_ms = min(self._best_ms, rtt_ms)
        if rtt_ms <= self._target_ms / 2:
            if self.was_full:
                self.limit = min(2 * self.limit, self._MAX)
        elif rtt_ms <= 1.5 * self._best_ms:
            self.limit += self._MIN // 4 if self.was_full else 0
        elif rtt_ms > self._target_ms:
            self.limit = max(self._MIN, int(load * self._target_ms / rtt_ms))
        self.was_full = False
