"""The message records in a ledger's entries, and the old commit log in front of the ledger.

The body of each entry is one record. A store that was created without DLedger keeps its old commit log. Both
have the same file size, and the ledger starts at the end of the old log's last file. So an offset identifies
the file in either.
Source: DLedgerCommitLog of RocketMQ 4.6.0, which calls that offset dividedCommitlogOffset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from pathlib import Path

from rocketpy.errors import RecordCorrupt
from rocketpy.protocol.message.record import RecordView, peek
from rocketpy_broker.replication.dledger.core.entry import HEADER_BYTES, Entry
from rocketpy_broker.replication.dledger.storage.entry_scan import EntryScan, accept_any
from rocketpy_broker.store.log.log_scan import BulkReader, LogScan, LogTail, problem_of
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue

logger = logging.getLogger("rocketpy_broker.dledger.entry_records")


def check_record(entry: Entry) -> str:
    """Return what is wrong with the record in an entry after power loss; see `CheckEntry`."""
    try:
        return problem_of(record_of(entry, check_crc=True), entry.pos + HEADER_BYTES)
    except RecordCorrupt as error:
        return error.reason


def record_of(entry: Entry, *, check_crc: bool = False) -> RecordView:
    """Return the record in an entry. Raises RecordCorrupt, TornTail if the entry has none."""
    physical_offset = entry.pos + HEADER_BYTES
    view = peek(entry.body, check_crc=check_crc)
    if (view.physical_offset, view.size) != (physical_offset, len(entry.body)):
        raise RecordCorrupt(
            physical_offset,
            f"the record contains offset {view.physical_offset} and size {view.size}, expected "
            f"{physical_offset} and {len(entry.body)}",
        )
    return view


@dataclass(eq=False)
class EntryRecordScan:
    """Iterates over the records up to `until`: a `RecordScan`."""

    old: MappedFileQueue
    """The commit log in front of the ledger, if any."""
    data: MappedFileQueue
    start: InitVar[int]
    """Of a file or an entry."""
    until: int
    """End of the last committed entry. An entry without a record is skipped."""
    _: KW_ONLY
    check_crc: bool = True
    bulk: BulkReader | None = None

    def __post_init__(self, start: int) -> None:
        self.end = start
        self.stop: RecordCorrupt | None = None
        self.last_store_timestamp = 0
        self.tail = LogTail(start)

    def __iter__(self) -> Iterator[RecordView]:
        if self.old.mapped_files and self.end < self.old.max_offset:
            yield from self._scan_old()
        entries = EntryScan(self.data, self.end, accept_any)
        for entry in entries:
            if entry.end_pos > self.until:
                break
            self.end = entry.end_pos
            self.tail.advance(self.end)
            try:
                view = record_of(entry, check_crc=self.check_crc)
            except RecordCorrupt as error:
                logger.error("entry %d has no message record: %s", entry.index, error)
                continue
            self.last_store_timestamp = view.store_timestamp
            yield view

    def _scan_old(self) -> Iterator[RecordView]:
        """Scan the old log, which ends with a blank record; the ledger starts after it."""
        scan = LogScan(self.old, self.end, check_crc=self.check_crc, bulk=self.bulk)
        for view in scan:
            self.last_store_timestamp = view.store_timestamp
            yield view
        self.last_store_timestamp = max(self.last_store_timestamp, scan.last_store_timestamp)
        self.end = self.data.min_offset


class JoinedFiles:
    """The `LogFiles` of an old commit log and a ledger."""

    def __init__(self, old: MappedFileQueue, ledger: MappedFileQueue) -> None:
        self.old = old
        self.ledger = ledger
        self.file_bytes = ledger.file_bytes

    @property
    def directory(self) -> Path:
        """Directory of the ledger's data files."""
        return self.ledger.directory

    @property
    def mapped_files(self) -> Sequence[MappedFile]:
        """All files, oldest first."""
        return [*self.old.mapped_files, *self.ledger.mapped_files]

    @property
    def min_offset(self) -> int:
        """Start of the oldest file."""
        return (self.old if self.old.mapped_files else self.ledger).min_offset

    @property
    def max_offset(self) -> int:
        """End of the last written byte."""
        return self.ledger.max_offset

    def _part(self, offset: int) -> MappedFileQueue:
        return self.old if self.old.mapped_files and offset < self.old.max_offset else self.ledger

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that has this offset, written or not."""
        return self._part(offset).find(offset)

    def read(self, offset: int, size: int) -> bytes | None:
        """Return written bytes within one file; None if some of them are not written."""
        return self._part(offset).read(offset, size)

    def take_first(self) -> MappedFile:
        """Remove and return the oldest file, even the last one of the old log."""
        return self.old.mapped_files.pop(0) if self.old.mapped_files else self.ledger.take_first()

    def drop_strays(self) -> int:
        """Return 0: both logs were checked when they were opened, so there are no stray files."""
        return 0
