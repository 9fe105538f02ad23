"""Opens a store's files: finds the end of the log and brings consume queues and index in line with it.

1. Consume queues: after a clean stop each is compared with the checksums of that stop, and rebuilt when it
   differs. Each queue is truncated at its first invalid unit. Units at its end are dropped if their record is
   not in the log, or belongs to another message.
2. The log is read to its end. After a clean stop, it is read from the checkpoint's tail offset, or from the
   third-last file if that starts later. Otherwise it is read from the checkpoint's dispatched or tail offset,
   whichever is lower. Without them, it is read from the file that the checkpoint's times select. It is read
   from an older file if the index lacks older records, and from the first file if a queue lacks older ones.
   Each record is checked, and dispatched unless its queue has it.
3. The log is truncated where it ends. A torn tail is truncated and logged; other damage stops the start with
   a report (`check_log_end` in store/log/commit_log.py):
   - below the checkpoint's flushed offset no record may be missing;
   - above it a valid record may follow, if a sector of zeros explains the damage: unflushed sectors may
     survive in any combination. Other damage cannot come from power loss;
   - without a flushed offset (a Java broker wrote the store), no valid newer record may follow.
   Decision 0006 explains why this is enough.

Source: RocketMQ DefaultMessageStore load, CommitLog recoverNormally and recoverAbnormally.
Differs: 4.6.0 reads nothing after damage, and indexes nothing before the file that the times select.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rocketpy.errors import RecordCorrupt
from rocketpy.protocol.message.record import RecordView, peek
from rocketpy_broker.store.config import RecoveryConfig
from rocketpy_broker.store.files.checkpoint import Checkpoint
from rocketpy_broker.store.index.index_service import IndexService
from rocketpy_broker.store.log.log_scan import LogTail
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.message_log import MessageLog, RecordScan, RecoveryReport
from rocketpy_broker.store.log.messages import (
    NOT_IN_QUEUE,
    QueueCursor,
    QueueTable,
)
from rocketpy_broker.store.queue.consume_queue import UNIT_BYTES, ConsumeQueue, QueueUnit
from rocketpy_broker.store.queue.dispatch import Dispatcher
from rocketpy_broker.store.queue.log_fields import fields_of, tags_code_of
from rocketpy_broker.store.queue.queue_checksums import FileChecksum
from rocketpy_broker.store.queue.queue_table import CHECKSUM_BYTES_MAX, ConsumeQueueTable
from rocketpy_broker.store.recovery.bulk_scan import BulkScan


class _QueueIncomplete(Exception):
    """A queue lacks messages older than the scan's start."""


@dataclass(eq=False)
class Recovery:
    """One recovery. `log` and `queues` are loaded; `dispatcher` adds records to `queues` and `index`."""

    config: RecoveryConfig
    log: MessageLog
    queues: ConsumeQueueTable
    index: IndexService | None
    dispatcher: Dispatcher
    table: QueueTable

    def __post_init__(self) -> None:
        self._files = self.log.files
        self._indexed_until = 0
        self._from_first = False
        """Whether the whole log must be read, because a queue must be rebuilt."""
        self.tail = LogTail(0)
        """The offset from which the next start after a clean stop may read the log."""

    def run(
        self, checkpoint: Checkpoint, checksums: Sequence[FileChecksum], *, clean: bool
    ) -> RecoveryReport:
        """Recover the store. Raises StoreError, and StoreDamaged before the log is truncated.

        checksums: of the queues' files at the last stop, the newest file of each queue first. clean: whether
        the last stop was clean.
        """
        report = RecoveryReport(clean)
        self.dispatcher.clock.load()
        self.log.classify_files(checkpoint)
        if not self._files.mapped_files:
            self._drop_all(report)
            self.dispatcher.clock.start(0, 0)
            return report
        damaged = self._check_checksums(checksums)
        self._drop_queues_missing_files(report)
        for queue in self.queues.queues.values():
            queue.recover(-1 if clean else checkpoint.dispatched_offset)
            self._check_last_unit(queue, report)
            queue.files.close_idle()
        self._drop_damaged(damaged, report)
        index_from = self._load_index(checkpoint, clean=clean)
        start = self._scan_start(checkpoint, index_from, clean=clean)
        scan = self._scan(start, index_from, report)
        self.log.truncate_tail(scan, checkpoint, self.config, report)
        for queue in self.queues.queues.values():
            if queue.max_physical_offset > scan.end:
                queue.truncate(scan.end)
        report.end = scan.end
        if not clean:
            for queue in self.queues.queues.values():
                queue.zero_rest()
                queue.files.close_idle()
        if self.index is not None and not self.index.delete_from(report.end):
            report.note("the index had records beyond the log's end; its newest file is rebuilt")
            again = replace(report)  # with the same list of notes
            self._scan(self._file_start(self.index.end_offset), self.index.end_offset, again)
            report.scanned_from = min(report.scanned_from, again.scanned_from)
        self.queues.fill(self.table, self._files.min_offset)
        self.dispatcher.offset = report.end
        self.tail = scan.tail
        self.dispatcher.last_store_timestamp = scan.last_store_timestamp
        self.dispatcher.clock.start(report.end, scan.last_store_timestamp)
        return report

    # -- where to begin --------------------------------------------------------------------------

    def _load_index(self, checkpoint: Checkpoint, *, clean: bool) -> int:
        """Load the index; return the physical offset from which records must be indexed."""
        index = self.index
        if index is None:
            return self._files.max_offset
        progress = None if clean or not self.config.use_progress else checkpoint.progress
        complete = index.load(clean=clean, checkpoint_timestamp=checkpoint.index_timestamp, progress=progress)
        if progress is not None and complete:
            return checkpoint.dispatched_offset
        if clean and checkpoint.log_end >= 0 and checkpoint.index_files < 0:  # the last run had no index
            return max(index.end_offset + 1 if index.files else 0, self._files.min_offset)
        if clean and 0 <= checkpoint.index_files != len(index.files):  # any of the files may be missing
            index.destroy()
            return self._files.min_offset
        if clean and (complete or checkpoint.index_files == 0):
            return max(self.queues.max_physical_offset(), index.end_offset + 1, checkpoint.log_end)
        return max(index.end_offset, self._files.min_offset)

    def _scan_start(self, checkpoint: Checkpoint, index_from: int, *, clean: bool) -> int:
        """Return the log offset to read from: the start of a file, or an offset of the checkpoint."""
        mapped_files = self._files.mapped_files
        if not self.queues.queues or self._from_first:
            return mapped_files[0].start
        if clean:
            start = max(mapped_files[max(0, len(mapped_files) - 3)].start, checkpoint.tail_offset)
        elif self._is_dispatched(checkpoint):
            start = min(checkpoint.tail_offset, checkpoint.dispatched_offset)
        else:
            start = self._checkpoint_file(checkpoint.min_timestamp).start
        if self.index is not None and index_from < start:
            start = self._file_start(index_from)
        return start

    def _is_dispatched(self, checkpoint: Checkpoint) -> bool:
        """Whether all queues are complete up to the dispatched offset of the checkpoint."""
        progress = checkpoint.progress
        if progress is None or not self.config.use_progress:
            return False
        start = min(checkpoint.tail_offset, checkpoint.dispatched_offset)
        units = sum(queue.next_offset for queue in self.queues.queues.values())
        return self._files.min_offset <= start <= checkpoint.flushed_offset and units >= progress.units

    def _checkpoint_file(self, timestamp: int) -> MappedFile:
        """Return the newest file whose first record was stored by `timestamp` (ms), else the oldest."""
        for file in reversed(self._files.mapped_files):
            view = self.log.first_record(file)
            if view is not None and 0 < view.store_timestamp <= timestamp:
                return file
        return self._files.mapped_files[0]

    def _file_start(self, offset: int) -> int:
        """Return the start of the file that contains `offset`, or of the first file if that has expired."""
        file = self._files.find(max(offset, self._files.min_offset))
        return file.start if file is not None else self._files.mapped_files[-1].start

    # -- reading the log -------------------------------------------------------------------------

    def _scan(self, start: int, index_from: int, report: RecoveryReport) -> RecordScan:
        """Read the log to its end and dispatch its records. If a queue lacks older messages, start over.

        The second attempt reads from the first file. It fails if a queue was deleted and created again, so
        that the log contains its offsets twice. Then all queues are rebuilt from the log, except those whose
        messages have expired.
        """
        first = self._files.min_offset
        try:
            return self._scan_once(start, index_from, report, gaps_allowed=start == first)
        except _QueueIncomplete as incomplete:
            report.note(f"{incomplete}; reading the log from its first file")
        try:
            return self._scan_again(index_from, report)
        except _QueueIncomplete as incomplete:
            report.note(f"{incomplete}; rebuilding all queues")
        for queue in self.queues.queues.values():
            if not self._has_expired(queue):
                queue.destroy()
        return self._scan_again(index_from, report)

    def _scan_again(self, index_from: int, report: RecoveryReport) -> RecordScan:
        if self.index is not None:
            index_from = max(index_from, self._indexed_until)
        for cursor in self.table.values():  # the failed attempt advanced them, but may not have dispatched
            cursor.next_offset = 0
        return self._scan_once(self._files.min_offset, index_from, report, gaps_allowed=True)

    def _scan_once(
        self, start: int, index_from: int, report: RecoveryReport, *, gaps_allowed: bool
    ) -> RecordScan:
        bulk = BulkScan(self.queues, self.dispatcher, index_from, check_crc=self.config.check_crc)
        delays_ms = self.dispatcher.delays_ms
        dispatched = self.queues.max_physical_offset()
        scan = self.log.scan(start, dispatched, check_crc=self.config.check_crc, bulk=bulk.take)
        report.scanned_from = start
        try:
            for view in scan:
                cursor = self.table[view.topic, view.queue_id]
                is_missing = self._is_missing(view, cursor, gaps_allowed=gaps_allowed)
                bulk.add(fields_of(view, delays_ms), is_missing=is_missing)
                if not view.sys_flag & NOT_IN_QUEUE:
                    bulk.add_queue(cursor)
        finally:
            self._indexed_until = max(self._indexed_until, bulk.indexed_until)
        report.records, report.rebuilt = bulk.records, bulk.rebuilt
        return scan

    def _is_missing(self, view: RecordView, cursor: QueueCursor, *, gaps_allowed: bool) -> bool:
        """Return whether the consume queue of a record lacks it. cursor: of its queue; advanced if so."""
        if view.sys_flag & NOT_IN_QUEUE:
            return False
        queue = self.queues.queues.get((view.topic, view.queue_id))
        if queue is not None and view.physical_offset + view.size <= queue.max_physical_offset:
            if view.queue_offset * UNIT_BYTES < queue.files.min_offset:
                first = queue.files.min_offset // UNIT_BYTES
                queue.destroy()
                raise _QueueIncomplete(
                    f"queue {view.topic}/{view.queue_id} starts at offset {first}, but the log has offset "
                    f"{view.queue_offset}"
                )
            return False
        if queue is not None and not cursor.next_offset and self._is_left_over(queue, view, gaps_allowed):
            queue.destroy()
        expected = max(cursor.next_offset, queue.next_offset if queue is not None else 0)
        if view.queue_offset > expected and not gaps_allowed:
            raise _QueueIncomplete(
                f"queue {view.topic}/{view.queue_id} ends with offset {expected - 1}, but the next one in "
                f"the log is {view.queue_offset}"
            )
        cursor.next_offset = view.queue_offset + 1
        return True

    def _is_left_over(self, queue: ConsumeQueue, view: RecordView, gaps_allowed: bool) -> bool:
        """Whether all units of a queue point to expired records, with a gap before the first record kept.

        Units of expired records cannot be checked: the last one may be torn, or files after it may be lost.
        """
        if not self._has_expired(queue):
            return False
        if view.queue_offset == queue.next_offset:
            return False
        if not gaps_allowed:
            raise _QueueIncomplete(
                f"queue {view.topic}/{view.queue_id} ends with the expired offset {queue.next_offset - 1}, "
                f"but the first one in the log is {view.queue_offset}"
            )
        return True

    # -- consume queues --------------------------------------------------------------------------

    def _check_checksums(self, checksums: Sequence[FileChecksum]) -> list[tuple[str, int]]:
        """Return the queues with a file that is missing or has changed since the last stop."""
        checked = 0
        damaged: set[tuple[str, int]] = set()
        for checksum in checksums:
            queue = self.queues.queues.get((checksum.topic, checksum.queue_id))
            checked += checksum.covered
            if queue is not None and (checked > CHECKSUM_BYTES_MAX or queue.is_intact(checksum)):
                queue.adopt_checksums([checksum])
            else:
                damaged.add((checksum.topic, checksum.queue_id))
            if queue is not None:
                queue.files.close_idle()
        return sorted(damaged)

    def _drop_damaged(self, damaged: Iterable[tuple[str, int]], report: RecoveryReport) -> None:
        """Rebuild these queues from the whole log, which also verifies queues that are kept."""
        for topic, queue_id in damaged:
            queue = self.queues.get_or_add(topic, queue_id)
            is_kept = self._has_expired(queue)
            action = "keeping it for its offsets: its messages have expired" if is_kept else "rebuilding it"
            report.note(f"queue {topic}/{queue_id} differs from its checksum of the last stop; {action}")
            if not is_kept:
                queue.destroy()
            self._from_first = True

    def _has_expired(self, queue: ConsumeQueue) -> bool:
        """Whether all units of a queue point to expired records.

        Such a queue is not rebuilt: its offsets would restart at 0, below the offsets of consumer groups,
        which would miss its next messages.
        """
        return queue.has_expired(self._files.min_offset)

    def _drop_queues_missing_files(self, report: RecoveryReport) -> None:
        """Rebuild queues that lack a file: in the middle, or at the start if the log is complete."""
        for queue in self.queues.queues.values():
            files = queue.files
            lacks_front = files.min_offset > 0 == self._files.min_offset and not queue.begins_blank()
            if files.strays or lacks_front:
                report.note(f"queue {queue.topic}/{queue.queue_id} lacks a file; rebuilding it")
                queue.destroy()
                self._from_first = True

    def _check_last_unit(self, queue: ConsumeQueue, report: RecoveryReport) -> None:
        """Drop units from the end of a queue until the last one matches its record in the log."""
        before = end = queue.next_offset
        queue.max_physical_offset = -1
        while end * UNIT_BYTES > queue.files.min_offset:
            unit = queue.unit(end - 1)
            if unit is not None and self._is_record_of(queue, end - 1, unit, check_code=end == before):
                queue.max_physical_offset = unit.physical_offset + unit.size
                break
            end -= 1
        if end < before:
            queue.truncate_at(end)
            name = f"queue {queue.topic}/{queue.queue_id}"
            report.note(f"{name}: dropped units {end} to {before - 1}, which match no record")

    def _is_record_of(self, queue: ConsumeQueue, number: int, unit: QueueUnit, *, check_code: bool) -> bool:
        """Whether a unit matches its record. check_code: also compare the tags code, which may be torn.

        That is done for the last unit only. After a change of messageDelayLevel the codes of delayed messages
        differ, and they must keep their due times.
        """
        offset, size, tags_code = unit
        data = self._files.read(offset, size)
        if data is None:
            # A unit of an expired record cannot be checked.
            return offset < self._files.min_offset
        try:
            view = peek(data, check_crc=True)
        except RecordCorrupt:
            return False
        identity = (view.physical_offset, view.size, view.topic, view.queue_id, view.queue_offset)
        if identity != (offset, size, queue.topic, queue.queue_id, number):
            return False
        return not check_code or tags_code == tags_code_of(view, self.dispatcher.delays_ms)

    def _drop_all(self, report: RecoveryReport) -> None:
        """Delete all queues and the index, as 4.6.0 does when the commit log is empty."""
        self._files.drop_strays()
        for queue in self.queues.queues.values():
            if queue.files.mapped_files:
                report.note(f"no commit log: queue {queue.topic}/{queue.queue_id} is dropped")
            queue.destroy()
        self.queues.clear()
        if self.index is not None:
            self.index.load(clean=True, checkpoint_timestamp=0)
            self.index.destroy()
