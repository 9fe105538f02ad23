"""The ledger as a peer sees it: what is stored, and behind it what is still to be written.

Every change goes through here and comes out of `take` as a `Write`. Only after `written` does an entry count
as durable. Between the two the view may change again, be cut even: then only what was not cut counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rocketpy.errors import InvariantError, ensure
from rocketpy_broker.replication.dledger.core.entry import HEADER_BYTES, Entry, next_pos


class StoredLedger(Protocol):
    """What lies on disk. An index is -1 while the ledger is empty."""

    @property
    def begin_index(self) -> int:
        """Of the oldest entry that is kept."""

    @property
    def end_index(self) -> int:
        """Of the newest."""

    @property
    def start_pos(self) -> int:
        """Where the first entry goes while there is none, in bytes.

        Not 0 in a store that began without DLedger: there it is behind the old log.
        """

    def get(self, index: int) -> Entry:
        """Return an entry between the two."""


@dataclass(frozen=True, slots=True)
class Write:
    """One change to what is stored, to be made in this order and then flushed.

    is_reset: everything goes, and the ledger begins again with `entries`, which come with it or later, then
    where it began before. keep_until: entries behind this
    index go; None: none do. entries: go to the end.
    """

    is_reset: bool
    truncate_after: int | None
    entries: tuple[Entry, ...]

    def __bool__(self) -> bool:
        return self.is_reset or self.truncate_after is not None or bool(self.entries)


class LedgerView:
    """One peer's ledger. file_bytes: size of a data file."""

    def __init__(self, stored: StoredLedger, file_bytes: int) -> None:
        self._stored = stored
        self._file_bytes = file_bytes
        self._begin = stored.begin_index
        self._start_pos = stored.start_pos
        """Where the first entry goes while there is none."""
        self._stored_end = stored.end_index
        """Up to here the stored entries are this ledger's, and durable."""
        self._tail: list[Entry] = []
        """What comes behind them."""
        self._taken = 0
        """So many of the tail are being written."""
        self._is_reset = False
        self._keep_until: int | None = None

    @property
    def begin_index(self) -> int:
        """Of the oldest entry; -1 in an empty ledger."""
        return self._begin

    @property
    def end_index(self) -> int:
        """Of the newest entry; -1 in an empty ledger."""
        return self._tail[-1].index if self._tail else self._stored_end

    @property
    def end_term(self) -> int:
        """The newest entry's own term (D#52: not that of whoever pushed it); -1 in an empty ledger."""
        return self.get(self.end_index).term if self._begin >= 0 else -1

    @property
    def durable_index(self) -> int:
        """Entries up to this one survive power loss."""
        return self._stored_end

    def find(self, index: int) -> Entry | None:
        """Return an entry; None where there is none."""
        return self.get(index) if 0 <= self._begin <= index <= self.end_index else None

    def get(self, index: int) -> Entry:
        """Return an entry that is there."""
        if index > self._stored_end:
            return self._tail[index - self._stored_end - 1]
        return self._stored.get(index)

    def expire(self, index: int) -> None:
        """Entries before this one, all committed, are about to be deleted: offer them no more."""
        ensure(self._begin <= index <= self._stored_end, f"{index} of {self._begin} to {self._stored_end}")
        self._begin = index

    @property
    def has_unwritten(self) -> bool:
        """Whether `take` would return any."""
        return self._is_reset or self._keep_until is not None or self._taken < len(self._tail)

    def next_entry_pos(self, body_bytes: int) -> int:
        """Return where the next entry goes, with a body of so many bytes."""
        end = self.get(self.end_index).end_pos if self._begin >= 0 else self._start_pos
        return next_pos(end, HEADER_BYTES + body_bytes, self._file_bytes)

    def append(self, entry: Entry) -> None:
        """Put an entry at the end."""
        if entry.index != self.end_index + 1:
            raise InvariantError(f"entry {entry.index} behind {self.end_index}")
        if self._begin < 0:
            self._begin = entry.index
        self._tail.append(entry)

    def truncate_after(self, index: int) -> None:
        """Cut what lies behind an entry, or everything with -1."""
        if index >= self.end_index:
            return
        if index < self._begin:
            self._start_pos = self.get(self._begin).pos
            self.reset_to(index + 1)
            return
        if index < self._stored_end + self._taken:
            # Stored, or about to be: the files have to be cut too.
            self._keep_until = index if self._keep_until is None else min(index, self._keep_until)
            self._taken = max(0, index - self._stored_end)
        del self._tail[max(0, index - self._stored_end) :]
        self._stored_end = min(self._stored_end, index)

    def reset_to(self, index: int) -> None:
        """Empty the ledger; the next entry has this index."""
        self._is_reset, self._keep_until = True, None
        self._tail.clear()
        self._taken = 0
        self._stored_end = index - 1
        self._begin = -1

    def take(self) -> Write:
        """Return what is to be written now. `written` must follow before the next one is taken."""
        write = Write(self._is_reset, self._keep_until, tuple(self._tail[self._taken :]))
        self._is_reset, self._keep_until = False, None
        self._taken = len(self._tail)
        return write

    def written(self) -> None:
        """What was taken is durable, except for what was cut since."""
        self._stored_end += self._taken
        del self._tail[: self._taken]
        self._taken = 0
