"""The reading half of the message store: messages by queue, offset, time and key."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final

from rocketpy.errors import StoreError
from rocketpy.protocol.message.delays import DelayLevels
from rocketpy.protocol.message.record import decode, is_intact
from rocketpy_broker.store.config import StoreConfig
from rocketpy_broker.store.files.disk import Clock, Disk
from rocketpy_broker.store.index.index_service import IndexService
from rocketpy_broker.store.log.message_log import MessageLog
from rocketpy_broker.store.log.messages import QueueTable
from rocketpy_broker.store.queue.clock_steps import ClockSteps
from rocketpy_broker.store.queue.consume_queue import UNIT, ConsumeQueue, QueueUnit
from rocketpy_broker.store.queue.dispatch import Dispatcher
from rocketpy_broker.store.queue.property_fields import index_fields
from rocketpy_broker.store.queue.queue_reader import (
    Accepts,
    GetMessageResult,
    QueryMessageResult,
    QueueReader,
    last_offset_by_time,
    offset_by_time,
)
from rocketpy_broker.store.queue.queue_table import ConsumeQueueTable
from rocketpy_broker.store.stats import StoreStats

_OTHER_KEYS_MAX: Final = 4096
"""How many records of other keys a query reads: the event loop waits for it."""

MakeLog = Callable[[StoreConfig, QueueTable, Clock, Disk], MessageLog]


class StoreReads:
    """The reading half of a `MessageStore`."""

    def __init__(self, config: StoreConfig, make_log: MakeLog, clock: Clock, disk: Disk) -> None:
        self.config = config
        self.clock = clock
        self.disk = disk
        self.table = QueueTable()
        self.commit_log = make_log(config, self.table, clock, disk)
        self.queues = ConsumeQueueTable(disk, config.consume_queue_directory, config.consume_queue)
        self.index = (
            IndexService(disk, config.index_directory, config.index, clock) if config.index.enabled else None
        )
        self.dispatcher = Dispatcher(
            self.queues,
            self.index,
            DelayLevels(config.delay_levels),
            ClockSteps(disk, config.root / "clocksteps"),
        )
        self.stats = StoreStats()
        self._reader = QueueReader(self.commit_log, config.read)

    def dispatch(self) -> int:
        """Add the written records to consume queues and index. Raises DiskFull, StoreError."""
        raise NotImplementedError

    # -- reading by queue ------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Dispatch waiting records, so that a reader sees all written messages.

        An error is ignored: queues can still be read, and the next `dispatch` tries again and raises it.
        """
        if self.dispatcher.waiting and not self.dispatcher.is_stuck:
            with contextlib.suppress(StoreError):
                self.dispatch()

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, after dispatching waiting records; None if it does not exist."""
        self._catch_up()
        return self.queues.queues.get((topic, queue_id))

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        *,
        max_bytes: int | None = None,
        tag_codes: AbstractSet[int] | None = None,
        accepts: Accepts | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> GetMessageResult:
        """Return the messages of a queue from queue offset `offset` on, as whole records.

        max_count, max_bytes: limits in addition to those of `ReadConfig`; the first message is always
        returned. tag_codes: return only messages with one of these tags codes. accepts: return only messages
        whose properties it accepts. is_over: called before each call of `accepts` but the first; True ends
        the read there. At most 1024 units are scanned, or the limits of `ReadConfig` if they are higher.
        Raises StoreError when the disk cannot be read.
        """
        queue = self._queue(topic, queue_id)
        result = self._reader.read(queue, offset, max_count, max_bytes, tag_codes, accepts, is_over)
        self.stats.count_read(result.count)
        return result

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Return (physical offset, size, tags code) of up to `count` messages of a queue from `offset` on.

        The result ends at the end of a queue file. It is empty for an offset outside the queue. Raises
        StoreError when the disk cannot be read.
        """
        queue = self._queue(topic, queue_id)
        data = queue.read_units(offset, count) if queue is not None else None
        return list(UNIT.iter_unpack(data)) if data else []

    def appended_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last message, dispatched or not; 0 for an unknown queue."""
        cursor = self.table.get((topic, queue_id))
        return cursor.next_offset if cursor is not None else 0

    def max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last readable message; 0 for an unknown queue."""
        queue = self._queue(topic, queue_id)
        return queue.next_offset if queue is not None else 0

    def min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the first readable message; 0 for an unknown queue, as in 4.6.0."""
        queue = self._queue(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        """Return the offset of the first message of a queue stored at or after a time (ms).

        Returns the end of the queue if there is none, and 0 for an unknown queue.
        """
        queue = self._queue(topic, queue_id)
        steps = self.dispatcher.clock.steps
        return offset_by_time(queue, self.commit_log, timestamp, steps) if queue is not None else 0

    def last_offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        """Return the offset of the last message of a queue stored at or before a time (ms).

        Returns the first offset of the queue if there is none, and 0 for an unknown queue.
        """
        queue = self._queue(topic, queue_id)
        steps = self.dispatcher.clock.steps
        return last_offset_by_time(queue, self.commit_log, timestamp, steps) if queue is not None else 0

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store timestamp (ms) of a message; -1 if it does not exist."""
        unit = self._unit(topic, queue_id, offset)
        return self.commit_log.store_timestamp(unit.physical_offset) if unit is not None else -1

    def earliest_store_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Return the store timestamp (ms) of the oldest message of the store or a queue; -1 without one."""
        if topic is not None:
            return self.store_timestamp(topic, queue_id, self.min_offset_in_queue(topic, queue_id))
        return self.commit_log.store_timestamp(self.commit_log.first_offset)

    def physical_offset(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the commit log offset of a message; 0 if it does not exist, as in 4.6.0."""
        unit = self._unit(topic, queue_id, offset)
        return unit.physical_offset if unit is not None else 0

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a message is within `memory_window_bytes` of the end of the log; True if it does not exist.

        Source: RocketMQ checkInDiskByConsumeOffset, negated.
        """
        unit = self._unit(topic, queue_id, offset)
        window = self.config.read.memory_window_bytes
        return unit is None or self.commit_log.max_offset - unit.physical_offset <= window

    def _unit(self, topic: str, queue_id: int, offset: int) -> QueueUnit | None:
        queue: ConsumeQueue | None = self._queue(topic, queue_id)
        return queue.unit(offset) if queue is not None else None

    # -- reading by physical offset and key ------------------------------------------------------

    @property
    def min_physical_offset(self) -> int:
        """Start offset of the commit log."""
        return self.commit_log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """End offset of the commit log."""
        return self.commit_log.max_offset

    @property
    def dispatch_behind_bytes(self) -> int:
        """Number of bytes by which consume queues and index are behind the commit log."""
        return max(0, self.commit_log.max_offset - self.dispatcher.offset)

    def look_message(self, physical_offset: int, size: int | None = None) -> bytes | None:
        """Return the record at this commit log offset; None if no record starts there.

        size: of the record, if the caller knows it. Offset 0 means the oldest record if the log starts later
        (QUIRKS 36).
        """
        record = self.commit_log.read_record(physical_offset, size)
        expected = physical_offset or self.commit_log.first_offset
        return record if record is not None and is_intact(record, expected) else None

    def read_log(self, physical_offset: int, size: int) -> bytes | None:
        """Return bytes of one commit log file, which may start and end inside records; for replication."""
        return self.commit_log.files.read(physical_offset, size)

    def query_message(self, topic: str, key: str, max_count: int, begin: int, end: int) -> QueryMessageResult:
        """Return the newest records with a key that were stored in [begin, end] (ms), oldest first.

        At most `max_count` and maxMsgsNumBatch. The result is empty if the index is switched off. Differs:
        4.6.0 counts and returns records of other keys with the same hash, which could hide the others. Here,
        4,096 of them end the search.
        """
        if self.index is None:
            return QueryMessageResult([], 0, 0)
        self._catch_up()
        count = min(max_count, self.config.index.query_count_max)
        records: dict[int, bytes] = {}
        others = 0
        for offset in self.index.find(topic, key, begin, end) if count > 0 else ():
            if not begin <= self.commit_log.store_timestamp(offset) <= end:
                continue
            record = self.look_message(offset)
            if record is None:
                continue
            if _has_key(record, topic, key):
                records[offset] = record
            else:
                others += 1
            if len(records) == count or others == _OTHER_KEYS_MAX:
                break
        return QueryMessageResult([records[offset] for offset in sorted(records)], *self.index.newest)


def _has_key(data: bytes, topic: str, key: str) -> bool:
    record = decode(data, check_crc=False)
    _, keys, unique_key = index_fields(record.properties)
    wanted = key.encode()
    return record.topic == topic and (unique_key == wanted or wanted in keys.split(b" "))
