"""Types of the append path: messages, queue cursors, limits, append receipts and pieces of the log."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import msgspec

from rocketpy.errors import MessageInvalid, MessageTooLarge, RecordCorrupt, TopicInvalid, TornTail
from rocketpy.protocol.message.properties import MAX_PROPERTIES_BYTES
from rocketpy.protocol.message.record import (
    HEAD_BYTES,
    MAX_TOPIC_BYTES,
    MESSAGE_MAGIC,
    V6_EXTRA_BYTES,
    RecordView,
    head_fields,
    peek,
)
from rocketpy.protocol.message.sysflag import MessageSysFlag

NOT_IN_QUEUE: Final = MessageSysFlag.TRANSACTION_PREPARED
"""Prepared (4) and rolled-back (12) messages have this bit and enter no queue."""
NUL_IN_PROPERTIES: Final = (
    "a property contains U+0000, which recovery would take for an unwritten sector; remove the character"
)
TIMESTAMP_BYTES: Final = HEAD_BYTES
"""The store timestamp is within this many bytes of a record's start."""
_TIMESTAMP: Final = head_fields("sys_flag", "store_timestamp")


class QueueCursor(msgspec.Struct, gc=False, eq=False):
    """One queue as the commit log sees it."""

    topic: str
    queue_id: int
    next_offset: int = 0
    """Queue offset of the next message."""
    topic_bytes: bytes = b""
    """The topic in UTF-8."""

    def __post_init__(self) -> None:
        self.topic_bytes = self.topic.encode()


class QueueTable(dict[tuple[str, int], QueueCursor]):
    """Cursors by (topic, queue id); created on first use. That raises TopicInvalid for an invalid key."""

    def __missing__(self, key: tuple[str, int]) -> QueueCursor:
        check_topic(*key)
        cursor = self[key] = QueueCursor(*key)
        return cursor


def check_topic(topic: str, queue_id: int) -> None:
    """Check a topic, which becomes a directory name, and a queue id. Raises TopicInvalid."""
    if not topic or len(topic.encode()) > MAX_TOPIC_BYTES:
        raise TopicInvalid(
            f"topic name of {len(topic.encode())} bytes; it must have 1 to {MAX_TOPIC_BYTES} bytes"
        )
    if topic in {".", ".."} or "/" in topic or "\0" in topic:
        raise TopicInvalid(
            f"topic {topic!r} cannot name a directory; use another name than . and .., without / and U+0000"
        )
    if queue_id < 0:
        raise TopicInvalid(f"queue id {queue_id} of topic {topic} is negative")


class MessageInner(msgspec.Struct, gc=False):
    """A message to append. Source: RocketMQ MessageExtBrokerInner."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    """Their text in UTF-8, as stored."""
    flag: int = 0
    sys_flag: int = 0
    """The store sets the IPv6 bits; the transaction bits decide whether the message enters its queue."""
    born_timestamp: int = 0
    born_host: bytes = b"\x00" * 8
    """Address and port, 8 or 20 bytes."""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    is_copy: bool = False
    """Whether it is a copy of a stored message, for which maxMessageSize is not checked again."""


class AppendReceipt(NamedTuple):
    """The position of an appended message; final once `write_out` has returned."""

    physical_offset: int
    """Of its record in the commit log."""
    size: int
    """Of its record, in bytes."""
    queue_offset: int
    """0 for a prepared or rolled-back message of a transaction."""
    store_timestamp: int
    """Ms since 1970."""


class BatchReceipt(NamedTuple):
    """The positions of the messages of a batch; final once `write_out` has returned."""

    physical_offsets: Sequence[int]
    """Of each record in the commit log."""
    queue_offset: int
    """Of the first message."""


class LogPiece(NamedTuple):
    """Consecutive records of one file of the log, which wait for dispatch."""

    begin: int
    """Physical offset of the first record."""
    end: int
    """Physical offset after the last record."""
    records: int
    """Number of records."""
    stored_ms: int
    """Store timestamp of the last record."""
    queues: Collection[QueueCursor]
    """Those of the records, and perhaps others."""
    data: bytes | None
    """The records; None to read them from the log."""


def store_host_flag(host: bytes) -> int:
    """Return the sysFlag bit for an IPv6 store host, or 0."""
    return MessageSysFlag.STORE_HOST_V6 if len(host) == 20 else 0


def with_hosts(sys_flag: int, size: int, born_host: bytes, store_flag: int) -> tuple[int, int]:
    """Return sysFlag and size of a record with these hosts. Raises MessageInvalid."""
    if len(born_host) == 20:
        sys_flag |= MessageSysFlag.BORN_HOST_V6
        size += V6_EXTRA_BYTES
    elif len(born_host) != 8:
        raise MessageInvalid(f"born host of {len(born_host)} bytes; it must have 8 bytes (IPv4) or 20 (IPv6)")
    if store_flag:
        sys_flag |= store_flag
        size += V6_EXTRA_BYTES
    return sys_flag, size


def too_large(size: int, size_max: int, properties_bytes: int) -> MessageTooLarge:
    """Return the error for a record, or for properties, above a limit."""
    if properties_bytes > MAX_PROPERTIES_BYTES:
        return MessageTooLarge(f"properties of {properties_bytes} bytes; the limit is {MAX_PROPERTIES_BYTES}")
    return MessageTooLarge(f"record of {size} bytes; the limit is {size_max} (maxMessageSize)")


def peek_message(data: bytes) -> RecordView | None:
    """Parse the record at the start of `data`; return None if no message record starts there."""
    try:
        view = peek(data)
    except (RecordCorrupt, TornTail):
        return None
    return view if view.magic == MESSAGE_MAGIC else None


def timestamp_in(start: bytes | None) -> int:
    """Return the store timestamp (ms) in the first bytes of a record; -1 for None."""
    if start is None:
        return -1
    sys_flag, timestamp = _TIMESTAMP.unpack_from(start)
    if sys_flag & MessageSysFlag.BORN_HOST_V6:
        _, timestamp = _TIMESTAMP.unpack_from(start, V6_EXTRA_BYTES)
    return int(timestamp)
