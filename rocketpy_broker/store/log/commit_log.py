"""The commit log: every message of every topic, one record after the other.

Appended records are collected in memory as a *run*. `write_out` writes the run with one positional write, or
two where it crosses the end of a file. Only then is the run part of the log. When the write fails, the whole
run is rolled back: queue offsets are reset, and bytes that may have reached the file are zeroed.

A record never crosses the end of a file. It leaves at least 8 bytes for a blank record, which fills the rest
of the file: size of the rest (i32), then 0xCBD43194. In rocketpy's files zeros follow these 8 bytes, in files
of 4.6.0 bytes of older records.
Source: RocketMQ CommitLog, DefaultAppendMessageCallback.
"""

from __future__ import annotations

import logging
from typing import Final

from rocketpy.errors import MessageInvalid, MessageTooLarge, StoreDamaged, StoreError
from rocketpy.protocol.message.properties import MAX_PROPERTIES_BYTES
from rocketpy.protocol.message.record import (
    FIXED_BYTES,
    MESSAGE_MAGIC,
    MIN_BLANK_BYTES,
    RecordView,
    encode_blank_start,
    encode_record,
    read_start,
)
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.store.config import RecoveryConfig, StoreConfig
from rocketpy_broker.store.files.checkpoint import Checkpoint
from rocketpy_broker.store.files.disk import Clock, Disk, disk_errors
from rocketpy_broker.store.log.batch_records import batch_records
from rocketpy_broker.store.log.flush import FlushPlan
from rocketpy_broker.store.log.log_scan import BulkReader, LogScan, LogTail, find_record, has_lost_sector
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue, Preallocator
from rocketpy_broker.store.log.message_log import MessageLog, RecordScan, RecoveryReport
from rocketpy_broker.store.log.messages import (
    NOT_IN_QUEUE,
    NUL_IN_PROPERTIES,
    AppendReceipt,
    BatchReceipt,
    LogPiece,
    MessageInner,
    QueueCursor,
    QueueTable,
    peek_message,
    too_large,
    with_hosts,
)

logger = logging.getLogger("rocketpy_broker.store.commit_log")

_READ_BYTES: Final = 1024
_new_receipt = tuple.__new__  # faster than AppendReceipt(...): see tools/bench/store_append.py


class CommitLog(MessageLog):
    """The commit log of a store: appends records, and reads them by physical offset."""

    def __init__(self, config: StoreConfig, table: QueueTable, clock: Clock, disk: Disk) -> None:
        log = config.commit_log
        self._disk = disk
        self.files: MappedFileQueue = MappedFileQueue(
            disk, config.commit_log_directory, log.segment_bytes, reserve_bytes=log.reserve_bytes
        )
        self.table = table
        self._clock = clock
        self._message_bytes_max = log.message_bytes_max
        self._preallocator = Preallocator(self.files, log)
        self.set_store_host(config.store_host)
        self._run: list[bytes] = []
        """Records of the run that are for the last file."""
        self._count = 0
        """Number of these records."""
        self._first_offsets: dict[QueueCursor, int] = {}
        """Queue offset of the first message of the run in each of its queues."""
        self._stored_ms = 0
        """Store timestamp of the last record of the run."""
        self._begin = 0
        """Physical offset of the first of these records."""
        self._sealed: list[tuple[MappedFile, LogPiece, bytes]] = []
        """Parts of the run that end a file, and the start of the blank record that fills its rest."""
        self._position = 0
        """Physical offset of the next record."""
        self._limit = 0
        """The next record must end at or before this offset; otherwise it goes to the next file."""
        self.tail = LogTail(0)

    # -- opening and closing ---------------------------------------------------------------------

    def load(self) -> None:
        """See `MessageLog.load`."""
        directory = self.files.directory
        with disk_errors("make directory", directory):
            self._disk.make_dir(directory)
        self.files.load()

    def classify_files(self, checkpoint: Checkpoint) -> None:
        """See `MessageLog.classify_files`.

        Raises StoreDamaged if no file of a flushed log exists. An empty log would delete the consume queues,
        and new messages would get the queue offsets of old ones.
        """
        if not (self.files.mapped_files or self.files.strays) and checkpoint.flushed_offset > 0:
            raise StoreDamaged(
                f"{self.files.directory} has no files, but the log was flushed up to "
                f"{checkpoint.flushed_offset}. Mount or restore that directory; to start with an empty "
                "log, remove the file `checkpoint` of the store"
            )
        self.files.classify_files(checkpoint.flushed_offset, checkpoint.min_offset)

    def first_record(self, file: MappedFile) -> RecordView | None:
        """Return the first record of a file; only its fields are checked."""
        return peek_message(file.read(0, 1 << 16))

    def scan(self, start: int, dispatched: int, *, check_crc: bool, bulk: BulkReader | None) -> RecordScan:
        """See `MessageLog.scan`. Reads all records, including those that consume queues have."""
        return LogScan(self.files, start, check_crc=check_crc, bulk=bulk)

    def truncate_tail(
        self, scan: RecordScan, checkpoint: Checkpoint, config: RecoveryConfig, report: RecoveryReport
    ) -> None:
        """See `MessageLog.truncate_tail`."""
        check_log_end(self.files, scan, checkpoint, config, report)
        truncate_log(self.files, scan.end, report)

    def rewrite_unflushed(self, report: RecoveryReport, flushed_offset: int) -> None:
        """Write all bytes after the flushed offset again, and include the scanned files in the next flush.

        If the offset is -1, all scanned records are written. After a failed flush, the kernel may keep pages
        as clean and never write them.
        """
        files = self.files
        files.mark_unflushed([file for file in files.mapped_files if file.end > report.scanned_from])
        files.rewrite(flushed_offset if flushed_offset >= 0 else report.scanned_from)

    def start(self, tail: LogTail) -> None:
        """Begin appending at the end of the recovered files."""
        self.tail = tail
        self._resume(self.files.last)

    def _resume(self, last: MappedFile | None) -> None:
        if last is None:
            self._position = self._begin = self._limit = 0
        else:
            self._position = self._begin = last.start + last.wrote
            self._limit = last.end - MIN_BLANK_BYTES

    def finish(self) -> None:
        """Delete the preallocated file, as 4.6.0 does when it stops."""
        self.files.delete_preallocated()

    def close(self) -> None:
        """Close all files."""
        self.files.close()

    # -- offsets ---------------------------------------------------------------------------------

    @property
    def first_offset(self) -> int:
        """Offset of the oldest record, at the start of the oldest file."""
        return self.files.min_offset

    @property
    def flushed_offset(self) -> int:
        """Records below this offset survive power loss."""
        return self.files.flushed_offset

    @property
    def max_offset(self) -> int:
        """Offset just after the last written record."""
        if self._sealed:  # the run added a file, which is not part of the log before `write_out`
            file, _, _ = self._sealed[0]
            return file.start + file.wrote
        return self.files.max_offset

    # -- appending -------------------------------------------------------------------------------

    def append(self, message: MessageInner) -> AppendReceipt:
        """Add one message to the run, and return the position that it will have in the log.

        The message cannot be read before `write_out` has returned. Raises MessageTooLarge, TopicInvalid,
        MessageInvalid, and DiskFull when the next file cannot be created; then nothing has changed.
        Source: RocketMQ CommitLog putMessage. Differs: one writer, no lock.
        """
        cursor = self.table[message.topic, message.queue_id]
        topic, body, properties = cursor.topic_bytes, message.body, message.properties
        born_host = message.born_host
        sys_flag = message.sys_flag
        size = FIXED_BYTES + len(body) + len(topic) + len(properties)
        if self._store_flag or len(born_host) != 8:
            sys_flag, size = with_hosts(sys_flag, size, born_host, self._store_flag)
        if (size > self._message_bytes_max and not message.is_copy) or len(properties) > MAX_PROPERTIES_BYTES:
            raise too_large(size, self._message_bytes_max, len(properties))
        if b"\0" in properties:
            raise MessageInvalid(NUL_IN_PROPERTIES)
        if self._position + size > self._limit:
            self._roll(size)
        position = self._position
        now = self._clock()
        queue_offset = 0 if sys_flag & NOT_IN_QUEUE else cursor.next_offset
        self._run.append(
            encode_record(
                topic,
                message.queue_id,
                message.flag,
                queue_offset,
                position,
                sys_flag,
                message.born_timestamp,
                born_host,
                now,
                self._store_host,
                message.reconsume_times,
                message.prepared_transaction_offset,
                body,
                properties,
            )
        )
        self._count += 1
        self._stored_ms = now
        if not sys_flag & NOT_IN_QUEUE:
            self._first_offsets.setdefault(cursor, queue_offset)
            cursor.next_offset = queue_offset + 1
        self._position = position + size
        return _new_receipt(AppendReceipt, (position, size, queue_offset, now))

    def append_batch(self, message: MessageInner) -> BatchReceipt:
        """Add a batch to the run: a record for each message, all in one file and with one store timestamp.

        message: its body is that of a batch, see `encode_batch`; its flag and properties are ignored. Raises
        the errors of `append`, and RemoteProtocolError for a malformed body; then no message was added.
        """
        sys_flag = message.sys_flag
        if sys_flag & MessageSysFlag.TRANSACTION_MASK:
            raise MessageInvalid("messages of a batch cannot be transactional")
        cursor = self.table[message.topic, message.queue_id]
        if self._store_flag or len(message.born_host) != 8:
            sys_flag, _ = with_hosts(sys_flag, 0, message.born_host, self._store_flag)
        queue_offset = cursor.next_offset
        while True:
            now = self._clock()
            records, positions = batch_records(
                message.body,
                cursor.topic_bytes,
                message.queue_id,
                queue_offset,
                self._position,
                sys_flag,
                message.born_timestamp,
                message.born_host,
                now,
                self._store_host,
                message.reconsume_times,
                self._message_bytes_max,
            )
            if not positions:
                return BatchReceipt((), queue_offset)
            if self._position + len(records) <= self._limit:
                break
            self._roll(len(records))
        self._run.append(records)
        self._count += len(positions)
        self._stored_ms = now
        self._first_offsets.setdefault(cursor, queue_offset)
        self._position += len(records)
        cursor.next_offset = queue_offset + len(positions)
        return BatchReceipt(positions, queue_offset)

    def _roll(self, size: int) -> None:
        """Continue in the next file, so that `size` bytes fit. A blank record fills the previous file."""
        files = self.files
        if size + MIN_BLANK_BYTES > files.file_bytes:
            raise MessageTooLarge(
                f"record of {size} bytes does not fit into a commit log file of {files.file_bytes} bytes "
                "(mappedFileSizeCommitLog)"
            )
        last = files.last
        next_file = files.add_file()
        if last is not None:
            rest = last.end - self._position
            blank = encode_blank_start(rest) if rest >= MIN_BLANK_BYTES else b""
            self._sealed.append((last, self._take_piece(), blank))
        self._position = self._begin = next_file.start
        self._limit = next_file.end - MIN_BLANK_BYTES

    # -- writing ---------------------------------------------------------------------------------

    def write_out(self) -> list[LogPiece]:
        """Write the run, and return it for dispatch.

        After the write, the messages survive the end of this process. Raises DiskFull, StoreError; then the
        run is rolled back and none of it is stored. If the rollback fails too, `rollback_error` is set: no
        write is allowed before a recovery, which may find records of the run.
        """
        parts = self._sealed
        if self._run:
            parts = [*parts, (self.files.mapped_files[-1], self._take_piece(), b"")]
        if not parts:
            return []
        try:
            for file, piece, blank in parts:
                data = piece.data or b""
                file.write(file.wrote, data + blank if blank else data)
        except StoreError:
            try:
                self._roll_back(parts)
            except StoreError as failure:
                self.rollback_error = failure
            raise
        for file, _, _ in self._sealed:
            file.wrote = file.size
        pieces = [piece for _, piece, _ in parts if piece.records]
        if len(parts) > len(self._sealed):
            file, piece, _ = parts[-1]
            file.wrote = piece.end - file.start
        self._first_offsets, self._sealed = {}, []
        if pieces:
            self.last_store_timestamp = pieces[-1].stored_ms
            self.tail.advance(self._position)
        return pieces

    def _take_piece(self) -> LogPiece:
        """Return the records of the run that are for the last file, and begin a new list."""
        run, begin, end, count = self._run, self._begin, self._position, self._count
        self._run, self._begin, self._count = [], end, 0
        data = run[0] if len(run) == 1 else b"".join(run)
        return LogPiece(begin, end, count, self._stored_ms, tuple(self._first_offsets), data)

    def _roll_back(self, parts: list[tuple[MappedFile, LogPiece, bytes]]) -> None:
        """Reset the queue offsets to those before the run, and zero bytes that may have reached the files."""
        for cursor, queue_offset in self._first_offsets.items():
            cursor.next_offset = queue_offset
        added = len(self._sealed)  # the run added a file for each one that it filled
        self._first_offsets, self._sealed = {}, []
        for _ in range(added):
            self.files.mapped_files.pop().delete()
        self._resume(self.files.last)
        first, piece, blank = parts[0]
        if first.erase(first.wrote, min(first.size, first.wrote + piece.end - piece.begin + len(blank))):
            # Without this flush, power loss could restore zeroed records behind the records of the next run.
            first.flush()

    # -- reading ---------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes | None:
        """See `MessageLog.read`."""
        if offset == 0:
            offset = self.files.min_offset
        return self.files.read(offset, size)

    def read_record(self, offset: int, size: int | None = None) -> bytes | None:
        """See `MessageLog.read_record`. Offset 0 means the oldest record, as in `read`."""
        if offset == 0:
            offset = self.files.min_offset
        file = self.files.find(offset)
        if file is None:
            return None
        position = offset - file.start
        available = file.wrote - position
        if size is None:  # most records have at most _READ_BYTES, so one read is enough for them
            size = min(available, _READ_BYTES)
            if size < FIXED_BYTES:
                return None
            data = file.read(position, size)
            size, magic = read_start(data)
            if magic != MESSAGE_MAGIC:  # no record starts here, so these four bytes are not a size
                return None
            if 0 < size <= len(data):
                return data[:size]
        return file.read(position, size) if 0 < size <= available else None

    # -- flushing, preallocation and retention ---------------------------------------------------

    def plan_flush(self, plan: FlushPlan) -> None:
        """See `MessageLog.plan_flush`."""
        plan.add(self.files)

    def needs_preallocation(self) -> bool:
        """See `MessageLog.needs_preallocation`."""
        return self._preallocator.is_wanted()

    def preallocate_ahead(self) -> MappedFile | None:
        """See `MessageLog.preallocate_ahead`."""
        return self._preallocator.make()

    def adopt_preallocated(self, file: MappedFile) -> None:
        """See `MessageLog.adopt_preallocated`."""
        self.files.adopt_preallocated(file)

    def persist_min_offset(self) -> None:
        """Do nothing: the store's checkpoint already has the offset."""


def check_log_end(
    files: MappedFileQueue,
    scan: RecordScan,
    checkpoint: Checkpoint,
    config: RecoveryConfig,
    report: RecoveryReport,
) -> None:
    """Raise StoreDamaged if the end of the log is damaged in a way that a crash cannot explain."""
    next_record = find_record(files, scan.end)
    from_rocketpy = checkpoint.flushed_offset >= 0
    if (
        next_record is not None
        and not from_rocketpy
        and next_record.store_timestamp < scan.last_store_timestamp
    ):
        next_record = None  # a stale record: 4.6.0 does not zero the bytes that it truncates
    problem = ""
    if 0 <= scan.end < checkpoint.flushed_offset:
        problem = f"the log was flushed up to {checkpoint.flushed_offset}"
    elif next_record is not None and not (
        from_rocketpy and has_lost_sector(files, scan.end, next_record.physical_offset)
    ):
        problem = f"a valid record follows at {next_record.physical_offset}"
    reason = scan.stop.reason if scan.stop is not None else "there are only zeros"
    if problem and not config.cut_damage:
        raise StoreDamaged(
            f"the commit log in {files.directory} is damaged at {scan.end}: {reason}, but "
            f"{problem}. Restore the file from a replica or a copy. As a last resort, "
            f"RecoveryConfig(cut_damage=True) deletes everything after {scan.end}"
        )
    if problem:
        report.note(f"damage at {scan.end} ({reason}, but {problem}): truncated, since cut_damage is set")
    elif next_record is not None:
        report.note(f"unflushed records after {scan.end} are lost: {reason}")
    elif scan.stop is not None:
        report.note(f"torn tail at {scan.end}: {reason}")


def truncate_log(files: MappedFileQueue, end: int, report: RecoveryReport) -> None:
    """Truncate the log at `end`, and delete files that are not part of it. Raises StoreError."""
    report.cut_bytes = files.truncate(end)
    if strays := files.drop_strays():
        report.note(f"deleted {strays} files that are not part of the log: a power loss left them")
    if report.cut_bytes:
        report.note(f"{report.cut_bytes} bytes after {end} are zeroed in the commit log")
