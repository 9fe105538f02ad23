"""Sends and receives the requests of a group's peers, as DLedger's JSON frames.

The core has no timeouts for its requests: each `SendRequest` gets its response, or is reported as failed.

Source: DLedgerRpcNettyService of DLedger 0.1.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from rocketpy.errors import ConnectionLost, RequestTimeout, RocketError
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Address, Channel, ChannelOptions, ClientOnlyEndpoint, connect
from rocketpy_broker.replication.dledger.authentication import PeerAuthenticator
from rocketpy_broker.replication.dledger.core.events import RequestReceived, SendRequest, SendResponse
from rocketpy_broker.replication.dledger.core.messages import (
    RaftMessage,
    read_request,
    read_response,
    to_request,
    to_response,
)

log = logging.getLogger("rocketpy.broker.dledger")
_invalid_responses: Final = RateLimitedLog(log)
_unanswered: Final = RateLimitedLog(log)

REQUEST_TIMEOUT_MS: Final = 3000
_RETRY_S: Final = 0.2
"""After a failed connection attempt, requests fail immediately for this long."""

OnResponse = Callable[[int, RaftMessage | None], None]
"""Called with the number of a request and its response; None: the request failed."""


class RaftClient(ClientOnlyEndpoint):
    """Sends requests to the other peers. Each connection is opened by the first request.

    addresses: by peer id. on_response: see `OnResponse`. on_buffer_end: called after each received buffer.
    tasks: of the peer. on_connected: called with each new connection and the peer's id before any request; if
    it raises, the connection is closed.
    """

    def __init__(
        self,
        addresses: Mapping[str, Address],
        options: ChannelOptions,
        on_response: OnResponse,
        on_buffer_end: Callable[[], None],
        tasks: Tasks,
        on_connected: Callable[[Channel, str], Awaitable[None]],
    ) -> None:
        self.options = options
        self.on_response = on_response
        self.end_of_buffer = on_buffer_end  # type: ignore[method-assign]
        self.tasks = tasks
        self.on_connected = on_connected
        self._connections = {peer: _RaftConnection(self, peer, addresses[peer]) for peer in addresses}

    def send(self, request: SendRequest) -> None:
        """Send a request. `on_response` is called later, never from within this call."""
        self._connections[request.peer].send(request)

    def flush(self) -> None:
        """Write the pending requests to the sockets now, not at the end of the event loop's iteration."""
        for connection in self._connections.values():
            connection.flush()

    def close(self) -> None:
        """Disconnect. Pending requests fail."""
        for connection in self._connections.values():
            connection.close()


class _RaftConnection:
    """The connection to one peer. Requests wait while it is being opened."""

    def __init__(self, client: RaftClient, peer: str, address: Address) -> None:
        self._client = client
        self._peer = peer
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[SendRequest] = []
        self._retry_at = 0.0
        self._failures = 0
        self._problem = ""
        """Why the last attempt failed. The same failure again is logged at DEBUG."""

    def send(self, request: SendRequest) -> None:
        channel, client = self._channel, self._client
        if channel is not None and not channel.is_closed:
            self._write(channel, request)
        elif self._connecting is None and self._loop.time() < self._retry_at:
            client.tasks.call_soon(client.on_response, request.number, None)
        else:
            self._waiting.append(request)
            if self._connecting is None:
                self._connecting = client.tasks.spawn(self._connect(), f"connect to peer {self._peer}")

    def flush(self) -> None:
        if self._channel is not None:
            self._channel.flush()

    def _write(self, channel: Channel, request: SendRequest) -> None:
        command = to_request(request.message)
        waiter = _ResponseWaiter(request.number, command.code, self._client.on_response, channel)
        command.opaque = channel.expect(waiter, self._loop.time() * 1000 + REQUEST_TIMEOUT_MS)
        channel.write(encode_command(command))

    async def _connect(self) -> None:
        try:
            self._channel = await self._open()
        except RocketError as error:
            self._failures += 1
            self._retry_at = self._loop.time() + _RETRY_S
            level = logging.WARNING if str(error) != self._problem else logging.DEBUG
            self._problem = str(error)
            log.log(level, "peer %s cannot be reached: %s", self._peer, error)
        else:
            if self._failures:
                log.warning(
                    "peer %s can be reached again after %d failed attempts", self._peer, self._failures
                )
            self._failures, self._problem = 0, ""
        finally:
            self._connecting = None
            self._send_waiting()

    async def _open(self) -> Channel:
        channel = await connect(self._address, self._client, self._client.options)
        try:
            await self._client.on_connected(channel, self._peer)
        except BaseException:  # cancellation included: no caller owns the channel yet
            channel.abort()
            raise
        return channel

    def _send_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            if self._channel is not None and not self._channel.is_closed:
                self._write(self._channel, request)
            else:
                self._client.on_response(request.number, None)

    def close(self) -> None:
        self._client.tasks.cancel_soon(self._connecting)
        if self._channel is not None:
            self._channel.abort()


class _ResponseWaiter:
    """Waits for the response to one request.

    A peer that sends nothing until a request times out may hang for hours. It is disconnected; otherwise
    repeated pushes would fill the socket's buffer.
    """

    __slots__ = ("_channel", "_code", "_last_received", "_number", "_on_response")

    def __init__(self, number: int, code: int, on_response: OnResponse, channel: Channel) -> None:
        self._number = number
        self._code = code
        self._on_response = on_response
        self._channel = channel
        self._last_received = channel.last_received

    def done(self) -> bool:
        return False

    def set_result(self, result: Command, /) -> None:
        message = None
        try:
            message = read_response(result, self._code)
        except RocketError as error:
            text = "invalid response to a request with code %d: %s"
            _invalid_responses.warning(str(error), text, self._code, error)
        self._on_response(self._number, message)

    def set_exception(self, exception: RocketError, /) -> None:
        log.debug("no response to a request with code %d: %s", self._code, exception)
        if isinstance(exception, ConnectionLost) and not self._channel.has_received:
            text = "%s before any response; if that peer has dLegerSecret, this one needs the same secret"
            _unanswered.warning(self._channel.remote_address, text, exception)
        if isinstance(exception, RequestTimeout) and self._channel.last_received == self._last_received:
            self._channel.abort()
        self._on_response(self._number, None)


class RaftEndpoint:
    """The Endpoint of a peer's own port.

    step: receives each request. on_buffer_end: called after each received buffer. authenticator: None accepts
    every connection.
    """

    def __init__(
        self,
        step: Callable[[RequestReceived], None],
        on_buffer_end: Callable[[], None],
        authenticator: PeerAuthenticator | None = None,
    ) -> None:
        self._step = step
        self._authenticator = authenticator
        self.end_of_buffer = on_buffer_end
        self._open_requests: dict[int, tuple[Channel, Command]] = {}
        self._request_id = 0
        self._unflushed: set[Channel] = set()

    def channel_opened(self, channel: Channel) -> None:
        """Start to authenticate a new connection; see `Endpoint`."""
        if self._authenticator is not None:
            self._authenticator.opened(channel)

    def handle(self, channel: Channel, request: Command) -> Command | None:
        """Pass a request to the node; see `Endpoint`. The channel responds SYSTEM_ERROR to an invalid one."""
        authenticator = self._authenticator
        if authenticator is not None and not authenticator.is_authenticated(channel):
            return authenticator.handshake(channel, request)
        message = read_request(request)
        if authenticator is not None:
            authenticator.check(channel, message)
        self._request_id += 1
        if not request.is_oneway:
            self._open_requests[self._request_id] = channel, request
        self._step(RequestReceived(self._request_id, message))
        return None

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        """Forget a connection; see `Endpoint`. Later responses to it are dropped."""
        if self._authenticator is not None:
            self._authenticator.closed(channel)

    def respond(self, response: SendResponse) -> None:
        """Respond to a request."""
        opened = self._open_requests.pop(response.request_id, None)
        if opened is not None:
            channel, request = opened
            channel.reply(to_response(request, response.message))
            self._unflushed.add(channel)

    def flush(self) -> None:
        """Write the pending responses to the sockets now, not at the end of the event loop's iteration."""
        while self._unflushed:
            self._unflushed.pop().flush()
