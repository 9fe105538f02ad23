"""The fast path that parses a buffer of records, for recovery and for slaves.

A record is plain if its hosts are IPv4, its queue is known, and its properties contain no NUL. The loop stops
at any other record, including a damaged one, which the caller checks field by field. The loop takes a third
of the time of calling `record.peek` for each record: see the recovery row of `tools.bench.store`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from zlib import crc32

from rocketpy.protocol.message.properties import MAX_PROPERTIES_BYTES
from rocketpy.protocol.message.record import HEAD_BYTES, MESSAGE_MAGIC, head_fields
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.store.log.messages import DispatchRequest, QueueCursor

_HEAD: Final = head_fields(
    "size", "magic", "body_crc", "queue_id", "queue_offset", "physical_offset", "sys_flag", "store_timestamp",
    "body_length",
)  # fmt: skip
_CRC_MASK: Final = 0x7FFFFFFF
_IPV6: Final = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6


class PlainRecords:
    """Parses plain records of known queues."""

    def __init__(self) -> None:
        self._cursors: dict[tuple[bytes, int], QueueCursor] = {}

    def add_queue(self, cursor: QueueCursor) -> None:
        """Add a queue to the known ones, after one of its records was checked field by field."""
        topic = cursor.topic_bytes
        self._cursors[bytes([len(topic)]) + topic, cursor.queue_id] = cursor

    def parse(
        self,
        data: bytes,
        at: int,
        stop: int,
        base: int,
        add: Callable[[DispatchRequest], bool | None] | None,
        *,
        check_crc: bool = True,
    ) -> tuple[int, int]:
        """Parse whole records in `data[at:stop]`.

        base: physical offset of the first byte of `data`. add: called with the dispatch request of each
        record; returns True to stop before that record. Without it, records of any queue are parsed, and only
        the fields before the topic are checked.

        Returns the position of the first record that was not parsed, and the store timestamp of the last
        parsed one, or 0.
        """
        unpack, cursor_of = _HEAD.unpack_from, self._cursors.get
        last, timestamp = stop - HEAD_BYTES, 0
        while at <= last:
            size, magic, crc, queue_id, queue_offset, offset, sys_flag, time, body_bytes = unpack(data, at)
            end = at + size
            body_at = at + HEAD_BYTES
            topic_at = body_at + body_bytes
            if (
                magic != MESSAGE_MAGIC
                or offset != base + at
                or sys_flag & _IPV6
                or body_bytes < 0
                or not topic_at < end <= stop
                or (check_crc and crc32(data[body_at:topic_at]) & _CRC_MASK != crc)
            ):
                break
            if add is not None:
                properties_at = topic_at + data[topic_at] + 3
                cursor = cursor_of((data[topic_at : properties_at - 2], queue_id))
                if cursor is None or properties_at > end:
                    break
                length = data[properties_at - 2] << 8 | data[properties_at - 1]
                properties = data[properties_at:end]
                if length != len(properties) or length > MAX_PROPERTIES_BYTES or b"\0" in properties:
                    break
                if add((cursor, offset, size, time, queue_offset, sys_flag, properties)):
                    break
            at, timestamp = end, time
        return at, timestamp
