"""TCP, with or without TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from rocketpy.errors import ConfigInvalid
from rocketpy.transport.base import Address, ChannelOptions, Listener
from rocketpy.transport.either import EitherListener
from rocketpy.transport.stream import StreamProtocol

__all__ = ["TcpTransport"]


class TcpTransport:
    """The transport of ``tcp://`` (or no scheme) and ``tls://`` addresses."""

    async def connect(
        self, address: Address, protocol: Callable[[], StreamProtocol], options: ChannelOptions
    ) -> None:
        """Connect by TCP; TLS 1.2 or later with the peer verified where the scheme is tls."""
        loop = asyncio.get_running_loop()
        context = _client_context(options) if address.scheme == "tls" else None
        await loop.create_connection(protocol, address.host, address.port, ssl=context)

    async def listen(
        self, address: Address, protocol: Callable[[], StreamProtocol], options: ChannelOptions
    ) -> Listener:
        """Listen on a port, 0 for any free one."""
        loop = asyncio.get_running_loop()
        context = _server_context(options) if address.scheme == "tls" else None
        if context is not None and options.also_plain:
            return await EitherListener.open(address, protocol, context, options)
        timeout = None if context is None else options.frame_timeout_ms / 1000
        server = await loop.create_server(
            protocol,
            address.host,
            address.port,
            ssl=context,
            backlog=1024,
            ssl_handshake_timeout=timeout,
        )
        return TcpListener(address.scheme, address.host, server)


def _client_context(options: ChannelOptions) -> ssl.SSLContext:
    if options.ssl is not None:
        return options.ssl
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _server_context(options: ChannelOptions) -> ssl.SSLContext:
    if options.ssl is None:
        raise ConfigInvalid("a tls:// address to listen on needs an SSL context with a certificate")
    return options.ssl


@dataclass(frozen=True, slots=True)
class TcpListener:
    """A listening TCP port."""

    scheme: str
    host: str
    server: asyncio.Server

    @property
    def address(self) -> Address:
        """Where it listens, with its real port."""
        return Address(self.scheme, self.host, self.server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Accept no more."""
        self.server.close()
