"""connect and serve: open channels and servers over any transport."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import re
import ssl
from collections.abc import Callable
from typing import Final

from rocketpy.errors import ConfigInvalid, ConnectFailed
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import OnFailure, PeriodicCall, Tasks
from rocketpy.transport.accepting import TcpListener
from rocketpy.transport.base import Address, ChannelOptions, Listener, Transport, host_limit
from rocketpy.transport.channel import Channel, Endpoint, address_text
from rocketpy.transport.memory import MemoryTransport
from rocketpy.transport.memory_budget import MemoryBudget
from rocketpy.transport.stream import StreamProtocol
from rocketpy.transport.tcp import TcpTransport
from rocketpy.transport.tls import TlsFiles, tls_reason

log: Final = logging.getLogger("rocketpy.transport")

_tcp = TcpTransport()
_RESOLVE_S: Final = 0.2
_NO_HANDSHAKE: Final = "check that it speaks TLS, and whether it requires a client certificate"
_TRANSPORTS: Final[dict[str, Transport]] = {"tcp": _tcp, "tls": _tcp, "memory": MemoryTransport()}


def register_transport(scheme: str, transport: Transport) -> None:
    """Use a transport for the addresses ``scheme://...``.

    Raises:
        ConfigInvalid: The scheme already has a transport.
    """
    if scheme in _TRANSPORTS:
        raise ConfigInvalid(f"the scheme {scheme!r} already has a transport; choose another one")
    _TRANSPORTS[scheme] = transport


def _transport_for(address: Address) -> Transport:
    transport = _TRANSPORTS.get(address.scheme)
    if transport is None:
        raise ConfigInvalid(f"no transport for {address}; known schemes: {', '.join(sorted(_TRANSPORTS))}")
    return transport


def check_scheme(address: Address) -> Address:
    """Return the address, if its scheme has a transport. Raises ConfigInvalid."""
    _transport_for(address)
    return address


async def connect(
    address: Address | str, endpoint: Endpoint, options: ChannelOptions | None = None
) -> Channel:
    """Open a channel to a peer. Raises ConnectFailed, ConfigInvalid."""
    address = Address.parse(address) if isinstance(address, str) else address
    options = options or ChannelOptions()
    channel = Channel(endpoint, options, served=False)
    await connect_raw(address, lambda: channel, options)
    return channel


async def connect_raw(
    address: Address, protocol: Callable[[], StreamProtocol], options: ChannelOptions | None = None
) -> None:
    """Open a connection without framing, for replication. Raises ConnectFailed, ConfigInvalid."""
    options = options or ChannelOptions()
    transport = _transport_for(address)
    try:
        async with asyncio.timeout(options.connect_timeout_ms / 1000):
            await transport.connect(address, protocol, options)
    except TimeoutError:
        raise ConnectFailed(
            f"{address} cannot be reached: no connection within {options.connect_timeout_ms} ms"
        ) from None
    except (OSError, ssl.SSLError, UnicodeError) as error:  # UnicodeError: the text cannot be a host name
        raise ConnectFailed(f"{address} cannot be reached: {_reason(error, address)}") from None


def _reason(error: OSError | UnicodeError, address: Address) -> str:
    """Return why the connection failed."""
    if isinstance(error, ConnectionError) and error.errno is None:
        ended = str(error) or "the peer ended the connection"
        return f"{ended}; {_NO_HANDSHAKE}" if address.scheme == "tls" else ended
    if isinstance(error, ssl.SSLError):
        return tls_reason(error)
    if isinstance(error, UnicodeError) or (error.errno or 0) < 0:  # below 0: errors of name resolution
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    # asyncio replaces the reason by the name of the call, and joins the errors of several addresses.
    numbers = [error.errno] if error.errno else map(int, re.findall(r"\[Errno (\d+)\]", str(error)))
    reasons = dict.fromkeys(os.strerror(number).lower() for number in numbers)
    return ", ".join(reasons) or str(error) or type(error).__name__


async def local_address(address: Address) -> str | None:
    """Return ``host:port`` with the local IP address of connections to an address, without connecting to it.

    The port has no meaning: it belongs to a temporary UDP socket. None when the scheme is neither ``tcp`` nor
    ``tls``, there is no route to the host, or its name is not resolved within 200 ms.
    """
    if address.scheme not in ("tcp", "tls"):
        return None
    loop = asyncio.get_running_loop()
    remote = (address.host, address.port)
    try:
        async with asyncio.timeout(None if _is_ip(address.host) else _RESOLVE_S):
            transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=remote)
    except (OSError, UnicodeError):  # TimeoutError is an OSError
        return None
    name = transport.get_extra_info("sockname")
    transport.close()
    return address_text(name)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def listen_raw(
    address: Address, protocol: Callable[[], StreamProtocol], options: ChannelOptions | None = None
) -> Listener:
    """Accept connections without framing. Raises OSError, ConfigInvalid."""
    return await _transport_for(address).listen(address, protocol, options or ChannelOptions())


async def serve(
    address: Address | str,
    endpoint: Endpoint,
    options: ChannelOptions | None = None,
    on_failure: OnFailure | None = None,
    *,
    memory: MemoryBudget | None = None,
) -> Server:
    """Accept channels at an address, all handled by one endpoint.

    Args:
        address: The address to listen at.
        endpoint: Handles the requests of all channels.
        options: The limits; None for the defaults.
        on_failure: Called when the server can no longer accept or supervise connections.
        memory: A budget that several servers share; None for one of its own.

    Raises:
        OSError: The address cannot be used.
        ConfigInvalid: The address has no transport, or TLS is misconfigured.
    """
    address = Address.parse(address) if isinstance(address, str) else address
    options = options or ChannelOptions()
    tasks = Tasks(f"the server at {address}", on_failure)
    server = Server(endpoint, options, tasks, memory or options.memory_budget())
    await server.start(_transport_for(address), address)
    return server


class Server:
    """A listener and its channels; closes channels that are idle or whose frame stays incomplete."""

    def __init__(
        self, endpoint: Endpoint, options: ChannelOptions, tasks: Tasks, memory: MemoryBudget
    ) -> None:
        self.memory = memory
        self._close_log = RateLimitedLog(log)
        self._endpoint = endpoint
        self._options = options
        self.tasks: Final = tasks
        self._channels: set[Channel] = set()
        """The open channels."""
        self._listener: Listener | None = None
        self._sweeper: PeriodicCall | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def address(self) -> Address:
        """The address, with the actual port."""
        if self._listener is None:
            raise ConfigInvalid("the server was not started")
        return self._listener.address

    @property
    def channels(self) -> frozenset[Channel]:
        """The open channels."""
        return frozenset(self._channels)

    async def start(self, transport: Transport, address: Address) -> None:
        """Start to accept connections."""
        self._listener = await transport.listen(address, self._accept, self._options)
        if isinstance(self._listener, TcpListener):
            self._listener.tasks.on_failure.append(self.tasks.fail_with)
        interval_s = min(self._options.idle_timeout_ms, self._options.frame_timeout_ms) / 1000 / 4
        self._sweeper = self.tasks.every(interval_s, self._sweep, "sweep of connections")

    async def close(self) -> None:
        """Stop accepting, and close every channel; those that have not ended within 1 s are aborted."""
        if self._sweeper is not None:
            self._sweeper.stop()
        if self._listener is not None:
            await self._listener.close()
        channels = list(self._channels)
        for channel in channels:
            channel.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.gather(*(channel.wait_closed() for channel in channels))
        for channel in list(self._channels):
            channel.abort()
            await channel.wait_closed()

    def _accept(self) -> StreamProtocol:
        memory = self.memory
        if memory.connections >= self._options.max_connections and not memory.evict_silent():
            self._close_log.warning("full", "rejecting a connection: %d are open", memory.connections)
            return _RejectingProtocol()
        return Channel(
            _ServerEndpoint(self._endpoint, self._channels, self._options, self._close_log, memory),
            self._options,
            served=True,
            budget=self.memory,
            close_log=self._close_log,
        )

    def _sweep(self) -> None:
        if isinstance(self._options.ssl, TlsFiles):
            self._options.ssl.refresh()
        now = self._loop.time()
        idle_s = self._options.idle_timeout_ms / 1000
        stuck_since = now - self._options.frame_timeout_ms / 1000
        for channel in list(self._channels):
            if channel.frame_started is not None and channel.frame_started < stuck_since:
                text = "closing connection to %s: it has sent no complete frame within frameTimeoutMillis=%d"
                limit_ms = self._options.frame_timeout_ms
                self._close_log.warning("unfinished", text, channel.remote_address, limit_ms)
                channel.abort()
            elif now - channel.last_received > 2 * idle_s:
                channel.abort()  # it is closing, and its peer does not read the unsent bytes
            elif now - channel.last_received > idle_s:
                log.info("closing connection to %s: idle", channel.remote_address)
                channel.close()


class _RejectingProtocol(StreamProtocol):
    """Closes a connection beyond the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _ServerEndpoint:
    """Tracks the channels of the server; forwards the other events to its endpoint."""

    __slots__ = ("_channels", "_close_log", "_endpoint", "_memory", "_options", "end_of_buffer", "handle")

    def __init__(
        self,
        endpoint: Endpoint,
        channels: set[Channel],
        options: ChannelOptions,
        close_log: RateLimitedLog,
        memory: MemoryBudget,
    ) -> None:
        self._close_log = close_log
        self._memory = memory
        self._endpoint = endpoint
        self._channels = channels
        self._options = options
        self.handle = endpoint.handle
        self.end_of_buffer = endpoint.end_of_buffer

    def channel_opened(self, channel: Channel) -> None:
        host = channel.remote_host
        self._channels.add(channel)
        self._memory.hosts[host] += 1
        self._endpoint.channel_opened(channel)
        limit = host_limit(host, self._options)
        if limit is not None and self._memory.hosts[host] > limit:
            self._close_log.warning(host, "rejecting a connection: %d are open from %s", limit, host)
            channel.abort()

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        host, hosts = channel.remote_host, self._memory.hosts
        self._channels.discard(channel)
        hosts[host] -= 1
        if not hosts[host]:
            del hosts[host]
        self._endpoint.channel_closed(channel, error)
