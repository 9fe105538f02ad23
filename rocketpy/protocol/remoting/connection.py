"""One side of a remoting connection, without I/O: bytes in, commands out; commands in, bytes out.

Both ends use it: each side can send requests and numbers its own, and a response is matched to its request by
that number. This module reads no clock; `now_ms` is in milliseconds of any monotonic clock.

Source: NettyRemotingAbstract of RocketMQ 4.6.0 (its response table and its scan).
"""

from __future__ import annotations

from typing import Final, Protocol

from rocketpy.errors import ConnectionLost, RequestTimeout, RocketError
from rocketpy.protocol.remoting.command import (
    FLAG_ONEWAY,
    FLAG_READS_MSGPACK,
    Command,
    decode_command,
    encode_command,
)
from rocketpy.protocol.remoting.frame import CODEC_MSGPACK, MAX_FRAME_BYTES, MAX_HEADER_BYTES, FrameDecoder

MAYBE_HANDLED: Final = "; the request may have been handled"

_OPAQUE_MASK = 0x7FFF_FFFF


class Waiter(Protocol):
    """Receives a response or an error; an `asyncio.Future` is one."""

    def done(self) -> bool:
        """Whether it has a result, or is cancelled."""

    def set_result(self, result: Command, /) -> None:
        """Set the response."""

    def set_exception(self, exception: RocketError, /) -> None:
        """Set the error."""


class Connection:
    """Decodes frames, numbers requests, and keeps the table of requests in flight.

    codec: of the headers of sent requests. With `CODEC_MSGPACK`, JSON is used until the peer has announced
    that it reads MessagePack.
    """

    __slots__ = (
        "_codec",
        "_decoder",
        "_earliest_ms",
        "_in_flight",
        "_next_opaque",
        "_peer_reads_msgpack",
        "peer",
    )

    def __init__(
        self,
        codec: int = 0,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_header_bytes: int = MAX_HEADER_BYTES,
    ) -> None:
        self.peer: str = "the peer"
        """The address of the peer, for error texts."""
        self._codec = codec
        self._decoder = FrameDecoder(max_frame_bytes, max_header_bytes)
        self._in_flight: dict[int, tuple[Waiter, float]] = {}
        self._earliest_ms = float("inf")
        self._next_opaque = 0
        self._peer_reads_msgpack = False

    @property
    def in_flight(self) -> int:
        """Number of requests without a response."""
        return len(self._in_flight)

    @property
    def buffered(self) -> int:
        """Bytes of an incomplete frame."""
        return self._decoder.buffered

    @property
    def earliest_deadline_ms(self) -> float:
        """No request expires before this time. `expire` updates it; responses leave it unchanged."""
        return self._earliest_ms

    def receive(self, data: bytes) -> list[Command]:
        """Handle bytes from the peer; return the requests in them, in order.

        Responses go to their waiters immediately. A response without a waiter is dropped. Raises
        RemoteProtocolError; the connection must then be closed.
        """
        requests: list[Command] = []
        for frame in self._decoder.feed(data):
            command = decode_command(frame)
            if command.flag & 1:
                self._resolve(command)
            else:
                requests.append(command)
        return requests

    def _resolve(self, response: Command) -> None:
        if response.flag & FLAG_READS_MSGPACK:
            self._peer_reads_msgpack = True
        entry = self._in_flight.pop(response.opaque, None)
        if entry is not None and not entry[0].done():
            entry[0].set_result(response)

    def expect(self, waiter: Waiter, deadline_ms: float) -> int:
        """Register a waiter; return the opaque of its request."""
        opaque = self._next_opaque
        while opaque in self._in_flight:
            opaque = (opaque + 1) & _OPAQUE_MASK
        self._next_opaque = (opaque + 1) & _OPAQUE_MASK
        self._in_flight[opaque] = (waiter, deadline_ms)
        if deadline_ms < self._earliest_ms:  # noqa: PLR1730 - min() would be a call
            self._earliest_ms = deadline_ms
        return opaque

    def forget(self, opaque: int) -> None:
        """Remove a request that could not be sent."""
        self._in_flight.pop(opaque, None)

    def encode_request(self, command: Command, waiter: Waiter, deadline_ms: float) -> bytes:
        """Number a request, register its waiter and return its frame. Raises LocalProtocolError."""
        command.opaque = self.expect(waiter, deadline_ms)
        try:
            return self._encode(command)
        except RocketError:
            self.forget(command.opaque)
            raise

    def encode_oneway(self, command: Command) -> bytes:
        """Number a oneway request and return its frame. Raises LocalProtocolError."""
        command.opaque = self._next_opaque
        self._next_opaque = (self._next_opaque + 1) & _OPAQUE_MASK
        command.flag |= FLAG_ONEWAY
        return self._encode(command)

    def _encode(self, command: Command) -> bytes:
        if self._codec != CODEC_MSGPACK:
            return encode_command(command, self._codec)
        command.flag |= FLAG_READS_MSGPACK
        return encode_command(command, CODEC_MSGPACK if self._peer_reads_msgpack else 0)

    def expire(self, now_ms: float, reason: str = "") -> int:
        """Fail every request whose deadline has passed; return their number. reason: end of the error."""
        if now_ms < self._earliest_ms:
            return 0
        late = [opaque for opaque, (_, deadline_ms) in self._in_flight.items() if deadline_ms <= now_ms]
        waiters = [self._in_flight.pop(opaque)[0] for opaque in late]
        self._earliest_ms = min((deadline for _, deadline in self._in_flight.values()), default=float("inf"))
        for waiter in waiters:
            if not waiter.done():
                text = f"{self.peer} did not respond in time{MAYBE_HANDLED}{reason}"
                waiter.set_exception(RequestTimeout(text))
        return len(late)

    def close(self, reason: str) -> int:
        """Fail every request in flight with ConnectionLost; return their number."""
        waiters = [waiter for waiter, _ in self._in_flight.values()]
        self._in_flight.clear()
        self._earliest_ms = float("inf")
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(ConnectionLost(f"{reason}{MAYBE_HANDLED}"))
        return len(waiters)
