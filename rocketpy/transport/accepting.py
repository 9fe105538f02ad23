"""TcpListener: accepts connections at TCP ports, a few at a time.

asyncio's own accept loop accepts up to a whole backlog of connections in a row. When no file descriptor is
left, it logs a traceback for each connection. `TcpListener` accepts a few in a row, and limits the rate of
such log lines.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any, Final

from rocketpy.errors import InvariantError
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport.base import Address, ChannelOptions, host_limit
from rocketpy.transport.tls import tls_reason
from rocketpy.transport.tls_detection import readable

log: Final = logging.getLogger("rocketpy.transport")

Adopt = Callable[[socket.socket], Coroutine[Any, Any, None]]
"""Starts the protocol of an accepted socket, after TLS; closes the socket when it raises."""

_BACKLOG: Final = 1024
_ACCEPTS_PER_TURN: Final = 4
"""Connections that are accepted in a row. They count towards the limits only in the next loop iteration."""
_PAUSE_S: Final = 0.2
"""Pause after an error, in which connections may end and free their descriptors."""
_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_UNFINISHED_SHARE: Final = 4
"""Connections that wait for their first byte or TLS handshake: at most maxConnections divided by this."""


async def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Listen at every address of a host. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, where in dict.fromkeys(found):
            # "::" is bound for IPv6 only; IPv4 has an entry of its own.
            listening = socket.create_server(where[:2], family=family, backlog=_BACKLOG)
            sockets.append(listening)
            listening.setblocking(False)
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets


class TcpListener:
    """Accepts connections at its sockets until `close`.

    adopt: see `Adopt`. A connection is unfinished while `adopt` runs. Above the limit of unfinished ones, the
    oldest is closed; above the limit of its host, the new one.
    """

    def __init__(
        self, scheme: str, sockets: list[socket.socket], adopt: Adopt, options: ChannelOptions
    ) -> None:
        self._scheme = scheme
        self._sockets = sockets
        self._adopt = adopt
        self._options = options
        self._unfinished: dict[asyncio.Task[None], str] = {}
        """Task -> host of the peer."""
        self._unfinished_max = max(_ACCEPTS_PER_TURN, options.max_connections // _UNFINISHED_SHARE)
        self._limited_log = RateLimitedLog(log)
        self.tasks: Final = Tasks(f"the listener at {self.address}")
        for listening in sockets:
            self.tasks.spawn(self._accept(listening), "accept")

    @property
    def address(self) -> Address:
        """The address, with the actual port."""
        name = self._sockets[0].getsockname()
        return Address(self._scheme, name[0], name[1])

    async def close(self) -> None:
        """Stop accepting connections."""
        await self.tasks.close()
        for listening in self._sockets:
            listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        # sock_accept would lose an accepted socket when it is cancelled at the same time.
        while True:
            try:
                await readable(listening)
                for _ in range(_ACCEPTS_PER_TURN):
                    connection, peer = listening.accept()
                    self._start_adopting(connection, str(peer[0]))
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                pass
            except OSError as error:  # open connections continue
                self._log_accept_error(error)
                await asyncio.sleep(_PAUSE_S)
            await asyncio.sleep(0)

    def _start_adopting(self, connection: socket.socket, host: str) -> None:
        limit = host_limit(host, self._options)
        if limit is not None and sum(host == other for other in self._unfinished.values()) >= limit:
            connection.close()
            return
        if len(self._unfinished) >= self._unfinished_max:
            oldest = next(iter(self._unfinished))
            del self._unfinished[oldest]
            self.tasks.cancel_soon(oldest)
        task = self.tasks.spawn(self._adopted(connection, host), f"connection of {host}")
        self._unfinished[task] = host
        task.add_done_callback(partial(self._finished, connection), context=Context())

    def _finished(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._unfinished.pop(task, None)
        if task.cancelled():
            connection.close()  # it may have been cancelled before its start

    async def _adopted(self, connection: socket.socket, host: str) -> None:
        try:
            await self._adopt(connection)
        except ssl.SSLError as error:
            _drop_traceback(error)
            reason = tls_reason(error)
            self._limited_log.warning(f"{host} {reason}", "TLS handshake with %s failed: %s", host, reason)
        except OSError as error:  # TimeoutError is one
            _drop_traceback(error)
            reason = str(error) or type(error).__name__
            log.info("the connection from %s ended before its first request: %s", host, reason)
        except InvariantError:
            raise
        except Exception:  # noqa: BLE001 - one client must not close the port of all others
            self._limited_log.exception("adopt", "a connection could not be accepted")

    def _log_accept_error(self, error: OSError) -> None:
        text = "cannot accept connections at %s: %s; open connections continue"
        if error.errno in _OUT_OF_DESCRIPTORS:
            text += ", new ones wait until one of them ends. Raise the limit of open files (ulimit -n)"
        self._limited_log.error(str(error.errno), text, self.address, os.strerror(error.errno or 0))


def _drop_traceback(error: BaseException) -> None:
    """Free the 256 KiB of a failed TLS handshake: asyncio's frames and the error form a cycle."""
    error.__traceback__ = None
