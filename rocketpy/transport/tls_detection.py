"""Detects TLS by the first byte of a connection, for ports that serve clients with and without TLS.

A TLS client begins with a handshake record, whose first byte is 0x16. A remoting frame begins with its
length, whose first byte is 0x16 only above 352 MiB. Source: HandshakeHandler of RocketMQ 4.6.0
(tls.server.mode=permissive).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final, NoReturn

_HANDSHAKE: Final = b"\x16"
_PROTOCOL_VERSION: Final = bytes.fromhex("15030300020246")
_READ_BYTES: Final = 65536


async def begins_with_tls(connection: socket.socket) -> bool:
    """Wait for the first byte of a connection, without consuming it. Raises OSError."""
    await readable(connection)
    first = connection.recv(1, socket.MSG_PEEK)
    if not first:
        raise ConnectionResetError("the peer closed the connection without sending anything")
    return first == _HANDSHAKE


async def reject_plain_text(connection: socket.socket) -> NoReturn:
    """Send a TLS alert to a peer without TLS; clients of rocketpy recognize it. Raises SSLError, OSError."""
    connection.recv(_READ_BYTES)  # unread bytes would make the system discard the alert
    await asyncio.get_running_loop().sock_sendall(connection, _PROTOCOL_VERSION)
    raise ssl.SSLError(ssl.SSL_ERROR_SSL, "the peer does not speak TLS, which this port requires")


async def readable(connection: socket.socket) -> None:
    """Wait until the socket is readable, or has a connection to accept. Safe to cancel."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)
