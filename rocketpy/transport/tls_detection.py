"""TCP ports for clients with TLS, or with and without: the first byte of a connection tells which it is.

A TLS client begins with a handshake record, whose first byte is 0x16; a remoting frame begins with its
length, of which that is no first byte below 352 MiB. Source: HandshakeHandler of RocketMQ 4.6.0
(tls.server.mode=permissive).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final, NoReturn

_HANDSHAKE: Final = b"\x16"
_PROTOCOL_VERSION: Final = bytes.fromhex("15030300020246")
_SOME_BYTES: Final = 65536


async def begins_with_tls(connection: socket.socket) -> bool:
    """Wait for the first byte of a connection, and leave it where it is. Raises OSError."""
    await readable(connection)
    first = connection.recv(1, socket.MSG_PEEK)
    if not first:
        raise ConnectionResetError("the peer closed the connection before it said anything")
    return first == _HANDSHAKE


async def refuse_plain_text(connection: socket.socket) -> NoReturn:
    """Answer a peer that speaks no TLS with TLS's alert, by which our ends know. Raises SSLError, OSError."""
    connection.recv(_SOME_BYTES)  # unread, they would make the system drop the alert
    await asyncio.get_running_loop().sock_sendall(connection, _PROTOCOL_VERSION)
    raise ssl.SSLError(ssl.SSL_ERROR_SSL, "the peer speaks no TLS, which this port asks for")


async def readable(connection: socket.socket) -> None:
    """Wait until something can be read, or accepted. Nothing is lost when this is cancelled."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)
