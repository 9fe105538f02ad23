"""A peer's disk in the simulation. It survives kills and power failures.

Written and flushed state are kept apart. A power cut leaves the flushed one, or some of what was written
since. A shell that flushes before it responds loses nothing by that.
"""

from __future__ import annotations

from random import Random

from rocketpy_broker.replication.dledger.core.entry import Entry
from rocketpy_broker.replication.dledger.core.log_view import Write
from rocketpy_broker.replication.dledger.core.raft_state import LedgerCheckpoint, TermState


class RaftDisk:
    """Ledger, vote and checkpoint of one peer; a StoredLedger."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.version = 0
        """Incremented with each change of the entries."""
        self.state = TermState()
        self.checkpoint = LedgerCheckpoint()
        self._flushed: tuple[list[Entry], TermState] = ([], TermState())
        self._flushed_version = 0

    @property
    def begin_index(self) -> int:
        return self.entries[0].index if self.entries else -1

    @property
    def end_index(self) -> int:
        return self.entries[-1].index if self.entries else -1

    @property
    def start_pos(self) -> int:
        return 0

    def get(self, index: int) -> Entry:
        return self.entries[index - self.entries[0].index]

    def write(self, state: TermState | None, write: Write) -> None:
        """Make a Ready's changes, in memory."""
        if state is not None:
            self.state = state
        if not write:
            return
        if state is not None:  # which is made durable before the entries are written at all
            self._flushed = self._flushed[0], state
        self.version += 1
        if write.is_reset:
            self.entries = []
        if write.truncate_after is not None:
            self.entries = [entry for entry in self.entries if entry.index <= write.truncate_after]
        self.entries += write.entries

    def flush(self) -> None:
        """Make them durable."""
        if self._flushed_version != self.version:
            self._flushed = list(self.entries), self.state
            self._flushed_version = self.version
        self._flushed = self._flushed[0], self.state

    def cut_power(self, random: Random) -> None:
        """Lose all unflushed entries, or some of them."""
        entries, state = self._flushed
        common = 0
        while common < min(len(entries), len(self.entries)) and entries[common] is self.entries[common]:
            common += 1
        if random.random() < 0.5:
            self.entries, self.state = list(entries), state
        elif common == len(entries):
            self.entries = self.entries[: random.randint(common, len(self.entries))]
            self.state = state
        self.version += 1
        self.flush()

    def expire(self, begin_index: int) -> None:
        """Retention: delete entries before this one; the newest always stays."""
        kept = [entry for entry in self.entries if entry.index >= begin_index]
        self.entries = kept or self.entries[-1:]
        self.version += 1
        self.flush()
