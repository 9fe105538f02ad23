"""Parses log bytes from a master into records, and checks each record before it is written.

A master may have a damaged disk. An invalid record, once written, would be delivered to consumers and copied
to further replicas.
"""

from __future__ import annotations

from typing import NamedTuple

from rocketpy.errors import RecordCorrupt, StoreDamaged, TopicInvalid, TornTail
from rocketpy.protocol.message.record import BLANK_MAGIC, MIN_BLANK_BYTES, RecordView, peek, read_start
from rocketpy_broker.store.log.messages import (
    NOT_IN_QUEUE,
    DispatchRequest,
    check_topic,
    dispatch_request,
    stored_ms_of,
)
from rocketpy_broker.store.log.plain_records import PlainRecords
from rocketpy_broker.store.message_store import MessageStore


class ParsedRecords(NamedTuple):
    """The complete records at the start of a piece of the log."""

    requests: list[DispatchRequest]
    """Their dispatch requests; empty if the records were only checked."""
    end: int
    """Position after the last record; 0 without one."""
    wanted: int
    """Minimum number of bytes from `end` on that can contain another record."""
    timestamp: int
    """Store timestamp of the last record, in ms."""

    def hand_over(self, store: MessageStore) -> None:
        """Queue the written records for dispatch, and advance the next offsets of their queues."""
        for cursor, _, _, _, queue_offset, sys_flag, _ in self.requests:
            if not sys_flag & NOT_IN_QUEUE:
                cursor.next_offset = queue_offset + 1
        if self.requests:
            store.dispatcher.add(self.requests)


class RecordParser:
    """Parses pieces of a copied log for a store. After an invalid record the store rejects everything."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._files = store.commit_log.files
        self._plain = PlainRecords()

    def parse(self, data: bytes, base: int, *, only_check: bool = False) -> ParsedRecords:
        """Return the records in `data`. Raises StoreDamaged for an invalid record.

        base: physical offset of the first byte of `data`, where a record starts. only_check: make no
        requests.
        """
        requests: list[DispatchRequest] = []
        add = None if only_check else requests.append
        position = end = timestamp = 0
        try:
            while True:
                room = self._files.file_bytes - (base + position) % self._files.file_bytes
                stop = min(len(data), position + room)
                plain, time = self._plain.parse(data, position, stop, base, add)
                if plain > position:
                    position, end, timestamp = plain, plain, time
                size = self._size(data, position, base + position)
                if not size or len(data) - position < size:
                    break
                if read_start(data, position)[1] != BLANK_MAGIC:
                    request = self._request(peek(data, position, check_crc=True), base + position)
                    timestamp = stored_ms_of(request)
                    if not only_check:
                        requests.append(request)
                    end = position + size
                position += size
        except (RecordCorrupt, TornTail, TopicInvalid) as error:
            failure = StoreDamaged(
                f"the log copied from the master has an invalid record at {base + position}: {error}; "
                "copying stops. Restart this slave; if that repeats, run rocketpy-broker store check on the "
                "master's store"
            )
            self._store.failure = failure
            raise failure from error
        return ParsedRecords(requests, end, position + (size or MIN_BLANK_BYTES) - end, timestamp)

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

    def _request(self, view: RecordView, physical_offset: int) -> DispatchRequest:
        if view.physical_offset != physical_offset:
            raise RecordCorrupt(physical_offset, f"the record has the physical offset {view.physical_offset}")
        check_topic(view.topic, view.queue_id)
        cursor = self._store.table[view.topic, view.queue_id]
        self._plain.add_queue(cursor)
        return dispatch_request(cursor, view)

    def request_of(self, view: RecordView) -> DispatchRequest:
        """Return the dispatch request of a record of this log. Raises RecordCorrupt, TopicInvalid."""
        return self._request(view, view.physical_offset)
