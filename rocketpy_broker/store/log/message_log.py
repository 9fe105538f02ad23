"""The log under a message store, as the store sees it: its own commit log, or a ledger's entries.

A store appends to a log, gets dispatch requests from it, reads records by their physical offset, and deletes
expired files. The log decides about the layout of its files, and when a record counts as written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from rocketpy.errors import RecordCorrupt, StoreError
from rocketpy.protocol.message.batch import BatchColumns
from rocketpy.protocol.message.record import RecordView
from rocketpy_broker.store.config import RecoveryConfig
from rocketpy_broker.store.files.checkpoint import Checkpoint
from rocketpy_broker.store.log.flush import FlushPlan
from rocketpy_broker.store.log.log_scan import BulkReader, LogTail
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import LogFiles
from rocketpy_broker.store.log.messages import (
    TIMESTAMP_BYTES,
    AppendReceipt,
    BatchReceipt,
    DispatchRequest,
    MessageInner,
    store_host_flag,
    timestamp_in,
)

logger = logging.getLogger("rocketpy_broker.store.recovery_report")


@dataclass(slots=True)
class RecoveryReport:
    """The result of opening a store.

    clean: whether the last stop was clean. scanned_from, end: part of the commit log that was read. records:
    in it.
    rebuilt: units added to consume queues. cut_bytes: bytes other than zeros dropped from the log's end.
    """

    clean: bool
    from_rocketpy: bool = True
    """Whether rocketpy wrote the directory last, and has closed it before with checksums of its queues.

    False for a new directory, one that a Java broker wrote last, and one of a version without checksums.
    """
    scanned_from: int = 0
    end: int = 0
    records: int = 0
    rebuilt: int = 0
    cut_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    """One line for each thing an operator may want to know."""

    def note(self, text: str) -> None:
        """Add a line and log it."""
        self.notes.append(text)
        logger.warning("%s", text)


class RecordScan(Protocol):
    """Iterates over the log's records, each checked."""

    end: int
    """Just after the last whole one; of a ledger, after its entry."""
    stop: RecordCorrupt | None
    last_store_timestamp: int
    tail: LogTail

    def __iter__(self) -> Iterator[RecordView]: ...


class MessageLog(Protocol):
    """See the module. One thread calls it; `preallocate_ahead` and `persist_min_offset` may run in others."""

    files: LogFiles
    """The files that readers read and retention deletes."""
    tail: LogTail
    last_store_timestamp: int = 0
    """Of the newest record that may be read, ms; 0 when not known."""
    rollback_error: StoreError | None = None
    """Why the log cannot be written to until it was recovered."""
    _store_host: bytes
    _store_flag: int

    # -- opening and closing

    def load(self) -> None:
        """Find the files. Raises StoreDamaged, StoreError."""

    def classify_files(self, checkpoint: Checkpoint) -> None:
        """Separate the log's files from left-over ones. Raises StoreDamaged."""

    def first_record(self, file: MappedFile) -> RecordView | None:
        """Return the first record of a file; None when the file does not begin with a record."""

    def scan(self, start: int, dispatched: int, *, check_crc: bool, bulk: BulkReader | None) -> RecordScan:
        """Read records from there on, where a file or a record begins.

        dispatched: some queue has a record that ends there.
        """

    def truncate_tail(
        self, scan: RecordScan, checkpoint: Checkpoint, config: RecoveryConfig, report: RecoveryReport
    ) -> None:
        """Cut the log where a scan found its end. Raises StoreDamaged, cutting nothing, if that is damage."""

    def rewrite_unflushed(self, report: RecoveryReport, flushed_offset: int) -> None:
        """After an unclean stop, write and flush again all data that may be in the page cache only."""

    def start(self, tail: LogTail) -> None:
        """Begin appending at the end of the recovered files."""

    def finish(self) -> None:
        """Delete the preallocated file before a clean stop. Raises StoreError."""

    def close(self) -> None:
        """Close all files."""

    # -- offsets

    @property
    def min_offset(self) -> int:
        """Where the oldest file starts."""
        return self.files.min_offset

    @property
    def first_offset(self) -> int:
        """Where the oldest record starts."""

    @property
    def max_offset(self) -> int:
        """Just after the last record that may be read."""

    @property
    def flushed_offset(self) -> int:
        """Records below this offset survive power loss."""

    def roll_next_file(self, offset: int) -> int:
        """Return where the file after the one with this offset starts."""
        size = self.files.file_bytes
        return offset + size - offset % size

    # -- appending

    def set_store_host(self, host: bytes) -> None:
        """Change the address written into records from now on: 8 or 20 bytes."""
        self._store_host = host
        self._store_flag = store_host_flag(host)

    def append(self, message: MessageInner) -> AppendReceipt:
        """Place a message in the current run; see `MessageStore.append`."""

    def append_batch(self, message: MessageInner, batch: BatchColumns) -> BatchReceipt:
        """Place a batch; see `MessageStore.append_batch`."""

    def write_out(self) -> list[DispatchRequest]:
        """Write the run; return the requests that may be dispatched, in log order."""

    # -- reading

    def read(self, offset: int, size: int) -> bytes | None:
        """Return bytes within one file; None when they are not all there.

        offset: 0 means the oldest record when the log no longer starts there (QUIRKS 36).
        """

    def read_record(self, offset: int, size: int | None) -> bytes | None:
        """Return the bytes of the record at that offset; None when they are not all there.

        size: when known; without, None also where no record begins. Nothing else is checked.
        """

    def store_timestamp(self, offset: int) -> int:
        """Return when the record at that offset was stored, ms; -1 when there is none."""
        return timestamp_in(self.read(offset, TIMESTAMP_BYTES))

    # -- flushing, preallocation and retention

    def plan_flush(self, plan: FlushPlan) -> None:
        """Add the log's unflushed files to a plan."""

    def needs_preallocation(self) -> bool:
        """Whether `preallocate_ahead` should be called."""
        return False

    def preallocate_ahead(self) -> MappedFile | None:
        """Reserve space ahead, or make the next file; see `MessageStore.preallocate_ahead`."""
        return None

    def adopt_preallocated(self, file: MappedFile) -> None:
        """Take over the file that `preallocate_ahead` made."""

    def persist_min_offset(self) -> None:
        """Save where the log begins now, before files below are deleted. Raises StoreError."""

    def take_expired_side_files(self) -> list[MappedFile]:
        """Take out other files that are useless without the expired ones; the caller deletes them."""
        return []
