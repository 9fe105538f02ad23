"""Header codec 0: JSON, what every RocketMQ speaks unless told otherwise.

Keys are written in alphabetical order and left out when null, as fastjson does. Values of the
ext fields are strings; other writers (C++, Go) are read leniently.
Source: RemotingSerializable; recorded frames.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from rocketpy.errors import RemoteProtocolError
from rocketpy.protocol.language import language_name

__all__ = ["WireHeader", "decode", "decode_ext", "encode"]

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class WireHeader(msgspec.Struct):
    """A header as it stands in the frame; the ext fields are kept as JSON text."""

    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    version: Int32 = 0
    language: str = "JAVA"
    remark: str | None = None
    extFields: msgspec.Raw = msgspec.Raw(b"")  # noqa: N815 - the name on the wire


class _WrittenHeader(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Field order is the order on the wire."""

    code: int
    extFields: dict[str, str] | None = None  # noqa: N815
    flag: int
    language: str
    opaque: int
    remark: str | None = None
    serializeTypeCurrentRPC: str  # noqa: N815
    version: int


_decode = msgspec.json.Decoder(WireHeader, strict=False).decode
_decode_text_fields = msgspec.json.Decoder(dict[str, str]).decode
_decode_any_fields = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def decode(header: bytes) -> WireHeader:
    """Return the header of a JSON frame. Raises RemoteProtocolError."""
    try:
        return _decode(header)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        return _decode_lenient(header, error)


def _decode_lenient(header: bytes, first_error: Exception) -> WireHeader:
    """Read what is JSON but not in the shape Java writes: a language as a number."""
    try:
        fields = _decode_any_fields(header)
        if isinstance(fields.get("language"), int):
            fields["language"] = language_name(fields["language"])
            return _decode(msgspec.json.encode(fields))
    except (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError):
        pass
    raise RemoteProtocolError(f"JSON header: {first_error}") from first_error


def decode_ext(text: bytes) -> dict[str, str]:
    """Return ext fields from their JSON text; numbers and booleans become their Java texts."""
    try:
        return _decode_text_fields(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        pass
    try:
        fields = _decode_any_fields(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise RemoteProtocolError(f"JSON ext fields: {error}") from error
    return {key: _text(key, value) for key, value in fields.items() if value is not None}


def _text(key: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise RemoteProtocolError(f"JSON ext field {key!r} is a {type(value).__name__}; a string was expected")


def encode(
    code: int,
    opaque: int,
    flag: int,
    language: str,
    version: int,
    remark: str | None,
    ext: dict[str, str] | None,
) -> bytes:
    """Return the JSON text of a header."""
    return _encode(
        _WrittenHeader(
            code=code,
            extFields=ext,
            flag=flag,
            language=language,
            opaque=opaque,
            remark=remark,
            serializeTypeCurrentRPC="JSON",
            version=version,
        )
    )
