"""Command: one request or response, with its header fields and body.

A header has fixed parts (code, flag, opaque, ...) and *ext fields*, a map of strings whose keys depend on the
request code. The ext fields are decoded on demand, to a header class (`Command.header_as`) or a map
(`Command.ext_fields`). So hot paths decode them once, to the final type.

Source: RemotingCommand of RocketMQ 4.6.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from rocketpy.errors import LocalProtocolError, RemoteProtocolError
from rocketpy.protocol.codes import VERSION_4_6_0
from rocketpy.protocol.headers import Header
from rocketpy.protocol.remoting import header_binary as codec_rocketmq
from rocketpy.protocol.remoting import header_json as codec_json
from rocketpy.protocol.remoting import header_msgpack as codec_msgpack
from rocketpy.protocol.remoting.frame import (
    CODEC_JSON,
    CODEC_MSGPACK,
    CODEC_ROCKETMQ,
    Frame,
    WireHeader,
    WrittenHeader,
    encode_frame,
    encode_frame_head,
)

FLAG_RESPONSE = 0x1
FLAG_ONEWAY = 0x2
FLAG_READS_MSGPACK = 0x100
"""Extension of rocketpy: the sender reads codec 77. RocketMQ reads bits 0 and 1 only."""

LANGUAGE = "PYTHON"
VERSION = VERSION_4_6_0
"""Peers select features by it."""

H = TypeVar("H", bound=Header)


_OBJECT_BYTES: Final = 120
"""Approximate overhead in memory of a command, or of a name and value of its ext fields."""


class Command(msgspec.Struct, eq=False):
    """One request or response."""

    code: int
    """A RequestCode in a request, a ResponseCode in a response."""
    opaque: int = 0
    """The number of the request; a response has the number of its request."""
    flag: int = 0
    """Bit 0 response, bit 1 oneway (without a response)."""
    language: str = LANGUAGE
    """Of the sender."""
    version: int = VERSION
    """Of the sender."""
    remark: str | None = None
    """A text with a response code."""
    ext: bytes | dict[str, str] | None = None
    """The ext fields of a received command, as JSON text or a map."""
    header: Header | None = None
    """The typed ext fields of a command to send."""
    body: bytes = b""
    codec: int = CODEC_JSON
    """The encoding of the header."""

    @property
    def kept_bytes(self) -> int:
        """Approximate memory of a received command, in bytes."""
        ext, size = self.ext, _OBJECT_BYTES + len(self.body) + len(self.remark or "")
        if isinstance(ext, dict):
            return size + sum(_OBJECT_BYTES + len(name) + len(value) for name, value in ext.items())
        return size + len(ext or b"")

    @classmethod
    def request(cls, code: int, header: Header | None = None, body: bytes = b"") -> Command:
        """Return a request; its opaque is set by the connection that sends it."""
        return cls(code, header=header, body=body)

    def reply(
        self,
        code: int = 0,
        *,
        remark: str | None = None,
        header: Header | None = None,
        body: bytes = b"",
    ) -> Command:
        """Return a response to this request, with the same codec."""
        return Command(
            code,
            self.opaque,
            response_flag(self),
            remark=remark,
            header=header,
            body=body,
            codec=self.codec,
        )

    @property
    def is_response(self) -> bool:
        """Whether this is a response."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether this request has no response."""
        return self.flag & FLAG_ONEWAY != 0

    def header_as(self, header_class: type[H]) -> H:
        """Return the ext fields as `header_class`.

        Raises RemoteProtocolError, which names the missing or invalid field.
        """
        if isinstance(self.header, header_class):
            return self.header
        ext = self.ext
        try:
            if isinstance(ext, bytes):
                return _json_decoder(header_class)(ext)
            return msgspec.convert(self.ext_fields(), header_class, strict=False)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise RemoteProtocolError(f"header of code {self.code}: {error}") from error

    def ext_fields(self) -> dict[str, str]:
        """Return the ext fields as a map, unknown ones included. Raises RemoteProtocolError."""
        if self.header is not None:
            return self.header.ext_fields()
        if isinstance(self.ext, bytes):
            return codec_json.decode_ext(self.ext)
        return self.ext or {}


def response_flag(request: Command) -> int:
    """Return the flag of a response to a request."""
    return FLAG_RESPONSE | (request.flag & FLAG_READS_MSGPACK)


_DECODERS: dict[type[Header], Callable[[bytes], Any]] = {}


def _json_decoder(header_class: type[H]) -> Callable[[bytes], H]:
    decoder = _DECODERS.get(header_class)
    if decoder is None:
        decoder = msgspec.json.Decoder(header_class, strict=False).decode
        _DECODERS[header_class] = decoder
    return decoder


def decode_command(frame: Frame) -> Command:
    """Decode the command in a frame; its ext fields are decoded later, by `header_as`.

    Raises RemoteProtocolError when the header does not match its codec.
    """
    return Command(*_READERS[frame.codec](frame.header), None, frame.body, frame.codec)


def encode_command(command: Command, codec: int | None = None) -> bytes:
    """Encode the frame of a command, in its own codec unless another is given.

    A request with an empty value is written in JSON instead of `CODEC_ROCKETMQ`.
    Raises LocalProtocolError for values that the format cannot hold, such as text with a lone surrogate, or,
    except in JSON, an opaque above 32 bits.
    """
    return encode_frame(*_encode_header(command, codec), command.body)


def encode_command_head(command: Command, codec: int | None = None) -> bytes:
    """Encode the frame of a command up to its body, so that a large body need not be copied.

    Raises LocalProtocolError, as `encode_command` does.
    """
    return encode_frame_head(*_encode_header(command, codec), len(command.body))


def _encode_header(command: Command, codec: int | None) -> tuple[int, bytes]:
    codec = command.codec if codec is None else codec
    write = _WRITERS.get(codec)
    if write is None:
        raise LocalProtocolError(f"header codec {codec} is unknown")
    ext = None if command.header is None and command.ext is None else command.ext_fields()
    if codec == CODEC_ROCKETMQ and ext and "" in ext.values() and not command.is_response:
        # RocketMQ from 4.9.4 on reads an empty value of a binary header as null, which breaks signatures.
        codec, write = CODEC_JSON, codec_json.encode
    header = write(
        (
            command.code,
            command.opaque,
            command.flag,
            command.language,
            command.version,
            command.remark,
            ext,
        )
    )
    return codec, header


_READERS: dict[int, Callable[[bytes], WireHeader]] = {
    CODEC_JSON: codec_json.decode,
    CODEC_ROCKETMQ: codec_rocketmq.decode,
    CODEC_MSGPACK: codec_msgpack.decode,
}
_WRITERS: dict[int, Callable[[WrittenHeader], bytes]] = {
    CODEC_JSON: codec_json.encode,
    CODEC_ROCKETMQ: codec_rocketmq.encode,
    CODEC_MSGPACK: codec_msgpack.encode,
}
