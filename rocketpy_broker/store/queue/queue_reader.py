"""Reads messages by queue offset, and finds queue offsets by store time.

Source: RocketMQ DefaultMessageStore getMessage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import IntEnum

from rocketpy.errors import RecordCorrupt, StoreDamaged, TornTail
from rocketpy.protocol.message.record import FIXED_BYTES, MESSAGE_MAGIC, head_fields, peek
from rocketpy_broker.store.config import ReadConfig
from rocketpy_broker.store.log.message_log import MessageLog
from rocketpy_broker.store.queue.clock_steps import ClockStep
from rocketpy_broker.store.queue.consume_queue import BLANK_SIZE, UNIT, UNIT_BYTES, ConsumeQueue

Accepts = Callable[[bytes], bool]
"""Returns whether a filter accepts a message with these properties (UTF-8, as stored)."""

_RECORD_IDENTITY = head_fields("size", "magic", "queue_id", "queue_offset", "physical_offset")
_SCANNED_MIN = 16_000 // UNIT_BYTES
_SCANNED_MAX = 1024
"""Java's clients request at most this many messages in one pull. 4.6.0 stops only at the end of the file."""
_READ_BYTES_MAX = 1 << 20
_SPAN_BYTES_MAX = 1 << 18


class GetMessageStatus(IntEnum):
    """The result of a read; names and order are RocketMQ's."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8


@dataclass(slots=True)
class GetMessageResult:
    """The messages that a read found."""

    status: GetMessageStatus
    next_begin_offset: int
    """Queue offset for the next read."""
    min_offset: int
    """The first offset of the queue."""
    max_offset: int
    """The offset after the last message of the queue."""
    chunks: list[bytes] = field(default_factory=list)
    """Whole records, in order; together they are the body of the response."""
    count: int = 0
    suggest_slave: bool = False
    """Whether the messages are so far before the end of the log that a slave should serve the next pull."""


class QueueReader:
    """Reads from one store's queues."""

    def __init__(self, log: MessageLog, config: ReadConfig) -> None:
        self._log = log
        self._config = config

    def read(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        count_max: int,
        bytes_max: int | None,
        tag_codes: AbstractSet[int] | None,
        accepts: Accepts | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> GetMessageResult:
        """Return the messages of `queue` from `offset` on; see `MessageStore.get_message`."""
        if queue is None or queue.next_offset == 0:
            return self._empty_result(GetMessageStatus.NO_MESSAGE_IN_QUEUE, queue, 0)
        if offset < queue.min_offset:
            return self._empty_result(GetMessageStatus.OFFSET_TOO_SMALL, queue, queue.min_offset)
        if offset == queue.next_offset:
            return self._empty_result(GetMessageStatus.OFFSET_OVERFLOW_ONE, queue, offset)
        if offset > queue.next_offset:
            to = queue.next_offset if queue.min_offset else 0
            return self._empty_result(GetMessageStatus.OFFSET_OVERFLOW_BADLY, queue, to)
        return self._read_units(queue, offset, max(count_max, 0), bytes_max, tag_codes, accepts, is_over)

    def _empty_result(
        self, status: GetMessageStatus, queue: ConsumeQueue | None, next_offset: int
    ) -> GetMessageResult:
        if queue is None:
            return GetMessageResult(status, next_offset, 0, 0)
        return GetMessageResult(status, next_offset, queue.min_offset, queue.next_offset)

    def _read_units(  # one loop, for speed
        self,
        queue: ConsumeQueue,
        offset: int,
        count_max: int,
        bytes_max: int | None,
        tag_codes: AbstractSet[int] | None,
        accepts: Accepts | None,
        is_over: Callable[[], bool] | None,
    ) -> GetMessageResult:
        """Return the messages of the units of one file, from queue offset `offset` on.

        It scans 800 units, or `count_max` if that is higher, as 4.6.0 does. The maximum is 1024, or the count
        limits of `ReadConfig` if they are higher, since the scan blocks other requests. It ends before a
        damaged record or unit. Raises StoreDamaged only if the first one is damaged, so that its offset is
        the requested one, which an operator has to skip.
        """
        config = self._config
        scanned_max = max(_SCANNED_MAX, config.memory_count_max, config.disk_count_max)
        scanned = min(max(_SCANNED_MIN, count_max), scanned_max)
        is_filtered = tag_codes is not None or accepts is not None
        units = queue.read_units(offset, scanned if is_filtered else min(scanned, count_max + 1))
        if not units:
            next_start = queue.roll_next_file(offset)
            return self._empty_result(GetMessageStatus.OFFSET_FOUND_NULL, queue, next_start)
        if not is_filtered:
            plain = self._read_plain(queue, offset, units, count_max, bytes_max)
            if plain is not None:
                return plain
        batch = _Batch(config, count_max, bytes_max)
        status = GetMessageStatus.NO_MATCHED_MESSAGE
        log_end, memory_window = self._log.max_offset, config.memory_window_bytes
        skip_until = -1
        has_asked = False
        position = physical = 0
        for position, (physical, size, tags_code) in enumerate(UNIT.iter_unpack(units)):
            if physical < skip_until:
                continue
            if batch.is_full(size, on_disk=log_end - physical > memory_window):
                break
            if tag_codes is not None and tags_code not in tag_codes:
                continue
            if not self._is_in_log(physical, size, log_end):
                # A blank unit has no message; the units after it may point to any file.
                is_gap = size == BLANK_SIZE
                if physical >= self._log.min_offset and not is_gap:
                    if position:
                        break
                    raise _damaged(queue, physical, size)
                if not batch.count:
                    status = GetMessageStatus.MESSAGE_WAS_REMOVING
                if not is_gap:
                    skip_until = self._log.roll_next_file(physical)
                continue
            if accepts is not None:
                if has_asked and is_over is not None and is_over():
                    break
                has_asked = True
                properties = self._properties(physical, size)
                if properties is None:
                    if position:
                        break
                    raise _damaged(queue, physical, size)
                if not accepts(properties):
                    continue
            batch.add(physical, size, offset + position)
            status = GetMessageStatus.FOUND
            skip_until = -1
        else:
            position += 1
        chunks = self._read_ranges(batch.ranges)
        damaged = _first_damaged(queue, chunks, batch)
        if damaged is not None:
            start, size, number = batch.records[0]
            if not damaged and number == offset:
                raise _damaged(queue, start, size)
            if not damaged:
                return self._empty_result(GetMessageStatus.NO_MATCHED_MESSAGE, queue, number)
            return self._read_units(queue, offset, damaged, bytes_max, tag_codes, accepts, is_over)
        return GetMessageResult(
            status if chunks or not batch.count else GetMessageStatus.MESSAGE_WAS_REMOVING,
            offset + position,
            queue.min_offset,
            queue.next_offset,
            chunks,
            batch.count,
            log_end - physical > memory_window,
        )

    def _read_plain(
        self, queue: ConsumeQueue, offset: int, units: bytes, count_max: int, bytes_max: int | None
    ) -> GetMessageResult | None:
        """Read unfiltered messages that are close together and near the end of the log, with one disk read.

        Returns None if they are not, or if a record does not match its unit; then `_read_units` is used.
        """
        config, log = self._config, self._log
        parsed = list(UNIT.iter_unpack(units))[: min(max(count_max, 1), config.memory_count_max)]
        begin, _, _ = parsed[0]
        last, last_size, _ = parsed[-1]
        end = last + last_size
        file_bytes, log_end = log.files.file_bytes, log.max_offset
        is_near = 0 < end - begin <= _SPAN_BYTES_MAX and log_end - begin <= config.memory_window_bytes
        if not (is_near and log.min_offset <= begin and end <= log_end):
            return None
        if begin // file_bytes != (end - 1) // file_bytes:
            return None
        data = log.read(begin, end - begin)
        if data is None or len(data) != end - begin:
            return None
        room = config.memory_bytes_max if bytes_max is None else min(bytes_max, config.memory_bytes_max)
        chunks: list[bytes] = []
        count = total = run_begin = run_end = 0
        queue_id, unpack_identity = queue.queue_id, _RECORD_IDENTITY.unpack_from
        for number, (physical, size, _) in enumerate(parsed, offset):
            at = physical - begin
            is_inside = at >= 0 and size >= FIXED_BYTES and at + size <= len(data)
            if not is_inside or unpack_identity(data, at) != (
                size,
                MESSAGE_MAGIC,
                queue_id,
                number,
                physical,
            ):
                return None
            if total + size > room and count:
                break
            if at != run_end:
                chunks.append(data[run_begin:run_end])
                run_begin = at
            run_end = at + size
            total += size
            count += 1
        chunks.append(data[run_begin:run_end])
        return GetMessageResult(
            GetMessageStatus.FOUND,
            offset + count,
            queue.min_offset,
            queue.next_offset,
            chunks,
            count,
        )

    def _is_in_log(self, physical: int, size: int, log_end: int) -> bool:
        """Whether a record of `size` bytes can be at this offset of the log."""
        file_bytes = self._log.files.file_bytes
        return (
            self._log.min_offset <= physical
            and size >= FIXED_BYTES
            and physical + size <= log_end
            and physical % file_bytes + size <= file_bytes  # false for a blank unit
        )

    def _properties(self, physical: int, size: int) -> bytes | None:
        """Return the properties of a record; None if no record can be parsed there."""
        record = self._log.read(physical, size)
        try:
            return peek(record).properties if record is not None else None
        except (RecordCorrupt, TornTail):
            return None

    def _read_ranges(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        chunks = []
        for start, end in ranges:
            data = self._log.read(start, end - start)
            if data is None or len(data) != end - start:
                return []
            chunks.append(data)
        return chunks


class _Batch:
    """The records of one read."""

    __slots__ = ("_bytes_max", "_config", "_count_max", "bytes", "count", "ranges", "records")

    def __init__(self, config: ReadConfig, count_max: int, bytes_max: int | None) -> None:
        self._config = config
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.ranges: list[tuple[int, int]] = []
        """[start, end) in the log, one for contiguous records."""
        self.records: list[tuple[int, int, int]] = []
        self.bytes = 0
        self.count = 0

    def is_full(self, size: int, *, on_disk: bool) -> bool:
        """Whether there is no room for a record of this size. The first always fits."""
        if self.count == 0:
            return False
        config = self._config
        bytes_max = config.disk_bytes_max if on_disk else config.memory_bytes_max
        if self._bytes_max is not None:
            bytes_max = min(bytes_max, self._bytes_max)
        count_max = config.disk_count_max if on_disk else config.memory_count_max
        return self.count >= min(count_max, self._count_max) or self.bytes + size > bytes_max

    def add(self, start: int, size: int, number: int) -> None:
        """Add a record. number: its queue offset."""
        begin, end = self.ranges[-1] if self.ranges else (-1, -1)
        if end == start and end - begin < _READ_BYTES_MAX:
            self.ranges[-1] = begin, start + size
        else:
            self.ranges.append((start, start + size))
        self.records.append((start, size, number))
        self.bytes += size
        self.count += 1


def _first_damaged(queue: ConsumeQueue, chunks: list[bytes], batch: _Batch) -> int | None:
    """Return the index of the first record that does not match its unit; None if all match.

    Consumers must get the messages before a damaged unit, and never bytes that are not a message.
    """
    index = 0
    for chunk in chunks:
        at = 0
        while at < len(chunk):
            start, size, number = batch.records[index]
            expected = (size, MESSAGE_MAGIC, queue.queue_id, number, start)
            if _RECORD_IDENTITY.unpack_from(chunk, at) != expected:
                return index
            at += size
            index += 1
    return None


def _damaged(queue: ConsumeQueue, start: int, size: int) -> StoreDamaged:
    return StoreDamaged(
        f"queue {queue.topic}/{queue.queue_id}: a unit points to {size} bytes at {start}, but the log has "
        f"no such record; to rebuild the queue, remove {queue.files.directory} and restart"
    )


def offset_by_time(
    queue: ConsumeQueue, log: MessageLog, timestamp: int, steps: Sequence[ClockStep] = ()
) -> int:
    """Return the queue offset of the first message stored at or after `timestamp` (ms).

    Returns the end of the queue if there is none, and its first offset if a record cannot be read. As in
    RocketMQ 5.1.1. 4.6.0 returns the message with the nearest store time, and any of several with an equal
    one, so a consumer would skip the others. The times of file writes are not used: a copy changes them.

    steps: where the store times of the log go back. Each part of the log before a step is searched by itself.
    """
    begin = 0
    for end, newest_ms in steps:
        if newest_ms >= timestamp:
            high = _from(queue, end)
            found = _search_part(queue, log, timestamp, _from(queue, begin), high)
            if found < high:
                return found
        begin = end
    return _search_part(queue, log, timestamp, _from(queue, begin), queue.next_offset)


def last_offset_by_time(
    queue: ConsumeQueue, log: MessageLog, timestamp: int, steps: Sequence[ClockStep]
) -> int:
    """Return the queue offset of the last message stored at or before `timestamp` (ms); see `offset_by_time`.

    Returns the first offset of the queue if there is none.
    """
    high = queue.next_offset
    for begin in (*(offset for offset, _ in reversed(steps)), 0):
        low = _from(queue, begin)
        after = _search_part(queue, log, timestamp + 1, low, high)
        if after > low:
            return after - 1
        high = low
    return queue.min_offset


def _from(queue: ConsumeQueue, physical_offset: int) -> int:
    """Return the queue offset of the first message at or after an offset of the log."""
    return _first(queue, lambda offset: offset >= physical_offset) if physical_offset else queue.min_offset


def _search_part(queue: ConsumeQueue, log: MessageLog, timestamp: int, low: int, high: int) -> int:
    """Search offsets from `low` to before `high`, whose store times increase."""
    is_readable = True

    def is_wanted(offset: int) -> bool:
        nonlocal is_readable
        time = log.store_timestamp(offset)
        is_readable = is_readable and time >= 0
        return time >= timestamp

    found = _first(queue, lambda offset: offset >= log.min_offset and is_wanted(offset), low, high)
    return found if is_readable else queue.min_offset


def _first(
    queue: ConsumeQueue, is_wanted: Callable[[int], bool], low: int | None = None, high: int | None = None
) -> int:
    """Return the first queue offset whose message is wanted, and all after it; `high` without one.

    is_wanted: of the physical offset of a message. low, high: part of the queue; None for its bounds. A gap
    counts as the message after it.
    """
    low = queue.min_offset if low is None else low
    high = queue.next_offset if high is None else high
    while low < high:
        middle = last = (low + high) // 2
        while (unit := queue.unit(last)) is not None and unit.size == BLANK_SIZE and last < high - 1:
            last += 1
        if unit is not None and (unit.size == BLANK_SIZE or is_wanted(unit.physical_offset)):
            high = middle
        else:
            low = last + 1
    return low
