"""Dispatches records of the commit log to consume queues and index, in log order.

RocketMQ reads the log again for this (ReputMessageService). Rocketpy takes the requests of the append, and
reads the log only in recovery. Consume queues and index lag behind the log by the requests that wait here.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rocketpy.errors import StoreError
from rocketpy.protocol.java import utf8_hash
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC, DelayLevels
from rocketpy.protocol.message.properties import PROPERTY_DELAY_TIME_LEVEL, find
from rocketpy.protocol.message.record import RecordView
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.store.config import ConsumeQueueConfig
from rocketpy_broker.store.files.disk import Disk, lacks_descriptors
from rocketpy_broker.store.index.index_service import IndexService
from rocketpy_broker.store.log.flush import FlushPlan
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.messages import (
    NOT_IN_QUEUE,
    DispatchRequest,
    QueueCursor,
    QueueTable,
    check_topic,
)
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue
from rocketpy_broker.store.queue.property_fields import PropertyFields, index_fields
from rocketpy_broker.store.queue.queue_checksums import FileChecksum

logger = logging.getLogger("rocketpy_broker.store.dispatch")

ArrivalListener = Callable[[str, int, int], None]
"""Called with (topic, queue id, next queue offset) once a queue has new messages that can be read."""

_DELAY = PROPERTY_DELAY_TIME_LEVEL.encode()
_ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK
_TAG_CODES_MAX = 4096
CHECKSUM_BYTES_MAX: Final = 256 << 20
"""Bytes of consume queues, the newest, whose checksums a start verifies: 13 million messages."""
_BULK_MIN = 12
"""Records of a run from which on they are taken column by column."""


class ConsumeQueueTable:
    """All consume queues of a store, made when first written to."""

    def __init__(self, disk: Disk, directory: Path, config: ConsumeQueueConfig) -> None:
        self._disk = disk
        self.directory = directory
        self._config = config
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}

    def load(self) -> None:
        """Take over what is in the directory: topic/queue id/files. Raises StoreDamaged, StoreError."""
        for topic in self._disk.list_dir(self.directory):
            if not self._disk.is_dir(self.directory / topic):
                continue
            for name in self._disk.list_dir(self.directory / topic):
                if name.isdigit():
                    self.get_or_add(topic, int(name)).files.load()

    def get_or_add(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, a new one when there is none. Raises TopicInvalid."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            check_topic(topic, queue_id)
            queue = self.queues[topic, queue_id] = ConsumeQueue(
                self._disk,
                self.directory,
                topic,
                queue_id,
                self._config.segment_bytes,
                pending_bytes_max=self._config.pending_bytes_max,
            )
        return queue

    def checksums(self) -> Iterator[FileChecksum]:
        """Checksums of the queues' files, the newest file of each queue first.

        Files without a known checksum are read, at most `CHECKSUM_BYTES_MAX` bytes of them.
        """
        read = 0
        for queue, file in _newest_first(self.queues.values()):
            one = queue.checksum_of(file, may_read=read + file.wrote <= CHECKSUM_BYTES_MAX)
            if one is not None:
                yield one
            if queue.checksums.get(file.start) is None:
                read += file.wrote
            file.close_idle()

    def max_physical_offset(self) -> int:
        """Just after the newest record in any queue, -1 without queues."""
        return max((queue.max_physical_offset for queue in self.queues.values()), default=-1)

    def fill(self, table: QueueTable, log_min_offset: int) -> None:
        """Set the next offset of every queue, and the queues' min offsets, after recovery.

        Source: RocketMQ recoverTopicQueueTable.
        """
        for key, queue in self.queues.items():
            table[key].next_offset = queue.next_offset
            queue.correct_min_offset(log_min_offset)
            queue.files.close_idle()

    def close_idle(self) -> None:
        """Close files until they are needed again, if more than `handles_max` are open.

        To be called now and then; what is not flushed stays open.
        """
        if sum(queue.files.open_files for queue in self.queues.values()) > self._config.handles_max:
            for queue in self.queues.values():
                queue.files.close_idle()

    def rewrite_unflushed(self, dispatched_offset: int, flush: Callable[[FlushPlan], None]) -> None:
        """Write and flush again what queues hold of records at or after that commit log offset.

        Some at a time: what is not flushed stays open, and a store may have more queues than a process may
        have files. Raises FlushFailed, StoreError.
        """
        plan = FlushPlan()
        for queue in self.queues.values():
            queue.rewrite_unflushed(dispatched_offset)
            plan.add(queue.files)
            if len(plan.targets) >= self._config.handles_max:
                flush(plan)
                for files in plan.queues:
                    files.close_idle()
                plan = FlushPlan()
        flush(plan)

    def without_file(self) -> list[ConsumeQueue]:
        """Return the queues whose units wait for a file that is not there yet."""
        return [queue for queue in self.queues.values() if queue.needs_file]

    def adopt_file(self, queue: ConsumeQueue, file: MappedFile) -> None:
        """Take a file that was made for a queue; it is closed where that is gone or has it already."""
        if self.queues.get((queue.topic, queue.queue_id)) is queue:
            queue.files.adopt_preallocated(file)
        else:
            file.close()

    def write_out(self, close_files: Callable[[], None], *, new_files: bool = True) -> bool:
        """Write what queues keep in memory; returns whether that is all. Raises DiskFull, StoreError.

        close_files: flushes and closes files of queues, since no descriptor is left to open another one.
        new_files: False leaves queues as they are whose units wait for a file, see `without_file`.
        """
        is_all = True
        for queue in self.queues.values():
            if queue.needs_file and not new_files:
                is_all = False
                continue
            try:
                queue.write_out()
            except StoreError as error:
                if not lacks_descriptors(error):
                    raise
                close_files()
                queue.write_out()
        return is_all

    def close(self) -> None:
        """Close all files."""
        for queue in self.queues.values():
            queue.files.close()


def _newest_first(queues: Iterable[ConsumeQueue]) -> list[tuple[ConsumeQueue, MappedFile]]:
    placed = [
        (depth, queue, file)
        for queue in queues
        for depth, file in enumerate(reversed(queue.files.mapped_files))
        if file.wrote
    ]
    return [(queue, file) for _, queue, file in sorted(placed, key=lambda place: place[0])]


def make_files(queues: Iterable[ConsumeQueue]) -> list[tuple[ConsumeQueue, MappedFile]]:
    """Make the next files of queues, until one cannot be made: for a thread; see `adopt_file`."""
    made: list[tuple[ConsumeQueue, MappedFile]] = []
    with contextlib.suppress(StoreError):  # `write_out` meets the same trouble, and raises it
        for queue in queues:
            made.append((queue, queue.make_file()))  # noqa: PERF401 - those before a failure are kept
    return made


class Dispatcher:
    """Builds consume queues and index from dispatch requests.

    index: None when switched off. arrivals: see `ArrivalListener`; called after each run.
    """

    def __init__(
        self, queues: ConsumeQueueTable, index: IndexService | None, delays: DelayLevels, offset: int = 0
    ) -> None:
        self._queues = queues
        self._index = index
        self._delays = delays
        self._by_cursor: dict[QueueCursor, ConsumeQueue] = {}
        self._tag_codes: dict[bytes, int] = {}
        self.fields = PropertyFields()
        self._waiting: list[DispatchRequest] = []
        self.arrivals: ArrivalListener | None = None
        self.limit: Callable[[], int] | None = None
        """Returns a physical offset; records that end after it wait, as consumers must not see them yet."""
        self.offset = offset
        """Everything in the log below is dispatched."""
        self.last_store_timestamp = 0
        """Of the newest record dispatched, ms."""
        self.is_stuck = False
        """Whether the last `run` failed."""

    @property
    def waiting(self) -> int:
        """Records written to the log and not dispatched."""
        return len(self._waiting)

    def waiting_since(self, count: int) -> list[DispatchRequest]:
        """The waiting requests without the first `count`."""
        return self._waiting[count:]

    def add(self, requests: list[DispatchRequest]) -> int:
        """Take requests in log order, for the next `run`; returns how many wait now."""
        if self._waiting:
            self._waiting += requests
        else:
            self._waiting = requests
        return len(self._waiting)

    def run(self, until: int | None = None) -> int:
        """Dispatch what waits; returns how many records.

        until: leave records that end after this physical offset for later.
        Raises DiskFull, StoreError when the index cannot begin a new file. Records that are not indexed stay
        in the queue and may be put again. Their consume queues have them, and listeners were called.
        """
        requests, rest = self._waiting, []
        if not requests:
            return 0
        if self.limit is not None:
            until = self.limit() if until is None else min(until, self.limit())
        if until is not None:
            split = len(requests)
            while split and requests[split - 1][1] + requests[split - 1][2] > until:
                split -= 1
            requests, rest = requests[:split], requests[split:]
            if not requests:
                return 0
        touched: dict[ConsumeQueue, None] = {}
        self.is_stuck = True
        try:
            self.put(requests, touched)
            # Before the listeners: they read the store, which dispatches again.
            self.is_stuck = False
            self._waiting = rest
            last = requests[-1]
            self.offset = last[1] + last[2]
            self.last_store_timestamp = last[3]
        finally:
            if self.arrivals is not None:
                for queue in touched:
                    self.arrivals(queue.topic, queue.queue_id, queue.next_offset)
        return len(requests)

    def put(
        self,
        requests: Sequence[DispatchRequest],
        touched: dict[ConsumeQueue, None] | None = None,
        *,
        indexed: bool = True,
    ) -> None:
        """Put each record into its consume queue and, if `indexed`, the index.

        touched: gets the queues that grew, in order. One loop, since it runs once a message: about half of
        what a message costs here. Raises StoreError when the index fails, after all records are in their
        queues.
        """
        touched = {} if touched is None else touched
        if len(requests) >= _BULK_MIN and self._put_run(requests, touched, self._index if indexed else None):
            return
        by_cursor = self._by_cursor
        tag_codes = self._tag_codes
        fields = self.fields
        index = self._index if indexed else None
        for cursor, offset, size, timestamp, queue_offset, sys_flag, properties in requests:
            tags, keys, unique_key = fields(properties)
            if not sys_flag & NOT_IN_QUEUE:
                queue = by_cursor.get(cursor) or self._bind(cursor)
                code = tag_codes.get(tags)
                if code is None or cursor.topic == SCHEDULE_TOPIC:
                    code = self._tags_code(cursor.topic, tags, properties, timestamp)
                if queue.put(offset, size, code, queue_offset):
                    touched[queue] = None
            if index is not None and sys_flag & _ROLLBACK != _ROLLBACK and (unique_key or keys):
                index.put(cursor.topic_bytes, unique_key, keys, offset, timestamp)
        if index is not None:
            index.write_many()

    def _put_run(
        self,
        requests: Sequence[DispatchRequest],
        touched: dict[ConsumeQueue, None],
        index: IndexService | None,
    ) -> bool:
        """`put` for a long run, column by column, in half the time; False when not all are like most."""
        cursors, offsets, sizes, timestamps, queue_offsets, flags, properties = zip(*requests, strict=True)
        distinct = dict.fromkeys(cursors)
        if any(flag & NOT_IN_QUEUE for flag in set(flags)) or any(
            cursor.topic == SCHEDULE_TOPIC for cursor in distinct
        ):
            return False
        queues = {cursor: self._by_cursor.get(cursor) or self._bind(cursor) for cursor in distinct}
        tags, keys, unique_keys = self.fields.columns(properties)
        known = {text: self._code_of(text) for text in set(tags)}
        codes = list(map(known.__getitem__, tags))
        columns: tuple[Sequence[int], ...] = offsets, sizes, codes, queue_offsets
        if len(queues) == 1:
            touched.update((queue, None) for queue in queues.values() if queue.put_run(*columns))
        else:
            places: defaultdict[QueueCursor, list[int]] = defaultdict(list)
            for place, cursor in enumerate(cursors):
                places[cursor].append(place)
            touched.update(
                (queues[cursor], None)
                for cursor, own in places.items()
                if queues[cursor].put_run(*([column[place] for place in own] for column in columns))
            )
        if index is not None:
            hash_of = {cursor: index.topic_hash(cursor.topic_bytes) for cursor in queues}
            topic_hashes = list(map(hash_of.__getitem__, cursors))
            index.put_many(topic_hashes, unique_keys, keys, offsets, timestamps)
        return True

    def _bind(self, cursor: QueueCursor) -> ConsumeQueue:
        queue = self._by_cursor[cursor] = self._queues.get_or_add(cursor.topic, cursor.queue_id)
        return queue

    def forget(self, cursor: QueueCursor) -> None:
        """Forget a destroyed queue; its next record looks it up again."""
        self._by_cursor.pop(cursor, None)

    def _code_of(self, tags: bytes) -> int:
        """The third field of a unit for a message that is not delayed."""
        code = self._tag_codes.get(tags)
        return self._tags_code("", tags, b"", 0) if code is None else code

    def tags_code_of(self, view: RecordView) -> int:
        """The tags code that a record's unit must have."""
        tags, _, _ = index_fields(view.properties)
        return self._tags_code(view.topic, tags, view.properties, view.store_timestamp)

    def _tags_code(self, topic: str, tags: bytes, properties: bytes, timestamp: int) -> int:
        """The third field of a consume queue unit: Java's hash of the tags, or when the message is due."""
        if topic == SCHEDULE_TOPIC:
            due = self._due_time(find(properties, _DELAY), timestamp)
            if due is not None:
                return due
        code = utf8_hash(tags)
        if len(self._tag_codes) >= _TAG_CODES_MAX:
            self._tag_codes.clear()
        self._tag_codes[tags] = code
        return code

    def _due_time(self, level: bytes | None, timestamp: int) -> int | None:
        try:
            return self._delays.due_time(int(level), timestamp) if level else None
        except ValueError:
            return None
