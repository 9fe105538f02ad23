"""A small HTTP server for metrics and probes: GET and HEAD of a few pages, one request per connection.

It runs in the event loop of the server, so a response shows that the loop works. It is plain HTTP without a
password: use it on this machine only, or behind a proxy. Bytes, time and connections are limited. At the
limit, a new connection closes the oldest one, so slow clients cannot block probes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import StreamProtocol

log = logging.getLogger("rocketpy.broker.metrics")

_HEAD_BYTES_MAX: Final = 8192
_REQUEST_S_MAX: Final = 5.0
"""Maximum duration of a connection, with request and response."""
_CONNECTIONS_MAX: Final = 32
"""Above this number, a new connection closes the oldest. Scrapers and probes need a few milliseconds."""
_TEXT: Final = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """A response."""

    status: str
    """Code and reason."""
    body: bytes
    content_type: str = _TEXT


class HttpServer:
    """Serves `pages`: path -> function that returns the page. port: 0 for any free port; see `address`.

    Pages may be added while it runs.
    """

    def __init__(self, host: str, port: int, tasks: Tasks) -> None:
        self.pages: dict[str, Callable[[], Page | Awaitable[Page]]] = {}
        self._host = host
        self._port = port
        self._tasks = tasks
        self._server: asyncio.Server | None = None
        self._connections: dict[_Connection, None] = {}
        self._limited_log = RateLimitedLog(log)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; before `start`, the configured ones."""
        if self._server is None or not self._server.sockets:
            return self._host, self._port
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def start(self) -> None:
        """Listen. Raises OSError."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Connection(self), self._host, self._port)
        except OSError as error:
            raise OSError(error.errno, f"metricsPort {self._port}: {error.strerror}") from None
        log.info("%s at http://%s:%d", ", ".join(self.pages), *self.address)

    async def close(self) -> None:
        """Stop, and close open connections."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for connection in list(self._connections):
                connection.abort()
            await server.wait_closed()

    # -- for connections ------------------------------------------------------------------------

    def opened(self, connection: _Connection) -> asyncio.TimerHandle:
        """Add a connection; return the timer that closes it."""
        if len(self._connections) >= _CONNECTIONS_MAX:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.abort()
        self._connections[connection] = None
        return self._tasks.call_later(_REQUEST_S_MAX, connection.abort)

    def closed(self, connection: _Connection) -> None:
        """Remove a closed connection."""
        self._connections.pop(connection, None)

    def respond(self, connection: _Connection, method: str, path: str) -> None:
        """Respond to a request, now or when the page is complete."""
        make = self.pages.get(path)
        if method not in ("GET", "HEAD"):
            page: Page | Awaitable[Page] = Page("405 Method Not Allowed", b"GET and HEAD only\n")
        elif make is None:
            page = Page("404 Not Found", f"pages: {' '.join(self.pages)}\n".encode())
        else:
            try:
                page = make()
            except Exception as error:  # noqa: BLE001 - logged; the scraper must see that the server runs
                page = self._failed(path, error)
        is_head = method == "HEAD"
        if isinstance(page, Page):
            connection.respond(page, is_head=is_head)
        else:
            self._tasks.spawn(self._respond_later(connection, path, page, is_head), f"page {path}")

    async def _respond_later(
        self, connection: _Connection, path: str, making: Awaitable[Page], is_head: bool
    ) -> None:
        try:
            page = await making
        except Exception as error:  # noqa: BLE001 - logged; the scraper must see that the server runs
            page = self._failed(path, error)
        connection.respond(page, is_head=is_head)

    def _failed(self, path: str, error: Exception) -> Page:
        self._limited_log.exception(path, "page %s failed", path, error=error)
        return Page("500 Internal Server Error", b"failed; see the server's log\n")


class _Connection(StreamProtocol):
    """One request and its response."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._timer: asyncio.TimerHandle | None = None
        self._head = bytearray()
        self._has_responded = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._timer = self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._has_responded:
            return  # ignored, because unread data would reset the connection when it is closed
        self._head += data
        if b"\r\n\r\n" in self._head:
            self._handle_request()
        elif len(self._head) > _HEAD_BYTES_MAX:
            self.respond(Page("431 Request Header Fields Too Large", b"the request is too long\n"))

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._server.closed(self)

    def _handle_request(self) -> None:
        line, _, _ = bytes(self._head).partition(b"\r\n")
        words = line.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            self.respond(Page("400 Bad Request", b"GET /path HTTP/1.1 is expected\n"))
            return
        method, target = words[0].decode("latin-1"), words[1].decode("latin-1")
        self._has_responded = True
        self._head.clear()
        self._server.respond(self, method, target.partition("?")[0])

    def respond(self, page: Page, *, is_head: bool = False) -> None:
        """Send the response, unless the connection is closed."""
        self._has_responded = True
        self._head.clear()
        if self._transport is None or self._transport.is_closing():
            return
        head = (
            f"HTTP/1.1 {page.status}\r\nContent-Type: {page.content_type}\r\n"
            f"Content-Length: {len(page.body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode("latin-1") + (b"" if is_head else page.body))
        self._transport.write_eof()
