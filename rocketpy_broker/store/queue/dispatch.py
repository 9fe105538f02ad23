"""Dispatches records of the commit log to consume queues and index, in log order.

RocketMQ reads the log again for this (ReputMessageService). rocketpy keeps the written records in memory,
within limits. Consume queues and index are behind the log by these waiting records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from rocketpy.errors import RecordCorrupt, StoreDamaged
from rocketpy.protocol.message.delays import DelayLevels
from rocketpy.protocol.message.record import RecordView, peek
from rocketpy_broker.store.index.index_service import IndexService, rows_from
from rocketpy_broker.store.log.messages import LogPiece
from rocketpy_broker.store.queue.clock_steps import ClockSteps
from rocketpy_broker.store.queue.log_fields import LogFields, fields_of, read_log_fields
from rocketpy_broker.store.queue.queue_table import ConsumeQueueTable

logger = logging.getLogger("rocketpy_broker.store.dispatch")

Arrivals = Mapping[tuple[str, int], int]
"""(topic, queue id) -> next queue offset, of the queues that have new readable messages."""

ArrivalListener = Callable[[Arrivals], None]
"""Called once for each run of the dispatcher that has added messages to queues."""

_HELD_BYTES_MAX: Final = 4 << 20
"""Waiting records above this size are read from the log again. Their dispatch may have to wait long."""


class Dispatcher:
    """Builds consume queues and index from records.

    index: None when switched off. clock: follows all records. read: returns written bytes of the log, see
    `LogFiles.read`.
    """

    def __init__(
        self,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        delays: DelayLevels,
        clock: ClockSteps,
        read: Callable[[int, int], bytes | None],
    ) -> None:
        self._queues = queues
        self.clock = clock
        """Notes where store times go back."""
        self._index = index
        self.delays_ms = delays.delays_ms
        self._read = read
        self._pieces: list[LogPiece] = []
        self._held_bytes = 0
        """Of the records in `_pieces`."""
        self._queues_of_pieces: set[tuple[str, int]] = set()
        """Those of the records in `_pieces`, and perhaps others."""
        self.waiting = 0
        """Number of records that are written to the log and not dispatched."""
        self.arrivals: ArrivalListener | None = None
        """See `ArrivalListener`."""
        self.limit: Callable[[], int] | None = None
        """Returns a physical offset. Records that end after it wait: consumers must not see them."""
        self.offset = 0
        """All records below this physical offset are dispatched."""
        self.last_store_timestamp = 0
        """Store timestamp (ms) of the newest dispatched record."""
        self.is_stuck = False
        """Whether the last `run` failed."""

    def has_waiting(self, topic: str, queue_id: int) -> bool:
        """Whether records of a queue may wait."""
        return (topic, queue_id) in self._queues_of_pieces

    def waiting_since(self, count: int) -> list[LogPiece]:
        """Return the waiting pieces without the first `count`."""
        return self._pieces[count:]

    def add(self, pieces: Sequence[LogPiece]) -> int:
        """Queue records for the next `run`, in log order; return the number of waiting records."""
        for piece in pieces:
            self._held_bytes += piece.end - piece.begin
            self._pieces.append(piece if self._held_bytes <= _HELD_BYTES_MAX else piece._replace(data=None))
            self.waiting += piece.records
            for cursor in piece.queues:
                self._queues_of_pieces.add((cursor.topic, cursor.queue_id))
        return self.waiting

    def run(self, until: int | None = None) -> int:
        """Dispatch the waiting records; return their number.

        until: records that end after this physical offset remain waiting. Raises DiskFull, StoreError when
        the index cannot create a file. Then the records remain waiting, and the next `run` indexes them;
        their consume queues have them already, and the listener was called.
        """
        if self.limit is not None:
            until = self.limit() if until is None else min(until, self.limit())
        pieces = self._pieces[:]
        if until is not None and pieces and pieces[-1].end > until:
            pieces = self._up_to(until)
        if not pieces:
            return 0
        touched: dict[tuple[str, int], int] = {}
        self.is_stuck = True
        try:
            self.put(self._parts_of(pieces), touched)
            # Updated before the listener is called: it reads the store, which dispatches again.
            self.is_stuck = False
            del self._pieces[: len(pieces)]
            if not self._pieces:
                self._queues_of_pieces.clear()
            records = sum([piece.records for piece in pieces])
            self.waiting -= records
            self._held_bytes -= sum([piece.end - piece.begin for piece in pieces])
            self.offset = pieces[-1].end
            self.last_store_timestamp = pieces[-1].stored_ms
        finally:
            if self.arrivals is not None and touched:
                self.arrivals(touched)
        return records

    def _up_to(self, until: int) -> list[LogPiece]:
        """Return the waiting pieces that end at or before this offset; split the one that contains it."""
        whole = next(number for number, piece in enumerate(self._pieces) if piece.end > until)
        piece = self._pieces[whole]
        if piece.begin < until:
            data = b"".join(self._parts_of([piece]))
            fields = LogFields(*read_log_fields(data[: until - piece.begin], 0, -1, False, [], None))
            if fields.records:
                at, first = fields.position, piece.begin + fields.position
                rest = piece._replace(begin=first, records=piece.records - fields.records, data=data[at:])
                done = LogPiece(piece.begin, first, fields.records, fields.last_ms, piece.queues, data[:at])
                self._pieces[whole : whole + 1] = [done, rest]
                whole += 1
        return self._pieces[:whole]

    def _parts_of(self, pieces: Sequence[LogPiece]) -> Iterator[bytes]:
        """Yield the records of these pieces. A long backlog is not in memory at once."""
        part: list[bytes] = []
        part_bytes = 0
        expired: list[LogPiece] = []
        for piece in pieces:
            data = self._read(piece.begin, piece.end - piece.begin) if piece.data is None else piece.data
            if data is None:  # retention has deleted the file
                expired.append(piece)
                continue
            if part and part_bytes + len(data) > _HELD_BYTES_MAX:
                yield b"".join(part)
                part, part_bytes = [], 0
            part.append(data)
            part_bytes += len(data)
        if part:
            yield part[0] if len(part) == 1 else b"".join(part)
        if expired:
            logger.error("the records from %d to %d expired undispatched", expired[0].begin, expired[-1].end)

    def put(self, parts: Iterable[bytes], touched: dict[tuple[str, int], int] | None = None) -> None:
        """Add records to their consume queues, and to the index.

        parts: whole records. touched: receives the queues that grew, see `Arrivals`. Raises StoreError when
        the index fails, after all records were added to their queues; StoreDamaged if a part does not consist
        of records.
        """
        rows = []
        for data in parts:
            at = 0
            while at < len(data):
                fields = LogFields(*read_log_fields(data, at, -1, False, self.delays_ms, None))
                if not fields.records:  # no plain record
                    fields = fields_of(_view(data, at), self.delays_ms)
                    at += fields.end - fields.begin
                else:
                    at = fields.position
                self.put_units(fields, touched)
                rows.append(fields.rows)
        if self._index is not None:
            self._index.put(rows[0] if len(rows) == 1 else b"".join(rows))

    def put_units(self, fields: LogFields, touched: dict[tuple[str, int], int] | None = None) -> int:
        """Add the units of records to their consume queues; return the number of new ones. See `put`."""
        added = 0
        find = self._queues.queues.get  # with thousands of queues, each record is of another one
        self.clock.follow(fields)
        for topic, queue_id, queue_offset, begin, end, size, units in fields.queues:
            key = topic.decode(), queue_id
            queue = find(key) or self._queues.get_or_add(*key)
            count = queue.put_many(queue_offset, begin, end, size, units)
            added += count
            if count and touched is not None:
                touched[key] = queue.next_offset
        return added

    def index(self, fields: LogFields, begin: int) -> None:
        """Index records from physical offset `begin` on. Raises DiskFull, StoreError."""
        if self._index is not None:
            self._index.put(rows_from(fields.rows, begin))


def _view(data: bytes, at: int) -> RecordView:
    try:
        return peek(data, at)
    except RecordCorrupt as error:
        raise StoreDamaged(f"a record that was written to the log cannot be read: {error}") from error
