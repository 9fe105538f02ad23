"""The ledger on disk: data files and index files as DLedger 0.1 has them.

A `Write` becomes one positional write for each file it reaches, data before index. Nothing of it is
acknowledged before a flush of the data; the index can be made from them, so it is flushed with the marks
only, about once a second. What was cut is zeroed and that flushed before anything is written in its place:
power loss must not put an old entry behind a new one.

One thread calls it; only `run_flush` and `preallocate_ahead` may run in others.
Source: DLedgerMmapFileStore of DLedger 0.1. Differs: 0.1 flushes some time after it has acknowledged.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rocketpy.errors import DiskFull, FlushFailed, InvariantError, StoreError, ensure
from rocketpy_broker.replication.dledger.core.entry import (
    INDEX_FILE_BYTES,
    INDEX_UNIT_BYTES,
    Entry,
    encode_blank,
    encode_entry,
    encode_index_unit,
)
from rocketpy_broker.replication.dledger.core.log_view import Write
from rocketpy_broker.replication.dledger.storage.entry_scan import CheckEntry, accept_any
from rocketpy_broker.replication.dledger.storage.reader import LedgerReader
from rocketpy_broker.replication.dledger.storage.recovery import LedgerRecovery, LedgerReport, write_units
from rocketpy_broker.replication.dledger.storage.state_files import is_sealed
from rocketpy_broker.store.config import CommitLogConfig
from rocketpy_broker.store.files.checkpoint import Checkpoint, CheckpointFile
from rocketpy_broker.store.files.disk import Disk, OsDisk, disk_errors, make_durable_dir
from rocketpy_broker.store.log.flush import FlushPlan, flush_now
from rocketpy_broker.store.log.log_scan import LogTail
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue, Preallocator

logger = logging.getLogger("rocketpy_broker.dledger.ledger_files")

_STATE_BYTES_MAX: Final = 1 << 16


class LedgerFiles:
    """The files of one peer; a `StoredLedger` once it is open.

    directory: `dledger-<id>`; data/, index/ and progress in it are this object's. config: sizes of a data
    file, of an entry's body, and of what is reserved ahead. check: looks into the body of entries that power
    loss may have torn. index_file_bytes: other than Java's for tests only.
    """

    def __init__(
        self,
        directory: Path,
        config: CommitLogConfig,
        *,
        disk: Disk | None = None,
        check: CheckEntry = accept_any,
        index_file_bytes: int = INDEX_FILE_BYTES,
    ) -> None:
        self._disk: Disk = OsDisk() if disk is None else disk
        self._directory = directory
        self._check = check
        self.data = MappedFileQueue(
            self._disk, directory / "data", config.segment_bytes, reserve_bytes=config.reserve_bytes
        )
        self.index = MappedFileQueue(self._disk, directory / "index", index_file_bytes)
        self._preallocator = Preallocator(self.data, config)
        self.marks_file = CheckpointFile(self._disk, directory / "progress")
        """How far they are flushed: data to `flushed_offset`, the index to `dispatched_offset` in data."""
        self._saved = Checkpoint()
        self._tail = LogTail(0)
        self._first: Entry | None = None
        self._last: Entry | None = None
        self._reader = LedgerReader(self.data, self.index)
        self.failure: StoreError | None = StoreError("the ledger is not open")
        """Why nothing is written any more; None: it is."""

    # -- opening and closing ---------------------------------------------------------------------

    def open(self) -> LedgerReport:
        """Recover what is in the directory, made when missing. Blocks, perhaps for long.

        Raises StoreDamaged, DiskFull, FlushFailed, StoreError; then everything is closed again.
        """
        for directory in (self.data.directory, self.index.directory):
            make_durable_dir(self._disk, directory)
        try:
            report = self._recover()
        except BaseException:
            self._close_files()
            raise
        self.failure = None
        return report

    def _recover(self) -> LedgerReport:
        marks = self.marks_file.load()
        if marks.flushed_offset >= 0 and self._is_javas():
            logger.warning("%s: a Java broker has used it since; every entry is checked", self._directory)
            marks = Checkpoint()
        if marks.flushed_offset >= 0:
            # They may be in the page cache only; files that they call expired must not go before.
            self.marks_file.save(marks)
        self.data.load()
        self.index.load()
        recovery = LedgerRecovery(self.data, self.index, self._check)
        report = recovery.run(marks)
        self._first, self._last, self._tail = recovery.first, recovery.last, recovery.tail
        if not report.clean:
            # What was read may be in the page cache only, and after a failed flush never leave it.
            self.data.mark_unflushed(
                [file for file in self.data.mapped_files if file.end > report.scanned_from]
            )
            self.data.rewrite(marks.flushed_offset if marks.flushed_offset >= 0 else report.scanned_from)
            self.index.mark_unflushed(self.index.mapped_files)
            self.index.rewrite(max(0, self.end_index + 1 - report.entries) * INDEX_UNIT_BYTES)
        flush_now(self, self.plan_flush(thorough=True))
        return report

    def _is_javas(self) -> bool:
        """Has a Java broker written the peer's small files, which we seal, since we did?"""
        return any(
            data is not None and not is_sealed(data)
            for data in (self._state(name) for name in ("checkpoint", "currterm"))
        )

    def _state(self, name: str) -> bytes | None:
        path = self._directory / name
        if not self._disk.exists(path):
            return None
        with disk_errors("read", path):
            handle = self._disk.open(path)
            try:
                return self._disk.pread(handle, _STATE_BYTES_MAX, 0)
            finally:
                self._disk.close(handle)

    def close(self) -> None:
        """Flush everything, and say that the stop was clean. Closed even when that raises FlushFailed."""
        failed, self.failure = self.failure, StoreError("the ledger is closed")
        try:
            if failed is None:
                self.data.delete_preallocated()
                plan = self.plan_flush(thorough=True)
                plan.checkpoint = dataclasses.replace(
                    self._marks(), log_end=self.data.max_offset, index_files=len(self.index.mapped_files)
                )
                flush_now(self, plan)
        finally:
            self._close_files()

    def _close_files(self) -> None:
        self.data.close()
        self.index.close()
        self.marks_file.close()

    def begin_at(self, pos: int) -> None:
        """Let the first entry go to `pos`, where a file begins; there is none yet. Raises StoreError."""
        ensure(not self.data.mapped_files, f"{self.data.directory} is not empty")
        self._reset(pos)

    # -- reading ---------------------------------------------------------------------------------

    @property
    def begin_index(self) -> int:
        """Of the oldest entry; -1 in an empty ledger."""
        if self._last is None:
            return -1
        first, begin = self._first, self.data.min_offset
        if first is None or first.pos != begin:  # older files have expired since
            self._first = first = self._reader.at(begin)
        return first.index

    @property
    def end_index(self) -> int:
        """Of the newest entry; -1 in an empty ledger."""
        return self._last.index if self._last is not None else -1

    @property
    def start_pos(self) -> int:
        """Where the first entry goes while there is none."""
        return self.data.min_offset

    def get(self, index: int) -> Entry:
        """Return an entry from `begin_index` to `end_index`. Raises StoreDamaged, StoreError."""
        return self._reader.get(index)

    def index_before(self, pos: int) -> int:
        """Return the newest entry that ends at `pos` or before; -1: none does. Raises StoreError."""
        if self._last is None or pos <= self.start_pos:
            return -1
        return self._reader.last_before(pos, self.begin_index, self.end_index)

    # -- writing ---------------------------------------------------------------------------------

    def apply(self, write: Write) -> None:
        """Make a change; it is durable once a flush that was planned later has ended.

        Raises DiskFull: the entries are not in, and the same change may be made again once there is room.
        Raises StoreError, FlushFailed: final, nothing is written until the ledger was opened again.
        """
        if self.failure is not None:
            raise StoreError(f"the ledger takes no entries: {self.failure}")
        try:
            if write.is_reset:
                self._reset(write.entries[0].pos if write.entries else self.start_pos)
            elif write.truncate_after is not None and write.truncate_after < self.end_index:
                self._cut(write.truncate_after)
            if write.entries:
                self._append(write.entries)
        except DiskFull:
            raise
        except StoreError as error:
            self._fail(error)
            raise

    def _fail(self, failure: StoreError) -> None:
        if self.failure is None:
            logger.critical("%s: %s", self._directory, failure)
            self.failure = failure

    def _append(self, entries: Sequence[Entry]) -> None:
        data, index = self.data, self.index
        before, first = data.max_offset, entries[0].index
        ensure(first == self.end_index + 1 or self._last is None, f"entry {first} behind {self.end_index}")
        is_new = not data.mapped_files
        try:
            for file, run in self._runs(entries):
                file.write(file.wrote, b"".join(run))
                file.wrote += sum(map(len, run))
            write_units(index, first, b"".join(map(encode_index_unit, entries)))
        except StoreError:
            self._undo(entries[0].pos if is_new else before)
            raise
        if self._last is None:
            self._first = entries[0]
        self._last = entries[-1]
        self._tail.advance(data.max_offset)
        self._reader.remember(entries)

    def _runs(self, entries: Sequence[Entry]) -> list[tuple[MappedFile, list[bytes]]]:
        """Return what goes into which file, the blanks at files' ends among it."""
        data = self.data
        file = data.last if data.last is not None else data.add_file(entries[0].pos)
        run: list[bytes] = []
        runs = [(file, run)]
        pos = file.start + file.wrote
        for entry in entries:
            if entry.pos != pos:
                rest = file.end - pos
                run.append(encode_blank(rest).ljust(rest, b"\0"))
                file, run = data.add_file(), []
                runs.append((file, run))
            pos = entry.end_pos
            if entry.pos < file.start or pos > file.end:
                raise InvariantError(
                    f"entry {entry.index} at {entry.pos} does not lie behind the one before it"
                )
            run.append(encode_entry(entry))
        return runs

    def _undo(self, end: int) -> None:
        """Wipe what an append that failed left."""
        try:
            self._truncate(end, self.end_index)
        except StoreError as error:
            failure = FlushFailed(f"what was not written whole cannot be wiped: {error}")
            self._fail(failure)
            raise failure from error

    # -- cutting ---------------------------------------------------------------------------------

    def _cut(self, truncate_after: int) -> None:
        """Cut what lies behind an entry."""
        last = self.get(truncate_after)
        logger.info("%s: entries %d to %d are cut", self._directory, last.index + 1, self.end_index)
        self._truncate(last.end_pos, last.index)
        self._last = last

    def _reset(self, start: int) -> None:
        """Forget everything; the next entry goes to `start`, where a file begins."""
        if start % self.data.file_bytes:
            raise StoreError(f"a ledger cannot begin at {start}, in the middle of a file")
        if self._last is not None:
            logger.warning("%s: entries up to %d are dropped", self._directory, self.end_index)
        self._truncate(self.data.min_offset, -1)
        self._first = self._last = None
        if self.data.mapped_files and self.data.min_offset != start:
            self.data.destroy()
        if not self.data.mapped_files:
            self.data.add_file(start)
            self._tail = LogTail(start)
        flush_now(self, self.plan_flush(thorough=True))

    def _truncate(self, end: int, index: int) -> None:
        """Cut the data at `end`, behind entry `index`, durably.

        The marks say so first: a kill may leave whole entries behind the part that is wiped already.
        """
        if self._tail.offset >= end:
            self._tail = LogTail(self.data.min_offset)
        self._save_marks(end, log_end=end)
        self.data.delete_preallocated()
        self.data.truncate(end)
        if index < 0:
            self.index.destroy()
        else:
            self.index.truncate((index + 1) * INDEX_UNIT_BYTES)
        self._reader.forget(index)
        flush_now(self, self.plan_flush(thorough=False))
        self._save_marks(end, log_end=-1)

    def _save_marks(self, end: int, *, log_end: int) -> None:
        """Note that nothing behind `end` counts as flushed. log_end: nothing behind it is the ledger's."""
        marks = dataclasses.replace(
            self._saved,
            flushed_offset=min(self._saved.flushed_offset, end),
            dispatched_offset=min(self._saved.dispatched_offset, end),
            tail_offset=min(self._saved.tail_offset, self._tail.offset),
            min_offset=self.data.min_offset,
            log_end=log_end,
        )
        if marks != self._saved:
            self.marks_file.save(marks)
            self._saved = marks

    # -- flushing --------------------------------------------------------------------------------

    def plan_flush(self, *, thorough: bool = False) -> FlushPlan:
        """What a flush has to do now. thorough: the index and the marks too.

        `run_flush` does it in any thread, then `finish_flush` here; nothing is applied in between.
        Raises FlushFailed after a flush that failed: a second one might succeed and have written nothing.
        """
        if isinstance(self.failure, FlushFailed):
            raise FlushFailed(f"the ledger is not flushed: {self.failure}")
        plan = FlushPlan()
        plan.add(self.data)
        if thorough:
            plan.add(self.index)
            marks = self._marks()
            if marks != self._saved:
                plan.checkpoint = marks
        return plan

    def _marks(self) -> Checkpoint:
        end = self.data.max_offset
        return Checkpoint(
            flushed_offset=end,
            dispatched_offset=end,
            tail_offset=self._tail.offset,
            min_offset=self.data.min_offset,
        )

    def run_flush(self, plan: FlushPlan) -> None:
        """Do what a plan says. Blocks; safe in a thread. Raises FlushFailed."""
        plan.run(self._disk, self.marks_file)

    def finish_flush(self, plan: FlushPlan, error: FlushFailed | None = None) -> None:
        """Take note that a plan was run, or that it failed: then nothing is written any more."""
        if error is not None:
            plan.release()
            self._fail(error)
            return
        plan.finish()
        if plan.checkpoint is not None:
            self._saved = plan.checkpoint

    def flush(self, *, thorough: bool = False) -> None:
        """Make what was applied durable, here and now. Raises FlushFailed."""
        flush_now(self, self.plan_flush(thorough=thorough))

    # -- room and retention ----------------------------------------------------------------------

    def needs_preallocation(self) -> bool:
        """Is the data file near the end of its reserved blocks, or of its length?"""
        return self.failure is None and self._preallocator.is_wanted()

    def preallocate_ahead(self) -> MappedFile | None:
        """Reserve space ahead, or make the next data file. Blocks; safe in a thread, one at a time.

        Returns the file for `adopt_preallocated`. Raises DiskFull, StoreError; appends may continue.
        """
        return self._preallocator.make()

    def adopt_preallocated(self, file: MappedFile | None) -> None:
        """Take over what `preallocate_ahead` made."""
        if file is None:
            return
        if self.failure is None:
            self.data.adopt_preallocated(file)
        else:
            file.delete()

    def take_expired_index(self) -> list[MappedFile]:
        """Take out the index files that no entry is left for; the caller deletes them."""
        taken: list[MappedFile] = []
        mapped_files, begin = self.index.mapped_files, self.begin_index * INDEX_UNIT_BYTES
        while len(mapped_files) > 1 and mapped_files[0].end <= begin:
            taken.append(self.index.take_first())
        return taken

    def persist_min_offset(self) -> None:
        """Note durably where the data begin now, before files below are deleted. Blocks; safe in a thread.

        Raises StoreError.
        """
        self.marks_file.raise_min(self.data.min_offset)
