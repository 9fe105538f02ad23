"""Read-only access to the files of a store with a ledger; see `rocketpy_broker.store.inspect.inspection`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rocketpy.errors import StoreError
from rocketpy_broker.replication.dledger.core.entry import (
    HEADER_BYTES,
    INDEX_UNIT_BYTES,
    encode_index_unit,
)
from rocketpy_broker.replication.dledger.core.raft_state import LedgerCheckpoint, TermState
from rocketpy_broker.replication.dledger.storage.entry_records import (
    EntryRecordScan,
    JoinedFiles,
    check_record,
)
from rocketpy_broker.replication.dledger.storage.entry_scan import EntryScan, accept_any, entry_at
from rocketpy_broker.replication.dledger.storage.state_files import decode_checkpoint, decode_term
from rocketpy_broker.store.config import StoreConfig
from rocketpy_broker.store.inspect.inspection import ReadOnlyStore
from rocketpy_broker.store.log.mapped_file_queue import LogFiles, MappedFileQueue
from rocketpy_broker.store.log.message_log import RecordScan

_PREFIX = "dledger-"
_PROBLEMS_MAX = 100


def find_ledger(root: Path) -> Path | None:
    """Return the directory of a store's ledger, or None. Raises StoreError if there are several."""
    found = sorted(path for path in root.glob(f"{_PREFIX}*") if (path / "data").is_dir())
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise StoreError(f"{root} has the ledgers of several peers: {names}; move all but one elsewhere")
    return found[0] if found else None


class StoredLedgerFiles(ReadOnlyStore):
    """The files of a store with a ledger. directory: of the ledger."""

    def __init__(self, config: StoreConfig, directory: Path, *, force: bool = False) -> None:
        self._directory = directory
        super().__init__(config, force=force)

    def _open_log(self) -> LogFiles:
        """Open the ledger, and the commit log from before the switch to DLedger; see `entry_records`."""
        directory = self.config.commit_log_directory
        if self._disk.is_dir(directory):
            self._old_log = self._load_log(directory)
        else:
            self._old_log = MappedFileQueue(self._disk, directory, self.config.commit_log.segment_bytes)
        self._data = self._load_log(self._directory / "data")
        self._index = self._load_log(self._directory / "index")
        self._term, self._checkpoint = self._read_state()
        return JoinedFiles(self._old_log, self._data)

    def _read_state(self) -> tuple[TermState, LedgerCheckpoint]:
        term, checkpoint = TermState(), LedgerCheckpoint()
        try:
            if (path := self._directory / "currterm").exists():
                term = decode_term(path.read_bytes())
            if (path := self._directory / "checkpoint").exists():
                checkpoint = decode_checkpoint(path.read_bytes())
        except ValueError as error:
            self.problems.append(f"{self._directory.name}: {error}")
        return term, checkpoint

    # -- reading ---------------------------------------------------------------------------------

    def scan(self, start: int, *, check_crc: bool = True) -> RecordScan:
        """Scan the committed records. start: position of a record or an entry."""
        until = max((queue.max_physical_offset for queue in self.queues.values()), default=0)
        until = max(until, self._committed_end())
        if self._is_record_start(start):
            start -= HEADER_BYTES
        return EntryRecordScan(self._old_log, self._data, start, until, check_crc=check_crc)

    def _committed_end(self) -> int:
        """End of the last entry that is committed according to the checkpoint; 0 if unknown."""
        index = self._checkpoint.committed_index
        unit = self._index.read(index * INDEX_UNIT_BYTES, INDEX_UNIT_BYTES) if index >= 0 else None
        if unit is None:
            return 0
        return int.from_bytes(unit[4:12], "big") + int.from_bytes(unit[12:16], "big")

    def _is_record_start(self, offset: int) -> bool:
        """Whether the body of an entry starts at this offset."""
        pos = offset - HEADER_BYTES
        file = self._data.find(pos) if pos >= self._data.min_offset else None
        return file is not None and entry_at(file, pos - file.start) is not None

    def log_problems(self, scan: RecordScan) -> list[str]:
        """Check all entries, committed or not, and their index units."""
        problems: list[str] = []
        entries = EntryScan(self._data, self._data.min_offset, check_record)
        read = self._index.read
        for entry in entries:
            if len(problems) == _PROBLEMS_MAX:
                continue  # only look for the end of the entries
            if read(entry.index * INDEX_UNIT_BYTES, INDEX_UNIT_BYTES) != encode_index_unit(entry):
                problems.append(f"ledger: the index does not match entry {entry.index} at {entry.pos}")
        end, stop = entries.end, entries.stop
        if end < scan.end:
            reason = stop.reason if stop is not None else "there are only zeros"
            problems.append(f"ledger: damaged at {end}: {reason}, but entries up to {scan.end} are committed")
        elif stop is not None:
            later = entries.find_later_entry()
            following = f"; entry {later.index} follows at {later.pos}" if later is not None else ""
            if following or self.is_clean:
                problems.append(f"ledger: damaged at {end}: {stop.reason}{following}")
        return problems

    def summary(self) -> dict[str, Any]:
        """Return indexes and term of the ledger."""
        term, checkpoint = self._term, self._checkpoint
        entries = EntryScan(self._data, self._data.min_offset, accept_any)
        walk = iter(entries)
        first = next(walk, None)
        for _ in walk:
            pass
        last = entries.last
        return {
            "ledger": {
                "directory": self._directory.name,
                "beginIndex": first.index if first is not None else -1,
                "endIndex": last.index if last is not None else -1,
                "endTerm": last.term if last is not None else -1,
                "committedIndex": checkpoint.committed_index,
                "term": term.term,
                "votedFor": term.voted_for,
                "startPos": self._data.min_offset,
            }
        }

    def _close_log(self) -> None:
        for files in (self._old_log, self._data, self._index):
            files.close()
