"""The ledger on disk: data files and index files in the format of DLedger 0.1.

A `Write` becomes one positional write to each affected file, data before index. Its entries are acknowledged
after a flush of the data. The index can be rebuilt from the data, so it is flushed about once a second,
together with the checkpoint in the file `progress`. Truncated entries are zeroed and flushed before anything
else is written there, so that power loss cannot put an old entry after a new one.

One thread calls all methods; only `run_flush` and `preallocate_ahead` may run in others.
Source: DLedgerMmapFileStore of DLedger 0.1. Differs: 0.1 flushes after it has acknowledged.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

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
from rocketpy_broker.replication.dledger.storage.entry_scan import CheckEntry
from rocketpy_broker.replication.dledger.storage.reader import LedgerReader
from rocketpy_broker.replication.dledger.storage.recovery import LedgerRecovery, LedgerReport, write_units
from rocketpy_broker.replication.dledger.storage.state_files import has_checksum
from rocketpy_broker.store.config import CommitLogConfig
from rocketpy_broker.store.files.checkpoint import Checkpoint, CheckpointFile
from rocketpy_broker.store.files.disk import Disk, OsDisk, disk_errors, make_durable_dir
from rocketpy_broker.store.files.state_file import read_file
from rocketpy_broker.store.log.flush import FlushPlan, flush_now
from rocketpy_broker.store.log.log_scan import LogTail
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue, Preallocator

logger = logging.getLogger("rocketpy_broker.dledger.ledger_files")


class LedgerFiles:
    """The ledger files of one peer; a `StoredLedger` while it is open.

    directory: `dledger-<id>`; data/, index/ and progress in it belong to this object. config: size of a data
    file, and of the reserved space. check: checks the bodies of entries that power loss may have torn.
    index_file_bytes: differs from Java's in tests only.
    """

    def __init__(
        self,
        directory: Path,
        config: CommitLogConfig,
        *,
        check: CheckEntry,
        disk: Disk | None = None,
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
        self.checkpoint_file = CheckpointFile(self._disk, directory / "progress")
        """The data are flushed up to `flushed_offset`, the index for the data up to `dispatched_offset`."""
        self._saved = Checkpoint()
        self._tail = LogTail(0)
        self._first: Entry | None = None
        self._last: Entry | None = None
        self._reader = LedgerReader(self.data, self.index)
        self.failure: StoreError | None = StoreError("the ledger is not open")
        """Why the ledger cannot be written; None if it can."""

    # -- opening and closing ---------------------------------------------------------------------

    def open(self) -> LedgerReport:
        """Recover the ledger; in a new directory, create an empty one. Blocks, perhaps for minutes.

        Raises StoreDamaged, DiskFull, FlushFailed, StoreError; then all files are closed.
        """
        for directory in (self.data.directory, self.index.directory):
            make_durable_dir(self._disk, directory)
        try:
            report = self._recover()
        except BaseException:  # after any exception, close all files
            self._close_files()
            raise
        self.failure = None
        return report

    def _recover(self) -> LedgerReport:
        checkpoint = self.checkpoint_file.load()
        if checkpoint.flushed_offset >= 0 and self._was_used_by_java():
            logger.warning(
                "%s was used by a Java broker since the last stop; every entry is checked", self._directory
            )
            checkpoint = Checkpoint()
        if checkpoint.flushed_offset >= 0:
            # It may be in the page cache only, but files that it records as expired are deleted below.
            self.checkpoint_file.save(checkpoint)
        self.data.load()
        self.index.load()
        recovery = LedgerRecovery(self.data, self.index, self._check)
        report = recovery.run(checkpoint)
        self._first, self._last, self._tail = recovery.first, recovery.last, recovery.tail
        if not report.clean:
            # What was read may be in the page cache only, where it stays after a failed flush.
            self.data.mark_unflushed(
                [file for file in self.data.mapped_files if file.end > report.scanned_from]
            )
            flushed = checkpoint.flushed_offset
            self.data.rewrite(flushed if flushed >= 0 else report.scanned_from)
            self.index.mark_unflushed(self.index.mapped_files)
            self.index.rewrite(max(0, self.end_index + 1 - report.entries) * INDEX_UNIT_BYTES)
        flush_now(self, self.plan_flush(thorough=True))
        return report

    def _was_used_by_java(self) -> bool:
        """Whether a Java broker has written the state files, which then lack rocketpy's checksum."""
        return any(
            data is not None and not has_checksum(data)
            for data in (self._read_state(name) for name in ("checkpoint", "currterm"))
        )

    def _read_state(self, name: str) -> bytes | None:
        path = self._directory / name
        with disk_errors("read", path):
            return read_file(self._disk, path) if self._disk.exists(path) else None

    def close(self) -> None:
        """Flush everything, and mark the stop as clean. Closes the files even if it raises FlushFailed."""
        failed, self.failure = self.failure, StoreError("the ledger is closed")
        try:
            if failed is None:
                self.data.delete_preallocated()
                plan = self.plan_flush(thorough=True)
                plan.checkpoint = dataclasses.replace(
                    self._checkpoint(), log_end=self.data.max_offset, index_files=len(self.index.mapped_files)
                )
                flush_now(self, plan)
        finally:
            self._close_files()

    def _close_files(self) -> None:
        self.data.close()
        self.index.close()
        self.checkpoint_file.close()

    def begin_at(self, pos: int) -> None:
        """Start an empty ledger at `pos`, the start of a file. Raises StoreError."""
        ensure(not self.data.mapped_files, f"{self.data.directory} is not empty")
        self._reset(pos)

    # -- reading ---------------------------------------------------------------------------------

    @property
    def begin_index(self) -> int:
        """Index of the oldest entry; -1 in an empty ledger."""
        if self._last is None:
            return -1
        first, begin = self._first, self.data.min_offset
        if first is None or first.pos != begin:  # older files have expired
            self._first = first = self._reader.at(begin)
        return first.index

    @property
    def end_index(self) -> int:
        """Index of the newest entry; -1 in an empty ledger."""
        return self._last.index if self._last is not None else -1

    @property
    def start_pos(self) -> int:
        """Start of the oldest data file; in an empty ledger, the position of the first entry."""
        return self.data.min_offset

    def get(self, index: int) -> Entry:
        """Return an entry from `begin_index` to `end_index`. Raises StoreDamaged, StoreError."""
        return self._reader.get(index)

    def index_before(self, pos: int) -> int:
        """Return the index of the newest entry that ends at `pos` or before; -1: none. Raises StoreError."""
        if self._last is None or pos <= self.start_pos:
            return -1
        return self._reader.last_before(pos, self.begin_index, self.end_index)

    # -- writing ---------------------------------------------------------------------------------

    def apply(self, write: Write) -> None:
        """Make a change; the next flush makes it durable.

        Raises:
            DiskFull: The entries were not written; the same change may be made again.
            StoreError, FlushFailed: The ledger cannot be written until it is opened again.
        """
        if self.failure is not None:
            raise StoreError(f"cannot write to the ledger in {self._directory}: {self.failure}")
        try:
            if write.is_reset:
                self._reset(write.entries[0].pos if write.entries else self.start_pos)
            elif write.truncate_after is not None and write.truncate_after < self.end_index:
                self._truncate_after(write.truncate_after)
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
        ensure(first == self.end_index + 1 or self._last is None, f"entry {first} after {self.end_index}")
        is_new = not data.mapped_files
        try:
            for file, run in self._runs(entries):
                file.write(file.wrote, b"".join(run))
                file.wrote += sum(map(len, run))
            write_units(index, first, b"".join(map(encode_index_unit, entries)))
        except StoreError:
            self._roll_back(entries[0].pos if is_new else before)
            raise
        if self._last is None:
            self._first = entries[0]
        self._last = entries[-1]
        self._tail.advance(data.max_offset)
        self._reader.cache(entries)

    def _runs(self, entries: Sequence[Entry]) -> list[tuple[MappedFile, list[bytes]]]:
        """Return the bytes to append to each file, including the blanks at the ends of files."""
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
                raise InvariantError(f"entry {entry.index} at {entry.pos} does not follow the previous entry")
            run.append(encode_entry(entry))
        return runs

    def _roll_back(self, end: int) -> None:
        """Zero the bytes that a failed append has written."""
        try:
            self._truncate(end, self.end_index)
        except StoreError as error:
            failure = FlushFailed(f"a failed append cannot be undone: {error}")
            self._fail(failure)
            raise failure from error

    # -- truncating ------------------------------------------------------------------------------

    def _truncate_after(self, truncate_after: int) -> None:
        """Truncate the ledger after an entry."""
        last = self.get(truncate_after)
        logger.info("%s: entries %d to %d are truncated", self._directory, last.index + 1, self.end_index)
        self._truncate(last.end_pos, last.index)
        self._last = last

    def _reset(self, start: int) -> None:
        """Remove all entries; the next one gets the position `start`, the start of a file."""
        if start % self.data.file_bytes:
            raise StoreError(f"a ledger cannot start at {start}, which is not the start of a file")
        if self._last is not None:
            logger.warning("%s: all entries, up to %d, are removed", self._directory, self.end_index)
        self._truncate(self.data.min_offset, -1)
        self._first = self._last = None
        if self.data.mapped_files and self.data.min_offset != start:
            self.data.destroy()
        if not self.data.mapped_files:
            self.data.add_file(start)
            self._tail = LogTail(start)
        flush_now(self, self.plan_flush(thorough=True))

    def _truncate(self, end: int, index: int) -> None:
        """Truncate the data at `end`, after entry `index`, durably.

        The end is saved in the checkpoint first: after a kill, valid entries may follow the zeroed part.
        """
        if self._tail.offset >= end:
            self._tail = LogTail(self.data.min_offset)
        self._save_checkpoint(end, log_end=end)
        self.data.delete_preallocated()
        self.data.truncate(end)
        if index < 0:
            self.index.destroy()
        else:
            self.index.truncate((index + 1) * INDEX_UNIT_BYTES)
        self._reader.forget(index)
        flush_now(self, self.plan_flush(thorough=False))
        self._save_checkpoint(end, log_end=-1)

    def _save_checkpoint(self, end: int, *, log_end: int) -> None:
        """Save that nothing after `end` is flushed.

        log_end: the end of the ledger while it is truncated there; -1 after the truncation.
        """
        checkpoint = dataclasses.replace(
            self._saved,
            flushed_offset=min(self._saved.flushed_offset, end),
            dispatched_offset=min(self._saved.dispatched_offset, end),
            tail_offset=min(self._saved.tail_offset, self._tail.offset),
            min_offset=self.data.min_offset,
            log_end=log_end,
        )
        self.checkpoint_file.truncate(checkpoint)
        self._saved = checkpoint

    # -- flushing --------------------------------------------------------------------------------

    def plan_flush(self, *, thorough: bool = False) -> FlushPlan:
        """Plan a flush of the data; with `thorough`, of index and checkpoint too.

        Call `run_flush` next, in any thread, then `finish_flush` in this one, without an `apply` in between.
        Raises FlushFailed after a failed flush: a second one might succeed without writing the lost pages.
        """
        if isinstance(self.failure, FlushFailed):
            raise FlushFailed(f"the ledger cannot be flushed: {self.failure}")
        plan = FlushPlan()
        plan.add(self.data)
        if thorough:
            plan.add(self.index)
            checkpoint = self._checkpoint()
            if checkpoint != self._saved:
                plan.checkpoint = checkpoint
        return plan

    def _checkpoint(self) -> Checkpoint:
        end = self.data.max_offset
        return Checkpoint(
            flushed_offset=end,
            dispatched_offset=end,
            tail_offset=self._tail.offset,
            min_offset=self.data.min_offset,
        )

    def run_flush(self, plan: FlushPlan) -> None:
        """Run a planned flush. Blocks; safe in a thread. Raises FlushFailed."""
        plan.run(self._disk, self.checkpoint_file)

    def finish_flush(self, plan: FlushPlan, error: FlushFailed | None = None) -> None:
        """Finish a flush. error: why it failed; the ledger can then no longer be written."""
        if error is not None:
            plan.release()
            self._fail(error)
            return
        plan.finish()
        if plan.checkpoint is not None:
            self._saved = plan.checkpoint

    def flush(self, *, thorough: bool = False) -> None:
        """Make all applied changes durable. Blocks. Raises FlushFailed."""
        flush_now(self, self.plan_flush(thorough=thorough))

    # -- preallocation and retention -------------------------------------------------------------

    def needs_preallocation(self) -> bool:
        """Whether the data file is near the end of its reserved blocks, or of its length."""
        return self.failure is None and self._preallocator.is_wanted()

    def preallocate_ahead(self) -> MappedFile | None:
        """Reserve blocks, or create the next data file. Blocks; safe in a thread, one call at a time.

        Returns the file for `adopt_preallocated`. Raises DiskFull, StoreError; appends may continue.
        """
        return self._preallocator.make()

    def adopt_preallocated(self, file: MappedFile | None) -> None:
        """Take over what `preallocate_ahead` returned."""
        if file is None:
            return
        if self.failure is None:
            self.data.adopt_preallocated(file)
        else:
            file.delete()

    def take_expired_index(self) -> list[MappedFile]:
        """Remove and return the index files of expired entries; the caller deletes them."""
        taken: list[MappedFile] = []
        mapped_files, begin = self.index.mapped_files, self.begin_index * INDEX_UNIT_BYTES
        while len(mapped_files) > 1 and mapped_files[0].end <= begin:
            taken.append(self.index.take_first())
        return taken

    def persist_min_offset(self) -> None:
        """Save the new start of the data before older files are deleted. Blocks; safe in a thread.

        Raises StoreError.
        """
        self.checkpoint_file.advance_min_offset(self.data.min_offset)
