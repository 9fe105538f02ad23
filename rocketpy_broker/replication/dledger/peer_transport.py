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
from rocketpy_broker.replication.dledger.core.events import Answer, Asked, Call
from rocketpy_broker.replication.dledger.core.messages import (
    RaftMessage,
    read_request,
    read_response,
    to_request,
    to_response,
)
from rocketpy_broker.replication.dledger.gate import PeerGate

log = logging.getLogger("rocketpy.broker.dledger")
_unread: Final = RateLimitedLog(log)

CALL_TIMEOUT_MS: Final = 3000
_RETRY_S: Final = 0.2
"""After a connection that failed, calls fail for so long without another try."""

OnAnswer = Callable[[int, RaftMessage | None], None]
"""Told the number of a call and its answer; None: there was none."""


class PeerLinks:
    """Connections to the other peers, each opened by the first call.

    addresses: by id. poke: called once a socket buffer, when its answers are told. tasks: of the peer.
    opened: called with a new connection and the id of the peer before anything is asked there; an error that
    it raises ends the connection.
    """

    def __init__(
        self,
        addresses: Mapping[str, Address],
        options: ChannelOptions,
        on_answer: OnAnswer,
        poke: Callable[[], None],
        tasks: Tasks,
        opened: Callable[[Channel, str], Awaitable[None]] | None = None,
    ) -> None:
        end = _AnsweredEnd(poke)
        self._links = {
            peer: _Link(peer, address, options, on_answer, end, tasks, opened)
            for peer, address in addresses.items()
        }

    def send(self, call: Call) -> None:
        """Ask a peer. Its answer, or None, is told later, and never from within this call."""
        self._links[call.peer].send(call)

    def flush(self) -> None:
        """Let what was sent leave now, not only when the loop's turn ends."""
        for link in self._links.values():
            link.flush()

    def close(self) -> None:
        """Disconnect; what is on its way is told to have failed."""
        for link in self._links.values():
            link.close()


class _AnsweredEnd(ClientOnlyEndpoint):
    """The Endpoint of a connection to a peer. poke: called once a socket buffer."""

    def __init__(self, poke: Callable[[], None]) -> None:
        self.end_of_buffer = poke  # type: ignore[method-assign]


class _Link:
    """One peer. Calls that come while the connection is made wait for it."""

    def __init__(
        self,
        peer: str,
        address: Address,
        options: ChannelOptions,
        on_answer: OnAnswer,
        end: Endpoint,
        tasks: Tasks,
        opened: Callable[[Channel, str], Awaitable[None]] | None,
    ) -> None:
        self._opened = opened
        self._peer = peer
        self._address = address
        self._options = options
        self._on_answer = on_answer
        self._end = end
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[Call] = []
        self._retry_at = 0.0
        self._failures = 0
        self._problem = ""
        """Why the last connection failed; one that fails the same way again is no news."""

    def send(self, call: Call) -> None:
        channel = self._channel
        if channel is not None and not channel.is_closed:
            self._write(channel, call)
        elif self._connecting is None and self._loop.time() < self._retry_at:
            self._loop.call_soon(self._tasks.run, self._on_answer, call.number, None)
        else:
            self._waiting.append(call)
            if self._connecting is None:
                self._connecting = self._tasks.spawn(self._connect(), f"connect to peer {self._peer}")

    def flush(self) -> None:
        if self._channel is not None:
            self._channel.flush()

    def _write(self, channel: Channel, call: Call) -> None:
        command = to_request(call.message)
        waiter = _Waiter(call.number, command.code, self._on_answer, channel)
        command.opaque = channel.expect(waiter, self._loop.time() * 1000 + CALL_TIMEOUT_MS)
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
        for call in waiting:
            if self._channel is not None and not self._channel.is_closed:
                self._write(self._channel, call)
            else:
                self._on_answer(call.number, None)

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._channel is not None:
            self._channel.abort()


class _Waiter:
    """Waits for the answer to one call.

    A peer that says nothing at all for the time of a call hangs, and may for hours: what is pushed again and
    again must not pile up here, so it is disconnected.
    """

    __slots__ = ("_channel", "_code", "_heard", "_number", "_on_answer")

    def __init__(self, number: int, code: int, on_answer: OnAnswer, channel: Channel) -> None:
        self._number = number
        self._code = code
        self._on_answer = on_answer
        self._channel = channel
        self._heard = channel.last_received

    def done(self) -> bool:
        return False

    def set_result(self, result: Command, /) -> None:
        try:
            message = read_response(result, self._code)
        except RocketError as error:
            _unread.warning(str(error), "an answer to request %d is not understood: %s", self._code, error)
            self._on_answer(self._number, None)
        else:
            self._on_answer(self._number, message)

    def set_exception(self, exception: RocketError, /) -> None:
        log.debug("no answer to request %d: %s", self._code, exception)
        if isinstance(exception, RequestTimeout) and self._channel.last_received == self._heard:
            self._channel.abort()
        self._on_answer(self._number, None)


class RaftPort:
    """The Endpoint of a peer's own port.

    step: takes an event; poke: called once a socket buffer; gate: says who may ask, None: everybody.
    """

    def __init__(
        self, step: Callable[[Asked], None], poke: Callable[[], None], gate: PeerGate | None = None
    ) -> None:
        self._step = step
        self._gate = gate
        self.end_of_buffer = poke
        self._asked: dict[int, tuple[Channel, Command]] = {}
        self._tokens = 0
        self._answered: set[Channel] = set()

    def channel_opened(self, channel: Channel) -> None:
        """Part of Endpoint."""
        if self._gate is not None:
            self._gate.opened(channel)

    def handle(self, channel: Channel, request: Command) -> Command | None:
        """Part of Endpoint. What is no request of DLedger's is answered with SYSTEM_ERROR."""
        gate = self._gate
        if gate is not None and (answer := gate.handshake(channel, request)) is not None:
            return answer
        message = read_request(request)
        if gate is not None:
            gate.check(channel, message)
        token = self._tokens
        self._tokens += 1
        if not request.is_oneway:
            self._asked[token] = channel, request
        self._step(Asked(token, message))
        return None

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        """Part of Endpoint. Answers to it are dropped when they come."""
        if self._gate is not None:
            self._gate.closed(channel)

    def answer(self, answer: Answer) -> None:
        """Answer a request."""
        asked = self._asked.pop(answer.token, None)
        if asked is not None:
            channel, request = asked
            channel.reply(to_response(request, answer.message))
            self._answered.add(channel)

    def flush(self) -> None:
        """Let answers leave now, not only when the loop's turn ends."""
        while self._answered:
            self._answered.pop().flush()
