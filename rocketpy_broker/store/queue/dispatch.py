"""Dispatches records of the commit log to consume queues and index, in log order.

RocketMQ reads the log again for this (ReputMessageService). rocketpy uses requests that the append has made,
and reads the log only in recovery. Consume queues and index are behind the log by the waiting requests.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence

from rocketpy.protocol.java import utf8_hash
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC, DelayLevels
from rocketpy.protocol.message.properties import PROPERTY_DELAY_TIME_LEVEL, find
from rocketpy.protocol.message.record import RecordView
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.store.index.index_service import IndexService
from rocketpy_broker.store.log.messages import (
    NOT_IN_QUEUE,
    DispatchRequest,
    QueueCursor,
    end_of,
    stored_ms_of,
)
from rocketpy_broker.store.queue.clock_steps import ClockSteps
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue
from rocketpy_broker.store.queue.property_fields import PropertyFields, index_fields
from rocketpy_broker.store.queue.queue_table import ConsumeQueueTable

logger = logging.getLogger("rocketpy_broker.store.dispatch")

ArrivalListener = Callable[[str, int, int], None]
"""Called with (topic, queue id, next queue offset) when a queue has new readable messages."""

_DELAY = PROPERTY_DELAY_TIME_LEVEL.encode()
_ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK
_TAG_CODES_MAX = 4096
_BULK_MIN = 12
"""Minimum number of records for the faster dispatch column by column."""


class Dispatcher:
    """Builds consume queues and index from dispatch requests.

    index: None when switched off. clock: follows all records.
    """

    def __init__(
        self, queues: ConsumeQueueTable, index: IndexService | None, delays: DelayLevels, clock: ClockSteps
    ) -> None:
        self._queues = queues
        self.clock = clock
        """Notes where store times go back."""
        self._index = index
        self._delays = delays
        self._by_cursor: dict[QueueCursor, ConsumeQueue] = {}
        self._tag_codes: dict[bytes, int] = {}
        self.fields = PropertyFields()
        self._waiting: list[DispatchRequest] = []
        self.arrivals: ArrivalListener | None = None
        """See `ArrivalListener`; called after each run."""
        self.limit: Callable[[], int] | None = None
        """Returns a physical offset. Records that end after it wait: consumers must not see them."""
        self.offset = 0
        """All records below this physical offset are dispatched."""
        self.last_store_timestamp = 0
        """Store timestamp (ms) of the newest dispatched record."""
        self.is_stuck = False
        """Whether the last `run` failed."""

    @property
    def waiting(self) -> int:
        """Number of records that are written to the log and not dispatched."""
        return len(self._waiting)

    def waiting_since(self, count: int) -> list[DispatchRequest]:
        """Return the waiting requests without the first `count`."""
        return self._waiting[count:]

    def add(self, requests: list[DispatchRequest]) -> int:
        """Queue requests for the next `run`, in log order; return the number of waiting requests."""
        if requests:
            self.clock.follow_run(requests)
        if self._waiting:
            self._waiting += requests
        else:
            self._waiting = requests
        return len(self._waiting)

    def run(self, until: int | None = None) -> int:
        """Dispatch the waiting records; return their number.

        until: records that end after this physical offset remain waiting. Raises DiskFull, StoreError when
        the index cannot create a file. Then the records remain waiting, and the next `run` indexes them;
        their consume queues have them already, and the listener was called.
        """
        requests, rest = self._waiting, []
        if not requests:
            return 0
        if self.limit is not None:
            until = self.limit() if until is None else min(until, self.limit())
        if until is not None:
            split = len(requests)
            while split and end_of(requests[split - 1]) > until:
                split -= 1
            requests, rest = requests[:split], requests[split:]
            if not requests:
                return 0
        touched: dict[ConsumeQueue, None] = {}
        self.is_stuck = True
        try:
            self.put(requests, touched)
            # Updated before the listener is called: it reads the store, which dispatches again.
            self.is_stuck = False
            self._waiting = rest
            last = requests[-1]
            self.offset = end_of(last)
            self.last_store_timestamp = stored_ms_of(last)
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
        """Add each record to its consume queue and, if `indexed`, to the index.

        touched: receives the queues that grew, in order. Raises StoreError when the index fails, after all
        records were added to their queues.
        """
        touched = {} if touched is None else touched
        if len(requests) >= _BULK_MIN and self._put_many(requests, touched, self._index if indexed else None):
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

    def _put_many(
        self,
        requests: Sequence[DispatchRequest],
        touched: dict[ConsumeQueue, None],
        index: IndexService | None,
    ) -> bool:
        """Add many records column by column, in half the time of `put` (tools.bench.store).

        Returns False, without a change, if a record needs the general path.
        """
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
            touched.update((queue, None) for queue in queues.values() if queue.put_many(*columns))
        else:
            rows: defaultdict[QueueCursor, list[int]] = defaultdict(list)
            for row, cursor in enumerate(cursors):
                rows[cursor].append(row)
            touched.update(
                (queues[cursor], None)
                for cursor, own_rows in rows.items()
                if queues[cursor].put_many(*([column[row] for row in own_rows] for column in columns))
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
        """Drop the reference to a deleted queue. Its next record creates a new one."""
        self._by_cursor.pop(cursor, None)

    def _code_of(self, tags: bytes) -> int:
        """Return the tags code of a message that is not delayed."""
        code = self._tag_codes.get(tags)
        return self._tags_code("", tags, b"", 0) if code is None else code

    def tags_code_of(self, view: RecordView) -> int:
        """Return the tags code that the unit of a record must have."""
        tags, _, _ = index_fields(view.properties)
        return self._tags_code(view.topic, tags, view.properties, view.store_timestamp)

    def _tags_code(self, topic: str, tags: bytes, properties: bytes, timestamp: int) -> int:
        """Return the tags code of a unit: Java's hash of the tags, or the due time (ms) if delayed."""
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
