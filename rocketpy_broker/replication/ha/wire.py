"""What goes over an HA connection, as bytes.

Slave to master, as in 4.6.0: reports, i64 each: the end of the slave's log. Master to slave: frames::

    offset  size  field
         0     8  physical offset of the body; with an empty body, of the next one (a heartbeat)
         8     4  size of the body, at most 32 KiB by default (haTransferBatchSize)
        12     n  body: a piece of the commit log, cut anywhere but never across a file end

Between our ends more is said. A slave of ours begins with the report -1, which a Java master takes for no
report at all and waits on. A master of ours answers it with a frame at offset -1, whose body is a note in
JSON. From then on the slave sends pairs of i64 (received until, flushed until), or -1, an i32 size and a
note. A slave that gets no answer goes on with plain reports; the -1 has left no trace with a Java master.
See docs/decisions/0007-ha-handshake.md. QUIRKS 52, 54.
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
"""As a report: "I understand notes". As a frame's offset: "this is one"."""
_BODY_MAX: Final = 4 << 20
"""A Java slave's buffer holds no larger frame."""
_NOTE_MAX: Final = 1 << 20
OFFSET_MAX: Final = 1 << 62
"""No log is as long; a copy that began here would soon have offsets beyond 64 bits."""


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """Master: I understand notes. nonce: for the slave's proof; wants_proof: whether one is asked for."""

    nonce: str
    wants_proof: bool


class Join(msgspec.Struct, tag="join", frozen=True, kw_only=True):
    """Slave: who I am and what I have.

    epochs, max_offset: of its log. tail_bytes, tail_crc: CRC-32 of so many bytes before its end.
    epoch_seen: the newest epoch of any master it followed. nonce: for the master's proof.
    """

    broker_name: str
    broker_id: int
    epochs: tuple[Epoch, ...]
    epoch_seen: int
    max_offset: int
    tail_bytes: int
    tail_crc: int
    nonce: str
    proof: str


class Welcome(msgspec.Struct, tag="welcome", frozen=True, kw_only=True):
    """Master: follow me from `start`; what your log has behind it is not in mine.

    wants_flushed: messages are acknowledged once the slave has flushed them.
    """

    epochs: tuple[Epoch, ...]
    start: int
    wants_flushed: bool
    proof: str


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """Master: you cannot follow me; an operator must see to it."""

    reason: str


ControlMessage = Hello | Join | Welcome | Refused
_decoder: Final[msgspec.json.Decoder[ControlMessage]] = msgspec.json.Decoder(ControlMessage)


def frame(offset: int, body: bytes) -> bytes:
    """Return what a master sends: a piece of the log."""
    return _HEADER.pack(offset, len(body)) + body


def frames(offset: int, body: bytes, size_max: int) -> bytes:
    """Return a longer piece of the log as frames with bodies of at most `size_max`."""
    if len(body) <= size_max:
        return frame(offset, body)
    pieces: list[bytes | memoryview] = []
    view = memoryview(body)  # slices of bytes would be copies
    for at in range(0, len(body), size_max):
        part = view[at : at + size_max]
        pieces += (_HEADER.pack(offset + at, len(part)), part)
    return b"".join(pieces)


def encode_control(message: ControlMessage) -> bytes:
    """Return the bytes of a control message; they are the same in both directions."""
    return frame(CONTROL, msgspec.json.encode(message))


def ack(received: int, flushed: int) -> bytes:
    """Return what a slave sends once notes were exchanged."""
    return _ACK.pack(received, flushed)


def proof(secret: str, *parts: str) -> str:
    """Return what only who knows the secret can say about these texts; empty without a secret."""
    if not secret:
        return ""
    text = "\0".join(parts).encode()
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


def is_proof(given: str, expected: str) -> bool:
    """Compare what a peer gave as proof, which may be any text, in a time that tells nothing about it."""
    return hmac.compare_digest(given.encode(), expected.encode())


def _decode_control(data: bytes) -> ControlMessage:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RemoteProtocolError(f"HA note of {len(data)} bytes: {error}") from error


class Frame(NamedTuple):
    """One frame of a master. body: part of what came; None when only the header has come so far."""

    offset: int
    body: memoryview | None


class FrameReader:
    """Takes a master's bytes apart, however they were split."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> Iterator[Frame | ControlMessage]:
        """Yield what is whole now, and in the end the header of what is not.

        Raises RemoteProtocolError for what no master sends; nothing more can be read then.
        """
        data = self._data + data if self._data else data
        view = memoryview(data)
        position = 0
        try:
            while len(data) - position >= HEADER_BYTES:
                offset, size = _HEADER.unpack_from(data, position)
                if not CONTROL <= offset <= OFFSET_MAX or not 0 <= size <= (
                    _NOTE_MAX if offset == CONTROL else _BODY_MAX
                ):
                    raise RemoteProtocolError(f"HA frame of {size} bytes at offset {offset}")
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
    """Takes a slave's bytes apart. `uses_handshake` is to be set once it has answered one."""

    def __init__(self) -> None:
        self._data = b""
        self.uses_handshake = False

    def feed(self, data: bytes) -> Iterator[tuple[int, int] | ControlMessage]:
        """Yield (received, flushed) of every ack (flushed -1 for a plain report), and notes.

        The report that stands for "I understand notes" is (-1, -1).
        Raises RemoteProtocolError for what no slave sends; nothing more can be read then.
        """
        self._data += data
        while len(self._data) >= REPORT.size:
            (first,) = REPORT.unpack_from(self._data)
            if first < CONTROL:
                raise RemoteProtocolError(f"HA report of offset {first}")
            if not self.uses_handshake:
                self._data = self._data[REPORT.size :]
                yield first, -1
            elif first == CONTROL:
                if len(self._data) < HEADER_BYTES:
                    return
                _, size = _HEADER.unpack_from(self._data)
                if not 0 <= size <= _NOTE_MAX:
                    raise RemoteProtocolError(f"HA note of {size} bytes")
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
