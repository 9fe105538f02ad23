"""TCP, with or without TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from rocketpy.errors import ConfigInvalid
from rocketpy.transport.accepting import TcpListener, listening_sockets
from rocketpy.transport.base import Address, ChannelOptions, Listener
from rocketpy.transport.stream import StreamProtocol
from rocketpy.transport.tls import Tls, context_of
from rocketpy.transport.tls_detection import begins_with_tls, reject_plain_text


class TcpTransport:
    """The transport of ``tcp://`` (or no scheme) and ``tls://`` addresses."""

    async def connect(
        self, address: Address, protocol: Callable[[], StreamProtocol], options: ChannelOptions
    ) -> None:
        """Connect by TCP, or by TLS 1.2 or later with a verified peer. Raises OSError, ConfigInvalid."""
        loop = asyncio.get_running_loop()
        context = _client_context(options) if address.scheme == "tls" else None
        await loop.create_connection(protocol, address.host, address.port, ssl=context)

    async def listen(
        self, address: Address, protocol: Callable[[], StreamProtocol], options: ChannelOptions
    ) -> Listener:
        """Listen on a port; 0 means any free one. Raises OSError, ConfigInvalid."""
        loop = asyncio.get_running_loop()
        tls = _server_tls(options) if address.scheme == "tls" else None
        timeout_s = options.frame_timeout_ms / 1000

        async def detect_tls(connection: socket.socket) -> ssl.SSLContext | None:
            try:
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if tls is None:
                    return None
                async with asyncio.timeout(timeout_s):
                    if await begins_with_tls(connection):
                        return context_of(tls)
                if options.also_plain:
                    return None
                await reject_plain_text(connection)
            except BaseException:  # no protocol owns the socket yet
                connection.close()
                raise

        async def start_protocol(connection: socket.socket) -> None:
            context = await detect_tls(connection)
            handshake_s = None if context is None else timeout_s
            await loop.connect_accepted_socket(
                protocol, connection, ssl=context, ssl_handshake_timeout=handshake_s
            )

        sockets = await listening_sockets(address.host, address.port)
        return TcpListener(address.scheme, sockets, start_protocol, options)


def _client_context(options: ChannelOptions) -> ssl.SSLContext:
    if options.ssl is not None:
        return context_of(options.ssl)
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _server_tls(options: ChannelOptions) -> Tls:
    if options.ssl is None:
        raise ConfigInvalid("a tls:// address to listen on needs a certificate: ssl=TlsFiles(server=True, …)")
    return options.ssl
