"""Parses log bytes from a master into records, and checks each record before it is written.

A master may have a damaged disk. An invalid record, once written, would be delivered to consumers and copied
to further replicas.
"""

from __future__ import annotations

from typing import NamedTuple

from rocketpy.errors import RecordCorrupt, StoreDamaged, TopicInvalid, TornTail
from rocketpy.protocol.message.record import BLANK_MAGIC, MIN_BLANK_BYTES, RecordView, peek, read_start
from rocketpy_broker.store.log.messages import LogPiece, QueueCursor, check_topic
from rocketpy_broker.store.message_store import MessageStore
from rocketpy_broker.store.queue.consume_queue import UNIT_BYTES
from rocketpy_broker.store.queue.log_fields import WITHOUT_LIMIT, LogFields, fields_of, read_log_fields


class ParsedRecords(NamedTuple):
    """The complete records at the start of a piece of the log."""

    pieces: list[LogPiece]
    """For dispatch; empty if the records were only checked."""
    next_offsets: dict[QueueCursor, int]
    """Next queue offsets after these records; empty like `pieces`."""
    end: int
    """Position after the last record; 0 without one."""
    wanted: int
    """Minimum number of bytes from `end` on that can contain another record."""
    timestamp: int
    """Store timestamp of the last record, in ms."""

    def hand_over(self, store: MessageStore) -> None:
        """Queue the written records for dispatch, and advance the next offsets of their queues."""
        for cursor, queue_offset in self.next_offsets.items():
            cursor.next_offset = queue_offset
        store.dispatcher.add(self.pieces)


class RecordParser:
    """Parses pieces of a copied log for a store. After an invalid record the store rejects everything."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._files = store.commit_log.files
        self._known: dict[tuple[bytes, int], QueueCursor] = {}
        """Queues of which one record was checked field by field."""

    def parse(self, data: bytes, base: int, *, only_check: bool = False) -> ParsedRecords:
        """Return the records in `data`. Raises StoreDamaged for an invalid record.

        base: physical offset of the first byte of `data`, where a record starts. only_check: return no
        pieces.
        """
        pieces: list[LogPiece] = []
        next_offsets: dict[QueueCursor, int] = {}
        delays_ms = self._store.dispatcher.delays_ms
        position = end = timestamp = 0
        try:
            while True:
                room = self._files.file_bytes - (base + position) % self._files.file_bytes
                part = data if position + room >= len(data) else data[: position + room]
                fields = LogFields(*read_log_fields(part, position, base, True, delays_ms, self._accept))
                if not fields.records:
                    size = self._size(data, position, base + position)
                    if not size or len(data) - position < size:
                        break
                    if read_start(data, position)[1] == BLANK_MAGIC:
                        position += size
                        continue
                    fields = self._checked(peek(data, position, check_crc=True), base + position)
                start = position
                position = end = position + fields.end - fields.begin
                timestamp = fields.last_ms
                if not only_check:
                    cursors = self._follow(fields, next_offsets)
                    records = data[start:end]
                    pieces.append(
                        LogPiece(base + start, base + end, fields.records, timestamp, cursors, records)
                    )
        except (RecordCorrupt, TornTail, TopicInvalid) as error:
            failure = StoreDamaged(
                f"the log copied from the master has an invalid record at {base + position}: {error}; "
                "copying stops. Restart this slave; if that repeats, run rocketpy-broker store check on the "
                "master's store"
            )
            self._store.failure = failure
            raise failure from error
        wanted = position + (size or MIN_BLANK_BYTES) - end
        return ParsedRecords(pieces, next_offsets, end, wanted, timestamp)

    def _accept(self, topic: bytes, queue_id: int, queue_offset: int, end: int) -> int:
        return WITHOUT_LIMIT if (topic, queue_id) in self._known else 0

    def _follow(self, fields: LogFields, next_offsets: dict[QueueCursor, int]) -> tuple[QueueCursor, ...]:
        """Note the next offsets after these records; return the cursors of their queues."""
        cursors: dict[QueueCursor, None] = {}
        for topic, queue_id, queue_offset, _, _, _, units in fields.queues:
            cursor = self._known[topic, queue_id]
            next_offsets[cursor] = queue_offset + len(units) // UNIT_BYTES
            cursors[cursor] = None
        return tuple(cursors)

    def _size(self, data: bytes, position: int, physical_offset: int) -> int:
        """Return the size of the record at `position` of `data`; 0 if it is incomplete."""
        if len(data) - position < MIN_BLANK_BYTES:
            return 0
        room = self._files.file_bytes - physical_offset % self._files.file_bytes
        size, magic = read_start(data, position)
        if magic == BLANK_MAGIC and size != room:
            raise RecordCorrupt(
                physical_offset, f"a blank record of {size} bytes, but the file has {room} bytes left"
            )
        if not MIN_BLANK_BYTES <= size <= room:
            raise RecordCorrupt(
                physical_offset, f"a record of {size} bytes, but the file has {room} bytes left"
            )
        return size

    def _checked(self, view: RecordView, physical_offset: int) -> LogFields:
        """Return the fields of a record, and make its queue known. Raises RecordCorrupt, TopicInvalid."""
        if view.physical_offset != physical_offset:
            raise RecordCorrupt(physical_offset, f"the record has the physical offset {view.physical_offset}")
        check_topic(view.topic, view.queue_id)
        cursor = self._store.table[view.topic, view.queue_id]
        self._known[cursor.topic_bytes, cursor.queue_id] = cursor
        return fields_of(view, self._store.dispatcher.delays_ms)
