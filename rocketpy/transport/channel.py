"""Channel: the asyncio shell of one remoting connection, the same for clients and servers.

A socket buffer is handled as a whole: its frames are decoded, plain functions handle the requests, and all
responses are sent in one write. Other frames are sent at the end of the event loop iteration in which they
are written.

Slow requests and large responses end the turn of a connection. The rest of its buffer then waits as a backlog
until the other connections had a turn and the peer has read its responses. Between two polls of the sockets
only one backlogged connection has a turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from socket import socket
from time import monotonic
from typing import Final, Protocol, cast
from weakref import WeakKeyDictionary

from rocketpy.errors import ConnectionLost, InvariantError, Outcome, RocketError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.command import FLAG_ONEWAY, Command, encode_command, encode_command_head
from rocketpy.protocol.remoting.connection import Connection, Waiter
from rocketpy.protocol.remoting.frame import MAX_FRAME_BYTES, MAX_HEADER_BYTES
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks
from rocketpy.runtime.text import blocked_text
from rocketpy.transport.base import ChannelOptions
from rocketpy.transport.memory_budget import ConnectionMemory, MemoryBudget
from rocketpy.transport.stream import StreamProtocol
from rocketpy.transport.tls import certificate_names, ending_hint, tls_reason

log: Final = logging.getLogger("rocketpy.transport")

_SMALL_READ_BYTES = 16 * 1024
_FRAMES_MAX: Final = 512
"""Number of frames that `write` gathers before it sends them."""
_TURN_S: Final = 0.001
"""Maximum duration of the turn of a connection."""


class Endpoint(Protocol):
    """Handles the requests of a channel. One object may serve all channels of a server."""

    def channel_opened(self, channel: Channel) -> None:
        """The connection is open."""

    def handle(self, channel: Channel, request: Command) -> Command | bytes | None:
        """Handle one request: return a command or an encoded frame, or None to respond later
        (`Channel.reply`).

        Runs in the event loop and must not block. The response to a oneway request is dropped. A RocketError
        becomes a SYSTEM_ERROR response with its text.
        """

    def end_of_buffer(self) -> None:
        """All frames of one socket buffer were handled, including responses to this side."""

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        """The connection has ended; error is None when either side closed it without an error."""


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


class _TurnScheduler:
    """Gives turns to the backlogged channels of one event loop, in order of arrival."""

    def __init__(self) -> None:
        self._waiting: dict[Channel, None] = {}
        self._is_scheduled = False

    def enter(self, channel: Channel) -> None:
        """Queue a channel for a turn; a queued channel keeps its position."""
        self._waiting[channel] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next, context=Context())

    def _next(self) -> None:
        channel = next(iter(self._waiting))
        del self._waiting[channel]
        channel.take_turn()
        self._is_scheduled = bool(self._waiting)
        if self._is_scheduled:
            loop = asyncio.get_running_loop()
            # Skip one iteration of the loop, which handles input that arrived during this turn.
            loop.call_soon(loop.call_soon, self._next, context=Context())


_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _TurnScheduler]] = WeakKeyDictionary()


class Channel(StreamProtocol):
    """One connection: sends requests, passes requests of the peer to an endpoint, and enforces its limits."""

    def __init__(
        self,
        endpoint: Endpoint,
        options: ChannelOptions,
        *,
        served: bool,
        budget: MemoryBudget | None = None,
        close_log: RateLimitedLog | None = None,
    ) -> None:
        """served: whether the peer opened the connection; then a peer that does not read is disconnected.

        budget: the memory budget of the server. close_log: for the reasons of closed connections.
        """
        self._endpoint = endpoint
        self._options = options
        self._served = served
        self._loop = asyncio.get_running_loop()
        self._turns = _turns.setdefault(self._loop, _TurnScheduler())
        self._tasks = Tasks("a connection")
        self._connection = Connection(
            options.codec,
            max_frame_bytes=options.max_frame_bytes,
            max_header_bytes=options.max_header_bytes,
        )
        self._out: list[bytes] = []
        """Frames to write."""
        self._gathering = False
        """Whether `_out` is written later: at the end of the buffer or of the event loop iteration."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._swept_ms = float("inf")
        """Time of the next sweep: a request with an earlier deadline needs an earlier timer."""
        self._backlog: deque[Command] = deque()
        """Received requests that wait for the connection's turn. Reading is paused meanwhile."""
        self._backlog_bytes = 0
        """The size last passed to `memory` for the backlog."""
        self._unanswered = 0
        self._reading_paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        self.is_writable: bool = True
        """False while too many bytes are unsent; wait with `drain` or `when_writable`."""
        self._awaiting_writable: list[Callable[[], None]] = []
        self._close_log = close_log
        self._budget = budget
        self.memory: ConnectionMemory = ConnectionMemory(None)
        """The memory that the server uses for this connection."""
        self._frame_bytes = self._response_bytes = 0
        """The sizes last passed to `memory` for the incomplete frame and for unsent responses."""
        self._closed = self._loop.create_future()
        self._closed_here = False
        self._is_ending = False
        """Whether the connection has ended while requests that had arrived still wait."""
        self._unread: socket | None = None
        self._unread_bytes = 0
        """What the peer sent before it closed the connection, unless everything was read."""
        self._error: Exception | None = None
        self.remote_address: str = ""
        self.remote_host: str = ""
        """The host of the peer; an IPv6 address in brackets."""
        self.local_address: str = ""
        self.last_received: float = self._loop.time()
        self._opened = self.last_received
        self.frame_started: float | None = None

    # -- called by users of the channel -------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended or is closing."""
        return self._transport is None or self._transport.is_closing()

    @property
    def in_flight(self) -> int:
        """Number of sent requests without a response."""
        return self._connection.in_flight

    @property
    def has_received(self) -> bool:
        """Whether the peer has sent anything."""
        return self.last_received != self._opened

    def certificate_names(self) -> frozenset[str]:
        """Return the names in the verified certificate of the peer; empty without one."""
        return frozenset() if self._transport is None else certificate_names(self._transport)

    def when_writable(self, then: Callable[[], None]) -> None:
        """Call `then` once, when the channel is writable again or the connection has ended.

        For use while the channel is not writable. Writes in `then` may make it unwritable again.
        """
        self._awaiting_writable.append(then)

    def request(self, command: Command, timeout_ms: float) -> asyncio.Future[Command]:
        """Send a request; return the future of its response, which may have any code.

        The future fails with RequestTimeout, or with ConnectionLost as soon as the connection ends.
        Raises ConnectionLost (nothing was sent) when it has ended already, and LocalProtocolError.
        """
        future: asyncio.Future[Command] = self._loop.create_future()
        self._check_open()
        deadline_ms = self._loop.time() * 1000 + timeout_ms
        self.write(self._connection.encode_request(command, cast(Waiter, future), deadline_ms))
        self._watch_deadlines()
        return future

    def expect(self, waiter: Waiter, deadline_ms: float) -> int:
        """Register a waiter for a request that the caller encodes; return the opaque of the request.

        The caller passes the frame to `write` in the same turn. deadline_ms: by the clock of the loop.
        Raises ConnectionLost (nothing was sent).
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            self._check_open()
        opaque = self._connection.expect(waiter, deadline_ms)
        if deadline_ms < self._swept_ms:
            self._watch_deadlines()
        return opaque

    def forget(self, opaque: int) -> None:
        """Remove the waiter of a request that the caller could not encode."""
        self._connection.forget(opaque)

    def oneway(self, command: Command) -> None:
        """Send a oneway request. Raises ConnectionLost, LocalProtocolError."""
        self._check_open()
        self.write(self._connection.encode_oneway(command))

    def exclude_from_unanswered(self) -> None:
        """Exclude a request from the count of unanswered ones, because it may wait long.

        `Endpoint.handle` calls it before it returns None, or a later part of it does, and limits these
        requests itself; the response is sent with `reply_held`.
        """
        self._unanswered -= 1
        if self._reading_paused:
            self._update_reading()

    def include_in_unanswered(self) -> None:
        """Count an excluded request again; its response is then sent with `reply`."""
        self._unanswered += 1

    def reply_held(self, response: Command | bytes) -> None:
        """Send the response to an excluded request; dropped when closed."""
        for part in self._parts(response):
            self.write(part)

    def reply(self, response: Command | bytes) -> None:
        """Send the response to a request for which `Endpoint.handle` returned None; dropped when closed."""
        self._unanswered -= 1
        if isinstance(response, bytes):
            self.write(response)
        else:
            for part in self._parts(response):
                self.write(part)
            if len(response.body) > _SMALL_READ_BYTES:
                self._send_out()  # shows whether the peer reads
        if self._reading_paused:
            self._update_reading()

    def reply_now(self, responses: Sequence[Command | bytes]) -> None:
        """Send responses as `reply` does, without waiting for the end of the iteration."""
        self._unanswered -= len(responses)
        for response in responses:
            self._out += self._parts(response)
        self._send_out()
        if self._reading_paused:
            self._update_reading()

    def write(self, frame: bytes) -> None:
        """Send an encoded frame at the end of this buffer or loop iteration; dropped when closed."""
        out = self._out
        out.append(frame)
        if not self._gathering:
            self._gathering = True
            self._tasks.call_soon(self._flush)
        elif len(out) >= _FRAMES_MAX:
            self._send_out()  # a long turn must notice a peer that does not read

    def write_now(self, frame: bytes) -> None:
        """Send an encoded frame, and those before it, without waiting for the end of the iteration.

        A single request is then sent one event loop iteration earlier.
        """
        self._out.append(frame)
        self._send_out()

    def flush(self) -> None:
        """Send the written frames now, not at the end of the loop iteration."""
        if self._out:
            self._send_out()

    async def drain(self) -> None:
        """Wait until the channel is writable. Raises ConnectionLost."""
        await self._writable.wait()
        self._check_open()

    def close(self) -> None:
        """Close after the written frames are sent."""
        self._closed_here = True
        self._flush()
        if self._is_ending:
            self._turns.enter(self)
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection immediately; unsent bytes are dropped, and requests in flight fail."""
        self._closed_here = True
        if self._is_ending:
            self._turns.enter(self)
        super().abort()

    def take_turn(self) -> None:
        """Handle a part of the backlog; called by the turn scheduler."""
        self._tasks.run(self._process_backlog)

    async def wait_closed(self) -> None:
        """Wait until the connection has ended and `Endpoint.channel_closed` was called."""
        await asyncio.shield(self._closed)

    async def close_within(self, seconds: float = 1.0) -> None:
        """Close, and wait for the end. TLS waits for the peer, so the channel is aborted after this time."""
        self.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wait_closed()
        if not self._closed.done():
            self.abort()
            await self.wait_closed()

    # -- called by asyncio --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the channel to its endpoint."""
        super().connection_made(transport)
        self._small_buffer = self._buffer[:_SMALL_READ_BYTES]
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=self._options.write_high_bytes)
        self.remote_address = address_text(transport.get_extra_info("peername"))
        self.remote_host = self.remote_address.rpartition(":")[0]
        self._connection.peer = self.remote_address or "the peer"
        self.local_address = address_text(transport.get_extra_info("sockname"))
        # These references form cycles until `connection_lost` clears them, so they start only now.
        self._tasks.on_failure.append(self._fail)
        self.memory = ConnectionMemory(self._budget, self._unsent_bytes, self._fail)
        self._endpoint.channel_opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """A server reads small chunks, except within a large frame.

        A peer that sent many requests then gets the first responses while later requests are handled, so that
        both sides work at the same time.
        """
        if self._served and self._connection.buffered < _SMALL_READ_BYTES:
            return self._small_buffer
        return self._buffer

    def data_received(self, data: bytes) -> None:
        """Handle every whole frame of one socket buffer."""
        self.last_received = self._loop.time()
        try:
            requests = self._connection.receive(data)
        except RocketError as error:
            self._fail(error)
            return
        self._note_partial_frame(len(data))
        if requests:
            self.memory.has_sent_frame = True
        if self._backlog:  # TLS may deliver bytes that it received before reading was paused
            self._backlog.extend(requests)
            self._count_backlog()
            return
        self._handle_all(requests)

    def pause_writing(self) -> None:
        """The peer reads more slowly than this side writes."""
        self._writable.clear()
        self.is_writable = False
        self._update_reading()

    def resume_writing(self) -> None:
        """The peer has read enough; continue with the backlog."""
        self._writable.set()
        self.is_writable = True
        self._count_responses(self._unsent_bytes())
        if self._backlog:
            self._turns.enter(self)
        self._update_reading()
        self._notify_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the channel. If its peer has closed it, what counts without a response is handled first.

        RocketMQ's brokers do so, and clients rely on it: the Go client sends oneway messages as requests
        without FLAG_ONEWAY, and closes the connection before their responses come.
        """
        by_peer = not self._closed_here and (exc is None or isinstance(exc, OSError))
        self._backlog = self._kept(self._backlog if by_peer else ())
        if by_peer and exc is not None and self._served:  # else asyncio has read everything
            self._unread, self._unread_bytes = self.unread()
        if not self._backlog and self._unread is None:
            self._end(exc)
            return
        self._transport = None
        self._is_ending = True
        self._error = None if exc is None else exc.with_traceback(None)  # see `_fail`
        self._writable.set()
        self.is_writable = True
        self._turns.enter(self)

    def _kept(self, requests: Iterable[Command]) -> deque[Command]:
        """Return those requests that count without a response."""
        codes = self._options.kept_codes
        return deque(request for request in requests if request.is_oneway or request.code in codes)

    def _end(self, exc: Exception | None) -> None:
        """Fail all requests in flight, and report the end of the connection."""
        self._is_ending = False
        if self._unread is not None:
            self._unread.close()
            self._unread = None
        error = self._error or exc
        hint = ""
        if not self._served and not self.has_received and self._error is None:
            hint = ending_hint(self._transport)
        self._transport = None
        self.memory.release()
        self._tasks.on_failure.clear()  # breaks a cycle, so that the buffers are freed with it
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
        self._notify_writable()
        if not self._closed.done():
            self._closed.set_result(None)

    # -- internals ----------------------------------------------------------------------------

    def _handle_all(self, requests: Sequence[Command]) -> None:
        """Handle the requests of a buffer until the turn of the connection ends."""
        gathering, self._gathering = self._gathering, True
        if len(requests) == 1:
            self._handle(requests[0])
        elif requests:
            done = self._handle_some(requests)
            self._backlog.extend(requests[done:])
            if self._backlog and not self._backlog_bytes:
                self._count_backlog()
        self._endpoint.end_of_buffer()
        self._gathering = gathering
        if self._out:
            self._send_out()
        if self._backlog and self.is_writable:  # else `resume_writing` continues
            self._turns.enter(self)
        if self._unanswered > self._options.max_unanswered or self._backlog:
            self._update_reading()

    def _handle_some(self, requests: Sequence[Command]) -> int:
        """Handle requests until the turn is over; return how many were handled."""
        turn_end = monotonic() + _TURN_S
        for done, request in enumerate(requests, 1):
            self._handle(request)
            if self._out and len(self._out[-1]) > _SMALL_READ_BYTES:
                self._send_out()  # shows whether the peer reads
            if not self.is_writable or monotonic() > turn_end:
                return done
        return len(requests)

    def _process_backlog(self) -> None:
        """Use a turn for the backlog."""
        if self._is_ending and (self._closed_here or not self._backlog):
            self._read_rest()
            return
        if (self.is_closed and not self._is_ending) or not self.is_writable or not self._backlog:
            return
        waiting, self._backlog = tuple(self._backlog), deque()
        if self.frame_started is not None:
            self.frame_started = self._loop.time()  # this side has not read the rest of the frame
        self._handle_all(waiting)
        if self._backlog:
            return
        if self._is_ending:
            self._turns.enter(self)
            return
        self._count_backlog()
        self._update_reading()

    def _read_rest(self) -> None:
        """Read a part of what the peer had sent before it closed the connection, or end the channel."""
        data, requests = b"", None
        if self._unread is not None and not self._closed_here:
            with contextlib.suppress(OSError, RocketError):
                data = self._unread.recv(min(self._unread_bytes, _SMALL_READ_BYTES))
                requests = self._connection.receive(data)
        if not data or requests is None:  # nothing is left, or what follows an invalid frame is unknown
            self._end(None)
            return
        self._unread_bytes -= len(data)
        self._backlog = self._kept(requests)
        self._turns.enter(self)
        self._note_partial_frame(len(data))

    def _count_backlog(self) -> None:
        """Count the memory of the backlog.

        It is released when the whole backlog is handled: counting a long one takes as long as a turn.
        """
        if self._served:
            size = sum(request.kept_bytes for request in self._backlog)
            increase, self._backlog_bytes = size - self._backlog_bytes, size
            self.memory.set("requests", self.memory.sizes["requests"] + increase)

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
        except Exception:  # one request must not close the connection, which others use too
            log.exception("request code %d from %s failed", request.code, self.remote_address)
            return request.reply(ResponseCode.SYSTEM_ERROR, remark="internal error; see the server's log")

    def _handle(self, request: Command) -> None:
        response = self.run_handler(request, self._endpoint.handle)
        if request.flag & FLAG_ONEWAY:  # faster than `is_oneway`
            return
        if response is None:
            self._unanswered += 1
        else:
            self._out += (response,) if isinstance(response, bytes) else self._parts(response)

    def _parts(self, response: Command | bytes) -> tuple[bytes, ...]:
        """Return the frame of a response, for a large body in two parts, so that it is not copied.

        A response that exceeds the frame limit becomes an error response.
        """
        if isinstance(response, bytes):
            return (response,)
        # The limit of the peer is unknown: assume RocketMQ's, or that of this side if it is higher.
        size_max = max(self._options.max_frame_bytes, MAX_FRAME_BYTES) - MAX_HEADER_BYTES
        size = len(response.body)
        if size <= size_max:
            if size < self._options.write_high_bytes:
                return (encode_command(response),)
            return encode_command_head(response), response.body
        remark = f"the response would have {size} bytes, but a frame holds {size_max}: request less at a time"
        log.error("rejecting a request of %s: %s", self.remote_address, remark)
        rejection = Command(
            ResponseCode.SYSTEM_ERROR, response.opaque, response.flag, remark=remark, codec=response.codec
        )
        return (encode_command(rejection),)

    def _notify_writable(self) -> None:
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
        if not self._served:
            for data in out:
                transport.write(memoryview(data))  # which asyncio slices without a copy
            return
        limit = self._options.write_limit_bytes
        limit += max(map(len, out))  # a single response may exceed the limit
        unsent = 0
        for data in out:
            transport.write(memoryview(data))
            unsent = transport.get_write_buffer_size()
            if unsent > limit:
                break  # asyncio may copy unsent bytes: many copies of one large table would fill the memory
        if unsent != self._response_bytes:
            self._count_responses(unsent)
        if unsent > limit:
            limit = self._options.write_limit_bytes
            text = f"{self.remote_address} left {unsent} bytes unread, more than writeLimitBytes={limit}"
            self._fail(ConnectionLost(text))

    def _count_responses(self, unsent: int) -> None:
        self._response_bytes = unsent
        self.memory.set("responses", unsent)

    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _fail(self, error: Exception) -> None:
        self._error = error.with_traceback(None)  # its frames refer to this channel, which would be a cycle
        text = "closing connection to %s: %s"
        if self._close_log is None:
            log.warning(text, self.remote_address, error)
        else:
            self._close_log.warning(type(error).__name__, text, self.remote_address, error)
        self.abort()

    def _check_open(self) -> None:
        if self.is_closed:
            where = self.remote_address or "the peer"
            raise ConnectionLost(f"the connection to {where} has ended", outcome=Outcome.NOT_SENT)

    def _note_partial_frame(self, received: int) -> None:
        """Record when the incomplete frame began, and count its memory."""
        buffered = self._connection.buffered
        if buffered != self._frame_bytes:
            self._frame_bytes = buffered
            self.memory.set("frame", buffered)
        if not buffered:
            self.frame_started = None
        elif self.frame_started is None or buffered < received:
            self.frame_started = self.last_received  # a new frame began in this buffer

    def _update_reading(self) -> None:
        """Pause reading while requests wait in the backlog or too many are unanswered.

        A server also pauses while the peer does not read.
        """
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
        """Keep one timer, for the earliest deadline of all requests."""
        if self._sweeper is None:
            earliest_ms = self._connection.earliest_deadline_ms
            delay_s = max(earliest_ms / 1000 - self._loop.time(), 0)
            self._sweeper = self._tasks.call_later(delay_s, self._sweep)
            self._swept_ms = earliest_ms - 1
        elif self._connection.earliest_deadline_ms < self._sweeper.when() * 1000 - 1:
            self._sweeper.cancel()
            self._sweeper = None
            self._watch_deadlines()

    def _sweep(self) -> None:
        now_s = self._loop.time()
        late_s = 0.0 if self._sweeper is None else now_s - self._sweeper.when()
        self._sweeper = None
        self._swept_ms = float("inf")
        self._connection.expire(now_s * 1000, blocked_text(late_s))
        if self._connection.in_flight:
            self._watch_deadlines()


def address_text(name: object) -> str:
    """Return ``host:port`` for a socket name, or its text for any other name."""
    if isinstance(name, tuple):
        host, port = name[0], name[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(name or "")
