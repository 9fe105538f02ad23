"""Channel: the asyncio shell of one remoting connection, the same for clients and servers.

A whole socket buffer is handled in one go: every frame in it is decoded, its requests are
handled by plain functions, and what they answered leaves in one write. Outside of that,
frames written during one turn of the event loop leave together at its end.

Requests that take long, or whose answers are large, end the turn of their connection: the rest of the buffer
waits until other connections had theirs, and until the peer has read what it asked for. Of all connections
whose requests wait, only one has a turn before the event loop looks at its sockets again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast
from weakref import WeakKeyDictionary

from rocketpy.errors import ConnectionLost, InvariantError, Outcome, RocketError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy.protocol.remoting.connection import Connection, Waiter
from rocketpy.protocol.remoting.frame import MAX_FRAME_BYTES, MAX_HEADER_BYTES
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport.base import ChannelOptions
from rocketpy.transport.memory_budget import ConnectionMemory, MemoryBudget
from rocketpy.transport.stream import StreamProtocol
from rocketpy.transport.tls import certificate_names, ending_hint, tls_reason

log = logging.getLogger("rocketpy.transport")

_LITTLE_BYTES = 16 * 1024
_FRAMES_MAX: Final = 512
"""Frames that are written together at most."""
_TURN_S: Final = 0.001
"""After so long, the next request of the same buffer waits for the other connections."""


class Endpoint(Protocol):
    """What handles the requests of a channel. One object may serve all channels of a server."""

    def channel_opened(self, channel: Channel) -> None:
        """A connection is there."""

    def handle(self, channel: Channel, request: Command) -> Command | bytes | None:
        """Answer one request: with a command, with a ready frame, or later by `Channel.reply` (None).

        Runs in the event loop and must not block. An answer to a oneway request is dropped.
        A RocketError raised here is answered with SYSTEM_ERROR and its text.
        """

    def end_of_buffer(self) -> None:
        """All of one socket buffer was handled, answers to us too; what was gathered may go."""

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        """The connection is gone; error is None when either side closed it in order."""


class ClientOnlyEndpoint:
    """The endpoint of a connection on which only this end sends requests; does nothing on other events."""

    def channel_opened(self, channel: Channel) -> None:
        """Do nothing."""

    def handle(self, channel: Channel, request: Command) -> Command | bytes | None:
        """Reject the request."""
        return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="this end only sends requests")

    def end_of_buffer(self) -> None:
        """Do nothing."""

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        """Do nothing."""


class _Turns:
    """Gives turns to the channels of one event loop whose requests wait, in the order they came."""

    def __init__(self) -> None:
        self._waiting: dict[Channel, None] = {}
        self._is_scheduled = False

    def enter(self, channel: Channel) -> None:
        """Let a channel have a turn; one that waits already keeps its place."""
        self._waiting[channel] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        channel = next(iter(self._waiting))
        del self._waiting[channel]
        channel.take_turn()
        self._is_scheduled = bool(self._waiting)
        if self._is_scheduled:
            loop = asyncio.get_running_loop()
            # Not in the next round of the loop: that handles what arrived during this turn.
            loop.call_soon(loop.call_soon, self._next)


_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns]] = WeakKeyDictionary()


class Channel(StreamProtocol):
    """One connection: sends requests, hands those of the peer to an endpoint, keeps its limits.

    is_writable: False while so much is unsent that callers should wait with `drain`, or `when_writable`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        options: ChannelOptions,
        *,
        served: bool,
        budget: MemoryBudget | None = None,
        closings: RateLimitedLog | None = None,
    ) -> None:
        """served: whether the peer connected to us, so that its slowness is cut off in the end.

        budget: of its server. closings: logs why its server closes connections; many peers may misbehave.
        """
        self._endpoint = endpoint
        self._options = options
        self._served = served
        self._loop = asyncio.get_running_loop()
        self._turns = _turns.setdefault(self._loop, _Turns())
        self._tasks = Tasks("a connection")
        self._connection = Connection(
            options.codec,
            max_frame_bytes=options.max_frame_bytes,
            max_header_bytes=options.max_header_bytes,
        )
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._gathering = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._swept_ms = float("inf")  # no deadline before this needs another timer
        self._backlog: deque[Command] = deque()
        """Requests that were received and wait for their turn. Nothing is read meanwhile."""
        self._unanswered = 0
        self._reading_paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        self.is_writable = True
        self._awaiting_writable: list[Callable[[], None]] = []
        self._closings = closings
        self._budget = budget
        self.memory = ConnectionMemory(None)
        """What a server keeps for it."""
        self._frame_bytes = self._answer_bytes = 0  # as they were counted last
        self._closed = self._loop.create_future()
        self._error: Exception | None = None
        self.remote_address = ""
        self.remote_host = ""
        """Its peer's host, an IPv6 address in brackets."""
        self.local_address = ""
        self.last_received = self._opened = self._loop.time()
        self.frame_started: float | None = None

    # -- what its users call ------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._transport is None or self._transport.is_closing()

    @property
    def in_flight(self) -> int:
        """How many of our requests wait for their response."""
        return self._connection.in_flight

    def certificate_names(self) -> frozenset[str]:
        """Names in the peer's verified certificate; empty without one."""
        return frozenset() if self._transport is None else certificate_names(self._transport)

    def when_writable(self, then: Callable[[], None]) -> None:
        """Call `then` when the peer has taken most of what is unsent, or when the connection has ended.

        To be used while it is not writable. What `then` writes may make it so again.
        """
        self._awaiting_writable.append(then)

    def request(self, command: Command, timeout_ms: float) -> asyncio.Future[Command]:
        """Send a request; return the future of its response, whatever its code.

        The future fails with RequestTimeout, or with ConnectionLost as soon as the connection ends.
        Raises ConnectionLost, with nothing sent, when that has happened already, and LocalProtocolError.
        """
        future: asyncio.Future[Command] = self._loop.create_future()
        self._require_open()
        deadline_ms = self._loop.time() * 1000 + timeout_ms
        self.write(self._connection.encode_request(command, cast(Waiter, future), deadline_ms))
        self._watch_deadlines()
        return future

    def expect(self, waiter: Waiter, deadline_ms: float) -> int:
        """Enter a waiter for a frame that the caller builds; return the opaque it must carry.

        deadline_ms: by the loop's clock. For hot paths: follow it with `write(frame)` in the same turn.
        Raises ConnectionLost, with nothing sent.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            self._require_open()
        opaque = self._connection.expect(waiter, deadline_ms)
        if deadline_ms < self._swept_ms:
            self._watch_deadlines()
        return opaque

    def oneway(self, command: Command) -> None:
        """Send a request that nobody answers. Raises ConnectionLost, LocalProtocolError."""
        self._require_open()
        self.write(self._connection.encode_oneway(command))

    def park(self) -> None:
        """Say that the request in hand waits for an event, maybe for long: it is not counted as unanswered.

        Called by `Endpoint.handle` before it returns None; answer it with `reply_parked`. Whoever parks
        requests needs a bound of their own.
        """
        self._unanswered -= 1

    def reply_parked(self, response: Command | bytes) -> None:
        """Send the answer to a request that was parked; dropped when closed."""
        self.write(response if isinstance(response, bytes) else self._framed(response))

    def reply(self, response: Command | bytes) -> None:
        """Send the answer to a request that `Endpoint.handle` left unanswered; dropped when closed."""
        self._unanswered -= 1
        self.write(response if isinstance(response, bytes) else self._framed(response))
        if self._reading_paused:
            self._balance_reading()

    def write(self, frame: bytes) -> None:
        """Send a ready frame at the end of this buffer or loop turn; dropped when closed."""
        out = self._out
        out.append(frame)
        if not self._gathering:
            self._gathering = True
            self._loop.call_soon(self._tasks.run, self._flush)
        elif len(out) >= _FRAMES_MAX:
            self._send_out()  # so that a long turn of the loop notices a peer that does not read

    def write_now(self, frame: bytes) -> None:
        """Send a ready frame, and what was written before it, at once: spares a lone request a loop turn."""
        self._out.append(frame)
        self._send_out()

    def flush(self) -> None:
        """Send what was written now, not only at the end of the loop turn."""
        if self._out:
            self._send_out()

    async def drain(self) -> None:
        """Wait until the unsent bytes are below the limit again. Raises ConnectionLost."""
        await self._writable.wait()
        self._require_open()

    def close(self) -> None:
        """Send what was written, then close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; unsent bytes are lost."""
        if self._transport is not None:
            self._transport.abort()

    def take_turn(self) -> None:
        """Handle some of the requests that wait. To be called by the event loop's turns."""
        self._tasks.run(self._go_on)

    async def wait_closed(self) -> None:
        """Wait until the connection is gone and its endpoint was told."""
        await asyncio.shield(self._closed)

    # -- what asyncio calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol."""
        super().connection_made(transport)
        self._little = self._buffer[:_LITTLE_BYTES]
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._options.write_high_bytes)
        self.remote_address = address_text(transport.get_extra_info("peername"))
        self.remote_host = self.remote_address.rpartition(":")[0]
        self._connection.peer = self.remote_address or "the peer"
        self.local_address = address_text(transport.get_extra_info("sockname"))
        # Not before: without its end, which ends these cycles, a garbage collection would have to free it.
        self._tasks.on_failure.append(self._fail)
        self.memory = ConnectionMemory(self._budget, self._unsent_bytes, self._fail)
        self._endpoint.channel_opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Part of StreamProtocol: a server reads little at a time, except within a large frame.

        Thus a peer who sent many requests at once has the first answers while the others are handled, and
        works on them; with all in one read, the two would take turns in waiting.
        """
        if self._served and self._connection.buffered < _LITTLE_BYTES:
            return self._little
        return self._buffer

    def data_received(self, data: bytes) -> None:
        """Part of StreamProtocol: handle every whole frame of one socket buffer."""
        self.last_received = self._loop.time()
        try:
            requests = self._connection.receive(data)
        except RocketError as error:
            self._fail(error)
            return
        self._note_partial_frame(len(data))
        if requests:
            self.memory.has_spoken = True
        if self._backlog:  # TLS may hand over what it had received before reading stopped
            self._backlog.extend(requests)
            self._count_backlog()
            return
        self._handle_all(requests)

    def pause_writing(self) -> None:
        """Part of asyncio.Protocol: the peer reads more slowly than we write."""
        self._writable.clear()
        self.is_writable = False
        self._balance_reading()

    def resume_writing(self) -> None:
        """Part of asyncio.Protocol."""
        self._writable.set()
        self.is_writable = True
        self._count_answers(self._unsent_bytes())
        if self._backlog:
            self._turns.enter(self)
        self._balance_reading()
        self._tell_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio.Protocol: fail what is in flight, at once."""
        error = self._error or exc
        hint = ""
        if not self._served and self.last_received == self._opened and self._error is None:
            hint = ending_hint(self._transport)
        self._transport = None
        self.memory.end()
        self._tasks.on_failure.clear()  # without this cycle, its buffers are freed with it
        self._out.clear()
        self._backlog.clear()
        self._writable.set()
        self.is_writable = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        reason = f": {tls_reason(error)}{hint}" if error is not None else hint
        self._connection.close(f"connection to {self.remote_address} ended{reason}")
        self._endpoint.channel_closed(self, error)
        self._tell_writable()
        if not self._closed.done():
            self._closed.set_result(None)

    # -- inside -------------------------------------------------------------------------------

    def _handle_all(self, requests: Sequence[Command]) -> None:
        """Handle the requests of a buffer, or as many as their turn has time and room for."""
        gathering, self._gathering = self._gathering, True
        if len(requests) == 1:
            self._handle(requests[0])
        elif requests:
            done = self._handle_some(requests)
            self._backlog.extend(requests[done:])
            if self._backlog and not self.memory.sizes["requests"]:
                self._count_backlog()
        self._endpoint.end_of_buffer()
        self._gathering = gathering
        if self._out:
            self._send_out()
        if self._backlog and self.is_writable:  # else `resume_writing` goes on
            self._turns.enter(self)
        if self._unanswered > self._options.max_unanswered or self._backlog:
            self._balance_reading()

    def _handle_some(self, requests: Sequence[Command]) -> int:
        """Handle requests until their turn is over; return how many were.

        The clock is read after an answer, and after every fourth request: the usual runs of sends are
        answered at their end, and should cost nothing more.
        """
        until = self._loop.time() + _TURN_S
        answered = len(self._out)
        for done, request in enumerate(requests, 1):
            self._handle(request)
            if len(self._out) == answered and done & 3:
                continue
            if self._out and len(self._out[-1]) > _LITTLE_BYTES:
                self._send_out()  # so that it is known whether the peer reads
            answered = len(self._out)
            if not self.is_writable or self._loop.time() > until:
                return done
        return len(requests)

    def _go_on(self) -> None:
        """Take another turn with the backlog."""
        if self.is_closed or not self.is_writable or not self._backlog:
            return
        waiting, self._backlog = tuple(self._backlog), deque()
        if self.frame_started is not None:
            self.frame_started = self._loop.time()  # that its frame does not end is our doing
        self._handle_all(waiting)
        if not self._backlog:
            self.memory.set("requests", 0)
            self._balance_reading()

    def _count_backlog(self) -> None:
        """Count what waits; the count falls when all is handled, since each count takes as long as a turn."""
        if self._served:
            self.memory.set("requests", sum(request.kept_bytes for request in self._backlog))

    def run_handler(
        self, request: Command, handler: Callable[[Channel, Command], Command | bytes | None]
    ) -> Command | bytes | None:
        """Return the response of a handler. An error becomes a response, except InvariantError."""
        try:
            return handler(self, request)
        except RocketError as error:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        except InvariantError:
            raise  # closes the connection, whose state cannot be trusted
        except Exception:
            # One request must not close the connection, which others use, too.
            log.exception("request code %d from %s failed", request.code, self.remote_address)
            return request.reply(ResponseCode.SYSTEM_ERROR, remark="internal error; see the server's log")

    def _handle(self, request: Command) -> None:
        answer = self.run_handler(request, self._endpoint.handle)
        if request.is_oneway:
            return
        if answer is None:
            self._unanswered += 1
        else:
            self._out.append(answer if isinstance(answer, bytes) else self._framed(answer))

    def _framed(self, answer: Command) -> bytes:
        """Return the frame of an answer; one that no peer would accept becomes an error with its length."""
        # What peers accept is not known: RocketMQ's limit, or ours where that was raised.
        size_max = max(self._options.max_frame_bytes, MAX_FRAME_BYTES) - MAX_HEADER_BYTES
        size = len(answer.body)
        if size <= size_max:
            return encode_command(answer)
        remark = f"the answer would have {size} bytes; a frame has room for {size_max}"
        log.error("a request of %s is refused: %s", self.remote_address, remark)
        refusal = Command(
            ResponseCode.SYSTEM_ERROR, answer.opaque, answer.flag, remark=remark, codec=answer.codec
        )
        return encode_command(refusal)

    def _tell_writable(self) -> None:
        waiting, self._awaiting_writable = self._awaiting_writable, []
        for then in waiting:
            then()

    def _flush(self) -> None:
        self._gathering = False
        if self._out:
            self._send_out()

    def _send_out(self) -> None:
        out, self._out = self._out, []
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if len(out) > 1 and sum(map(len, out)) <= self._options.write_high_bytes:
            out = [b"".join(out)]
        for data in out:
            transport.write(data)
        if self._served:
            unsent = transport.get_write_buffer_size()
            if unsent != self._answer_bytes:
                self._count_answers(unsent)
            limit = self._options.write_limit_bytes
            # One answer may be larger by itself: a peer that reads gets it.
            if unsent > limit and unsent > limit + max(map(len, out)):
                self._fail(ConnectionLost(f"{self.remote_address} left {unsent} bytes unread"))

    def _count_answers(self, unsent: int) -> None:
        self._answer_bytes = unsent
        self.memory.set("answers", unsent)

    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _fail(self, error: Exception) -> None:
        self._error = error.with_traceback(None)  # its frames refer to this channel: a cycle
        text = "closing connection to %s: %s"
        if self._closings is None:
            log.warning(text, self.remote_address, error)
        else:
            self._closings.warning(type(error).__name__, text, self.remote_address, error)
        self.abort()

    def _require_open(self) -> None:
        if self.is_closed:
            where = self.remote_address or "the peer"
            raise ConnectionLost(f"the connection to {where} has ended", outcome=Outcome.NOT_SENT)

    def _note_partial_frame(self, received: int) -> None:
        """Remember since when the peer owes us the rest of a frame."""
        buffered = self._connection.buffered
        if buffered != self._frame_bytes:
            self._frame_bytes = buffered
            self.memory.set("frame", buffered)
        if not buffered:
            self.frame_started = None
        elif self.frame_started is None or buffered < received:
            self.frame_started = self.last_received  # it began within this buffer

    def _balance_reading(self) -> None:
        """Stop reading while the peer does not take our answers or has too many requests open."""
        too_many = self._unanswered > self._options.max_unanswered
        paused = too_many or bool(self._backlog) or (self._served and not self._writable.is_set())
        if self._transport is None or self._transport.is_closing() or paused == self._reading_paused:
            return
        self._reading_paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _watch_deadlines(self) -> None:
        """One timer for the whole table, at the earliest deadline it may hold."""
        if self._sweeper is None:
            earliest_ms = self._connection.earliest_deadline_ms
            delay = earliest_ms / 1000 - self._loop.time()
            self._sweeper = self._loop.call_later(max(delay, 0), self._tasks.run, self._sweep)
            self._swept_ms = earliest_ms - 1
        elif self._connection.earliest_deadline_ms < self._sweeper.when() * 1000 - 1:
            self._sweeper.cancel()
            self._sweeper = None
            self._watch_deadlines()

    def _sweep(self) -> None:
        self._sweeper = None
        self._swept_ms = float("inf")
        self._connection.expire(self._loop.time() * 1000)
        if self._connection.in_flight:
            self._watch_deadlines()


def address_text(name: object) -> str:
    """Return ``host:port`` for a socket name, or its text where it is something else."""
    if isinstance(name, tuple):
        host, port = name[0], name[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(name or "")
