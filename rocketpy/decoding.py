"""From the bytes of a pull response to messages."""

from __future__ import annotations

from rocketpy.errors import RecordCorrupt, RemoteProtocolError
from rocketpy.message import MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.checksum import PROPERTY_BODY_CHECKSUM, verify_body_checksum
from rocketpy.protocol.compression import decompress
from rocketpy.protocol.properties import find
from rocketpy.protocol.record import Record, decode, decode_all
from rocketpy.protocol.sysflag import MessageSysFlag

__all__ = ["decode_message", "decode_messages"]

_CHECKSUM_NAME = PROPERTY_BODY_CHECKSUM.encode()


def decode_messages(
    data: bytes, queue: MessageQueue, max_body_bytes: int, *, verify: bool
) -> list[MessageExt]:
    """The messages of a pull response, in order.

    max_body_bytes: what a compressed body may inflate to. verify: check CRCs and end-to-end checksums.
    Raises RemoteProtocolError for a body that does not inflate, RecordCorrupt for bytes that are no records
    and for a body that does not match its checksum.
    """
    return [
        _message(record, queue, max_body_bytes, verify=verify)
        if record.sys_flag & MessageSysFlag.COMPRESSED or _CHECKSUM_NAME in record.properties
        else MessageExt(record, queue, record.body)
        for record in decode_all(data, check_crc=verify)
    ]


def decode_message(data: bytes, broker_name: str, max_body_bytes: int, *, verify: bool) -> MessageExt:
    """The one message of a VIEW_MESSAGE_BY_ID response. Raises as `decode_messages`."""
    record = decode(data, check_crc=verify)
    queue = MessageQueue(record.topic, broker_name, record.queue_id)
    return _message(record, queue, max_body_bytes, verify=verify)


def _message(record: Record, queue: MessageQueue, max_body_bytes: int, *, verify: bool) -> MessageExt:
    body = record.body
    if record.sys_flag & MessageSysFlag.COMPRESSED:
        try:
            body = decompress(body, record.sys_flag, max_bytes=max_body_bytes)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{queue} offset {record.queue_offset}: {error}") from error
    checksum = find(record.properties, _CHECKSUM_NAME) if verify else None
    if checksum is not None and verify_body_checksum(checksum.decode("ascii", "replace"), body) is False:
        raise RecordCorrupt(
            record.physical_offset,
            f"body of {queue} offset {record.queue_offset} does not match its producer's {checksum!r}",
        )
    return MessageExt(record, queue, body)
