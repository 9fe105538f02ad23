"""Dispatches the records that recovery reads: many together where possible, others one by one.

A broker starts when recovery has read its log, which may take gigabytes.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from rocketpy_broker.store.log.messages import QueueCursor
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue
from rocketpy_broker.store.queue.dispatch import Dispatcher
from rocketpy_broker.store.queue.log_fields import WITHOUT_LIMIT, LogFields, read_log_fields
from rocketpy_broker.store.queue.queue_table import ConsumeQueueTable


@dataclass(eq=False)
class BulkScan:
    """Dispatches records: those of known queues from buffers (`take`), all others one by one (`add`)."""

    queues: ConsumeQueueTable
    dispatcher: Dispatcher
    index_from: int
    """Physical offset from which records are also indexed."""
    _: KW_ONLY
    check_crc: bool

    def __post_init__(self) -> None:
        self._known: dict[tuple[bytes, int], tuple[QueueCursor, ConsumeQueue]] = {}
        self.records = 0
        """Number of records read."""
        self.rebuilt = 0
        """Number of units that consume queues lacked."""
        self.indexed_until = 0
        """End of the last indexed record."""

    def add_queue(self, cursor: QueueCursor) -> None:
        """Accept further records of a queue in `take`, after one was checked field by field."""
        queue = self.queues.get_or_add(cursor.topic, cursor.queue_id)
        cursor.next_offset = max(cursor.next_offset, queue.next_offset)
        self._known[cursor.topic_bytes, cursor.queue_id] = cursor, queue

    def take(self, window: bytes, at: int, base: int) -> tuple[int, int]:
        """Dispatch records from `window[at:]`; see `BulkReader`. Raises DiskFull, StoreError."""
        delays_ms = self.dispatcher.delays_ms
        fields = LogFields(*read_log_fields(window, at, base, self.check_crc, delays_ms, self._accept))
        if fields.records:
            self.rebuilt += self._dispatch(fields)
            for topic, queue_id, *_ in fields.queues:
                cursor, queue = self._known[topic, queue_id]
                cursor.next_offset = max(cursor.next_offset, queue.next_offset)
        return fields.position, fields.last_ms

    def _accept(self, topic: bytes, queue_id: int, queue_offset: int, end: int) -> int:
        """Accept records of known queues that are in their queue, or follow its last unit; see `Accept`."""
        known = self._known.get((topic, queue_id))
        if known is None:
            return 0
        cursor, queue = known
        if end <= queue.max_physical_offset:
            return queue.max_physical_offset
        return WITHOUT_LIMIT if queue_offset == cursor.next_offset else 0

    def add(self, fields: LogFields, *, is_missing: bool) -> None:
        """Dispatch one record. is_missing: its consume queue lacks it. Raises DiskFull, StoreError."""
        self._dispatch(fields)
        self.rebuilt += is_missing

    def _dispatch(self, fields: LogFields) -> int:
        self.records += fields.records
        added = self.dispatcher.put_units(fields)
        if fields.end > self.index_from:
            self.dispatcher.index(fields, self.index_from)
            self.indexed_until = fields.end
        return added
