"""Connection pool: at most one connection for each peer, opened on first use, by one attempt at a time.

Requests leave through `PeerConnection`, which calls the RPC hooks and signs. The producer's preformatted
frames bypass it; their template signs them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from errno import ECONNREFUSED
from functools import partial

import msgspec

from rocketpy.errors import (
    ClientClosed,
    ConfigInvalid,
    ConnectFailed,
    ConnectionLost,
    InvariantError,
    LocalProtocolError,
    Outcome,
    RocketError,
)
from rocketpy.hooks import RpcHook
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.acl import Signer
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel, ChannelOptions, ClientOnlyEndpoint, connect

log = logging.getLogger("rocketpy.client")

Then = Callable[[RocketError | None], None]
RequestHandler = Callable[[Channel, Command], Command | bytes | None]


class PeerConnection:
    """The way to one peer. channel: the open connection, or None; read it each time, never keep it."""

    __slots__ = ("_pool", "_waiting", "address", "channel", "last_error")

    def __init__(self, pool: ConnectionPool, address: str) -> None:
        self._pool = pool
        self._waiting: list[Then] = []
        self.address = address
        self.channel: Channel | None = None
        self.last_error: Exception | None = None

    @property
    def is_open(self) -> bool:
        """Whether a request may leave at once."""
        return self.channel is not None and not self.channel.is_closed and self._pool.refusal is None

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for the connection, which is being made."""
        return bool(self._waiting)

    def when_open(self, then: Then) -> None:
        """Call `then(None)` once there is a connection, or `then(error)` when the attempt failed.

        Everyone who asks meanwhile shares one attempt and is called in the order in which they asked, with
        nothing in between; so requests keep their order.
        """
        if self._pool.refusal is not None:
            then(self._pool.refusal)
            return
        if self.channel is not None and not self.channel.is_closed:
            then(None)
            return
        self._waiting.append(then)
        if len(self._waiting) == 1:
            self._pool.tasks.spawn(self._connect(), f"connect {self.address}")

    async def open(self) -> Channel:
        """The connection, made if need be. Raises TransportError, ClientClosed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def then(error: RocketError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.when_open(then)
        await future
        return self._open_channel()

    async def request(self, command: Command, timeout_ms: float) -> Command:
        """Send a request and wait for its response, whatever its code. Raises TransportError."""
        if not self.is_open:
            await self.open()
        return await self.put(command, timeout_ms)

    def put(self, command: Command, timeout_ms: float) -> asyncio.Future[Command]:
        """Send a request on the open connection; see `Channel.request`. Raises ConnectionLost without one."""
        pool = self._pool
        if pool.signer is None and not pool.hooks:
            return self._open_channel().request(command, timeout_ms)
        signed = pool.sign(self.address, command)
        answer = self._open_channel().request(signed, timeout_ms)
        if pool.hooks:
            answer.add_done_callback(partial(pool.tell_response, self.address, signed))
        return answer

    def put_oneway(self, command: Command) -> None:
        """Send a request that nobody answers on the open connection. Raises ConnectionLost without one."""
        self._open_channel().oneway(self._pool.sign(self.address, command))

    def _open_channel(self) -> Channel:
        if self.channel is None:
            raise ConnectionLost(f"the connection to {self.address} has ended", outcome=Outcome.NOT_SENT)
        return self.channel

    async def _connect(self) -> None:
        error: RocketError | None = ClientClosed(f"stopped connecting to {self.address}")
        try:
            address = self._pool.with_scheme(self.address)
            self.channel = await connect(address, _ClientEndpoint(self), self._pool.options)
            self._pool.opened(self)
            error = None
        except ConfigInvalid as failed:
            # The address is a route's, not the caller's: another broker may have one that can be read.
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
        """Pass on a request of the peer."""
        handler = self._pool.handlers.get(request.code)
        if handler is not None:
            try:
                return handler(channel, request)
            except InvariantError as error:
                self._pool.tasks.fail(f"request {request.code} of {self.address}", error)
                raise
        log.debug("%s sent request code %d, which nobody handles", self.address, request.code)
        return request.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f"request code {request.code} is not supported"
        )


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
    """All connections of a client.

    opened: called with each new connection before anyone sends on it. handlers: by request code, for what
    peers ask of us. signer: signs requests. hooks: see them before that. refusal: why no request may leave.
    scheme: of addresses that have none, as those in RocketMQ's routes. name_servers: addresses of those, for
    the texts of errors.
    """

    tasks: Tasks
    options: ChannelOptions
    opened: Callable[[PeerConnection], None]
    handlers: dict[int, RequestHandler] = field(default_factory=dict)
    signer: Signer | None = None
    hooks: tuple[RpcHook, ...] = ()
    refusal: RocketError | None = None
    scheme: str = "tcp"
    name_servers: set[str] = field(default_factory=set)
    _connections: dict[str, PeerConnection] = field(default_factory=dict)

    def get(self, address: str) -> PeerConnection:
        """The connection to an address; the same object for the same text until it is dropped."""
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = PeerConnection(self, address)
        return connection

    def with_scheme(self, address: str) -> str:
        """The address with its scheme."""
        return address if "://" in address else f"{self.scheme}://{address}"

    def with_peer_name(self, address: str, error: ConnectFailed) -> ConnectFailed:
        """The same error, which says who it is that cannot be reached."""
        if address in self.name_servers:
            refused = os.strerror(ECONNREFUSED).lower() in str(error)
            hint = "; is one running there? (`rocketpy-broker dev` starts one)" if refused else ""
            text = f"name server {error}{hint}"
        else:
            text = f"broker {error}"
        return ConnectFailed(text, outcome=error.outcome, retry=error.retry)

    def all(self) -> list[PeerConnection]:
        """Every connection, in order of address."""
        return [self._connections[address] for address in sorted(self._connections)]

    def sign(self, address: str, command: Command) -> Command:
        """The request as it leaves: seen by the hooks, then signed. The command itself stays as it is.

        Raises LocalProtocolError when a hook raises.
        """
        if self.signer is None and not self.hooks:
            return command
        signed = msgspec.structs.replace(command, header=None, ext=dict(command.ext_fields()))
        for hook in self.hooks:
            try:
                hook.before_request(address, signed)
            except Exception as error:  # the application's code; its error is the request's
                raise LocalProtocolError(f"an RPC hook failed: {error!r}") from error
        if self.signer is not None:
            signed.ext = self.signer.sign(
                signed.ext_fields(),
                signed.body,
                code=signed.code,
                language=signed.language,
                version=signed.version,
            )
        return signed

    def tell_response(self, address: str, request: Command, answer: asyncio.Future[Command]) -> None:
        """Tell the hooks of a response, if there is one."""
        if answer.cancelled() or answer.exception() is not None:
            return
        for hook in self.hooks:
            try:
                hook.after_response(address, request, answer.result())
            except Exception:
                # The response is there and belongs to whoever asked.
                log.exception("an RPC hook failed on the response to request code %d", request.code)

    def drop(self, address: str) -> bool:
        """Close the connection to an address that is of no further use, unless somebody waits for it.

        Returns whether it was dropped.
        """
        connection = self._connections.get(address)
        if connection is None or connection.is_awaited:
            return False
        del self._connections[address]
        if connection.channel is not None:
            connection.channel.close()
        return True

    def abandon(self, reason: RocketError) -> None:
        """Use no connection any more, but leave each as it is: after a fork they belong to the parent."""
        self.refusal = reason
        for connection in self._connections.values():
            connection.channel = None

    async def close(self) -> None:
        """Close all connections and wait until they are gone."""
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
