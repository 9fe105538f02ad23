"""Responses to sends. In JSON they are made from a template, because each send needs one.

Binary and msgpack frames go through the ordinary encoder.
QUIRKS 18: MSG_REGION and TRACE_ON are in every response to a send, also in rejections.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from msgspec import Raw

from rocketpy.errors import StoreError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.headers import SendMessageErrorHeader, SendMessageResponseHeader
from rocketpy.protocol.remoting.command import Command, encode_command, response_flag
from rocketpy.protocol.remoting.frame import CODEC_JSON
from rocketpy.protocol.remoting.template import ASCII, DIGITS, NUMBER, HeaderTemplate, fields_template
from rocketpy.transport import Channel

_LESS_DURABLE: Final = (
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)


class ParkedResponse(NamedTuple):
    """A send whose response waits until its messages are written, flushed, replicated or committed."""

    channel: Channel
    request: Command
    queue_id: int
    queue_offset: int
    """Of the first message."""
    positions: tuple[int, ...]
    """Physical offset of each message."""
    waits: bool
    """The producer wants the messages flushed or replicated, as the broker is configured."""
    recall_handle: str | None = None
    """Of a timed message."""


OnStored = Callable[[StoreError | None], None]
"""Called with None when a message is stored, or with the error if it is not, or might not be."""


class ParkResponses(Protocol):
    """Takes the sends and callbacks of one socket buffer, which must wait.

    until: log offset after their last message.
    """

    def __call__(
        self, sends: list[ParkedResponse], until: int, on_stored: Sequence[OnStored] = (), /
    ) -> None: ...


class SendResponses:
    """Encodes the responses to sends of one broker.

    store_host: 8 or 20 bytes, with which every message id begins.
    """

    def __init__(self, *, store_host: bytes, region_id: str, trace_on: bool) -> None:
        self.less_durable: dict[int, int] = dict.fromkeys(_LESS_DURABLE, 0)
        """Number of stored messages, by the code of a response that says that they are not flushed or
        replicated as configured.
        """
        self._host = store_host.hex().upper().encode()
        self._error_header = SendMessageErrorHeader(msg_region=region_id, trace_on=trace_on)
        fields: dict[str, str | Raw] = {
            **self._error_header.ext_fields(),
            "msgId": Raw(b'"%b"'),
            "queueId": DIGITS,
            "queueOffset": DIGITS,
        }
        self._template = HeaderTemplate(NUMBER, fields_template(fields), NUMBER)
        fields["recallHandle"] = ASCII
        self._timed_template = HeaderTemplate(NUMBER, fields_template(fields), NUMBER)

    def drop_bodies(self, sends: list[ParkedResponse]) -> None:
        """Free the bodies of written sends, whose responses may wait long for a flush or for replicas."""
        for parked in sends:
            parked.request.body = b""

    def stored(self, parked: ParkedResponse, code: int = 0) -> bytes:
        """Return the frame with the message ids and the queue offset of a send.

        code: 0, or the reason why the messages are stored, but not flushed or replicated (10, 11, 12).
        """
        _, request, queue_id, queue_offset, positions, _, handle = parked
        if request.codec != CODEC_JSON:
            return self._encoded(parked, code)
        flag = response_flag(request)
        ids = self._ids(positions)
        if handle is None:
            return self._template.frame((code, ids, queue_id, queue_offset, flag, request.opaque))
        values = code, ids, queue_id, queue_offset, handle.encode(), flag, request.opaque
        return self._timed_template.frame(values)

    def _ids(self, positions: tuple[int, ...]) -> bytes:
        """Return the message ids for physical offsets, with commas between them."""
        if len(positions) == 1:
            return self._host + b"%016X" % positions
        # A third of the time of formatting each number.
        offsets = struct.pack(f">{len(positions)}Q", *positions).hex(",", 8).upper()
        return self._host + offsets.encode().replace(b",", b"," + self._host)

    def _encoded(self, parked: ParkedResponse, code: int) -> bytes:
        error_header = self._error_header
        header = SendMessageResponseHeader(
            msg_region=error_header.msg_region,
            trace_on=error_header.trace_on,
            msg_id=self._ids(parked.positions).decode(),
            queue_id=parked.queue_id,
            queue_offset=parked.queue_offset,
            recall_handle=parked.recall_handle,
        )
        return encode_command(parked.request.reply(code, header=header))

    def rejected(self, request: Command, code: int, remark: str) -> Command:
        """Return the response to a send of which nothing was stored."""
        return request.reply(code, remark=remark, header=self._error_header)
