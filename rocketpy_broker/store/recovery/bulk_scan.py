"""Collects the records that recovery reads, plain ones a buffer at a time, and dispatches them in batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy_broker.store.log.messages import NOT_IN_QUEUE, DispatchRequest, QueueCursor
from rocketpy_broker.store.log.plain_records import PlainRecords
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue
from rocketpy_broker.store.queue.queue_table import ConsumeQueueTable

_BATCH: Final = 4096


@dataclass(eq=False)
class BulkScan:
    """Takes plain records from buffers; all others are added one by one.

    put: dispatches a batch with `index_from`: records from that physical offset on are indexed.
    """

    queues: ConsumeQueueTable
    put: Callable[[list[DispatchRequest], int], None]
    index_from: int
    _: KW_ONLY
    check_crc: bool

    def __post_init__(self) -> None:
        self._plain = PlainRecords()
        self._known: dict[QueueCursor, ConsumeQueue] = {}
        self._batch: list[DispatchRequest] = []
        self.records = 0
        """Records read so far."""
        self.rebuilt = 0
        """Units that queues lacked."""

    def learn(self, cursor: QueueCursor) -> None:
        """Add a known queue; its newest record was checked field by field."""
        if cursor.topic != SCHEDULE_TOPIC:
            queue = self._known[cursor] = self.queues.get_or_add(cursor.topic, cursor.queue_id)
            cursor.next_offset = max(cursor.next_offset, queue.next_offset)
            self._plain.learn(cursor)

    def take(self, window: bytes, at: int, base: int) -> tuple[int, int]:
        """Take plain records from `window[at:]`: a `BulkReader`. Raises DiskFull, StoreError."""
        return self._plain.parse(window, at, len(window), base, self._take, check_crc=self.check_crc)

    def _take(self, request: DispatchRequest) -> bool:
        """`add` a plain record, in one call for speed; True if its queue lacks records before it."""
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
        if len(self._batch) >= _BATCH:
            self.flush()
        return False

    def add(self, request: DispatchRequest, *, needed: bool) -> None:
        """Take one record. needed: its queue lacks it. Raises DiskFull, StoreError."""
        self.records += 1
        self.rebuilt += needed
        if needed or request[1] >= self.index_from:
            self._batch.append(request)
        if len(self._batch) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Dispatch what was taken. Raises DiskFull, StoreError."""
        batch, self._batch = self._batch, []
        self.put(batch, self.index_from)
