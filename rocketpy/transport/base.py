"""What a transport is: addresses, limits and the protocol a new one implements.

A transport moves bytes; the channel on top of it speaks frames and commands, and is the same
over each. To add a transport (QUIC, a proxy), write a class with the two methods of
`Transport` and `register_transport` it under a scheme.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import urlsplit

from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.remoting.frame import CODEC_JSON, MAX_FRAME_BYTES, MAX_HEADER_BYTES
from rocketpy.runtime.pickling import set_fields
from rocketpy.transport.memory_budget import MemoryBudget
from rocketpy.transport.stream import StreamProtocol
from rocketpy.transport.tls import Tls

_PER_HOST = 1024
_ROOM_FOR_HELD: Final = 8 << 20
"""For held pulls, 1 KiB each or more, and for subscriptions."""
_CONNECTIONS_AT_LIMIT: Final = 16


@dataclass(frozen=True, slots=True)
class Address:
    """Where a peer is reached, and by which transport.

    scheme: tcp, tls, memory, or that of a registered transport.
    host, port: for tcp and tls. For memory the host is the name and the port is 0.
    """

    scheme: str
    host: str
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address that a text means: ``host:port``, ``tls://host:port``, ``memory://name``.

        An IPv6 host stands in brackets. Raises ConfigInvalid for anything else.
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
                f"address {text!r} is not understood; write host:port, tls://host:port or memory://name"
            )
        return cls(scheme, host, port)

    def __str__(self) -> str:
        if self.scheme == "memory":
            return f"memory://{self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.scheme == "tcp" else f"{self.scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelOptions:
    """Limits of a channel. Each has a bound and says what happens when it is reached."""

    codec: int = CODEC_JSON
    """How our request headers are written; see `rocketpy.protocol.remoting.frame`."""
    max_frame_bytes: int = MAX_FRAME_BYTES
    """A frame that announces more closes the channel (RocketMQ: 16 MiB)."""
    max_header_bytes: int = MAX_HEADER_BYTES
    """A header above this closes the channel."""
    write_high_bytes: int = 1024 * 1024
    """Unsent bytes above which we stop reading from the peer, and `drain` waits."""
    write_limit_bytes: int = 8 * 1024 * 1024
    """Unsent bytes above which a served peer that does not read is cut off; None on client side."""
    max_unanswered: int = 4096
    """Requests taken and not yet answered above which we stop reading from the peer."""
    connect_timeout_ms: int = 3000
    """Time for a connection to be made, TLS included."""
    idle_timeout_ms: int = 120_000
    """A served connection without a byte for this long is closed (RocketMQ: 120 s). Its peer has as long
    again to take what is unsent."""
    frame_timeout_ms: int = 15_000
    """A served connection whose frame is not whole after this long is closed."""
    max_connections: int = 8192
    """Connections a listener holds. For one more the oldest is closed that has never sent a byte; when there
    is none, the new one."""
    max_connections_per_host: int | None = None
    """Of one peer's host. None: 1024, and no limit for this machine itself."""
    ssl: Tls | None = field(default=None, repr=False)
    """For tls://: files that may change, or a context. None: the authorities that the system trusts (clients
    only)."""
    also_plain: bool = False
    """Listening at tls://: serve clients without TLS at the same port too, told apart by their first byte."""
    connection_bytes_max: int | None = None
    """Bytes that a server keeps for one connection: received parts of frames, unsent answers, held pulls and
    subscriptions. Above it pulls are not held, heartbeats are answered SYSTEM_BUSY, and anything else closes
    the connection. None: room for a whole frame, for `write_limit_bytes` and 8 MiB more."""
    total_bytes_max: int | None = None
    """Bytes that a server keeps for all connections; above it those that keep most are closed. None: 16 times
    as much as for one."""

    __setstate__ = set_fields

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigInvalid(f"{name} is {value}; it must be at least 1")

    def memory_budget(self) -> MemoryBudget:
        """Return a new budget with these limits."""
        room = self.max_frame_bytes + self.write_limit_bytes + _ROOM_FOR_HELD
        of_connection = self.connection_bytes_max or room
        return MemoryBudget(of_connection, self.total_bytes_max or _CONNECTIONS_AT_LIMIT * of_connection)


_POSITIVE = (
    "max_frame_bytes", "max_header_bytes", "write_high_bytes", "write_limit_bytes", "max_unanswered",
    "connect_timeout_ms", "idle_timeout_ms", "frame_timeout_ms", "max_connections",
    "max_connections_per_host", "connection_bytes_max", "total_bytes_max",
)  # fmt: skip


class Listener(Protocol):
    """A place that accepts connections."""

    @property
    def address(self) -> Address:
        """Where it is reached; with the real port when port 0 was asked for."""

    async def close(self) -> None:
        """Accept no more and close the accepted channels."""


class Transport(Protocol):
    """A way to move bytes between two ends."""

    async def connect(
        self, address: Address, protocol: Callable[[], StreamProtocol], options: ChannelOptions
    ) -> None:
        """Connect, give a new protocol object its asyncio transport, and return when that is done.

        Raises OSError, ssl.SSLError or ConnectFailed.
        """

    async def listen(
        self, address: Address, protocol: Callable[[], StreamProtocol], options: ChannelOptions
    ) -> Listener:
        """Accept connections at an address, each with a new protocol object."""


def host_limit(host: str, options: ChannelOptions) -> int | None:
    """How many connections a peer's host may have; None: any number."""
    if options.max_connections_per_host is not None:
        return options.max_connections_per_host
    try:
        is_local = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        is_local = True  # no IP address: a transport within this process
    return None if is_local else _PER_HOST
