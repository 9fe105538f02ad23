"""Message records in the entries of a ledger: each entry's body is one."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from rocketpy.errors import RecordCorrupt
from rocketpy.protocol.message.record import RecordView, peek
from rocketpy_broker.replication.dledger.core.entry import HEADER_BYTES, Entry
from rocketpy_broker.replication.dledger.storage.entry_scan import EntryScan, accept_any
from rocketpy_broker.store.log.log_scan import BulkReader, LogScan, LogTail, problem_of
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue

logger = logging.getLogger("rocketpy_broker.dledger.entry_records")


def check_record(entry: Entry) -> str:
    """Return what is wrong with the record in an entry, as power loss may leave it; see `CheckEntry`."""
    try:
        return problem_of(record_of(entry, check_crc=True), entry.pos + HEADER_BYTES)
    except RecordCorrupt as error:
        return error.reason


def record_of(entry: Entry, *, check_crc: bool = False) -> RecordView:
    """Return the record in an entry. Raises RecordCorrupt, TornTail when there is another thing in it."""
    place = entry.pos + HEADER_BYTES
    view = peek(entry.body, check_crc=check_crc)
    if (view.physical_offset, view.size) != (place, len(entry.body)):
        raise RecordCorrupt(place, f"it says it belongs at {view.physical_offset}, with {view.size} bytes")
    return view


class EntryRecordScan:
    """Iterates over the records up to `until`: a `RecordScan`.

    old: the commit log from before the ledger, if there is any. start: of a file or an entry. until: behind
    the last entry that is committed. An entry that holds no record is passed over.
    """

    def __init__(
        self,
        old: MappedFileQueue,
        data: MappedFileQueue,
        start: int,
        until: int,
        *,
        check_crc: bool = True,
        bulk: BulkReader | None = None,
    ) -> None:
        self._old = old
        self._data = data
        self._check_crc = check_crc
        self._bulk = bulk
        self._until = until
        self.end = start
        self.stop: RecordCorrupt | None = None
        self.last_store_timestamp = 0
        self.tail = LogTail(start)

    def __iter__(self) -> Iterator[RecordView]:
        if self._old.mapped_files and self.end < self._old.max_offset:
            yield from self._scan_old()
        entries = EntryScan(self._data, self.end, accept_any)
        for entry in entries:
            if entry.end_pos > self._until:
                break
            self.end = entry.end_pos
            self.tail.advance(self.end)
            try:
                view = record_of(entry, check_crc=self._check_crc)
            except RecordCorrupt as error:
                logger.error("entry %d holds no message: %s", entry.index, error)
                continue
            self.last_store_timestamp = view.store_timestamp
            yield view

    def _scan_old(self) -> Iterator[RecordView]:
        """The old log ends with a blank record, behind which the ledger begins."""
        scan = LogScan(self._old, self.end, check_crc=self._check_crc, bulk=self._bulk)
        for view in scan:
            self.last_store_timestamp = view.store_timestamp
            yield view
        self.last_store_timestamp = max(self.last_store_timestamp, scan.last_store_timestamp)
        self.end = self._data.min_offset
