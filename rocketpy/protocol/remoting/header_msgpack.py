"""Header codec 77: MessagePack, between two peers that both support it.

An array of seven: code, opaque, flag, version, language (by number), remark (text or nil), ext fields (map of
text to text, or nil). RocketMQ's own clients and servers never receive it. A client first sets
`FLAG_READS_MSGPACK` in the flag of an ordinary request. It uses this codec only if the response has the same
bit. docs/internals/wire.md describes the whole exchange.
"""

from __future__ import annotations

from typing import Any, cast

import msgpack

from rocketpy.errors import LocalProtocolError, RemoteProtocolError
from rocketpy.protocol.codes import language_name, language_number
from rocketpy.protocol.remoting.frame import MAX_EXT_FIELDS, WireHeader, WrittenHeader

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1


def decode(header: bytes) -> WireHeader:
    """Return the header of a MessagePack frame. Raises RemoteProtocolError."""
    try:
        value: Any = msgpack.unpackb(header, max_array_len=16, max_map_len=MAX_EXT_FIELDS)
    except (ValueError, msgpack.exceptions.UnpackException, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"msgpack header: {error or type(error).__name__}") from error
    if not isinstance(value, list) or len(value) != 7:
        raise RemoteProtocolError("msgpack header: an array of 7 was expected")
    code, opaque, flag, version, language, remark, ext = value
    for name, number in (("code", code), ("opaque", opaque), ("flag", flag), ("version", version)):
        _require(type(number) is int and _INT32_MIN <= number <= _INT32_MAX, name, "a 32-bit integer")
    _require(type(language) is int, "language", "an integer")
    _require(remark is None or isinstance(remark, str), "remark", "a text or nil")
    _require(ext is None or _is_text_map(ext), "ext fields", "a map of texts or nil")
    return code, opaque, flag, language_name(language), version, remark, ext


def _is_text_map(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(k, str) and isinstance(v, str) for k, v in value.items()
    )


def _require(condition: bool, field: str, kind: str) -> None:
    if not condition:
        raise RemoteProtocolError(f"msgpack header: {field} is not {kind}")


def encode(header: WrittenHeader) -> bytes:
    """Return the bytes of a header. Raises LocalProtocolError for a number above 32 bits or a bad text."""
    code, opaque, flag, language, version, remark, ext = header
    if not all(_INT32_MIN <= number <= _INT32_MAX for number in (code, opaque, flag, version)):
        raise LocalProtocolError(f"msgpack header of code {code}: a number does not fit 32 bits")
    try:
        packed = msgpack.packb((code, opaque, flag, version, language_number(language), remark, ext))
    except (ValueError, OverflowError) as error:
        raise LocalProtocolError(f"msgpack header of code {code}: {error}") from error
    return cast(bytes, packed)
