"""Reads from records of the log what consume queues and index need: a pure function of their bytes.

RocketMQ calls the result for one record DispatchRequest. Here it covers many records, with few objects: the
live dispatch, recovery and slaves read runs of records, and no object exists for each message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple
from zlib import crc32

from rocketpy.native import has_native_form
from rocketpy.protocol.java import utf8_hash
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy.protocol.message.properties import (
    MAX_PROPERTIES_BYTES,
    PROPERTY_DELAY_TIME_LEVEL,
    find,
)
from rocketpy.protocol.message.record import (
    FIXED_BYTES,
    HEAD_BYTES,
    MAX_TOPIC_BYTES,
    MESSAGE_MAGIC,
    V6_EXTRA_BYTES,
    RecordView,
    head_fields,
)
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.store.index.index_file import ROW
from rocketpy_broker.store.index.index_hash import key_hashes
from rocketpy_broker.store.log.messages import NOT_IN_QUEUE
from rocketpy_broker.store.queue.consume_queue import UNIT

_HEAD: Final = head_fields(
    "size", "magic", "body_crc", "queue_id", "queue_offset", "physical_offset", "sys_flag", "store_timestamp",
    "body_length",
)  # fmt: skip
_TIME: Final = head_fields("store_timestamp")
_CRC_MASK: Final = 0x7FFFFFFF
_SPECIAL: Final = NOT_IN_QUEUE | MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6
_ROLLBACK: Final = MessageSysFlag.TRANSACTION_ROLLBACK
_BORN_V6: Final = MessageSysFlag.BORN_HOST_V6
_STORE_V6: Final = MessageSysFlag.STORE_HOST_V6
_find_fields: Final = re.compile(rb"\x02(TAGS|KEYS|UNIQ_KEY)\x01([^\x01\x02]+)\x01*(?=\x02)").findall
_DELAY: Final = PROPERTY_DELAY_TIME_LEVEL.encode()
_SCHEDULE_TOPIC: Final = SCHEDULE_TOPIC.encode()
WITHOUT_LIMIT: Final = (1 << 63) - 1

"""What `Accept` returns for all further records of a queue."""

Accept = Callable[[bytes, int, int, int], int]
"""Called with topic, queue id, queue offset and end of a record. Returns the end of the last record that may
be in the same `Units`; less than the record's end to stop before the record."""

Units = tuple[bytes, int, int, int, int, int, bytes]
"""Consecutive units of one queue: topic, queue id, first queue offset, physical offset of the first record,
end of the last one, bytes of their records, and the units as a consume queue has them."""


class LogFields(NamedTuple):
    """The fields of consecutive records."""

    position: int
    """Of the first record that was not read."""
    records: int
    """Number of records."""
    begin: int
    """Physical offset of the first record."""
    end: int
    """Physical offset after the last record."""
    first_ms: int
    """Store timestamp of the first record; the fields from `begin` to `last_ms` are 0 without records."""
    last_ms: int
    """Store timestamp of the last record."""
    steps: list[tuple[int, int, int]]
    """Records with a lower store timestamp than the one before: physical offset, timestamp of the one before,
    own timestamp."""
    queues: list[Units]
    """In the order of their first records."""
    rows: bytes
    """For the index; see `IndexService.put`."""


@has_native_form
def read_log_fields(
    data: bytes, at: int, base: int, check_crc: bool, delays_ms: list[int], accept: Accept | None
) -> tuple[int, int, int, int, int, int, list[tuple[int, int, int]], list[Units], bytes]:
    """Read the fields of whole records from position `at` on; return the values of a `LogFields`.

    Reading stops at a record that is damaged, incomplete, or that has a NUL in its topic or properties.

    base: physical offset of the first byte of `data`, for a check; -1 for records that come from different
    places of the log. With a base, reading also stops at a record that enters no queue. check_crc: also check
    the bodies. delays_ms: of the delay levels. accept: called for each new `Units`; None accepts all.
    """
    position, count, begin, end, first_ms, last_ms = at, 0, 0, 0, 0, 0
    steps: list[tuple[int, int, int]] = []
    queues: dict[tuple[bytes, int], _Queue] = {}
    opened: list[_Queue] = []
    indexed: list[Any] = []
    unpack, pack_unit, stop = _HEAD.unpack_from, UNIT.pack, len(data)
    topic_field, topic_bytes, topic, topic_hash = b"\0", 1, b"", 0
    while stop - position >= FIXED_BYTES:
        size, magic, crc, queue_id, queue_offset, offset, sys_flag, time, body_bytes = unpack(data, position)
        body_at = position + HEAD_BYTES
        if sys_flag & _SPECIAL:
            if base >= 0 and sys_flag & NOT_IN_QUEUE:
                break
            born_extra = V6_EXTRA_BYTES if sys_flag & _BORN_V6 else 0
            body_at += born_extra + (V6_EXTRA_BYTES if sys_flag & _STORE_V6 else 0)
            if stop - body_at < FIXED_BYTES - HEAD_BYTES:
                break
            (time,) = _TIME.unpack_from(data, position + born_extra)
            body_bytes = int.from_bytes(data[body_at - 4 : body_at], "big", signed=True)
        topic_at, following, record_end = body_at + body_bytes, position + size, offset + size
        if (
            magic != MESSAGE_MAGIC
            or (base >= 0 and offset != base + position)
            or body_bytes < 0
            or not topic_at + 3 <= following <= stop
            or queue_id < 0
            or (check_crc and crc32(data[body_at:topic_at]) & _CRC_MASK != crc)
        ):
            break
        tail = data[topic_at:following]
        if not topic or not tail.startswith(topic_field):
            topic = tail[1 : tail[0] + 1]
            if len(topic) != tail[0] or not 0 < len(topic) <= MAX_TOPIC_BYTES or b"\0" in topic:
                break
            topic_field, topic_bytes, topic_hash = tail[: len(topic) + 1], len(topic) + 1, _topic_hash(topic)
        properties = tail[topic_bytes + 2 :]
        length = int.from_bytes(tail[topic_bytes : topic_bytes + 2], "big")
        is_whole = len(tail) == topic_bytes + 2 + length
        if not is_whole or length > MAX_PROPERTIES_BYTES or b"\0" in properties:
            break
        tags, keys, unique_key = index_fields(properties)
        if not sys_flag & NOT_IN_QUEUE:
            queue = queues.get((topic, queue_id))
            if queue is None or queue_offset != queue.next_offset or record_end > queue.until:
                until = WITHOUT_LIMIT if accept is None else accept(topic, queue_id, queue_offset, record_end)
                if until < record_end:
                    break
                queue = queues[topic, queue_id] = _Queue(topic, queue_id, queue_offset, offset, until)
                opened.append(queue)
            is_delayed = topic == _SCHEDULE_TOPIC
            code = _tags_code(topic, tags, properties, time, delays_ms) if is_delayed else _utf8_hash(tags)
            queue.units.append(pack_unit(offset, size, code))
            queue.next_offset += 1
            queue.end = record_end
            queue.size += size
        if (unique_key or keys) and sys_flag & _ROLLBACK != _ROLLBACK:
            if unique_key:
                indexed += (topic_hash, unique_key, offset, time)
            for key in keys.split(b" ") if keys else ():
                if key:
                    indexed += (topic_hash, key, offset, time)
        if not count:
            begin, first_ms = offset, time
        elif time < last_ms:
            steps.append((offset, last_ms, time))
        position, count, end, last_ms = following, count + 1, record_end, time
    units = [queue.result() for queue in opened]
    return position, count, begin, end, first_ms, last_ms, steps, units, _rows(indexed)


def _rows(indexed: list[Any]) -> bytes:
    """Return rows of the index.

    indexed: for each key the hash of `topic#`, the key, and offset and time (ms) of its record, in one flat
    list, since the garbage collector would visit many tuples.
    """
    hashes = key_hashes(indexed[::4], indexed[1::4])
    return b"".join(map(ROW.pack, hashes, indexed[2::4], indexed[3::4]))


class _Queue:
    """Collects the units of a queue."""

    __slots__ = ("begin", "end", "first", "next_offset", "queue_id", "size", "topic", "units", "until")

    def __init__(self, topic: bytes, queue_id: int, first: int, begin: int, until: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.first = self.next_offset = first
        self.begin = self.end = begin
        self.size = 0
        self.units: list[bytes] = []
        self.until = until

    def result(self) -> Units:
        """Return the collected units."""
        return self.topic, self.queue_id, self.first, self.begin, self.end, self.size, b"".join(self.units)


def fields_of(view: RecordView, delays_ms: list[int]) -> LogFields:
    """Return the fields of one record, which was checked field by field."""
    topic, offset, time = view.topic.encode(), view.physical_offset, view.store_timestamp
    end = offset + view.size
    tags, keys, unique_key = index_fields(view.properties)
    queues: list[Units] = []
    if not view.sys_flag & NOT_IN_QUEUE:
        code = _tags_code(topic, tags, view.properties, time, delays_ms)
        unit = UNIT.pack(offset, view.size, code)
        queues.append((topic, view.queue_id, view.queue_offset, offset, end, view.size, unit))
    rows = b""
    if view.sys_flag & _ROLLBACK != _ROLLBACK:
        topic_hash = _topic_hash(topic)
        present = [key for key in (unique_key, *keys.split(b" ")) if key]
        rows = _rows([value for key in present for value in (topic_hash, key, offset, time)])
    return LogFields(view.size, 1, offset, end, time, time, [], queues, rows)


def tags_code_of(view: RecordView, delays_ms: Sequence[int]) -> int:
    """Return the tags code that the unit of a record must have."""
    tags, _, _ = index_fields(view.properties)
    return _tags_code(view.topic.encode(), tags, view.properties, view.store_timestamp, delays_ms)


@lru_cache(maxsize=32_768)  # more than maxTopics: with thousands of topics, each record is of another one
def _topic_hash(topic: bytes) -> int:
    return utf8_hash(topic + b"#")


_utf8_hash = lru_cache(maxsize=4096)(utf8_hash)


def _tags_code(topic: bytes, tags: bytes, properties: bytes, timestamp: int, delays_ms: Sequence[int]) -> int:
    """Return the tags code of a unit: Java's hash of the tags, or the due time (ms) if delayed."""
    if topic == _SCHEDULE_TOPIC:
        level = _level(find(properties, _DELAY))
        if level > 0 and delays_ms:
            return timestamp + delays_ms[min(level, len(delays_ms)) - 1]
    return _utf8_hash(tags)


def _level(text: bytes | None) -> int:
    try:
        return int(text) if text else 0
    except ValueError:
        return 0


def index_fields(properties: bytes) -> tuple[bytes, bytes, bytes]:
    """Return TAGS, KEYS and UNIQ_KEY, empty when missing. Malformed pieces are skipped, as in `decode`."""
    tags = keys = unique_key = b""
    for name, value in _find_fields(b"\x02%b\x02" % properties):
        if name == b"TAGS":
            tags = value
        elif name == b"KEYS":
            keys = value
        else:
            unique_key = value
    return tags, keys, unique_key
