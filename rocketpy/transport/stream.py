"""StreamProtocol: an asyncio.BufferedProtocol that passes each read on as bytes.

With a plain `asyncio.Protocol`, asyncio allocates 256 KiB for every read and frees most of it again. With
glibc that takes five times as long as the read itself. A buffered protocol reads into one buffer, which is
reused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from asyncio.trsock import TransportSocket
from socket import socket
from typing import cast

if sys.platform != "win32":
    from fcntl import ioctl
    from termios import FIONREAD

_READ_BYTES = 256 * 1024
_thread = threading.local()


class StreamProtocol(asyncio.BufferedProtocol):
    """Receives the bytes of one connection in `data_received`.

    For a socket, asyncio calls `get_buffer` and `buffer_updated`. The memory transport calls `data_received`
    directly.
    """

    _transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._buffer = _read_buffer()
        self._transport = cast(asyncio.Transport, transport)

    def abort(self) -> None:
        """Close the connection immediately; unsent bytes are lost."""
        if self._transport is not None:
            self._transport.abort()

    def drop_socket(self) -> None:
        """In a forked child: drop its copy of the socket; the connection belongs to the parent.

        The descriptor is replaced by one of the null device. Closing the transport would end the connection
        in the parent's event loop, and a closed descriptor's number could soon belong to another file.
        """
        socket = None if self._transport is None else self._transport.get_extra_info("socket")
        if socket is None or socket.fileno() < 0:
            return
        with contextlib.suppress(OSError), open(os.devnull, "r+b", buffering=0) as null:  # noqa: PTH123 - a device
            os.dup2(null.fileno(), socket.fileno(), inheritable=False)

    def unread(self) -> tuple[socket, int] | tuple[None, int]:
        """Return a copy of the socket of a failed connection, and the number of bytes that it still has.

        asyncio reads nothing after a failed write. None with TLS, in memory, with uvloop and on Windows.
        """
        transport = self._transport
        if sys.platform == "win32" or transport is None or transport.get_extra_info("sslcontext") is not None:
            return None, 0
        found = transport.get_extra_info("socket")
        if isinstance(found, TransportSocket):
            with contextlib.suppress(OSError):
                count = int.from_bytes(ioctl(found.fileno(), FIONREAD, bytes(4)), sys.byteorder)
                if count:
                    return found.dup(), count
        return None, 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass the bytes that were read to `data_received`."""
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Handle the next bytes of the stream."""
        raise NotImplementedError


def _read_buffer() -> memoryview:
    """Return the read buffer, which all connections of an event loop share: each read is copied immediately.

    On Windows the system holds the buffer while it waits for input, so each connection has its own.
    """
    if sys.platform == "win32":
        return memoryview(bytearray(_READ_BYTES))
    buffer: memoryview | None = getattr(_thread, "buffer", None)
    if buffer is None:
        buffer = _thread.buffer = memoryview(bytearray(_READ_BYTES))
    return buffer
