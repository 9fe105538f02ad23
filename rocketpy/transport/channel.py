"""Channel: the asyncio shell of one remoting connection, the same for clients and servers.

A whole socket buffer is handled in one go: every frame in it is decoded, its requests are
handled by plain functions, and what they answered leaves in one write. Outside of that,
frames written during one turn of the event loop leave together at its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol, cast

from rocketpy.errors import ConnectionLost, InvariantError, Outcome, RocketError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.command import Command, encode_command
from rocketpy.protocol.connection import Connection, Waiter
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport.base import ChannelOptions
from rocketpy.transport.stream import StreamProtocol

__all__ = ["Channel", "Endpoint", "address_text"]

log = logging.getLogger("rocketpy.transport")

_LITTLE_BYTES = 16 * 1024
_FRAMES_MAX: Final = 512
"""Frames that are written together at most."""


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


class Channel(StreamProtocol):
    """One connection: sends requests, hands those of the peer to an endpoint, keeps its limits.

    is_writable: False while so much is unsent that callers should wait with `drain`, or `when_writable`.
    """

    def __init__(self, endpoint: Endpoint, options: ChannelOptions, *, served: bool) -> None:
        """served: whether the peer connected to us, so that its slowness is cut off in the end."""
        self._endpoint = endpoint
        self._options = options
        self._served = served
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks("a connection", self._fail)
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
        self._unanswered = 0
        self._reading_paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        self.is_writable = True
        self._awaiting_writable: list[Callable[[], None]] = []
        self._closed = self._loop.create_future()
        self._error: Exception | None = None
        self.remote_address = ""
        self.local_address = ""
        self.last_received = self._loop.time()
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
        self.write(response if isinstance(response, bytes) else encode_command(response))

    def reply(self, response: Command | bytes) -> None:
        """Send the answer to a request that `Endpoint.handle` left unanswered; dropped when closed."""
        self._unanswered -= 1
        self.write(response if isinstance(response, bytes) else encode_command(response))
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
        self._connection.peer = self.remote_address or "the peer"
        self.local_address = address_text(transport.get_extra_info("sockname"))
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
        gathering, self._gathering = self._gathering, True
        for request in requests:
            self._handle(request)
        self._endpoint.end_of_buffer()
        self._gathering = gathering
        if self._out:
            self._send_out()
        if self._unanswered > self._options.max_unanswered:
            self._balance_reading()

    def pause_writing(self) -> None:
        """Part of asyncio.Protocol: the peer reads more slowly than we write."""
        self._writable.clear()
        self.is_writable = False
        self._balance_reading()

    def resume_writing(self) -> None:
        """Part of asyncio.Protocol."""
        self._writable.set()
        self.is_writable = True
        self._balance_reading()
        self._tell_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio.Protocol: fail what is in flight, at once."""
        error = self._error or exc
        self._transport = None
        self._out.clear()
        self._writable.set()
        self.is_writable = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        reason = f": {error}" if error is not None else ""
        self._connection.close(f"connection to {self.remote_address} ended{reason}")
        self._endpoint.channel_closed(self, error)
        self._tell_writable()
        if not self._closed.done():
            self._closed.set_result(None)

    # -- inside -------------------------------------------------------------------------------

    def _handle(self, request: Command) -> None:
        try:
            answer = self._endpoint.handle(self, request)
        except RocketError as error:
            answer = request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        except InvariantError:
            raise  # ends the connection: what it says next could not be trusted
        except Exception:
            # One request must not take the connection, and all others on it, down with it.
            log.exception("request code %d from %s failed", request.code, self.remote_address)
            answer = request.reply(ResponseCode.SYSTEM_ERROR, remark="internal error; see the server's log")
        if request.is_oneway:
            return
        if answer is None:
            self._unanswered += 1
        else:
            self._out.append(answer if isinstance(answer, bytes) else encode_command(answer))

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
        if self._served and transport.get_write_buffer_size() > self._options.write_limit_bytes:
            self._fail(
                ConnectionLost(f"{self.remote_address} left {transport.get_write_buffer_size()} bytes unread")
            )

    def _fail(self, error: Exception) -> None:
        self._error = error
        log.warning("closing connection to %s: %s", self.remote_address, error)
        self.abort()

    def _require_open(self) -> None:
        if self.is_closed:
            where = self.remote_address or "the peer"
            raise ConnectionLost(f"the connection to {where} has ended", outcome=Outcome.NOT_SENT)

    def _note_partial_frame(self, received: int) -> None:
        """Remember since when the peer owes us the rest of a frame."""
        buffered = self._connection.buffered
        if not buffered:
            self.frame_started = None
        elif self.frame_started is None or buffered < received:
            self.frame_started = self.last_received  # it began within this buffer

    def _balance_reading(self) -> None:
        """Stop reading while the peer does not take our answers or has too many requests open."""
        too_many = self._unanswered > self._options.max_unanswered
        paused = too_many or (self._served and not self._writable.is_set())
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
