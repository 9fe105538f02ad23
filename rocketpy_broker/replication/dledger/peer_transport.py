"""Both ends of the connections between peers: requests go out and come in as DLedger's JSON frames.

Source: DLedgerRpcNettyService of DLedger 0.1.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from rocketpy.errors import RequestTimeout, RocketError
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Address, Channel, ChannelOptions, ClientOnlyEndpoint, Endpoint, connect
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
_unread: Final = RateLimitedLog(log)

REQUEST_TIMEOUT_MS: Final = 3000
_RETRY_S: Final = 0.2
"""After a connection that failed, calls fail for so long without another try."""

OnResponse = Callable[[int, RaftMessage | None], None]
"""Told the number of a call and its answer; None: there was none."""


class RaftClient:
    """Sends requests to the other peers. Each connection is opened by the first request.

    addresses: by peer id. on_buffer_end: called after each received buffer. tasks: of the peer. opened:
    called with each new connection and the peer's id before any request; if it raises, the
    connection is closed.
    """

    def __init__(
        self,
        addresses: Mapping[str, Address],
        options: ChannelOptions,
        on_response: OnResponse,
        on_buffer_end: Callable[[], None],
        tasks: Tasks,
        opened: Callable[[Channel, str], Awaitable[None]] | None = None,
    ) -> None:
        end = _ResponseEndpoint(on_buffer_end)
        self._connections = {
            peer: _RaftConnection(peer, address, options, on_response, end, tasks, opened)
            for peer, address in addresses.items()
        }

    def send(self, request: SendRequest) -> None:
        """Ask a peer. Its answer, or None, is told later, and never from within this call."""
        self._connections[request.peer].send(request)

    def flush(self) -> None:
        """Let what was sent leave now, not only when the loop's turn ends."""
        for connection in self._connections.values():
            connection.flush()

    def close(self) -> None:
        """Disconnect; what is on its way is told to have failed."""
        for connection in self._connections.values():
            connection.close()


class _ResponseEndpoint(ClientOnlyEndpoint):
    """The Endpoint of a connection to a peer. on_buffer_end: called once a socket buffer."""

    def __init__(self, on_buffer_end: Callable[[], None]) -> None:
        self.end_of_buffer = on_buffer_end  # type: ignore[method-assign]


class _RaftConnection:
    """One peer. Calls that come while the connection is made wait for it."""

    def __init__(
        self,
        peer: str,
        address: Address,
        options: ChannelOptions,
        on_response: OnResponse,
        end: Endpoint,
        tasks: Tasks,
        opened: Callable[[Channel, str], Awaitable[None]] | None,
    ) -> None:
        self._opened = opened
        self._peer = peer
        self._address = address
        self._options = options
        self._on_response = on_response
        self._end = end
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[SendRequest] = []
        self._retry_at = 0.0
        self._failures = 0
        self._problem = ""
        """Why the last connection failed; one that fails the same way again is no news."""

    def send(self, request: SendRequest) -> None:
        channel = self._channel
        if channel is not None and not channel.is_closed:
            self._write(channel, request)
        elif self._connecting is None and self._loop.time() < self._retry_at:
            self._loop.call_soon(self._tasks.run, self._on_response, request.number, None)
        else:
            self._waiting.append(request)
            if self._connecting is None:
                self._connecting = self._tasks.spawn(self._connect(), f"connect to peer {self._peer}")

    def flush(self) -> None:
        if self._channel is not None:
            self._channel.flush()

    def _write(self, channel: Channel, request: SendRequest) -> None:
        command = to_request(request.message)
        waiter = _ResponseWaiter(request.number, command.code, self._on_response, channel)
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
                log.warning("peer %s is reached after %d failures", self._peer, self._failures)
            self._failures, self._problem = 0, ""
        finally:
            self._connecting = None
            self._send_waiting()

    async def _open(self) -> Channel:
        channel = await connect(self._address, self._end, self._options)
        try:
            if self._opened is not None:
                await self._opened(channel, self._peer)
        except BaseException:
            channel.abort()
            raise
        return channel

    def _send_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            if self._channel is not None and not self._channel.is_closed:
                self._write(self._channel, request)
            else:
                self._on_response(request.number, None)

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._channel is not None:
            self._channel.abort()


class _ResponseWaiter:
    """Waits for the answer to one call.

    A peer that says nothing at all for the time of a call hangs, and may for hours: what is pushed again and
    again must not pile up here, so it is disconnected.
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
        try:
            message = read_response(result, self._code)
        except RocketError as error:
            _unread.warning(str(error), "an answer to request %d is not understood: %s", self._code, error)
            self._on_response(self._number, None)
        else:
            self._on_response(self._number, message)

    def set_exception(self, exception: RocketError, /) -> None:
        log.debug("no answer to request %d: %s", self._code, exception)
        if isinstance(exception, RequestTimeout) and self._channel.last_received == self._last_received:
            self._channel.abort()
        self._on_response(self._number, None)


class RaftEndpoint:
    """The Endpoint of a peer's own port.

    step: receives each request; on_buffer_end: called after each received buffer; authenticator: None accepts
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
        """Part of Endpoint."""
        if self._authenticator is not None:
            self._authenticator.opened(channel)

    def handle(self, channel: Channel, request: Command) -> Command | None:
        """Part of Endpoint. What is no request of DLedger's is answered with SYSTEM_ERROR."""
        authenticator = self._authenticator
        if authenticator is not None and (response := authenticator.handshake(channel, request)) is not None:
            return response
        message = read_request(request)
        if authenticator is not None:
            authenticator.check(channel, message)
        request_id = self._request_id
        self._request_id += 1
        if not request.is_oneway:
            self._open_requests[request_id] = channel, request
        self._step(RequestReceived(request_id, message))
        return None

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        """Part of Endpoint. Answers to it are dropped when they come."""
        if self._authenticator is not None:
            self._authenticator.closed(channel)

    def respond(self, response: SendResponse) -> None:
        """Answer a request."""
        opened = self._open_requests.pop(response.request_id, None)
        if opened is not None:
            channel, request = opened
            channel.reply(to_response(request, response.message))
            self._unflushed.add(channel)

    def flush(self) -> None:
        """Let answers leave now, not only when the loop's turn ends."""
        while self._unflushed:
            self._unflushed.pop().flush()
