"""Frames: how RocketMQ divides a TCP stream into commands.

| field         | offset | size | meaning                                                   |
|---------------|--------|------|-----------------------------------------------------------|
| length        | 0      | 4    | bytes after this field: 4 + header + body                 |
| codec         | 4      | 1    | how the header is written: 0 JSON, 1 ROCKETMQ, 77 msgpack |
| header length | 5      | 3    | bytes of header                                           |
| header        | 8      | n    | see `rocketpy.protocol.remoting.command`                  |
| body          | 8 + n  | rest | what the request code says                                |

All integers are big-endian. The format is the same in every RocketMQ 4.x; codec 77 is an extension of
rocketpy, which only peers that have announced it use. Source: RemotingCommand, NettyDecoder.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

from msgspec import Raw

from rocketpy.errors import LocalProtocolError, RemoteProtocolError

CODEC_JSON = 0
CODEC_ROCKETMQ = 1
CODEC_MSGPACK = 77
"""RocketMQ never uses this value (5.x stops at 1), so it rejects such frames instead of misreading them."""

CODECS = frozenset((CODEC_JSON, CODEC_ROCKETMQ, CODEC_MSGPACK))

MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_HEADER_BYTES = 1024 * 1024

MAX_EXT_FIELDS = 256
"""A header with more fields is rejected; RocketMQ's headers have fewer than 20, signatures included."""

WireHeader: TypeAlias = tuple[int, int, int, str, int, str | None, bytes | dict[str, str] | None]
"""The parts of a decoded header: code, opaque, flag, language name, version, remark, ext fields.

A plain tuple, since every command of every connection passes through here. Ext fields from the JSON codec are
still JSON text; None when there are none."""
WrittenHeader: TypeAlias = tuple[int, int, int, str, int, str | None, dict[str, str] | None]
"""The same parts of a header to encode."""
TemplateHeader: TypeAlias = tuple[int | Raw, Raw, int | Raw, str, int, str | None, Raw | None]
"""The same parts of a JSON header with placeholders; see `rocketpy.protocol.remoting.template`."""

_HTTP = frozenset((b"HTTP", b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"CONN"))
_TLS = frozenset((b"\x15\x03", b"\x16\x03"))
"""Alert and handshake."""

PREFIX = struct.Struct(">iI")
_LENGTH_BYTES = 4
_PREFIX_BYTES = 8
_HEADER_LENGTH_MASK = 0xFF_FFFF
_new_frame = tuple.__new__  # faster than Frame(...): see tools/bench/codecs.py


class Frame(NamedTuple):
    """One frame: the codec byte, the bytes of the header and the bytes of the body."""

    codec: int
    header: bytes
    body: bytes


class FrameDecoder:
    """Collects chunks of a byte stream and returns complete frames.

    max_frame_bytes: limit of the bytes after the length field (RocketMQ: 16 MiB). max_header_bytes: limit of
    the header. Lengths are checked immediately, so that a hostile length never leads to waiting or allocation
    beyond the limit. After an error the frame boundaries are unknown: the decoder raises the same error
    again, and the connection must be closed.
    """

    __slots__ = ("_buffer", "_error", "_max_frame_bytes", "_max_header_bytes")

    def __init__(
        self, max_frame_bytes: int = MAX_FRAME_BYTES, max_header_bytes: int = MAX_HEADER_BYTES
    ) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._max_header_bytes = max_header_bytes
        self._buffer: bytes | bytearray = b""
        self._error: str | None = None

    @property
    def buffered(self) -> int:
        """Buffered bytes of an incomplete frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Add the next bytes of the stream; return the frames that they complete, in order.

        Raises RemoteProtocolError for an invalid length or codec. Earlier frames in the same chunk are lost.
        """
        if self._error is not None:
            raise RemoteProtocolError(self._error)
        buffer: bytes | bytearray = data
        if self._buffer:
            buffer = self._grow(data)
            if buffer is self._buffer and not self._is_whole(buffer):
                return []
        frames, end = self._split(bytes(buffer))
        self._buffer = buffer[end:] if end < len(buffer) else b""
        if 0 < len(self._buffer) < _PREFIX_BYTES:
            self._check_start(self._buffer)
        return frames

    def _grow(self, data: bytes) -> bytearray:
        """Append to the buffer in place, to avoid copies of a large frame in small chunks."""
        if not isinstance(self._buffer, bytearray):
            self._buffer = bytearray(self._buffer)
        self._buffer += data
        return self._buffer

    def _is_whole(self, buffer: bytes | bytearray) -> bool:
        if len(buffer) < _PREFIX_BYTES:
            self._check_start(buffer)
            return False
        length, word = PREFIX.unpack_from(buffer)
        self._check(length, word)
        return bool(len(buffer) >= length + _LENGTH_BYTES)

    def _split(self, buffer: bytes) -> tuple[list[Frame], int]:
        frames: list[Frame] = []
        position, size = 0, len(buffer)
        while size - position >= _PREFIX_BYTES:
            length, word = PREFIX.unpack_from(buffer, position)
            header_bytes = word & _HEADER_LENGTH_MASK
            fits = 4 + header_bytes <= length <= self._max_frame_bytes
            if not fits or header_bytes > self._max_header_bytes or word >> 24 not in CODECS:
                self._check(length, word)
            end = position + _LENGTH_BYTES + length
            if end > size:
                break
            body_at = position + _PREFIX_BYTES + header_bytes
            parts = (word >> 24, buffer[position + _PREFIX_BYTES : body_at], buffer[body_at:end])
            frames.append(_new_frame(Frame, parts))
            position = end
        return frames, position

    def _check_start(self, buffer: bytes | bytearray) -> None:
        """Check fewer bytes than a prefix: a TLS alert, which ends a connection, has 7 bytes."""
        if len(buffer) >= _LENGTH_BYTES:
            length = int.from_bytes(buffer[:_LENGTH_BYTES], "big", signed=True)
            self._check(length, 0)

    def _check(self, length: int, word: int) -> None:
        """Raise for an invalid length or codec."""
        codec, header_bytes = word >> 24, word & _HEADER_LENGTH_MASK
        if length < 4:
            self._fail(f"frame length {length} is below the 4 bytes that every frame has")
        if length > self._max_frame_bytes:
            text = f"frame length {length} is above the limit of {self._max_frame_bytes} bytes"
            self._fail(f"{_protocol_hint(length)}{text}")
        if codec not in CODECS:
            self._fail(f"header codec {codec} is unknown; RocketMQ writes 0 (JSON) or 1 (ROCKETMQ)")
        if header_bytes > length - 4:
            self._fail(f"header length {header_bytes} does not fit a frame of {length} bytes")
        if header_bytes > self._max_header_bytes:
            self._fail(f"header length {header_bytes} is above the limit of {self._max_header_bytes} bytes")

    def _fail(self, message: str) -> None:
        self._error = message
        self._buffer = b""
        raise RemoteProtocolError(message)


def _protocol_hint(length: int) -> str:
    """Return a hint when the length is the start of another protocol."""
    start = length.to_bytes(_LENGTH_BYTES, "big")
    if start in _HTTP:
        return "the peer speaks HTTP; it is not a name server, a broker or a client of RocketMQ: "
    if start[:2] in _TLS:
        return "the peer speaks TLS, and this side does not; use the address tls://host:port: "
    return ""


def encode_frame(codec: int, header: bytes, body: bytes = b"") -> bytes:
    """Encode one frame. Raises LocalProtocolError when the header is too long."""
    return encode_frame_head(codec, header, len(body)) + body


def encode_frame_head(codec: int, header: bytes, body_bytes: int) -> bytes:
    """Encode a frame up to its body. Raises LocalProtocolError when the header is too long."""
    header_bytes = len(header)
    if header_bytes > _HEADER_LENGTH_MASK:
        raise LocalProtocolError(f"a header of {header_bytes} bytes does not fit a frame's 24-bit length")
    return PREFIX.pack(4 + header_bytes + body_bytes, codec << 24 | header_bytes) + header
