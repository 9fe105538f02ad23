"""Recovers a ledger's files: finds the end of the data, and makes the index match them.

1. The data are read from an offset in the saved checkpoint, rocketpy's file `progress`. Without a checkpoint
   they are read from the third-last file, as in 0.1. Each entry is checked by `EntryScan`.
2. The index is compared with the entries that were read, and written where it differs. If the index does not
   reach these entries, all of it is rebuilt from the first entry.
3. The ledger is truncated at its end. A torn tail is truncated and logged.

Damage raises StoreDamaged: a peer that lost acknowledged entries may vote for a leader that lacks them.

- Below the checkpoint's `flushed_offset` nothing may be missing.
- Above it, a valid entry after the end of the data is accepted in two cases. Either a lost sector precedes
  it, as after power loss, or the checkpoint records an unfinished truncation.
- Without a checkpoint, in files that Java wrote, no valid entry may follow the end of the data.

Entries that cannot follow the last one by index or term are leftovers of a truncation, and are zeroed.

Source: DLedgerMmapFileStore.recover of DLedger 0.1. Differs: 0.1 truncates at any entry that it cannot read.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from rocketpy.errors import StoreDamaged
from rocketpy_broker.replication.dledger.core.entry import (
    INDEX_UNIT_BYTES,
    Entry,
    encode_index_unit,
)
from rocketpy_broker.replication.dledger.storage.entry_scan import CheckEntry, EntryScan, entry_at
from rocketpy_broker.store.files.checkpoint import Checkpoint
from rocketpy_broker.store.log.log_scan import LogTail, has_lost_sector
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue

logger = logging.getLogger("rocketpy_broker.dledger.ledger_recovery")

_BATCH = 4096


@dataclass(slots=True)
class LedgerReport:
    """The result of the recovery of a ledger."""

    clean: bool
    """The ledger was stopped cleanly."""
    scanned_from: int = 0
    """Where the data that was read begins, in bytes."""
    end: int = 0
    """Where it ends."""
    entries: int = 0
    """In that range."""
    cut_bytes: int = 0
    """Non-zero bytes that were zeroed after the end."""
    notes: list[str] = field(default_factory=list)
    """Lines for the operator."""

    def note(self, text: str) -> None:
        """Add a line and log it."""
        self.notes.append(text)
        logger.warning("%s", text)


class LedgerRecovery:
    """One recovery. data, index: loaded files. check: checks the bodies of entries."""

    def __init__(self, data: MappedFileQueue, index: MappedFileQueue, check: CheckEntry) -> None:
        self._data = data
        self._index = index
        self._check = check
        self.first: Entry | None = None
        """The oldest entry."""
        self.last: Entry | None = None
        """The newest entry."""
        self.tail = LogTail(0)
        """Where the next recovery may start to read."""

    def run(self, checkpoint: Checkpoint) -> LedgerReport:
        """Recover. Raises StoreDamaged, StoreError.

        checkpoint: with offsets of -1 if it is missing, or if a Java broker used the files after rocketpy.
        """
        report = LedgerReport(clean=False)
        data = self._data
        data.classify_files(checkpoint.flushed_offset, checkpoint.min_offset)
        if not data.mapped_files:
            if checkpoint.flushed_offset > max(checkpoint.min_offset, 0):
                raise self._damaged(
                    0, "there is no file", f"it was flushed up to {checkpoint.flushed_offset}"
                )
            data.drop_strays()
            self._index.destroy()
            return report
        head = entry_at(data.mapped_files[0], 0)
        scan = self._scan(self._scan_start(head, checkpoint), head, report)
        self._check_end(scan, checkpoint, report)
        # A truncation sets `log_end` too, and its zeros may be in the page cache only.
        stopped = checkpoint.index_files == len(self._index.mapped_files)
        report.clean = stopped and checkpoint.log_end == checkpoint.flushed_offset == scan.end
        report.end, self.last, self.tail = scan.end, scan.last, scan.tail
        self.first = head if scan.last is not None else None
        report.cut_bytes = data.truncate(scan.end)
        if report.cut_bytes:
            report.note(f"{report.cut_bytes} bytes after {scan.end} are zeroed in {data.directory}")
        if strays := data.drop_strays():
            report.note(f"{strays} files in {data.directory} are deleted: leftovers of a power loss")
        if scan.last is None:
            self._index.destroy()
        else:
            self._index.truncate((scan.last.index + 1) * INDEX_UNIT_BYTES)
        return report

    # -- where to start --------------------------------------------------------------------------

    def _scan_start(self, head: Entry | None, checkpoint: Checkpoint) -> int:
        mapped_files = self._data.mapped_files
        first = mapped_files[0].start
        if head is None or not self._is_indexed(head):
            self._index.destroy()
            return first
        if checkpoint.flushed_offset >= 0:
            start = min(checkpoint.tail_offset, checkpoint.dispatched_offset)
            return start if first <= start < checkpoint.flushed_offset else first
        for file in reversed(mapped_files[: max(1, len(mapped_files) - 2)]):
            entry = entry_at(file, 0)
            if entry is not None and self._is_indexed(entry):
                return file.start
        return first

    def _is_indexed(self, entry: Entry) -> bool:
        """Whether the index has this entry."""
        unit = self._index.read(entry.index * INDEX_UNIT_BYTES, INDEX_UNIT_BYTES)
        return not self._index.strays and unit == encode_index_unit(entry)

    # -- reading ---------------------------------------------------------------------------------

    def _scan(self, start: int, head: Entry | None, report: LedgerReport) -> EntryScan:
        """Read the data from `start` to their end, and correct the index."""
        first = self._data.mapped_files[0].start
        scan = EntryScan(self._data, start, self._check)
        units: list[bytes] = []
        report.scanned_from, report.entries = start, 0
        begin = -1
        for entry in scan:
            if begin < 0:
                begin = entry.index
                if start > first and (head is None or not self._leads_to(entry, head)):
                    report.note(
                        f"{self._index.directory} is rebuilt: it does not match the data before entry "
                        f"{entry.index}"
                    )
                    self._index.destroy()
                    return self._scan(first, head, report)
            report.entries += 1
            units.append(encode_index_unit(entry))
            if len(units) == _BATCH:
                write_units(self._index, begin, b"".join(units), compare=True)
                begin += _BATCH
                units.clear()
        if units:
            write_units(self._index, begin, b"".join(units), compare=True)
        return scan

    def _leads_to(self, entry: Entry, head: Entry) -> bool:
        """Whether the index has the entry before this one.

        The index is written in order, so it then has all entries since the ledger's first one.
        """
        if entry.index <= head.index:
            return False
        before = self._index.read((entry.index - 1) * INDEX_UNIT_BYTES, INDEX_UNIT_BYTES)
        return before is not None and before[16:24] == (entry.index - 1).to_bytes(8, "big")

    # -- the end ---------------------------------------------------------------------------------

    def _check_end(self, scan: EntryScan, checkpoint: Checkpoint, report: LedgerReport) -> None:
        """Raise StoreDamaged if the data end because of damage, not because of an interrupted write."""
        later_entry = scan.find_later_entry()
        from_rocketpy = checkpoint.flushed_offset >= 0
        if later_entry is not None and 0 <= checkpoint.log_end <= later_entry.pos:
            later_entry = None  # a truncation was in progress
        reason = scan.stop.reason if scan.stop is not None else "there are only zeros"
        if scan.end < checkpoint.flushed_offset:
            raise self._damaged(scan.end, reason, f"it was flushed up to {checkpoint.flushed_offset}")
        if later_entry is not None and not (
            from_rocketpy and has_lost_sector(self._data, scan.end, later_entry.pos)
        ):
            raise self._damaged(scan.end, reason, f"entry {later_entry.index} follows at {later_entry.pos}")
        if later_entry is not None:
            report.note(f"unflushed entries after {scan.end} are lost: {reason}")
        elif scan.stop is not None:
            report.note(f"torn tail at {scan.end}: {reason}")

    def _damaged(self, offset: int, reason: str, evidence: str) -> StoreDamaged:
        return StoreDamaged(
            f"the ledger in {self._data.directory} is damaged at {offset}: {reason}, but {evidence}. Restore "
            "it from a copy; or, if all other peers run and have the same end, remove the directory: the "
            "peer copies it from them"
        )


def write_units(index: MappedFileQueue, first: int, units: bytes, *, compare: bool = False) -> None:
    """Write the units of consecutive entries. Raises DiskFull, StoreError.

    first: index of the first entry. compare: write only units that differ.
    """
    at = first * INDEX_UNIT_BYTES
    while units:
        file = index.find(at)
        if file is None:
            file = index.add_file(at)
        position = at - file.start
        piece = units[: file.size - position]
        if not compare:
            file.write(position, piece)
        elif file.read(position, len(piece)) != piece:
            file.write(position, piece)
            file.changes += 1
        file.wrote = max(file.wrote, position + len(piece))
        at += len(piece)
        units = units[len(piece) :]
