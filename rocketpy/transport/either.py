"""One TCP port for clients with and without TLS: the first byte of a connection tells which it is.

A TLS client begins with a handshake record, whose first byte is 0x16; a remoting frame begins with its
length, of which that is no first byte below 352 MiB. Source: HandshakeHandler of RocketMQ 4.6.0
(tls.server.mode=permissive).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final, Self

from rocketpy.errors import InvariantError
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport.base import Address, ChannelOptions, host_limit
from rocketpy.transport.stream import StreamProtocol

__all__ = ["EitherListener"]

log = logging.getLogger("rocketpy.transport")

_HANDSHAKE: Final = b"\x16"


class EitherListener:
    """Accepts connections and looks at their first byte before anyone else does."""

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[], StreamProtocol],
        context: ssl.SSLContext,
        options: ChannelOptions,
    ) -> None:
        self._listening = listening
        self._protocol = protocol
        self._context = context
        self._options = options
        self._looking: dict[asyncio.Task[None], str] = {}  # with the hosts that they look at
        self.tasks: Final = Tasks("the TLS listener")
        self.tasks.spawn(self._accept(), "accept")

    @classmethod
    async def open(
        cls,
        address: Address,
        protocol: Callable[[], StreamProtocol],
        context: ssl.SSLContext,
        options: ChannelOptions,
    ) -> Self:
        """Listen. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        family, _, _, _, where = found[0]
        listening = socket.create_server(where, family=family, backlog=1024)
        listening.setblocking(False)
        return cls(listening, protocol, context, options)

    @property
    def address(self) -> Address:
        """Where it listens, with its real port. Clients without TLS connect there too."""
        name = self._listening.getsockname()
        return Address("tls", name[0], name[1])

    async def close(self) -> None:
        """Accept no more."""
        await self.tasks.close()
        self._listening.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(self._listening)
            except OSError as error:  # out of file descriptors, say; those that are open are served on
                log.error("cannot accept a connection: %s", error)
                await asyncio.sleep(1)
                continue
            host = str(peer[0])
            limit = host_limit(host, self._options)
            looked_at = sum(host == other for other in self._looking.values()) if limit is not None else 0
            if len(self._looking) >= self._options.max_connections or (
                limit is not None and looked_at >= limit
            ):
                connection.close()
                continue
            task = self.tasks.spawn(self._look(connection), f"look at {host}")
            self._looking[task] = host
            task.add_done_callback(self._looking.pop)

    async def _look(self, connection: socket.socket) -> None:
        """Wait for the first byte, leave it where it is, and hand the connection over."""
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            async with asyncio.timeout(self._options.frame_timeout_ms / 1000):
                await _readable(connection)
            is_tls = connection.recv(1, socket.MSG_PEEK) == _HANDSHAKE
            context = self._context if is_tls else None
            timeout = self._options.frame_timeout_ms / 1000 if is_tls else None
            await loop.connect_accepted_socket(
                self._protocol, connection, ssl=context, ssl_handshake_timeout=timeout
            )
        except asyncio.CancelledError:
            connection.close()
            raise
        except (OSError, ssl.SSLError, TimeoutError) as error:
            log.info("a connection came to nothing: %s", error)
            connection.close()
        except InvariantError:
            connection.close()
            raise
        except Exception:
            # One client must not take down the port that all others connect to.
            log.exception("a connection could not be accepted")
            connection.close()


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(connection, ready.set_result, None)
    try:
        await ready
    finally:
        loop.remove_reader(connection)
