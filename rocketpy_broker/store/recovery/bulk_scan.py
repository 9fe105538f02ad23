"""Collects the records that recovery reads, plain ones on a fast path, and dispatches them in batches.

A broker starts when recovery has read its log, which may take gigabytes. Most records differ in a few fields
from the one before, and need no full decoding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy_broker.store.log.messages import NOT_IN_QUEUE, DispatchRequest, QueueCursor, offset_of
from rocketpy_broker.store.log.plain_records import PlainRecords
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue
from rocketpy_broker.store.queue.queue_table import ConsumeQueueTable

_BATCH_RECORDS: Final = 4096


@dataclass(eq=False)
class BulkScan:
    """Collects records: plain ones from buffers (`take`), all others one by one (`add`)."""

    queues: ConsumeQueueTable
    put: Callable[[list[DispatchRequest], int], None]
    """Called with a batch and `index_from`; dispatches the batch."""
    index_from: int
    """Physical offset from which records are also indexed."""
    _: KW_ONLY
    check_crc: bool

    def __post_init__(self) -> None:
        self._plain = PlainRecords()
        self._known: dict[QueueCursor, ConsumeQueue] = {}
        self._batch: list[DispatchRequest] = []
        self.records = 0
        """Number of records read."""
        self.rebuilt = 0
        """Number of units that consume queues lacked."""

    def add_queue(self, cursor: QueueCursor) -> None:
        """Enable the fast path for a queue, after one of its records was checked field by field."""
        if cursor.topic != SCHEDULE_TOPIC:
            queue = self._known[cursor] = self.queues.get_or_add(cursor.topic, cursor.queue_id)
            cursor.next_offset = max(cursor.next_offset, queue.next_offset)
            self._plain.add_queue(cursor)

    def take(self, window: bytes, at: int, base: int) -> tuple[int, int]:
        """Collect plain records from `window[at:]`; see `BulkReader`. Raises DiskFull, StoreError."""
        return self._plain.parse(window, at, len(window), base, self._add_plain, check_crc=self.check_crc)

    def _add_plain(self, request: DispatchRequest) -> bool:
        """Collect a plain record; return True, without collecting it, if its queue lacks records before it.

        The code of `add` is repeated here for speed.
        """
        cursor, offset, size, _, queue_offset, sys_flag, _ = request
        if not sys_flag & NOT_IN_QUEUE and offset + size > self._known[cursor].max_physical_offset:
            if queue_offset != cursor.next_offset:
                return True
            cursor.next_offset = queue_offset + 1
            self.rebuilt += 1
            self._batch.append(request)
        elif offset >= self.index_from:
            self._batch.append(request)
        self.records += 1
        if len(self._batch) >= _BATCH_RECORDS:
            self.flush()
        return False

    def add(self, request: DispatchRequest, *, is_missing: bool) -> None:
        """Collect one record. is_missing: its consume queue lacks it. Raises DiskFull, StoreError."""
        self.records += 1
        self.rebuilt += is_missing
        if is_missing or offset_of(request) >= self.index_from:
            self._batch.append(request)
        if len(self._batch) >= _BATCH_RECORDS:
            self.flush()

    def flush(self) -> None:
        """Dispatch the collected records. Raises DiskFull, StoreError."""
        batch, self._batch = self._batch, []
        self.put(batch, self.index_from)
