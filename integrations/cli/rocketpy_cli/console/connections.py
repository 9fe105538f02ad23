"""Connections of browsers to the console, with limits on their number and on the time for a request.

uvicorn waits for the rest of a request without a limit, and responds 503 to everybody once too many
connections are open. So any local program could keep the user out.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from itertools import count
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 200
_REQUEST_S = 10.0
_LOG_INTERVAL_S: Final = 10.0
_WAITING: Final = frozenset({h11.IDLE, h11.SEND_BODY})
"""States of a peer that has not sent its request completely."""
_numbers: Final = count()


class _Repetitions(logging.Filter):
    """Drops a record whose text was logged less than ten seconds ago."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written. The texts are uvicorn's, without values of a request."""
        now, text = time.monotonic(), str(record.msg)
        is_new = now - self._logged.get(text, -_LOG_INTERVAL_S) >= _LOG_INTERVAL_S
        if is_new:
            self._logged[text] = now
        return is_new


_log: Final = logging.getLogger("rocketpy.console.http")
_log.addFilter(_Repetitions())


class ConsoleConnection(H11Protocol):
    """One connection of a browser.

    A request must be complete after 10 seconds. At the limit of connections a new one replaces the oldest one
    without a complete request.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logger = _log
        self.number: Final = next(_numbers)
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Start to serve a connection, or abort it if all others have requests in progress."""
        waiting = [one for one in self.connections if isinstance(one, ConsoleConnection) and one.is_waiting]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            self.logger.warning("closing a connection without a request: too many are open")
            min(waiting, key=lambda one: one.number, default=self).transport.abort()
        self._limit_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle the bytes of requests."""
        super().data_received(data)
        self._limit_time()

    def send_400_response(self, msg: str) -> None:
        """Reject malformed bytes; a page that still reads the body of this request cannot respond to it."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        super().send_400_response(msg)

    def _should_upgrade(self) -> bool:
        return False  # a request to upgrade is handled as if it did not have one

    @property
    def is_waiting(self) -> bool:
        """Whether the next request has not been received completely."""
        return self.conn.their_state in _WAITING

    def _limit_time(self) -> None:
        if not self.is_waiting or self.transport.is_closing():
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(_REQUEST_S, self._end, context=contextvars.Context())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        if self.is_waiting:
            self.transport.abort()
