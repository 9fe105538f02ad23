"""Reads messages by queue offset, and finds queue offsets by store time.

Source: RocketMQ DefaultMessageStore getMessage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import NamedTuple

import msgspec

from rocketpy.errors import RecordCorrupt, StoreDamaged, TornTail
from rocketpy.protocol.message.record import peek
from rocketpy_broker.store.config import ReadConfig
from rocketpy_broker.store.log.message_log import MessageLog
from rocketpy_broker.store.queue.clock_steps import ClockStep
from rocketpy_broker.store.queue.consume_queue import BLANK_SIZE, UNIT, UNIT_BYTES, ConsumeQueue
from rocketpy_broker.store.queue.unit_scan import LogRange, select_units, take_records

Accepts = Callable[[bytes], bool]
"""Returns whether a filter accepts a message with these properties (UTF-8, as stored)."""

_SCANNED_MIN = 16_000 // UNIT_BYTES
_SCANNED_MAX = 1024
"""Java's clients request at most this many messages in one pull. 4.6.0 stops only at the end of the file."""


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


class GetMessageResult(msgspec.Struct):
    """The messages that a read found."""

    status: GetMessageStatus
    next_begin_offset: int
    """Queue offset for the next read."""
    min_offset: int
    """The first offset of the queue."""
    max_offset: int
    """The offset after the last message of the queue."""
    count: int = 0
    """Number of messages."""
    suggest_slave: bool = False
    """Whether the messages are so far before the end of the log that a slave should serve the next pull."""
    body: bytes = b""
    """Whole records, in order: the body of the response."""


class Located(NamedTuple):
    """Where the messages of a read are."""

    result: GetMessageResult
    """Without body."""
    units: bytes = b""
    """Units of the queue, from the offset of the read on."""
    selected: Sequence[int] = ()
    """Indexes of the messages' units."""
    ranges: Sequence[LogRange] = ()
    """The parts of the log that have the messages."""


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
        """Return the messages of `queue` from `offset` on; see `MessageStore.get_message`.

        The messages end before a damaged record or unit. Raises StoreDamaged only if the first one is
        damaged, so that its offset is the requested one, which an operator has to skip.
        """
        located = self.locate(queue, offset, count_max, bytes_max, tag_codes, accepts, is_over)
        if located.ranges and queue is not None:
            self._load(queue, offset, located)
        return located.result

    def locate(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        count_max: int,
        bytes_max: int | None = None,
        tag_codes: AbstractSet[int] | None = None,
        accepts: Accepts | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> Located:
        """Return where the messages are that `read` returns. Their records are not checked.

        It examines 800 units of one file, or `count_max` if that is higher, as 4.6.0 does. The maximum is
        1024, or the count limits of `ReadConfig` if they are higher, since this blocks other requests. Raises
        StoreDamaged if the first unit is damaged or missing.
        """
        if queue is None or queue.next_offset == 0:
            return _nothing(GetMessageStatus.NO_MESSAGE_IN_QUEUE, queue, 0)
        if offset < queue.min_offset:
            return _nothing(GetMessageStatus.OFFSET_TOO_SMALL, queue, queue.min_offset)
        if offset == queue.next_offset:
            return _nothing(GetMessageStatus.OFFSET_OVERFLOW_ONE, queue, offset)
        if offset > queue.next_offset:
            to = queue.next_offset if queue.min_offset else 0
            return _nothing(GetMessageStatus.OFFSET_OVERFLOW_BADLY, queue, to)
        config, log = self._config, self._log
        memory_max, disk_max = config.memory_count_max, config.disk_count_max
        count_max = max(count_max, 0)
        if tag_codes is None and accepts is None:  # one more, which may be the one that is on disk
            scanned = min(count_max, max(memory_max, disk_max)) + 1
        else:
            scanned = min(max(_SCANNED_MIN, count_max), max(_SCANNED_MAX, memory_max, disk_max))
        units = queue.read_units(offset, scanned)
        if units == b"":
            raise StoreDamaged(
                f"queue {queue.topic}/{queue.queue_id}: its file has no unit {offset}, as it became shorter; "
                f"to rebuild the queue, remove {queue.files.directory} and restart"
            )
        if units is None:
            return _nothing(GetMessageStatus.OFFSET_FOUND_NULL, queue, queue.roll_next_file(offset))
        memory_bytes, disk_bytes = config.memory_bytes_max, config.disk_bytes_max
        if bytes_max is not None:
            memory_bytes, disk_bytes = min(memory_bytes, bytes_max), min(disk_bytes, bytes_max)
        log_end = log.max_offset
        memory_begin = log_end - config.memory_window_bytes
        selected, ranges, examined, last, has_skipped = select_units(
            units,
            tag_codes,
            log.min_offset,
            log_end,
            log.files.file_bytes,
            memory_begin,
            (min(count_max, memory_max), memory_bytes),
            (min(count_max, disk_max), disk_bytes),
            None if accepts is None else self._accepts_record(accepts, is_over),
        )
        if not examined:
            raise _damaged(queue, *UNIT.unpack_from(units)[:2])
        status = GetMessageStatus.NO_MATCHED_MESSAGE
        if selected:
            status = GetMessageStatus.FOUND
        elif has_skipped:
            status = GetMessageStatus.MESSAGE_WAS_REMOVING
        result = GetMessageResult(
            status,
            offset + examined,
            queue.min_offset,
            queue.next_offset,
            len(selected),
            last < memory_begin,
        )
        return Located(result, units, selected, ranges)

    def _accepts_record(
        self, accepts: Accepts, is_over: Callable[[], bool] | None
    ) -> Callable[[int, int], bool | None]:
        """Return a function for `select_units` that applies a filter to the properties of a record."""
        has_asked = False

        def accepts_record(physical: int, size: int) -> bool | None:
            nonlocal has_asked
            if has_asked and is_over is not None and is_over():
                return None
            has_asked = True
            properties = self._properties(physical, size)
            return None if properties is None else accepts(properties)

        return accepts_record

    def _properties(self, physical: int, size: int) -> bytes | None:
        """Return the properties of a record; None if no record can be parsed there."""
        record = self._log.read(physical, size)
        try:
            return peek(record).properties if record is not None else None
        except (RecordCorrupt, TornTail):
            return None

    def _load(self, queue: ConsumeQueue, offset: int, located: Located) -> None:
        """Read the records into the result, which then ends before a damaged one. Raises StoreDamaged.

        Consumers must get the messages before a damaged unit, and never bytes that are not a message.
        """
        result, units, selected, ranges = located
        bodies: list[bytes] = []
        done = 0
        for begin, end, count in ranges:
            data = self._log.read(begin, end - begin) or b""
            of_range = selected[done : done + count]
            body, good = take_records(data, begin, units, of_range, queue.queue_id, offset)
            bodies.append(body)
            done += good
            if good < count:
                break
        result.body = b"".join(bodies)
        if done == result.count:
            return
        damaged = selected[done]
        if not damaged:
            raise _damaged(queue, *UNIT.unpack_from(units)[:2])
        result.count, result.next_begin_offset = done, offset + damaged
        if not done:
            result.status = GetMessageStatus.NO_MATCHED_MESSAGE


def _nothing(status: GetMessageStatus, queue: ConsumeQueue | None, next_offset: int) -> Located:
    if queue is None:
        return Located(GetMessageResult(status, next_offset, 0, 0))
    return Located(GetMessageResult(status, next_offset, queue.min_offset, queue.next_offset))


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
