"""From the bytes of a pull response to messages."""

from __future__ import annotations

from rocketpy.errors import RecordCorrupt, RemoteProtocolError
from rocketpy.message import MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.checksum import PROPERTY_BODY_CHECKSUM, verify_body_checksum
from rocketpy.protocol.compression import decompress
from rocketpy.protocol.properties import find
from rocketpy.protocol.record import PackedRecord, Record, decode, decode_packed
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
    records = decode_packed(data, queue.topic, check_crc=verify)
    has_checksums = verify and _CHECKSUM_NAME in data
    return [
        MessageExt(record, queue, record.body)
        if type(record) is PackedRecord and not has_checksums
        else _message(record, queue, max_body_bytes, verify=verify)
        for record in records
    ]


def decode_message(data: bytes, broker_name: str, max_body_bytes: int, *, verify: bool) -> MessageExt:
    """The one message of a VIEW_MESSAGE_BY_ID response. Raises as `decode_messages`."""
    record = decode(data, check_crc=verify)
    queue = MessageQueue(record.topic, broker_name, record.queue_id)
    return _message(record, queue, max_body_bytes, verify=verify)


def _message(
    record: Record | PackedRecord, queue: MessageQueue, max_body_bytes: int, *, verify: bool
) -> MessageExt:
    body = record.body
    if isinstance(record, Record) and record.sys_flag & MessageSysFlag.COMPRESSED:
        try:
            body = decompress(body, record.sys_flag, max_bytes=max_body_bytes)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{queue} offset {record.queue_offset}: {error}") from error
    checksum = find(record.properties, _CHECKSUM_NAME) if verify else None
    if checksum is not None and verify_body_checksum(checksum.decode("ascii", "replace"), body) is False:
        message = MessageExt(record, queue, body)
        raise RecordCorrupt(
            message.physical_offset,
            f"body of {queue} offset {record.queue_offset} does not match its producer's {checksum!r}",
        )
    return MessageExt(record, queue, body)
