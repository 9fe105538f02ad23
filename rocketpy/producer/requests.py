"""From messages to the frames of send requests.

A producer sends the same header again and again, but for six values. So the header's JSON text is made
once a topic, with places for these, and filled by `%`: a fifth of the time of encoding it anew. A test
holds the text against the general encoder, which does the work in the other header codecs.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final

import msgspec

from rocketpy.errors import MessageTooLarge
from rocketpy.message import Message
from rocketpy.protocol.checksum import PROPERTY_BODY_CHECKSUM, body_checksum
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.command import FLAG_ONEWAY, LANGUAGE, VERSION, Command
from rocketpy.protocol.headers import SendMessageRequestHeaderV2
from rocketpy.protocol.properties import MAX_PROPERTIES_BYTES

__all__ = ["ONEWAY_OPAQUE", "SendTemplate", "json_text", "properties_text"]

ONEWAY_OPAQUE: Final = 0x7FFF_FFFF
"""Nobody answers a oneway request, so one number does for all."""

_FRAME_START: Final = Struct(">iI").pack

json_text: Final = msgspec.json.Encoder().encode
"""A text as JSON, with its quotes; control characters as ``\\u0001``."""


def properties_text(
    message: Message, unique_id: str, checksum: str = "", extra: Mapping[str, str] | None = None
) -> str:
    """The message's properties as they travel; see `protocol.properties`.

    checksum: name of the end-to-end body checksum to add. extra: a listener's, which never replace the
    user's. Raises MessageTooLarge above 32,767 bytes.
    """
    wait = "true" if message.wait_store else "false"
    text = f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01{wait}\x02"
    if message.tags is not None:
        text += f"TAGS\x01{message.tags}\x02"
    if message.keys:
        text += f"KEYS\x01{' '.join(message.keys)}\x02"
    if message.delay_level:
        text += f"DELAY\x01{message.delay_level}\x02"
    if checksum:
        text += f"{PROPERTY_BODY_CHECKSUM}\x01{body_checksum(checksum, message.body)}\x02"
    if message.properties or extra:
        for name, value in {**(extra or {}), **message.properties}.items():
            text += f"{name}\x01{value}\x02"
    if len(text) * 4 > MAX_PROPERTIES_BYTES:
        _check_length(text)
    return text


def _check_length(text: str) -> None:
    size = len(text.encode())
    if size > MAX_PROPERTIES_BYTES:
        raise MessageTooLarge(f"properties of {size} bytes, {MAX_PROPERTIES_BYTES} are allowed")


class SendTemplate:
    """The requests of one producer group for one topic.

    code: SEND_MESSAGE_V2, or SEND_BATCH_MESSAGE for a batch.
    """

    __slots__ = ("_code", "_header", "_oneway_text", "_text")

    def __init__(
        self, code: RequestCode, group: str, topic: str, default_topic: str, default_topic_queues: int
    ) -> None:
        self._code = code
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

    def frame(
        self,
        queue_id: int,
        sys_flag: int,
        born_ms: int,
        flag: int,
        properties: bytes,
        opaque: int,
        body: bytes,
    ) -> bytes:
        """A whole frame with a JSON header. properties: by `json_text`."""
        header = self._text % (queue_id, sys_flag, born_ms, flag, properties, opaque)
        size = len(header)
        return _FRAME_START(4 + size + len(body), size) + header + body

    def oneway_frame(
        self, queue_id: int, sys_flag: int, born_ms: int, flag: int, properties: bytes, body: bytes
    ) -> bytes:
        """The same for a request that nobody answers."""
        header = self._oneway_text % (queue_id, sys_flag, born_ms, flag, properties, ONEWAY_OPAQUE)
        size = len(header)
        return _FRAME_START(4 + size + len(body), size) + header + body

    def command(
        self, queue_id: int, sys_flag: int, born_ms: int, flag: int, properties: str, body: bytes
    ) -> Command:
        """The same request for any header codec."""
        header = msgspec.structs.replace(
            self._header,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_timestamp=born_ms,
            flag=flag,
            properties=properties,
        )
        return Command.request(self._code, header, body)

    def _make_text(self, command_flag: int) -> bytes:
        """The JSON header with places for queue id, sysFlag, born time, flag, properties and opaque."""
        fields = {name: json_text(value) for name, value in self._header.ext_fields().items()}
        fixed = {name: value.replace(b"%", b"%%") for name, value in fields.items()}
        fixed |= {"e": b'"%d"', "f": b'"%d"', "g": b'"%d"', "h": b'"%d"', "i": b"%b"}
        ext = b",".join(b'"%b":%b' % (name.encode(), fixed[name]) for name in sorted(fixed))
        return (
            b'{"code":%d,"extFields":{%b},"flag":%d,"language":"%b","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}'
            % (self._code, ext, command_flag, LANGUAGE.encode(), VERSION)
        )
