"""Answers to sends, made from a template: the only answer that is written once a message.

In a JSON frame only six values change from answer to answer, so the rest is formatted once, when
the broker's address is known. Binary and msgpack frames take the ordinary way.
QUIRKS 18: MSG_REGION and TRACE_ON are in every answer to a send, also in refusals.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from rocketpy.protocol.headers import SendMessageErrorHeader, SendMessageResponseHeader
from rocketpy.protocol.remoting.command import (
    FLAG_READS_MSGPACK,
    FLAG_RESPONSE,
    VERSION,
    Command,
    encode_command,
)
from rocketpy.protocol.remoting.frame import CODEC_JSON
from rocketpy.transport import Channel

_PREFIX: Final = Struct(">iI")


class ParkedResponse(NamedTuple):
    """A send that is answered once its messages are as safe as was asked for.

    request: what is answered. positions: physical offset of each of its messages; queue_offset: of the
    first. waits: the sender wants them flushed or replicated first, as the broker is set up.
    """

    channel: Channel
    request: Command
    queue_id: int
    queue_offset: int
    positions: tuple[int, ...]
    waits: bool


ParkResponses = Callable[[list[ParkedResponse], int], None]
"""Takes sends whose answer must wait, and the log offset behind the last of them."""


class SendResponses:
    """Encodes answers to sends for one broker.

    store_host: 8 or 20 bytes; it begins every message id.
    """

    def __init__(self, *, store_host: bytes, region_id: str, trace_on: bool) -> None:
        self._id = store_host.hex().upper() + "%016X"
        self._refusal = SendMessageErrorHeader(msg_region=region_id, trace_on=trace_on)
        region = msgspec.json.encode(region_id).replace(b"%", b"%%")
        self._template = (
            b'{"code":%%d,"extFields":{"MSG_REGION":%b,"TRACE_ON":"%b","msgId":"%b","queueId":"%%d",'
            b'"queueOffset":"%%d"},"flag":%%d,"language":"PYTHON","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}'
        ) % (region, b"true" if trace_on else b"false", self._id.encode(), VERSION)

    def drop_bodies(self, sends: list[ParkedResponse]) -> None:
        """Free the bodies of sends: they are written, and may wait long for a flush or for replicas."""
        for parked in sends:
            parked.request.body = b""

    def stored(self, parked: ParkedResponse, code: int = 0) -> bytes:
        """Return the frame that says where a send's messages are.

        code: 0, or what kept the store from doing all that was asked for (10, 11, 12).
        """
        _, request, queue_id, queue_offset, positions, _ = parked
        if request.codec != CODEC_JSON or len(positions) != 1:
            return self._encoded(parked, code)
        flag = FLAG_RESPONSE | (request.flag & FLAG_READS_MSGPACK)
        header = self._template % (code, positions[0], queue_id, queue_offset, flag, request.opaque)
        size = len(header)
        return _PREFIX.pack(size + 4, size) + header

    def _encoded(self, parked: ParkedResponse, code: int) -> bytes:
        refusal = self._refusal
        header = SendMessageResponseHeader(
            msg_region=refusal.msg_region,
            trace_on=refusal.trace_on,
            msg_id=((self._id + ",") * len(parked.positions) % parked.positions)[:-1],
            queue_id=parked.queue_id,
            queue_offset=parked.queue_offset,
        )
        return encode_command(parked.request.reply(code, header=header))

    def refused(self, request: Command, code: int, remark: str) -> Command:
        """Return the answer to a send of which nothing was stored."""
        return request.reply(code, remark=remark, header=self._refusal)
