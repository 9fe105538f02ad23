"""The interface between a message store and its log: a commit log, or the entries of a DLedger group.

A store appends to a log, gets the written records for dispatch, reads records by their physical offset, and
deletes expired files. The log determines the layout of its files, and when a record is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from rocketpy.errors import RecordCorrupt, StoreError
from rocketpy.protocol.message.record import RecordView
from rocketpy_broker.store.config import RecoveryConfig, StoreConfig
from rocketpy_broker.store.files.checkpoint import Checkpoint
from rocketpy_broker.store.files.disk import Clock, Disk
from rocketpy_broker.store.log.flush import FlushPlan
from rocketpy_broker.store.log.log_scan import BulkReader, LogTail
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import LogFiles
from rocketpy_broker.store.log.messages import (
    TIMESTAMP_BYTES,
    AppendReceipt,
    BatchReceipt,
    LogPiece,
    MessageInner,
    QueueTable,
    store_host_flag,
    timestamp_in,
)

logger = logging.getLogger("rocketpy_broker.store.recovery_report")


@dataclass(slots=True)
class RecoveryReport:
    """The result of opening a store."""

    clean: bool
    """Whether the last stop was clean."""
    from_rocketpy: bool = True
    """Whether rocketpy wrote the directory last, and an earlier stop saved checksums of the queues.

    False for a new directory, after a Java broker, and after a version of rocketpy without checksums.
    """
    scanned_from: int = 0
    """Where the part of the commit log that was read begins."""
    end: int = 0
    """Where it ends."""
    records: int = 0
    """Number of its records."""
    rebuilt: int = 0
    """Units added to consume queues."""
    cut_bytes: int = 0
    """Non-zero bytes that were truncated."""
    notes: list[str] = field(default_factory=list)
    """Messages for the operator, one line each."""

    def note(self, text: str) -> None:
        """Add a line, and log it as a warning."""
        self.notes.append(text)
        logger.warning("%s", text)


class RecordScan(Protocol):
    """Iterates over the records of a log, and checks each."""

    end: int
    """Offset just after the last whole record; in a ledger, after its entry."""
    stop: RecordCorrupt | None
    """Why the scan ended; None if only zeros follow."""
    last_store_timestamp: int
    tail: LogTail

    def __iter__(self) -> Iterator[RecordView]: ...


class MessageLog(Protocol):
    """The log of a store. Not thread-safe, except for `preallocate_ahead` and `persist_min_offset`."""

    files: LogFiles
    """The files that readers read and retention deletes."""
    tail: LogTail
    last_store_timestamp: int = 0
    """Store timestamp (ms) of the newest readable record; 0 when not known."""
    rollback_error: StoreError | None = None
    """Why the log rejects writes until a recovery; None while it accepts them."""
    _store_host: bytes
    _store_flag: int

    # -- opening and closing

    def load(self) -> None:
        """Load the files of the directory. Raises StoreDamaged, StoreError."""

    def classify_files(self, checkpoint: Checkpoint) -> None:
        """Separate the files of the log from those that a power loss left over. Raises StoreDamaged."""

    def first_record(self, file: MappedFile) -> RecordView | None:
        """Return the first record of a file, without checking its body; None if no record starts there."""

    def scan(self, start: int, dispatched: int, *, check_crc: bool, bulk: BulkReader | None) -> RecordScan:
        """Return a scan of the records from `start` on, which is the offset of a file or of a record.

        dispatched: end of the newest record in any consume queue; -1 without queues. check_crc: also check
        the bodies. bulk: see `BulkReader`.
        """

    def truncate_tail(
        self, scan: RecordScan, checkpoint: Checkpoint, config: RecoveryConfig, report: RecoveryReport
    ) -> None:
        """Truncate a torn tail at the end of a scan. Raises StoreError.

        Other damage raises StoreDamaged and leaves the log unchanged, unless `config.cut_damage` is set.
        """

    def rewrite_unflushed(self, report: RecoveryReport, flushed_offset: int) -> None:
        """After an unclean stop, write again all data that may be only in the page cache.

        The next flush makes it durable. flushed_offset: of the checkpoint; -1 when not known.
        """

    def start(self, tail: LogTail) -> None:
        """Begin appending at the end of the recovered files."""

    def finish(self) -> None:
        """Prepare the files for a clean stop, such as deleting a preallocated one. Raises StoreError."""

    def close(self) -> None:
        """Close all files."""

    # -- offsets

    @property
    def min_offset(self) -> int:
        """Start offset of the oldest file."""
        return self.files.min_offset

    @property
    def first_offset(self) -> int:
        """Offset of the oldest record."""

    @property
    def max_offset(self) -> int:
        """Offset just after the last readable record."""

    @property
    def flushed_offset(self) -> int:
        """Records below this offset survive power loss."""

    def roll_next_file(self, offset: int) -> int:
        """Return the start offset of the file after the one that contains `offset`."""
        size = self.files.file_bytes
        return offset + size - offset % size

    # -- appending

    def set_store_host(self, host: bytes) -> None:
        """Set the address that is written into later records. host: 8 bytes for IPv4, 20 for IPv6."""
        self._store_host = host
        self._store_flag = store_host_flag(host)

    def append(self, message: MessageInner) -> AppendReceipt:
        """Add a message to the run; see `MessageStore.append`."""

    def append_batch(self, message: MessageInner) -> BatchReceipt:
        """Add a batch to the run; see `MessageStore.append_batch`."""

    def write_out(self) -> list[LogPiece]:
        """Write the run; return its records for dispatch, in log order."""

    # -- reading

    def read(self, offset: int, size: int) -> bytes | None:
        """Return written bytes of one file; None unless all of them are written.

        offset: 0 means the oldest record if the log starts later (QUIRKS 36).
        """

    def read_record(self, offset: int, size: int | None = None) -> bytes | None:
        """Return the bytes of the record at `offset`; None unless all of them are written.

        size: of the record. Without it the size is read from the log, and None is also returned if no record
        starts there. Nothing else is checked.
        """

    def store_timestamp(self, offset: int) -> int:
        """Return the store timestamp (ms) of the record at `offset`; -1 without a record."""
        return timestamp_in(self.read(offset, TIMESTAMP_BYTES))

    # -- flushing, preallocation and retention

    def plan_flush(self, plan: FlushPlan) -> None:
        """Add the log's unflushed files to a plan."""

    def needs_preallocation(self) -> bool:
        """Whether `preallocate_ahead` should be called."""
        return False

    def preallocate_ahead(self) -> MappedFile | None:
        """Reserve space, or create the next file; see `MessageStore.preallocate_ahead`."""
        return None

    def adopt_preallocated(self, file: MappedFile) -> None:
        """Keep the file that `preallocate_ahead` created for the next append that needs it."""

    def persist_min_offset(self) -> None:
        """Save the start offset of the log, before older files are deleted. Raises StoreError."""

    def take_expired_side_files(self) -> list[MappedFile]:
        """Remove and return other files, such as a ledger's index, that describe only expired log files.

        The caller deletes them.
        """
        return []


MakeLog = Callable[[StoreConfig, QueueTable, Clock, Disk], MessageLog]
"""Creates the log of a store."""
