"""The records that are like most, out of what a master sent: checked, in one loop.

A record is plain when its hosts are IPv4 and its queue is known. At anything else, a damaged record too, the
loop stops, and whoever called it looks at that record with all care.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from rocketpy.protocol.message.properties import MAX_PROPERTIES_BYTES
from rocketpy.protocol.message.record import MESSAGE_MAGIC
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.store.log.messages import DispatchRequest
from rocketpy_broker.store.log.queue_table import QueueCursor
from rocketpy_broker.store.recovery.bulk_scan import PLAIN_HEAD, PLAIN_HEAD_BYTES

_CRC_MASK: Final = 0x7FFFFFFF
_CARE: Final = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6


class PlainRecords:
    """Knows queues, and takes records of these."""

    def __init__(self) -> None:
        self._cursors: dict[tuple[bytes, int], QueueCursor] = {}

    def learn(self, cursor: QueueCursor) -> None:
        """Know a queue from now on; a record of it was looked at with care."""
        topic = cursor.topic_bytes
        self._cursors[bytes([len(topic)]) + topic, cursor.queue_id] = cursor

    def take(self, data: bytes, at: int, stop: int, base: int, requests: list[DispatchRequest]) -> int:
        """Take whole records from `data[at:stop]` on; returns where the first stands that was not taken.

        base: physical offset of the data's first byte. requests: theirs are appended.
        """
        unpack, cursor_of, append = PLAIN_HEAD.unpack_from, self._cursors.get, requests.append
        last = stop - PLAIN_HEAD_BYTES
        while at <= last:
            size, magic, crc, queue_id, queue_offset, offset, sys_flag, time, body_bytes = unpack(data, at)
            end = at + size
            body_at = at + PLAIN_HEAD_BYTES
            topic_at = body_at + body_bytes
            if (
                magic != MESSAGE_MAGIC
                or offset != base + at
                or sys_flag & _CARE
                or body_bytes < 0
                or not topic_at < end <= stop
                or crc32(data[body_at:topic_at]) & _CRC_MASK != crc
            ):
                break
            properties_at = topic_at + data[topic_at] + 3
            cursor = cursor_of((data[topic_at : properties_at - 2], queue_id))
            if cursor is None or properties_at > end:
                break
            length = data[properties_at - 2] << 8 | data[properties_at - 1]
            if properties_at + length != end or length > MAX_PROPERTIES_BYTES:
                break
            append((cursor, offset, size, time, queue_offset, sys_flag, data[properties_at:end]))
            at = end
        return at

    @staticmethod
    def skip(data: bytes, at: int, stop: int, base: int) -> tuple[int, int]:
        """`take` for records that are only to be written; returns the last one's store timestamp too, or 0.

        Topic and properties, which no checksum covers, are looked at when they are taken.
        """
        unpack = PLAIN_HEAD.unpack_from
        last, timestamp = stop - PLAIN_HEAD_BYTES, 0
        while at <= last:
            size, magic, crc, _, _, offset, sys_flag, time, body_bytes = unpack(data, at)
            end = at + size
            body_at = at + PLAIN_HEAD_BYTES
            topic_at = body_at + body_bytes
            if (
                magic != MESSAGE_MAGIC
                or offset != base + at
                or sys_flag & _CARE
                or body_bytes < 0
                or not topic_at < end <= stop
                or crc32(data[body_at:topic_at]) & _CRC_MASK != crc
            ):
                break
            at, timestamp = end, time
        return at, timestamp
