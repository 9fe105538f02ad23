"""A master's HA port: drives one `MasterSession` for each slave.

A connection counts as a slave once it has joined: with the handshake, or with the first report of a RocketMQ
slave. Until then its time is limited, and newer connections may replace it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace

from rocketpy.errors import InvariantError
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import PeriodicCall, Tasks
from rocketpy.transport import (
    Address,
    ChannelOptions,
    Listener,
    StreamProtocol,
    certificate_names,
    listen_raw,
)
from rocketpy_broker.replication.ha.connected_slaves import ConnectedSlaves
from rocketpy_broker.replication.ha.master import (
    AckReceived,
    Close,
    DataReceived,
    LogSource,
    MasterSession,
    Poll,
    Send,
)
from rocketpy_broker.replication.ha.settings import HaSettings
from rocketpy_broker.replication.pending_connections import PendingConnections

log = logging.getLogger("rocketpy.broker.ha")

_TICK_S = 0.5
_POLL_BYTES = 512 * 1024
"""Maximum bytes that are sent to one slave in one iteration of the event loop."""
_SLAVES_MAX = 64
_UNJOINED_MIN = 4
_UNJOINED_MAX = 256
"""Bounds of the number of unjoined connections, which is a quarter of maxConnections in between."""
_CLOSE_WAIT_S = 1.0
"""Time in which a slave can receive the last bytes before its connection is aborted."""


@dataclass(eq=False)
class HaServer:
    """Serves a log to slaves."""

    source: LogSource
    settings: HaSettings
    connected: ConnectedSlaves
    """The server adds and removes connected slaves."""
    on_ack: Callable[[], None]
    """Called when a slave has acknowledged more bytes."""
    tasks: Tasks
    _: KW_ONLY
    allowed_names: frozenset[str] = frozenset()
    """Names in certificates of slaves; empty allows any certificate, or none."""

    def __post_init__(self) -> None:
        self.limited_log = RateLimitedLog(log)
        self._slaves: set[_SlaveConnection] = set()
        self._unjoined = PendingConnections[_SlaveConnection](_UNJOINED_MAX, self._evict)
        self._listener: Listener | None = None
        self._poll: asyncio.Handle | None = None
        self._ticker: PeriodicCall | None = None

    @property
    def address(self) -> Address | None:
        """The address on which the server listens; None before `start`."""
        return self._listener.address if self._listener is not None else None

    async def start(self, address: Address, options: ChannelOptions) -> None:
        """Listen. Raises OSError."""
        tls_timeout_ms = min(options.frame_timeout_ms, self.settings.first_report_timeout_ms)
        options = replace(options, frame_timeout_ms=tls_timeout_ms)
        self._unjoined.limit = max(_UNJOINED_MIN, min(_UNJOINED_MAX, options.max_connections // 4))
        self._listener = await listen_raw(address, lambda: _SlaveConnection(self), options)
        self._ticker = self.tasks.every(_TICK_S, self._tick, "HA heartbeats", first_s=0)

    async def close(self) -> None:
        """Stop listening, and disconnect every slave."""
        if self._poll is not None:
            self._poll.cancel()
        if self._ticker is not None:
            self._ticker.stop()
        if self._listener is not None:
            await self._listener.close()
        self.disconnect()

    def disconnect(self) -> None:
        """Disconnect all slaves. They reconnect, and the handshake determines their start offsets again."""
        for slave in (*self._slaves, *self._unjoined):
            slave.close("this broker is stopping, or changing its role")

    def send_written(self) -> None:
        """Send the bytes that were written to the log.

        A slave that has acknowledged all others waits for them, and gets them now. Others get them in the
        next iteration of the event loop, together with those that are written until then.
        """
        end = self.source.ready_offset
        for slave in list(self._slaves):
            if slave.has_all(end):
                continue
            if slave.is_waiting:
                self.tasks.run(slave.poll)
            elif self._poll is None:
                self._poll = self.tasks.call_soon(self._poll_slaves)

    def _poll_slaves(self) -> None:
        self._poll = None
        for slave in list(self._slaves):
            slave.poll()

    def _tick(self) -> None:
        """Send heartbeats, and close connections that were silent for too long."""
        for connection in self._unjoined:
            connection.poll()
        self._poll_slaves()

    # -- called by connections ----------------------------------------------------------------

    def open_session(self, slave: _SlaveConnection, host: str) -> MasterSession:
        """Return the session of a new connection, which has not joined."""
        self._unjoined.add(slave, host)
        return MasterSession(self.source, self.settings, secrets.token_hex(16), _now_ms())

    def rejects_certificate(self, names: frozenset[str]) -> bool:
        """Whether a certificate with these names does not belong to a replica."""
        return bool(self.allowed_names) and not self.allowed_names & names

    def _evict(self, slave: _SlaveConnection, host: str, count: int) -> None:
        text = "HA: closing a connection that has not joined; host %s has %d such connections"
        self.limited_log.warning(host, text, host, count)
        slave.abort()

    def session_joined(self, slave: _SlaveConnection, session: MasterSession, address: str) -> bool:
        """Count a connection as a slave from now on; False if there are too many slaves."""
        if slave in self._slaves:
            return True
        if len(self._slaves) >= _SLAVES_MAX:
            return False
        self._unjoined.discard(slave)
        self._slaves.add(slave)
        self.connected.add(session, address)
        self.limited_log.info(f"joined {address.rpartition(':')[0]}", "HA slave at %s has joined", address)
        return True

    def session_closed(self, slave: _SlaveConnection, session: MasterSession) -> None:
        """Forget a connection."""
        self._slaves.discard(slave)
        self._unjoined.discard(slave)
        self.connected.remove(session)


class _SlaveConnection(StreamProtocol):
    """One connection: moves bytes between the socket and a `MasterSession`."""

    def __init__(self, server: HaServer) -> None:
        self._server = server
        self._session: MasterSession | None = None
        self._address = "?"
        self._is_buffer_full = False
        self._next_poll: asyncio.Handle | None = None
        self._abort_timer: asyncio.Handle | None = None
        """Set while the connection closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._address = _address_text(transport.get_extra_info("peername"))
        names = certificate_names(transport)
        if self._server.rejects_certificate(names):
            shown = ", ".join(sorted(names)) or "no name"
            text = "rejecting HA connection from %s: its certificate has %s, which is not in replicaCertNames"
            self._server.limited_log.warning(f"certificate {self._host}", text, self._address, shown)
            self.abort()
            return
        self._session = self._server.open_session(self, self._host)

    @property
    def _host(self) -> str:
        return self._address.rpartition(":")[0]

    @property
    def is_waiting(self) -> bool:
        """Whether the slave has acknowledged all bytes that it was sent."""
        return self._session is not None and self._session.received >= self._session.next_offset

    def has_all(self, end: int) -> bool:
        """Whether the slave was sent the log up to `end`, or is not connected any more."""
        return self._session is None or self._session.next_offset >= end

    def data_received(self, data: bytes) -> None:
        self._step(DataReceived(data))
        self.poll()

    def pause_writing(self) -> None:
        self._is_buffer_full = True

    def resume_writing(self) -> None:
        self._is_buffer_full = False
        self.poll()

    def connection_lost(self, exc: Exception | None) -> None:
        for handle in (self._next_poll, self._abort_timer):
            if handle is not None:
                handle.cancel()
        if self._session is not None:
            self._server.session_closed(self, self._session)
            self._session = None

    def poll(self) -> None:
        """Send bytes of the log until the socket's buffer is full or all are sent."""
        if self._session is None or self._next_poll is not None:
            return
        session, before = self._session, self._session.next_offset
        self._step(Poll(0 if self._is_buffer_full else _POLL_BYTES))
        if session.next_offset - before >= _POLL_BYTES and not (self._is_buffer_full or session.is_closed):
            self._next_poll = self._server.tasks.call_soon(self._poll_again)

    def _poll_again(self) -> None:
        self._next_poll = None
        self.poll()

    def close(self, reason: str, *, is_fault: bool = False) -> None:
        """Close the connection, and abort it after `_CLOSE_WAIT_S` in case the slave does not read.

        is_fault: whether the slave is the reason; then it is a warning. The log is limited for each host,
        because the reason contains numbers from the peer.
        """
        if self._transport is not None and self._abort_timer is None:
            write = self._server.limited_log.warning if is_fault else self._server.limited_log.info
            write(f"{self._host} {is_fault}", "HA connection from %s is closed: %s", self._address, reason)
            self._transport.close()
            self._abort_timer = self._server.tasks.call_later(_CLOSE_WAIT_S, self._transport.abort)

    def _step(self, event: DataReceived | Poll) -> None:
        if self._session is None or self._transport is None or self._abort_timer is not None:
            return
        is_acked = False
        try:
            effects = self._session.step(event, _now_ms())
        except InvariantError:
            raise
        except Exception as error:  # noqa: BLE001 - a bug; other slaves must get messages and heartbeats
            text = "HA connection from %s is closed because of an internal error"
            self._server.limited_log.exception(self._host, text, self._address, error=error)
            self.abort()
            return
        if self._session.is_copying and not self._server.session_joined(self, self._session, self._address):
            self.close(f"{_SLAVES_MAX} slaves have joined, which is the limit", is_fault=True)
            return
        for effect in effects:
            match effect:
                case Send(data):
                    self._transport.write(data)
                case AckReceived():
                    is_acked = True
                case Close(reason):
                    self.close(reason, is_fault=True)
        if is_acked:
            self._server.on_ack()


def _address_text(peer: object) -> str:
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "?")


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
