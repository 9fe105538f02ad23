"""Codecs of the bytes on an HA connection.

Slave to master, as in 4.6.0: reports, an i64 each, the end of the slave's log. Master to slave: frames::

    offset  size  field
         0     8  physical offset of the body; with an empty body, of the next one (a heartbeat)
         8     4  size of the body, at most 32 KiB by default (haTransferBatchSize)
        12     n  body: a piece of the commit log, within one file

Two rocketpy brokers do a handshake. The slave starts with the report -1, which a Java master ignores. A
rocketpy master responds with a frame at offset -1, whose body is a control message in JSON. Then the slave
sends acks, pairs of i64 (received offset, flushed offset), or -1, an i32 size and a control message. A slave
without a response continues with plain reports. See docs/decisions/0007-ha-handshake.md. QUIRKS 52, 54.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from rocketpy.errors import RemoteProtocolError
from rocketpy_broker.replication.ha.epochs import Epoch

REPORT: Final = Struct(">q")
_HEADER: Final = Struct(">qi")
_ACK: Final = Struct(">qq")
HEADER_BYTES: Final = _HEADER.size
CONTROL: Final = -1
"""As a report: the slave supports the handshake. As the offset of a frame: the body is a control message."""
_BODY_MAX: Final = 4 << 20
"""The size of a Java slave's buffer."""
_CONTROL_MAX: Final = 1 << 20
OFFSET_MAX: Final = 1 << 62
"""Larger offsets are rejected, since offsets after them might exceed 64 bits."""


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """Master: it supports the handshake."""

    nonce: str
    """For the slave's proof."""
    wants_proof: bool
    """It requires one."""


class Join(msgspec.Struct, tag="join", frozen=True, kw_only=True):
    """Slave: its identity and log."""

    broker_name: str
    broker_id: int
    epochs: tuple[Epoch, ...]
    """Of its log."""
    epoch_seen: int
    """The newest epoch of any master that it followed."""
    max_offset: int
    """Of its log."""
    tail_bytes: int
    """How many bytes before the end `tail_crc` covers."""
    tail_crc: int
    """CRC-32 of these bytes."""
    nonce: str
    """For the master's proof."""
    proof: str


class Welcome(msgspec.Struct, tag="welcome", frozen=True, kw_only=True):
    """Master: it accepts the slave, which must truncate its log at `start`."""

    epochs: tuple[Epoch, ...]
    start: int
    wants_flushed: bool
    """Messages are acknowledged once the slave has flushed them."""
    proof: str


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """Master: the slave cannot follow it until an operator intervenes."""

    reason: str


ControlMessage = Hello | Join | Welcome | Refused
_decoder: Final[msgspec.json.Decoder[ControlMessage]] = msgspec.json.Decoder(ControlMessage)


def frame(offset: int, body: bytes) -> bytes:
    """Return the frame of a piece of the log."""
    return _HEADER.pack(offset, len(body)) + body


def frames(offset: int, body: bytes, size_max: int) -> bytes:
    """Return a longer piece of the log as frames with bodies of at most `size_max`."""
    if len(body) <= size_max:
        return frame(offset, body)
    pieces: list[bytes | memoryview] = []
    view = memoryview(body)  # a slice of bytes would be a copy
    for at in range(0, len(body), size_max):
        part = view[at : at + size_max]
        pieces += (_HEADER.pack(offset + at, len(part)), part)
    return b"".join(pieces)


def encode_control(message: ControlMessage) -> bytes:
    """Return the bytes of a control message; the format is the same in both directions."""
    return frame(CONTROL, msgspec.json.encode(message))


def ack(received: int, flushed: int) -> bytes:
    """Return the ack of a slave after the handshake."""
    return _ACK.pack(received, flushed)


def proof(secret: str, *parts: str) -> str:
    """Return the HMAC-SHA256 of these texts with the secret, in hex; empty without a secret."""
    if not secret:
        return ""
    text = "\0".join(parts).encode()
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


def is_proof(given: str, expected: str) -> bool:
    """Compare a received proof, which may be any text, in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())


def _decode_control(data: bytes) -> ControlMessage:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RemoteProtocolError(f"invalid HA control message of {len(data)} bytes: {error}") from error


class Frame(NamedTuple):
    """One frame of a master."""

    offset: int
    body: memoryview | None
    """A view of the input; None if only the header has been received."""


class FrameReader:
    """Parses the bytes of a master."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> Iterator[Frame | ControlMessage]:
        """Yield the complete frames and control messages, and then the header of an incomplete frame.

        Raises RemoteProtocolError for invalid bytes, after which the reader cannot be used.
        """
        data = self._data + data if self._data else data
        view = memoryview(data)
        position = 0
        try:
            while len(data) - position >= HEADER_BYTES:
                offset, size = _HEADER.unpack_from(data, position)
                if not CONTROL <= offset <= OFFSET_MAX or not 0 <= size <= (
                    _CONTROL_MAX if offset == CONTROL else _BODY_MAX
                ):
                    raise RemoteProtocolError(f"invalid HA frame: {size} bytes at offset {offset}")
                begin = position + HEADER_BYTES
                if len(data) - begin < size:
                    if offset != CONTROL:
                        yield Frame(offset, None)
                    return
                position = begin + size
                body = view[begin:position]
                yield _decode_control(bytes(body)) if offset == CONTROL else Frame(offset, body)
        finally:
            self._data = data[position:]


class ReportReader:
    """Parses the bytes of a slave. Set `uses_handshake` once the master has responded to the handshake."""

    def __init__(self) -> None:
        self._data = b""
        self.uses_handshake = False

    def feed(self, data: bytes) -> Iterator[tuple[int, int] | ControlMessage]:
        """Yield (received, flushed) of each ack, and control messages. A plain report has flushed -1.

        The report that requests the handshake is (-1, -1). Raises RemoteProtocolError for invalid bytes,
        after which the reader cannot be used.
        """
        self._data += data
        while len(self._data) >= REPORT.size:
            (first,) = REPORT.unpack_from(self._data)
            if first < CONTROL:
                raise RemoteProtocolError(f"invalid HA report: offset {first}")
            if not self.uses_handshake:
                self._data = self._data[REPORT.size :]
                yield first, -1
            elif first == CONTROL:
                if len(self._data) < HEADER_BYTES:
                    return
                _, size = _HEADER.unpack_from(self._data)
                if not 0 <= size <= _CONTROL_MAX:
                    raise RemoteProtocolError(f"invalid HA control message of {size} bytes")
                if len(self._data) < HEADER_BYTES + size:
                    return
                body = self._data[HEADER_BYTES : HEADER_BYTES + size]
                self._data = self._data[HEADER_BYTES + size :]
                yield _decode_control(body)
            else:
                if len(self._data) < _ACK.size:
                    return
                received, flushed = _ACK.unpack_from(self._data)
                self._data = self._data[_ACK.size :]
                yield received, flushed
