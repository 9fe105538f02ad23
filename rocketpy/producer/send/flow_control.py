"""Limits the messages and bytes that a producer has in flight; callers above a limit wait in a queue."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context

from rocketpy.errors import FlowControlled, RocketError


class InFlightLimiter:
    """Counts messages in flight. Above a limit, callers wait in order.

    count, bytes: messages in flight, and the bytes of their bodies. closed: why sends are rejected, or None.
    A place granted to a waiter already counts before the waiter runs, so that no later caller overtakes it.
    """

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self.count: int = 0
        self.bytes: int = 0
        self.closed: RocketError | None = None
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
