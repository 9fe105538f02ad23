"""Header codec 0: JSON, the default of RocketMQ.

Keys are written in alphabetical order and left out when null, as fastjson does. Values of the ext fields are
strings; numbers and booleans, which C++ and Go clients write, are accepted too. Source: RemotingSerializable;
recorded frames.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rocketpy.errors import LocalProtocolError, RemoteProtocolError
from rocketpy.protocol.codes import language_name
from rocketpy.protocol.headers.base import Int32
from rocketpy.protocol.remoting.frame import MAX_EXT_FIELDS, TemplateHeader, WireHeader, WrittenHeader


class _ReadHeader(msgspec.Struct):
    """A header as received; the ext fields are kept as JSON text."""

    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    version: Int32 = 0
    language: str = "JAVA"
    remark: str | None = None
    extFields: msgspec.Raw = msgspec.Raw(b"")  # noqa: N815 - the name on the wire


class _HeaderText(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Field order is the order on the wire."""

    code: int | msgspec.Raw
    extFields: dict[str, str] | msgspec.Raw | None = None  # noqa: N815
    flag: int | msgspec.Raw
    language: str
    opaque: int | msgspec.Raw
    remark: str | None = None
    serializeTypeCurrentRPC: str  # noqa: N815
    version: int


_NO_FIELDS = frozenset((b"", b"null"))
_decode = msgspec.json.Decoder(_ReadHeader, strict=False).decode
_decode_text_fields = msgspec.json.Decoder(dict[str, str]).decode
_decode_any_fields = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def decode(header: bytes) -> WireHeader:
    """Return the parts of a JSON header, its ext fields still as JSON text. Raises RemoteProtocolError."""
    try:
        read = _decode(header)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        read = _decode_lenient(header, error)
    ext = bytes(read.extFields)
    return (
        read.code,
        read.opaque,
        read.flag,
        read.language,
        read.version,
        read.remark,
        None if ext in _NO_FIELDS else ext,
    )


def _decode_lenient(header: bytes, first_error: Exception) -> _ReadHeader:
    """Decode a header whose language is a number, which Java does not write."""
    try:
        fields = _decode_any_fields(header)
        if isinstance(fields.get("language"), int):
            fields["language"] = language_name(fields["language"])
            return _decode(msgspec.json.encode(fields))
    except (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError):
        pass
    raise RemoteProtocolError(f"JSON header: {first_error}") from first_error


def decode_ext(text: bytes) -> dict[str, str]:
    """Return ext fields from their JSON text; numbers and booleans become text, null values are left out.

    Raises RemoteProtocolError.
    """
    try:
        fields = _decode_text_fields(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        fields = _decode_mixed_fields(text)
    if len(fields) > MAX_EXT_FIELDS:
        raise RemoteProtocolError(f"JSON header has {len(fields)} ext fields; {MAX_EXT_FIELDS} are allowed")
    return fields


def _decode_mixed_fields(text: bytes) -> dict[str, str]:
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


def encode(header: WrittenHeader | TemplateHeader) -> bytes:
    """Return the JSON text of a header. Raises LocalProtocolError for a text that is not valid Unicode."""
    code, opaque, flag, language, version, remark, ext = header
    text = _HeaderText(
        code=code,
        extFields=ext,
        flag=flag,
        language=language,
        opaque=opaque,
        remark=remark,
        serializeTypeCurrentRPC="JSON",
        version=version,
    )
    try:
        return _encode(text)
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"JSON header of code {code!r}: {error}") from error
