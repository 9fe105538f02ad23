"""Builds the properties and frames of send requests.

All headers of a topic differ only in six values, so their text is made once for each topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from rocketpy.errors import MessageTooLarge
from rocketpy.message.message import Message
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import SendMessageRequestHeaderV2
from rocketpy.protocol.message.checksum import PROPERTY_BODY_CHECKSUM, body_checksum
from rocketpy.protocol.message.properties import MAX_PROPERTIES_BYTES
from rocketpy.protocol.remoting.acl import (
    NONCE,
    SIGNATURE,
    SIGNATURE_V2,
    SIGNED_AT,
    Signer,
    SignerV2,
    signed_content,
    signed_template_v2,
)
from rocketpy.protocol.remoting.command import FLAG_ONEWAY, LANGUAGE, VERSION, Command
from rocketpy.protocol.remoting.template import (
    ASCII,
    DIGITS,
    JSON,
    HeaderTemplate,
    fields_template,
    json_text,
)

ONEWAY_OPAQUE: Final = 0x7FFF_FFFF
"""The opaque of all oneway requests, which have no response."""

_VARYING: Final = {"e": DIGITS, "f": DIGITS, "g": DIGITS, "h": DIGITS, "i": JSON}
"""Fields that change from send to send: queue id, sysFlag, born time, flag, properties."""
_VARYING_TO_SIGN: Final = {"e": "%d", "f": "%d", "g": "%d", "h": "%d", "i": "%b"}
"""Their values as version 1 of the signatures covers them."""


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
        # _to_sign, _content: what a signature covers, with placeholders.
        fixed = self._header.ext_fields() | (signer.fields if signer is not None else {})
        if isinstance(signer, SignerV2):
            self._to_sign = fields_template({**fixed, **_VARYING, NONCE: ASCII, SIGNED_AT: DIGITS})
            self._content = signed_template_v2(code, LANGUAGE, VERSION)
            fields = b"%b," + fields_template({SIGNATURE_V2: ASCII})
        elif signer is not None:
            texts = {name: value.replace("%", "%%") for name, value in fixed.items()}
            self._to_sign = signed_content(texts | _VARYING_TO_SIGN, b"")
            fields = fields_template({**fixed, **_VARYING, SIGNATURE: ASCII})
        else:
            fields = fields_template({**fixed, **_VARYING})
        self._template = HeaderTemplate(code, fields)
        self._oneway_template = HeaderTemplate(code, fields, FLAG_ONEWAY)

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
        template = self._oneway_template if oneway else self._template
        values = (queue_id, sys_flag, born_ms, flag, json_text(properties), opaque)
        if (signer := self._signer) is None:
            return template.frame(values, body)
        if isinstance(signer, SignerV2):
            fields = self._to_sign % (*signer.next_nonce(), *values[:-1])
            content = self._content % (fields, body)
            return template.frame((fields, signer.signature(content).encode("ascii"), opaque), body)
        content = self._to_sign % (queue_id, sys_flag, born_ms, flag, properties.encode()) + body
        return template.frame((signer.signature(content).encode("ascii"), *values), body)

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
