"""Addresses, limits, and the interface of a transport.

A transport carries bytes. The channel on top of it sends and receives frames, and is the same for every
transport. To add a transport (QUIC, a proxy), implement `Transport` and register it under a scheme with
`register_transport`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import urlsplit

from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.remoting.frame import CODEC_JSON, MAX_FRAME_BYTES, MAX_HEADER_BYTES
from rocketpy.runtime.pickling import get_fields, set_fields
from rocketpy.transport.memory_budget import MemoryBudget
from rocketpy.transport.stream import StreamProtocol
from rocketpy.transport.tls import Tls

_CONNECTIONS_PER_HOST: Final = 1024
_HELD_BYTES: Final = 8 << 20
"""Memory of a connection for held pulls, of 1 KiB or more each, and for subscriptions."""
_FULL_CONNECTIONS: Final = 16
"""Number of connections at their memory limit that together reach the default limit of a server."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a peer."""

    scheme: str
    """``tcp``, ``tls``, ``memory``, or the scheme of a registered transport."""
    host: str
    """The host; the name for ``memory``."""
    port: int = 0
    """The port; 0 for ``memory``."""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse ``host:port``, ``tls://host:port`` or ``memory://name``, with an IPv6 host in brackets.

        Raises:
            ConfigInvalid: The text is not an address.
        """
        scheme, separator, _ = text.partition("://")
        try:
            parts = urlsplit(text if separator else f"tcp://{text}")
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise ConfigInvalid(f"address {text!r}: {error}") from None
        scheme = scheme if separator else "tcp"
        if scheme == "memory":
            host, port = parts.netloc, 0
        if not host or port is None or parts.path.strip("/"):
            raise ConfigInvalid(
                f"address {text!r} is malformed; write host:port, tls://host:port or memory://name"
            )
        return cls(scheme, host, port)

    def __str__(self) -> str:
        if self.scheme == "memory":
            return f"memory://{self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.scheme == "tcp" else f"{self.scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelOptions:
    """Limits of a channel, and what happens when they are reached."""

    codec: int = CODEC_JSON
    """Encoding of request headers; see `rocketpy.protocol.remoting.frame`."""
    max_frame_bytes: int = MAX_FRAME_BYTES
    """A longer frame closes the channel (RocketMQ: 16 MiB)."""
    max_header_bytes: int = MAX_HEADER_BYTES
    """A longer header closes the channel."""
    write_high_bytes: int = 1024 * 1024
    """Unsent bytes above which reading from the peer pauses, and `drain` waits."""
    write_limit_bytes: int = 8 * 1024 * 1024
    """Unsent bytes above which a server closes the connection of a peer that does not read."""
    max_unanswered: int = 4096
    """Unanswered requests above which reading from the peer pauses."""
    connect_timeout_ms: int = 3000
    """Timeout for connecting, including the TLS handshake."""
    idle_timeout_ms: int = 120_000
    """A server closes a connection without input for this long (RocketMQ: 120 s). Its peer has the same time
    again to read unsent bytes."""
    frame_timeout_ms: int = 15_000
    """A server closes a connection whose frame is incomplete for this long."""
    max_connections: int = 8192
    """Maximum number of connections of a listener. Beyond it, the oldest connection that has not sent a
    complete frame is closed; if there is none, the new one."""
    max_connections_per_host: int | None = None
    """Maximum number of connections from one host. None: 1024, and no limit for the local machine."""
    ssl: Tls | None = field(default=None, repr=False)
    """For tls://: files, which are reloaded when they change, or a context. None: trust the system's
    certificate authorities (clients only)."""
    also_plain: bool = False
    """At a tls:// port: also serve clients without TLS, recognized by their first byte."""
    connection_bytes_max: int | None = None
    """Maximum memory of a server for one connection: incomplete frames, unsent responses, held pulls and
    subscriptions. Beyond it pulls are not held, heartbeats get SYSTEM_BUSY, and other use closes the
    connection. None: a whole frame, `write_limit_bytes` and 8 MiB."""
    total_bytes_max: int | None = None
    """Maximum memory of a server for all connections. Beyond it, the connections that use most are closed.
    None: 16 times `connection_bytes_max`."""

    kept_codes: frozenset[int] = frozenset()
    """Codes of requests that are handled even if their peer has closed the connection, as oneway ones are."""

    __getstate__ = get_fields
    __setstate__ = set_fields

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigInvalid(f"{name} is {value}; it must be at least 1")

    def memory_budget(self) -> MemoryBudget:
        """Return a new budget with these limits."""
        connection_bytes = self.connection_bytes_max
        if connection_bytes is None:
            connection_bytes = self.max_frame_bytes + self.write_limit_bytes + _HELD_BYTES
        return MemoryBudget(connection_bytes, self.total_bytes_max or _FULL_CONNECTIONS * connection_bytes)


_POSITIVE = (
    "max_frame_bytes", "max_header_bytes", "write_high_bytes", "write_limit_bytes", "max_unanswered",
    "connect_timeout_ms", "idle_timeout_ms", "frame_timeout_ms", "max_connections",
    "max_connections_per_host", "connection_bytes_max", "total_bytes_max",
)  # fmt: skip


class Listener(Protocol):
    """Accepts connections at an address."""

    @property
    def address(self) -> Address:
        """The address, with the actual port when port 0 was requested."""

    async def close(self) -> None:
        """Stop accepting connections."""


class Transport(Protocol):
    """Opens and accepts connections that carry bytes."""

    async def connect(
        self, address: Address, protocol: Callable[[], StreamProtocol], options: ChannelOptions
    ) -> None:
        """Connect, and return when a new protocol object has its asyncio transport.

        Raises OSError, ssl.SSLError or ConnectFailed.
        """

    async def listen(
        self, address: Address, protocol: Callable[[], StreamProtocol], options: ChannelOptions
    ) -> Listener:
        """Accept connections at an address; each gets a new protocol object."""


def host_limit(host: str, options: ChannelOptions) -> int | None:
    """Return how many connections a host may have; None for any number."""
    if options.max_connections_per_host is not None:
        return options.max_connections_per_host
    try:
        is_local = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        is_local = True  # not an IP address, so a transport inside this process
    return None if is_local else _CONNECTIONS_PER_HOST
