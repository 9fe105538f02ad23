"""Builds the properties and frames of send requests.

All headers of a topic differ only in six values. So the JSON text of the header is made once for each topic,
with placeholders, and filled in with `%`. That takes a fifth of the time of encoding a header
(`tests.bench.send_path`). A test compares the text with the general encoder, which the other header codecs
use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

import msgspec

from rocketpy.errors import MessageTooLarge
from rocketpy.message.message import Message
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import SendMessageRequestHeaderV2
from rocketpy.protocol.message.checksum import PROPERTY_BODY_CHECKSUM, body_checksum
from rocketpy.protocol.message.properties import MAX_PROPERTIES_BYTES
from rocketpy.protocol.remoting.acl import NONCE, SIGNATURE, SIGNATURE_V2, SIGNED_AT, Signer, SignerV2
from rocketpy.protocol.remoting.command import FLAG_ONEWAY, LANGUAGE, VERSION, Command

ONEWAY_OPAQUE: Final = 0x7FFF_FFFF
"""The opaque of all oneway requests, which have no response."""

_FRAME_START: Final = Struct(">iI").pack

_NUMBERS: Final = ("e", "f", "g", "h")
"""Fields that change from send to send: queue id, sysFlag, born time, flag."""
_PROPERTIES: Final = "i"

json_text: Final = msgspec.json.Encoder().encode
"""A text as JSON, with its quotes; control characters as ``\\u0001``."""


def properties_text(
    message: Message, unique_id: str, checksum: str = "", extra: Mapping[str, str] | None = None
) -> str:
    """Return the properties of a message of a `send_batch`; see `protocol.message.properties`.

    WAIT is left out, since a batch takes it from its request. checksum: name of the end-to-end body checksum
    to add. extra: properties of listeners; the user's properties take precedence. Raises MessageTooLarge
    above 32,767 bytes.
    """
    head = f"UNIQ_KEY\x01{unique_id}\x02"
    return head + other_properties_text(message, len(head), checksum, extra)


def head_text(unique_id: str, *, wait_store: bool) -> str:
    """Return the two properties that every message has, except in a `send_batch`."""
    return f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01{'true' if wait_store else 'false'}\x02"


def encoded_properties(
    unique_ids: Sequence[str], other_properties: Sequence[str], *, wait_store: bool
) -> list[bytes]:
    """Return the encoded properties of several messages: `head_text`, then the other properties."""
    start, _, end = head_text("\0", wait_store=wait_store).partition("\0")
    return [
        f"{start}{unique_id}{end}{others}".encode()
        for unique_id, others in zip(unique_ids, other_properties, strict=True)
    ]


def other_properties_text(
    message: Message, head_bytes: int, checksum: str = "", extra: Mapping[str, str] | None = None
) -> str:
    """Return the properties that follow those of `head_text`. head_bytes: the size of the latter.

    Raises MessageTooLarge when all properties together have more than 32,767 bytes.
    """
    text = ""
    if message.tags is not None:
        text = f"TAGS\x01{message.tags}\x02"
    if message.keys:
        text += f"KEYS\x01{' '.join(message.keys)}\x02"
    if message.delay_level:
        text += f"DELAY\x01{message.delay_level}\x02"
    if checksum:
        text += f"{PROPERTY_BODY_CHECKSUM}\x01{body_checksum(checksum, message.body)}\x02"
    if message.properties or extra:
        for name, value in {**(extra or {}), **message.properties}.items():
            text += f"{name}\x01{value}\x02"
    if len(text) * 4 + head_bytes > MAX_PROPERTIES_BYTES:
        _check_length(text, head_bytes)
    return text


def _check_length(text: str, head_bytes: int) -> None:
    size = len(text.encode()) + head_bytes
    if size > MAX_PROPERTIES_BYTES:
        raise MessageTooLarge(f"the properties have {size} bytes; {MAX_PROPERTIES_BYTES} are allowed")


class SendTemplate:
    """The requests of one producer group for one topic.

    code: SEND_MESSAGE_V2, or SEND_BATCH_MESSAGE for a batch. signer: signs the frames; commands are signed
    by their connection.
    """

    def __init__(
        self,
        code: RequestCode,
        group: str,
        topic: str,
        default_topic: str,
        default_topic_queues: int,
        signer: Signer | None = None,
    ) -> None:
        self._code = code
        self._signer = signer
        self._header = SendMessageRequestHeaderV2(
            producer_group=group,
            topic=topic,
            default_topic=default_topic,
            default_topic_queue_nums=default_topic_queues,
            queue_id=0,
            sys_flag=0,
            born_timestamp=0,
            flag=0,
            reconsume_times=0,
            batch=code == RequestCode.SEND_BATCH_MESSAGE,
        )
        self._text = self._make_text(0)
        self._oneway_text = self._make_text(FLAG_ONEWAY)
        self._signed_text = self._make_signed_text()

    def frame(
        self,
        queue_id: int,
        sys_flag: int,
        born_ms: int,
        flag: int,
        properties: str,
        opaque: int,
        body: bytes,
        *,
        oneway: bool = False,
    ) -> bytes:
        """Return a whole frame with a JSON header."""
        text = self._oneway_text if oneway else self._text
        values = (queue_id, sys_flag, born_ms, flag, json_text(properties), opaque)
        signer = self._signer
        if signer is None:
            header = text % values
        elif isinstance(signer, SignerV2):
            # The ext fields without brackets, and their signature.
            fields = self._signed_text % (*signer.next_nonce(), *values[:-1])
            content = b'[%d,"%b",%d,{%b}]%b' % (self._code, LANGUAGE.encode(), VERSION, fields, body)
            header = text % (fields, signer.signature(content).encode("ascii"), opaque)
        else:
            content = self._signed_text % (queue_id, sys_flag, born_ms, flag, properties.encode()) + body
            header = text % (signer.signature(content).encode("ascii"), *values)
        size = len(header)
        return _FRAME_START(4 + size + len(body), size) + header + body

    def command(
        self, queue_id: int, sys_flag: int, born_ms: int, flag: int, properties: str, body: bytes
    ) -> Command:
        """Return the same request for any header codec."""
        header = msgspec.structs.replace(
            self._header,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_timestamp=born_ms,
            flag=flag,
            properties=properties,
        )
        return Command.request(self._code, header, body)

    def _fields(self) -> dict[str, str]:
        """Return the fields that never change, with those that identify the signer."""
        return self._header.ext_fields() | (self._signer.fields if self._signer is not None else {})

    def _make_text(self, command_flag: int) -> bytes:
        """Return the JSON header with placeholders.

        They are for queue id, sysFlag, born time, flag, properties and opaque. Fields are sorted by name, so
        a signature comes first. With version 2 of the signatures there are three placeholders: all fields,
        the signature, and opaque.
        """
        if isinstance(self._signer, SignerV2):
            ext = b'%%b,"%b":"%%b"' % SIGNATURE_V2.encode()
        else:
            ext = self._json_fields({} if self._signer is None else {SIGNATURE: b'"%b"'})
        return (
            b'{"code":%d,"extFields":{%b},"flag":%d,"language":"%b","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}'
            % (self._code, ext, command_flag, LANGUAGE.encode(), VERSION)
        )

    def _json_fields(self, more: dict[str, bytes]) -> bytes:
        """Return the ext fields as JSON without brackets, sorted by name. more: further placeholders."""
        fixed = {name: json_text(value).replace(b"%", b"%%") for name, value in self._fields().items()}
        fixed |= dict.fromkeys(_NUMBERS, b'"%d"') | {_PROPERTIES: b"%b"} | more
        return b",".join(b'"%b":%b' % (name.encode(), fixed[name]) for name in sorted(fixed))

    def _make_signed_text(self) -> bytes:
        """Return what a signature covers, except for the body, with placeholders for the same values."""
        if isinstance(self._signer, SignerV2):
            return self._json_fields({NONCE: b'"%b"', SIGNED_AT: b'"%d"'})
        fixed = {name: value.encode().replace(b"%", b"%%") for name, value in self._fields().items()}
        fixed |= dict.fromkeys(_NUMBERS, b"%d") | {_PROPERTIES: b"%b"}
        return b"".join([fixed[name] for name in sorted(fixed)])
