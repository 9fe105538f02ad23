"""The commit log: every message of every topic, one record after the other.

Appends gather in memory as a *run*; `write_out` puts the run into the file with one positional write (two
where it crosses a file end) and only then is it part of the log. When that fails, the whole run is undone:
offsets are reset, and bytes that may have reached the file are wiped, so that recovery does not find them.

A record never crosses a file end: it must leave at least 8 bytes for the blank record that fills the rest
(rest i32, 0xCBD43194). After those 8 bytes rocketpy has the zeros of the new file, 4.6.0 has leftovers.
Source: RocketMQ CommitLog, DefaultAppendMessageCallback.
"""

from __future__ import annotations

import logging
from itertools import accumulate, repeat
from operator import add
from typing import Final

from rocketpy.errors import MessageInvalid, MessageTooLarge, StoreDamaged, StoreError
from rocketpy.protocol.message.batch import BatchColumns
from rocketpy.protocol.message.properties import MAX_PROPERTIES_BYTES
from rocketpy.protocol.message.record import (
    FIXED_BYTES,
    MESSAGE_MAGIC,
    MIN_BLANK_BYTES,
    RecordView,
    encode_blank_start,
    encode_record,
    encode_records,
    read_start,
)
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.store.config import RecoveryConfig, StoreConfig
from rocketpy_broker.store.files.checkpoint import Checkpoint
from rocketpy_broker.store.files.disk import Clock, Disk, disk_errors
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
    DispatchRequest,
    MessageInner,
    QueueTable,
    peek_message,
    too_large,
    with_hosts,
)

logger = logging.getLogger("rocketpy_broker.store.commit_log")

_READ_BYTES: Final = 1024
_new_receipt = tuple.__new__  # faster than AppendReceipt(...): see tests/bench/store_append.py


class CommitLog(MessageLog):
    """Appends to and reads from the log's files."""

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
        self._requests: list[DispatchRequest] = []
        self._sealed: list[tuple[MappedFile, list[bytes]]] = []
        """Parts of the run that end a file."""
        self._position = 0
        """Physical offset of the next record."""
        self._limit = 0
        """A record must end at or before this offset, else the file is at its end."""
        self.tail = LogTail(0)

    # -- opening and closing ---------------------------------------------------------------------

    def load(self) -> None:
        """Load the files; see `MessageLog`, also for the methods below."""
        directory = self.files.directory
        with disk_errors("make directory", directory):
            self._disk.make_dir(directory)
        self.files.load()

    def classify_files(self, checkpoint: Checkpoint) -> None:
        """Check that flushed files exist. Other files may be left over from a power loss.

        Raises StoreDamaged: starting empty would delete the queues, and give their numbers out again.
        """
        if not (self.files.mapped_files or self.files.strays) and checkpoint.flushed_offset > 0:
            raise StoreDamaged(
                f"{self.files.directory} has no files, but the log was flushed up to "
                f"{checkpoint.flushed_offset}. Mount or restore that directory; to start with an empty "
                "store, remove its file `checkpoint`"
            )
        self.files.classify_files(checkpoint.flushed_offset, checkpoint.min_offset)

    def first_record(self, file: MappedFile) -> RecordView | None:
        """Return the first record of a file; only its fields are checked."""
        return peek_message(file.read(0, 1 << 16))

    def scan(self, start: int, dispatched: int, *, check_crc: bool, bulk: BulkReader | None) -> RecordScan:
        """Scan to the end of the log, also where queues have the records."""
        return LogScan(self.files, start, check_crc=check_crc, bulk=bulk)

    def truncate_tail(
        self, scan: RecordScan, checkpoint: Checkpoint, config: RecoveryConfig, report: RecoveryReport
    ) -> None:
        """Check the end of the log, and wipe a torn tail."""
        check_end(self.files, scan, checkpoint, config, report)
        cut(self.files, scan.end, report)

    def rewrite_unflushed(self, report: RecoveryReport, flushed_offset: int) -> None:
        """Write again the data that may be in the page cache only: scanned records, and all after the
        checkpoint.

        After a failed flush the page cache keeps such data without writing it, so it is written again.
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
            self._position = self._limit = 0
        else:
            self._position = last.start + last.wrote
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
        """Where the oldest file starts; a record starts there too."""
        return self.files.min_offset

    @property
    def flushed_offset(self) -> int:
        """Everything below survives power loss."""
        return self.files.flushed_offset

    @property
    def max_offset(self) -> int:
        """Just after the last record written out."""
        if self._sealed:  # the file begun by the run is not part of the log yet
            file = self._sealed[0][0]
            return file.start + file.wrote
        return self.files.max_offset

    # -- appending -------------------------------------------------------------------------------

    def append(self, message: MessageInner) -> AppendReceipt:
        """Place one message at the end of the run.

        Returns where it will be once `write_out` has returned; until then it cannot be read.
        Raises MessageTooLarge, TopicInvalid, MessageInvalid, DiskFull (no room for the next file); then
        nothing has changed. Source: RocketMQ CommitLog putMessage; differs: one writer, no lock.
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
        self._requests.append((cursor, position, size, now, queue_offset, sys_flag, properties))
        if not sys_flag & NOT_IN_QUEUE:
            cursor.next_offset = queue_offset + 1
        self._position = position + size
        return _new_receipt(AppendReceipt, (position, size, queue_offset, now))

    def append_batch(self, message: MessageInner, batch: BatchColumns) -> BatchReceipt:
        """Place a batch as one record each, all in one file with one store time.

        message: what they share; its own flag, body and properties are not used. Raises as `append`; then
        none is placed.
        """
        sys_flag = message.sys_flag
        if sys_flag & MessageSysFlag.TRANSACTION_MASK:
            raise MessageInvalid("messages of a batch cannot be transactional")
        cursor = self.table[message.topic, message.queue_id]
        fixed = FIXED_BYTES + len(cursor.topic_bytes)
        if self._store_flag or len(message.born_host) != 8:
            sys_flag, fixed = with_hosts(sys_flag, fixed, message.born_host, self._store_flag)
        flags, bodies, properties = batch
        if not bodies:
            return BatchReceipt((), (), cursor.next_offset)
        sizes = [fixed + length for length in map(add, map(len, bodies), map(len, properties))]
        properties_max = max(map(len, properties))
        total = sum(sizes)
        if total > self._message_bytes_max or properties_max > MAX_PROPERTIES_BYTES:
            raise too_large(total, self._message_bytes_max, properties_max)
        if b"\0" in b"".join(properties):
            raise MessageInvalid(NUL_IN_PROPERTIES)
        if self._position + total > self._limit:
            self._roll(total)
        now = self._clock()
        queue_offset = cursor.next_offset
        positions = list(accumulate(sizes, initial=self._position))
        end = positions.pop()
        self._run += encode_records(
            cursor.topic_bytes,
            message.queue_id,
            queue_offset,
            positions,
            sizes,
            sys_flag,
            message.born_timestamp,
            message.born_host,
            now,
            self._store_host,
            message.reconsume_times,
            flags,
            bodies,
            properties,
        )
        offsets = range(queue_offset, queue_offset + len(sizes))
        self._requests += zip(
            repeat(cursor), positions, sizes, repeat(now), offsets, repeat(sys_flag), properties, strict=False
        )
        self._position, cursor.next_offset = end, offsets.stop
        return BatchReceipt(positions, sizes, queue_offset)

    def _roll(self, size: int) -> None:
        """Continue in the next file, so that `size` bytes fit; the previous file ends with a blank record."""
        files = self.files
        if size + MIN_BLANK_BYTES > files.file_bytes:
            raise MessageTooLarge(f"{size} bytes do not fit into a file of {files.file_bytes}")
        last = files.last
        next_file = files.add_file()
        if last is not None:
            rest = last.end - self._position
            if rest >= MIN_BLANK_BYTES:
                self._run.append(encode_blank_start(rest))
            self._sealed.append((last, self._run))
            self._run = []
        self._position = next_file.start
        self._limit = next_file.end - MIN_BLANK_BYTES

    # -- writing ---------------------------------------------------------------------------------

    def write_out(self) -> list[DispatchRequest]:
        """Write the run; returns its dispatch requests in log order.

        From here on its messages survive the end of this process. Raises DiskFull, StoreError; then the
        run is rolled back and nothing of it is stored. If the rollback fails too, `rollback_error` is set:
        the log must be recovered before it is written to again, and recovery may find the run.
        """
        requests = self._requests
        if not requests and not self._sealed:
            return []
        parts = self._parts()
        try:
            for file, data, _ in parts:
                file.write(file.wrote, data)
        except StoreError:
            try:
                self._undo(parts)
            except StoreError as failure:
                self.rollback_error = failure
            raise
        for file, data, ends_file in parts:
            file.wrote = file.size if ends_file else file.wrote + len(data)
        self._sealed.clear()
        self._run = []
        self._requests = []
        if requests:
            self.last_store_timestamp = requests[-1][3]
            self.tail.advance(self._position)
        return requests

    def _parts(self) -> list[tuple[MappedFile, bytes, bool]]:
        """The run as (file, bytes, does it end the file)."""
        run, mapped_files = self._run, self.files.mapped_files
        parts = []
        if self._sealed:
            parts = [(file, b"".join(pieces), True) for file, pieces in self._sealed]
        if run and mapped_files:
            parts.append((mapped_files[-1], run[0] if len(run) == 1 else b"".join(run), False))
        return parts

    def _undo(self, parts: list[tuple[MappedFile, bytes, bool]]) -> None:
        """Restore the queue offsets of before the run, then erase what may have reached the files."""
        for request in reversed(self._requests):
            if not request[5] & NOT_IN_QUEUE:
                request[0].next_offset = request[4]
        self._run = []
        self._requests = []
        sealed = len(self._sealed)
        self._sealed = []
        for _ in range(sealed):  # a file begun by this run goes again
            self.files.mapped_files.pop().delete()
        self._resume(self.files.last)
        first, data, _ = parts[0]
        if first.erase(first.wrote, min(first.size, first.wrote + len(data))):
            # Power loss could restore the erased records after those that are written there next.
            first.flush()

    # -- reading ---------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes | None:
        """Bytes of the log, within one file; None when they are not all there.

        offset: 0 means the oldest record when the log no longer starts there (QUIRKS 36).
        """
        if offset == 0:
            offset = self.files.min_offset
        return self.files.read(offset, size)

    def read_record(self, offset: int, size: int | None = None) -> bytes | None:
        """As many bytes as the record at that offset says it has; see `MessageLog`. Offset 0 as `read`."""
        if offset == 0:
            offset = self.files.min_offset
        file = self.files.find(offset)
        if file is None:
            return None
        position = offset - file.start
        there = file.wrote - position
        if size is None:  # a guess saves most records a second look
            size = min(there, _READ_BYTES)
            if size < FIXED_BYTES:
                return None
            data = file.read(position, size)
            size, magic = read_start(data)
            if magic != MESSAGE_MAGIC:  # whatever stands there may be taken for a size
                return None
            if 0 < size <= len(data):
                return data[:size]
        return file.read(position, size) if 0 < size <= there else None

    # -- flushing, preallocation and retention ---------------------------------------------------

    def plan_flush(self, plan: FlushPlan) -> None:
        """Plan to flush all written bytes."""
        plan.add(self.files)

    def needs_preallocation(self) -> bool:
        """Whether the log is near the end of its reserved blocks, or of its file."""
        return self._preallocator.is_wanted()

    def preallocate_ahead(self) -> MappedFile | None:
        """Reserve blocks, or make the next file."""
        return self._preallocator.make()

    def adopt_preallocated(self, file: MappedFile) -> None:
        """Keep the next file until it is needed."""
        self.files.adopt_preallocated(file)

    def persist_min_offset(self) -> None:
        """Do nothing: the store's checkpoint already has the offset."""


def check_end(
    files: MappedFileQueue,
    scan: RecordScan,
    checkpoint: Checkpoint,
    config: RecoveryConfig,
    report: RecoveryReport,
) -> None:
    """Raise StoreDamaged if the log's end is damaged, and not only a torn tail."""
    follower = find_record(files, scan.end)
    from_rocketpy = checkpoint.flushed_offset >= 0
    if follower is not None and not from_rocketpy and follower.store_timestamp < scan.last_store_timestamp:
        follower = None  # left over from an earlier, longer log: 4.6.0 cuts without wiping
    problem = ""
    if 0 <= scan.end < checkpoint.flushed_offset:
        problem = f"the log was flushed up to {checkpoint.flushed_offset}"
    elif follower is not None and not (
        from_rocketpy and has_lost_sector(files, scan.end, follower.physical_offset)
    ):
        problem = f"a valid record follows at {follower.physical_offset}"
    reason = scan.stop.reason if scan.stop is not None else "there are only zeros"
    if problem and not config.cut_damage:
        raise StoreDamaged(
            f"the commit log in {files.directory} is damaged at {scan.end}: {reason}, but "
            f"{problem}. Restore the file from a replica or a copy; or set cut_damage and lose the rest"
        )
    if problem:
        report.note(f"damage at {scan.end} ({reason}, but {problem}) is cut off as configured")
    elif follower is not None:
        report.note(f"unflushed records after {scan.end} are lost: {reason}")
    elif scan.stop is not None:
        report.note(f"torn tail at {scan.end}: {reason}")


def cut(files: MappedFileQueue, end: int, report: RecoveryReport) -> None:
    """Cut the log at `end`, and delete files that are not part of it. Raises StoreError."""
    report.cut_bytes = files.truncate(end)
    if strays := files.drop_strays():
        report.note(f"{strays} files are deleted that power loss left: expired ones, or unflushed ones")
    if report.cut_bytes:
        report.note(f"{report.cut_bytes} bytes after {end} are wiped from the commit log")
