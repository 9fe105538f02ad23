"""Connection pool: at most one connection for each peer, opened on first use, by one attempt at a time.

`PeerConnection` sends requests, after it called the RPC hooks and signed them. The producer writes its
preformatted frames directly to the channel; their template signs them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from errno import ECONNREFUSED
from functools import partial
from typing import Final

import msgspec

from rocketpy.errors import (
    ClientClosed,
    ConfigInvalid,
    ConnectFailed,
    ConnectionLost,
    InvariantError,
    LocalProtocolError,
    Outcome,
    RemoteProtocolError,
    RocketError,
)
from rocketpy.hooks import RpcHook
from rocketpy.protocol.codes import VERSION_5_0_0, ResponseCode
from rocketpy.protocol.headers import BrokerFeature, HeartbeatResponseHeader
from rocketpy.protocol.remoting.acl import Signer
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.application import describe, ends_program
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel, ChannelOptions, ClientOnlyEndpoint, connect

log: Final = logging.getLogger("rocketpy.client")

OpenCallback = Callable[[RocketError | None], None]
"""Called with None when a connection is open, or with the error of the attempt."""
RequestHandler = Callable[[Channel, Command], Command | bytes | None]


class PeerConnection:
    """The connection to one peer, reopened on use."""

    __slots__ = (
        "_pool",
        "_waiting",
        "address",
        "channel",
        "features",
        "last_error",
        "opened_ms",
        "rejection",
        "version",
    )

    def __init__(self, pool: ConnectionPool, address: str) -> None:
        self._pool = pool
        self._waiting: list[OpenCallback] = []
        self.address: str = address
        self.channel: Channel | None = None
        """The open channel or None; never cache it."""
        self.last_error: Exception | None = None
        """Why the last attempt failed or the connection ended; None while it is open."""
        self.opened_ms: float = 0.0
        """When the last channel was opened, in ms of the event loop's clock."""
        self.version: int | None = None
        """RocketMQ's number of the peer's version, from its response to a heartbeat on this connection;
        None until then.
        """
        self.features: frozenset[str] = frozenset()
        """The features (`BrokerFeature`) that the peer has named with its version."""
        self.rejection: Command | None = None
        """The response to the last heartbeat on this connection if it was rejected. It names no features."""

    def learn(self, response: Command) -> None:
        """Store what the response to a heartbeat says about the peer."""
        self.version = response.version
        if response.code != ResponseCode.SUCCESS:
            self.rejection = response
            return
        self.rejection = None
        with contextlib.suppress(RemoteProtocolError):  # of an unknown peer
            self.features = response.header_as(HeartbeatResponseHeader).feature_set

    @property
    def is_known(self) -> bool:
        """Whether the peer has said what it is on this connection."""
        return self.version is not None and self.rejection is None

    @property
    def has_timers(self) -> bool:
        """Whether the peer has timer messages: one of RocketMQ 5.x, or one that says so."""
        return self._is_5_or_has(BrokerFeature.TIMER)

    @property
    def has_pop(self) -> bool:
        """Whether the peer has message-level sharing (POP): one of RocketMQ 5.x, or one that says so."""
        return self._is_5_or_has(BrokerFeature.POP)

    def _is_5_or_has(self, feature: BrokerFeature) -> bool:
        is_5 = self.version is not None and self.version >= VERSION_5_0_0
        return is_5 or feature in self.features

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent immediately."""
        return self.channel is not None and not self.channel.is_closed and self._pool.rejection is None

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits for the connection."""
        return bool(self._waiting)

    def when_open(self, then: OpenCallback) -> None:
        """Call `then(None)` when the connection is open, or `then(error)` when the attempt has failed.

        Concurrent calls share one attempt. Their callbacks run in the order of the calls, without a gap, so
        requests keep their order.
        """
        if self._pool.rejection is not None:
            then(self._pool.rejection)
            return
        if self.channel is not None and not self.channel.is_closed:
            then(None)
            return
        self._waiting.append(then)
        if len(self._waiting) == 1:
            self._pool.tasks.spawn(self._connect(), f"connect {self.address}")

    async def open(self) -> Channel:
        """Return the channel, opened if necessary. Raises TransportError, ClientClosed."""
        await called(self.when_open)
        return self._require_channel()

    async def request(self, command: Command, timeout_ms: float) -> Command:
        """Send a request and wait for its response, which may have any code.

        Raises TransportError, ClientClosed, and LocalProtocolError when an RPC hook fails.
        """
        if not self.is_open:
            await self.open()
        return await self.put(command, timeout_ms)

    def put(self, command: Command, timeout_ms: float) -> asyncio.Future[Command]:
        """Send a request on the open channel; see `Channel.request`. Raises ConnectionLost without one."""
        pool = self._pool
        if pool.signer is None and not pool.hooks:
            return self._require_channel().request(command, timeout_ms)
        signed = pool.sign(self.address, command)
        response = self._require_channel().request(signed, timeout_ms)
        if pool.hooks:
            response.add_done_callback(partial(pool.notify_response, self.address, signed))
        return response

    def put_oneway(self, command: Command) -> None:
        """Send a oneway request on the open channel. Raises ConnectionLost without one."""
        self._require_channel().oneway(self._pool.sign(self.address, command))

    def _require_channel(self) -> Channel:
        if self.channel is None:
            raise ConnectionLost(f"the connection to {self.address} has ended", outcome=Outcome.NOT_SENT)
        return self.channel

    async def _connect(self) -> None:
        error: RocketError | None = ClientClosed(
            f"the client was closed while it connected to {self.address}"
        )
        try:
            address = self._pool.with_scheme(self.address)
            self.version, self.features, self.rejection = None, frozenset(), None
            self.channel = await connect(address, _ClientEndpoint(self), self._pool.options)
            self.opened_ms = asyncio.get_running_loop().time() * 1000
            self._pool.opened(self)
            error = None
        except ConfigInvalid as failed:
            # The address comes from a route: other brokers may have a valid one.
            log.warning("%s", failed)
            error = ConnectFailed(str(failed))
        except ConnectFailed as failed:
            error = self._pool.with_peer_name(self.address, failed)
            log.info("%s", error)
        except RocketError as failed:
            log.info("%s", failed)
            error = failed
        finally:
            self.last_error = error
            waiting, self._waiting = self._waiting, []
            for then in waiting:
                then(error)

    def handle(self, channel: Channel, request: Command) -> Command | bytes | None:
        """Handle a request of the peer."""
        handler = self._pool.handlers.get(request.code)
        if handler is not None:
            try:
                return handler(channel, request)
            except InvariantError as error:
                self._pool.tasks.fail(f"request {request.code} of {self.address}", error)
                raise
        log.debug("%s sent request code %d, which has no handler", self.address, request.code)
        return request.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f"request code {request.code} is not supported"
        )


async def called(register: Callable[[OpenCallback], None]) -> None:
    """Register a callback, and wait until it is called; raise the error that it gets."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def then(error: RocketError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    register(then)
    await future


class _ClientEndpoint(ClientOnlyEndpoint):
    """The endpoint of a connection's channel."""

    def __init__(self, connection: PeerConnection) -> None:
        self._connection = connection

    def handle(self, channel: Channel, request: Command) -> Command | bytes | None:
        return self._connection.handle(channel, request)

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        """Forget the channel, so that the next request opens a new one."""
        if self._connection.channel is channel:
            self._connection.channel = None
            self._connection.last_error = error


@dataclass
class ConnectionPool:
    """All connections of a client."""

    tasks: Tasks
    options: ChannelOptions
    opened: Callable[[PeerConnection], None]
    """Called with each new connection before its first request."""
    handlers: dict[int, RequestHandler] = field(default_factory=dict)
    """Functions that handle requests from peers, by request code."""
    signer: Signer | None = None
    """Signs requests."""
    hooks: tuple[RpcHook, ...] = ()
    """Called before a request is signed."""
    rejection: RocketError | None = None
    """Once set, every request fails with it."""
    scheme: str = "tcp"
    """For addresses without one, as in RocketMQ's routes."""
    name_servers: set[str] = field(default_factory=set)
    """The addresses of name servers; all others are brokers."""
    dropped: list[Callable[[PeerConnection], None]] = field(default_factory=list)
    """Called with each connection that `drop` has removed."""
    _connections: dict[str, PeerConnection] = field(default_factory=dict)
    _hook_log: RateLimitedLog = field(default_factory=lambda: RateLimitedLog(log, 1.0))

    def get(self, address: str) -> PeerConnection:
        """Return the connection to an address: the same object until it is dropped."""
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = PeerConnection(self, address)
        return connection

    def with_scheme(self, address: str) -> str:
        """Return the address with a scheme."""
        return address if "://" in address else f"{self.scheme}://{address}"

    def with_peer_name(self, address: str, error: ConnectFailed) -> ConnectFailed:
        """Return the error with "name server" or "broker" in front of its text."""
        if address in self.name_servers:
            refused = os.strerror(ECONNREFUSED).lower() in str(error)
            hint = "; is one running there? (`rocketpy-broker dev` starts one)" if refused else ""
            text = f"name server {error}{hint}"
        else:
            text = f"broker {error}"
        return ConnectFailed(text, outcome=error.outcome, retry=error.retry)

    def all(self) -> list[PeerConnection]:
        """Return all connections, in order of address."""
        return [self._connections[address] for address in sorted(self._connections)]

    def sign(self, address: str, command: Command) -> Command:
        """Return a copy of the request that the hooks have seen and the signer has signed.

        Raises LocalProtocolError when a hook raises.
        """
        if self.signer is None and not self.hooks:
            return command
        signed = msgspec.structs.replace(command, header=None, ext=dict(command.ext_fields()))
        for hook in self.hooks:
            try:
                hook.before_request(address, signed)
            except BaseException as error:  # an error of the application's hook fails the request
                if ends_program(error):
                    raise
                raise LocalProtocolError(f"an RPC hook failed: {describe(error)}") from error
        if self.signer is not None:
            signed.ext = self.signer.sign(
                signed.ext_fields(),
                signed.body,
                code=signed.code,
                language=signed.language,
                version=signed.version,
            )
        return signed

    def notify_response(self, address: str, request: Command, response: asyncio.Future[Command]) -> None:
        """Pass a response to the hooks; not called for errors and cancelled requests."""
        if response.cancelled() or response.exception() is not None:
            return
        for hook in self.hooks:
            try:
                hook.after_response(address, request, response.result())
            except BaseException as error:  # the caller gets the response in any case
                if ends_program(error):
                    raise
                text = "an RPC hook failed on the response to request code %d"
                self._hook_log.exception("an RPC hook failed", text, request.code, error=error)

    def drop(self, address: str) -> bool:
        """Close and remove the connection to an address, unless a caller waits for it.

        Returns whether it was removed.
        """
        connection = self._connections.get(address)
        if connection is None or connection.is_awaited:
            return False
        del self._connections[address]
        if connection.channel is not None:
            connection.channel.close()
        for forget in self.dropped.copy():
            forget(connection)
        return True

    def abandon(self, reason: RocketError) -> None:
        """In a forked child: fail all later requests, and drop the child's copies of the parent's sockets.

        With a copy in the child, a broker would not notice that the parent has ended.
        """
        self.rejection = reason
        for connection in self._connections.values():
            if connection.channel is not None:
                connection.channel.drop_socket()
                connection.channel = None

    async def close(self) -> None:
        """Close all connections, and abort those that have not ended within 1 s."""
        channels = [
            connection.channel for connection in self._connections.values() if connection.channel is not None
        ]
        self._connections.clear()
        for channel in channels:
            channel.close()
        try:
            async with asyncio.timeout(1):
                await asyncio.gather(*(channel.wait_closed() for channel in channels))
        except TimeoutError:
            for channel in channels:
                channel.abort()
