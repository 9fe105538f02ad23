"""Compressed message bodies.

RocketMQ 4.x knows zlib only; 5.x puts the type into bits 8-10 of sysFlag and knows LZ4 and zstd too (see
`sysflag`). Those two are read and written when their package is installed.

To protect the memory of consumers, inflating stops with an error above 16 MiB, or above 100 times the
compressed size. Up to 4 MiB, the default limit of brokers, any ratio is allowed.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import Any, Final

from rocketpy.errors import ConfigInvalid, RemoteProtocolError
from rocketpy.protocol.message.sysflag import MessageSysFlag

DEFAULT_LEVEL: Final = 5
"""Default level of RocketMQ's clients."""
MAX_INFLATED_BYTES: Final = 16 << 20
MAX_RATIO: Final = 100
_RATIO_FREE_BYTES: Final = 4 << 20
"""Up to this inflated size, any ratio is allowed."""


class InflatesTooFar(RemoteProtocolError):
    """A compressed body exceeds a limit when it inflates."""


_LZ4: Final = MessageSysFlag.COMPRESSION_LZ4
_ZSTD: Final = MessageSysFlag.COMPRESSION_ZSTD


def compress(body: bytes, compression_type: int = 0, level: int = DEFAULT_LEVEL) -> bytes:
    """Compress a body.

    compression_type: 0 or COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD. level: of zlib and zstd; LZ4
    ignores it. Raises ConfigInvalid for an unknown type, or one whose package is not installed.
    """
    if compression_type in {0, MessageSysFlag.COMPRESSION_ZLIB}:
        return zlib.compress(body, level)
    if compression_type == _LZ4:
        return bytes(_package("lz4.frame").compress(body))
    if compression_type == _ZSTD:
        return bytes(_package("zstandard").ZstdCompressor(level=level).compress(body))
    raise ConfigInvalid(f"compression type 0x{compression_type:x} is unknown")


def compress_if_worth(
    body: bytes, compression_type: int = 0, level: int = DEFAULT_LEVEL
) -> tuple[bytes, int]:
    """Return (body, bits of its sysFlag), compressed unless that gains nothing or readers would reject it."""
    packed = compress(body, compression_type, level)
    if len(packed) >= len(body) or len(body) > body_limit(packed, MAX_INFLATED_BYTES):
        return body, 0
    return packed, MessageSysFlag.COMPRESSED | compression_type


def decompress(body: bytes, sys_flag: int, *, max_bytes: int = MAX_INFLATED_BYTES) -> bytes:
    """Decompress a body; return it unchanged when sys_flag has no COMPRESSED bit.

    Raises InflatesTooFar beyond the limits, RemoteProtocolError for a malformed stream, and ConfigInvalid
    when the package of the type is not installed.
    """
    if not sys_flag & MessageSysFlag.COMPRESSED:
        return body
    compression_type = sys_flag & MessageSysFlag.COMPRESSION_TYPE_MASK
    if compression_type in {0, MessageSysFlag.COMPRESSION_ZLIB}:
        return inflate(body, max_bytes=max_bytes)
    limit = body_limit(body, max_bytes)
    if compression_type == _LZ4:
        plain = _unlz4(body, limit)
    elif compression_type == _ZSTD:
        plain = _unzstd(body, limit)
    else:
        raise RemoteProtocolError(f"sysFlag 0x{sys_flag:x} names an unknown compression type")
    return _within(plain, limit, body)


def inflate(data: bytes, *, max_bytes: int = MAX_INFLATED_BYTES) -> bytes:
    """Inflate a zlib stream to at most `max_bytes`, and above 4 MiB to at most 100 times its size.

    Bytes after the stream are ignored, as in Java. Raises InflatesTooFar beyond these limits, and
    RemoteProtocolError for a malformed or incomplete stream.
    """
    limit = body_limit(data, max_bytes)
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"{len(data)} bytes are not a zlib stream: {error}") from error
    _within(plain, limit, data)
    if not stream.eof:
        raise RemoteProtocolError(f"zlib stream of {len(data)} bytes ends too early")
    return plain


def body_limit(data: bytes, max_bytes: int) -> int:
    """Return how many bytes a compressed body may inflate to, at most `max_bytes`."""
    return min(max_bytes, max(_RATIO_FREE_BYTES, MAX_RATIO * len(data)))


def _within(plain: bytes, limit: int, data: bytes) -> bytes:
    if len(plain) > limit:
        raise InflatesTooFar(f"{len(data)} bytes inflate to more than the {limit} allowed")
    return plain


def _unlz4(data: bytes, limit: int) -> bytes:
    frame = _package("lz4.frame")
    stream = frame.LZ4FrameDecompressor()
    try:
        plain = bytes(stream.decompress(data, max_length=limit + 1))
    except RuntimeError as error:
        raise RemoteProtocolError(f"{len(data)} bytes are not an LZ4 frame: {error}") from error
    if not stream.eof and len(plain) <= limit:
        raise RemoteProtocolError(f"LZ4 frame of {len(data)} bytes ends too early")
    return plain


def _unzstd(data: bytes, limit: int) -> bytes:
    zstandard = _package("zstandard")
    try:
        size = zstandard.frame_content_size(data)  # allocated below; -1 if not announced
        if size > limit:
            raise InflatesTooFar(f"{len(data)} bytes inflate to more than the {limit} allowed")
        return bytes(zstandard.ZstdDecompressor().decompress(data, max_output_size=limit + 1))
    except zstandard.ZstdError as error:
        # Without an announced size, a malformed frame and one above the limit raise the same error.
        raise InflatesTooFar(
            f"{len(data)} bytes are not a whole zstd frame of at most {limit} bytes: {error}"
        ) from error


def _package(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ConfigInvalid(
            f"this message body needs the package {module.partition('.')[0]}, which is not installed: "
            "pip install rocketpy-mq[compression]"
        ) from None
