"""A DLedger peer's files on a recording disk, and their permitted content after a crash."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from random import Random

from rocketpy.errors import DiskFull, StoreError
from rocketpy_broker.replication.dledger.core.entry import Entry
from rocketpy_broker.replication.dledger.core.log_view import LedgerView, Write
from rocketpy_broker.replication.dledger.storage.ledger_files import LedgerFiles
from rocketpy_broker.store import CommitLogConfig
from tests.crash.disk import RecordingDisk

DIRECTORY = Path("/store/dledger-n0")
_INDEX_FILE_BYTES = 320
_TRIES = 3
Entries = list[Entry]


class LedgerWriter:
    """The operations of a `Peer` on its files. Entries are identified by their bodies, which are unique."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.config = CommitLogConfig(segment_bytes=1536, reserve_bytes=random.choice((0, 512)))
        self.disk = RecordingDisk()
        self.disk.make_dir(DIRECTORY.parent)
        self.disk.make_durable()
        self.bodies: dict[bytes, None] = {}
        """All entries that were ever appended, oldest first: the order determines a sweep."""
        self.written: Entries = []
        """The entries that must survive a kill."""
        self.durable: Entries = []
        """The entries that must survive power loss."""
        self.possible: list[Entries] = [[]]
        """A recovered ledger must begin with one of these."""
        self._term = 0

    def open(self) -> None:
        """Open the ledger, at the start or after a crash."""
        self.files = open_ledger(self.config, self.disk, self.bodies)
        self.view = LedgerView(self.files, self.config.segment_bytes)

    def work(self, steps: int = 40) -> None:
        """Run operations of leaders and followers, chosen at random."""
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        view, chance = self.view, self.random.random()
        if chance < 0.55:
            self._append(self.random.randrange(1, 6))
        elif chance < 0.65 and view.end_index > view.begin_index:
            self._cut()
        elif chance < 0.67:
            self._reset()
        elif chance < 0.9:
            self.flush(thorough=self.random.random() < 0.3)
        elif self.files.needs_preallocation():
            self.files.adopt_preallocated(self.files.preallocate_ahead())
        elif chance < 0.95:
            self.restart(clean=self.random.random() < 0.5)
        if view.has_unwritten:
            self._write()

    def _append(self, count: int) -> None:
        for _ in range(count):
            body = b"entry %d " % len(self.bodies) + b"." * self.random.choice((0, 9, 70, 200, 700))
            self.bodies[body] = None
            view = self.view
            view.append(Entry.of(view.end_index + 1, self._term, view.next_entry_pos(len(body)), body))

    def _cut(self) -> None:
        self._term += 1
        self.view.truncate_after(self.random.randint(self.view.begin_index, self.view.end_index - 1))
        self._append(self.random.randrange(3))

    def _reset(self) -> None:
        """The leader's ledger begins after this one's end."""
        self._term += 1
        index, size = self.view.end_index + self.random.randrange(1, 4), self.config.segment_bytes
        end = self.view.get(self.view.end_index).end_pos if self.view.end_index >= 0 else 0
        self.view.reset_to(index)
        body = b"entry %d " % len(self.bodies)
        self.bodies[body] = None
        self.view.append(Entry.of(index, self._term, -(-end // size) * size, body))

    def _write(self) -> None:
        write = self.view.take()
        before, after = self.written, _after(self.written, write)
        kept = common(before, after)
        self.possible.append(after)
        self.written, self.durable = kept, common(self.durable, after)
        self._apply(write)
        self.view.written()
        self.written = after
        if len(kept) < len(before):
            # A truncation is flushed before new entries are written: truncated ones must not return.
            self.possible = [self.durable, after]

    def _apply(self, write: Write) -> None:
        """Apply a change, and retry it while the disk is full as a peer does, at most `_TRIES` times."""
        for _ in range(_TRIES):
            try:
                return self.files.apply(write)
            except DiskFull as full:
                last = full
        raise last

    def flush(self, *, thorough: bool) -> None:
        """Make the written entries durable."""
        self.files.flush(thorough=thorough)
        self.durable = self.written
        self.possible = [self.written]

    def restart(self, *, clean: bool) -> None:
        """Stop or kill, and restart."""
        if clean:
            self.files.close()
        else:
            kill_ledger(self.files)
        self.open()
        self.durable = self.written
        self.possible = [self.written]


def open_ledger(config: CommitLogConfig, disk: RecordingDisk, bodies: Container[bytes]) -> LedgerFiles:
    """Open the files as they are. Raises StoreError."""

    def check(entry: Entry) -> str:
        return "" if entry.body in bodies else "a body that nobody wrote"

    files = LedgerFiles(DIRECTORY, config, disk=disk, check=check, index_file_bytes=_INDEX_FILE_BYTES)
    files.open()
    return files


def kill_ledger(files: LedgerFiles) -> None:
    """Stop as a killed process would: nothing more is written."""
    files.failure = files.failure or StoreError("killed")
    files._close_files()


def common(one: Entries, other: Entries) -> Entries:
    """The longest common prefix."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return one[:count]


def _after(before: Entries, write: Write) -> Entries:
    kept = [] if write.is_reset else before
    if write.truncate_after is not None:
        kept = [entry for entry in kept if entry.index <= write.truncate_after]
    return [*kept, *write.entries]
