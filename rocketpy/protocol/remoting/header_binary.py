"""Header codec 1: RocketMQ's binary header.

| field         | size | meaning                                            |
|---------------|------|----------------------------------------------------|
| code          | 2    | signed                                             |
| language      | 1    | a number of `rocketpy.protocol.codes.LanguageCode` |
| version       | 2    | signed                                             |
| opaque        | 4    | signed                                             |
| flag          | 4    | signed                                             |
| remark length | 4    | bytes; 0 for no remark                             |
| remark        | n    | UTF-8                                              |
| ext length    | 4    | bytes of all entries together; 0 for no ext fields |
| entries       | n    | key length (2), key, value length (4), value       |

All integers are big-endian. Source: RocketMQSerializable.
"""

from __future__ import annotations

import struct

from rocketpy.errors import LocalProtocolError, RemoteProtocolError
from rocketpy.protocol.codes import language_name, language_number
from rocketpy.protocol.remoting.frame import MAX_EXT_FIELDS, WireHeader, WrittenHeader

_FIXED = struct.Struct(">hBhiii")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")


def decode(header: bytes) -> WireHeader:
    """Return the header of a binary frame. Raises RemoteProtocolError naming the part that does not fit."""
    try:
        code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(header)
        remark, position = _read_text(header, _FIXED.size, remark_bytes, "remark")
        (ext_bytes,) = _INT.unpack_from(header, position)
        position += 4
        if ext_bytes != len(header) - position:
            raise RemoteProtocolError(
                f"binary header: {ext_bytes} bytes of ext fields declared, {len(header) - position} follow"
            )
        ext = _decode_ext(header, position) if ext_bytes else None
    except struct.error as error:
        raise RemoteProtocolError(f"binary header of {len(header)} bytes ends too early: {error}") from error
    return code, opaque, flag, language_name(language), version, remark or None, ext


def _decode_ext(header: bytes, position: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    while position < len(header):
        (key_bytes,) = _SHORT.unpack_from(header, position)
        key, position = _read_text(header, position + 2, key_bytes, "ext field key")
        (value_bytes,) = _INT.unpack_from(header, position)
        value, position = _read_text(header, position + 4, value_bytes, "ext field value")
        fields[key] = value
        if len(fields) > MAX_EXT_FIELDS:
            raise RemoteProtocolError(f"binary header has more than {MAX_EXT_FIELDS} ext fields")
    return fields


def _read_text(header: bytes, position: int, size: int, part: str) -> tuple[str, int]:
    """Return a text and the position after it. part: its name in errors."""
    end = position + size
    if size < 0 or end > len(header):
        raise RemoteProtocolError(
            f"binary header: {part} of {size} bytes at {position} does not fit {len(header)} bytes"
        )
    try:
        return header[position:end].decode(), end
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"binary header: {part} at {position} is not UTF-8") from error


def encode(header: WrittenHeader) -> bytes:
    """Return the bytes of a header. Raises LocalProtocolError for a number above its field, or a bad text."""
    code, opaque, flag, language, version, remark, ext = header
    try:
        remark_text = (remark or "").encode()
        fixed = _FIXED.pack(code, language_number(language), version, opaque, flag, len(remark_text))
        entries: list[bytes] = []
        for key, value in (ext or {}).items():
            key_text, value_text = key.encode(), value.encode()
            entries += (_SHORT.pack(len(key_text)), key_text, _INT.pack(len(value_text)), value_text)
        ext_length = _INT.pack(sum(map(len, entries)))
    except (struct.error, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"binary header of code {code}: {error}") from error
    return b"".join((fixed, remark_text, ext_length, *entries))
