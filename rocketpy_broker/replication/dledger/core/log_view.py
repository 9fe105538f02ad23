"""The ledger as the Raft core sees it: the stored entries, followed by those that are not written yet.

A peer appends, truncates and sends entries while earlier ones are being written. With this view the rest of
the core sees one ledger, and does not depend on how far the disk is.

All changes go through this view, and `take` returns them as a `Write`. After `written`, the entries of that
`Write` count as durable, except those that were truncated in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rocketpy.errors import InvariantError, ensure
from rocketpy_broker.replication.dledger.core.entry import HEADER_BYTES, Entry, next_pos


class StoredLedger(Protocol):
    """The ledger on disk. An index is -1 while the ledger is empty."""

    @property
    def begin_index(self) -> int:
        """Index of the oldest entry."""

    @property
    def end_index(self) -> int:
        """Index of the newest entry."""

    @property
    def start_pos(self) -> int:
        """Position of the first entry in an empty ledger.

        0, or the end of the old commit log in a store that was created without DLedger.
        """

    def get(self, index: int) -> Entry:
        """Return an entry from `begin_index` to `end_index`."""


@dataclass(frozen=True, slots=True)
class Write:
    """One change to the stored ledger, to be made in this order and then flushed."""

    is_reset: bool
    """Remove all entries; the ledger starts again at the first of `entries`, or without any at its
    `start_pos`."""
    truncate_after: int | None
    """Remove the entries after this index."""
    entries: tuple[Entry, ...]
    """Append them."""

    def __bool__(self) -> bool:
        return self.is_reset or self.truncate_after is not None or bool(self.entries)


class LedgerView:
    """The ledger of one peer. file_bytes: size of a data file."""

    def __init__(self, stored: StoredLedger, file_bytes: int) -> None:
        self._stored = stored
        self._file_bytes = file_bytes
        self._begin = stored.begin_index
        self._start_pos = stored.start_pos
        """Position of the first entry while there is none."""
        self._stored_end = stored.end_index
        """The stored entries up to here are durable and not truncated."""
        self._tail: list[Entry] = []
        """The entries after `_stored_end`, which are not durable yet."""
        self._taken = 0
        """Number of entries at the start of the tail that are being written."""
        self._is_reset = False
        """Whether the next `Write` removes all stored entries."""
        self._keep_until: int | None = None
        """Index after which the next `Write` truncates the stored ledger; None: it does not."""

    @property
    def begin_index(self) -> int:
        """Index of the oldest entry; -1 in an empty ledger."""
        return self._begin

    @property
    def end_index(self) -> int:
        """Index of the newest entry; -1 in an empty ledger."""
        return self._tail[-1].index if self._tail else self._stored_end

    @property
    def end_term(self) -> int:
        """Term in which the newest entry was first appended, by any leader; -1 in an empty ledger."""
        return self.get(self.end_index).term if self._begin >= 0 else -1

    @property
    def durable_index(self) -> int:
        """Index of the newest entry that survives power loss."""
        return self._stored_end

    def find(self, index: int) -> Entry | None:
        """Return an entry; None if the ledger does not have it."""
        return self.get(index) if 0 <= self._begin <= index <= self.end_index else None

    def get(self, index: int) -> Entry:
        """Return an entry from `begin_index` to `end_index`."""
        if index > self._stored_end:
            return self._tail[index - self._stored_end - 1]
        return self._stored.get(index)

    def expire(self, index: int) -> None:
        """Drop the entries before this one: they are committed, and are about to be deleted."""
        ensure(
            self._begin <= index <= self._stored_end,
            f"entry {index} cannot become the oldest one: {self._begin} to {self._stored_end} are stored",
        )
        self._begin = index

    @property
    def has_unwritten(self) -> bool:
        """Whether `take` returns a change."""
        return self._is_reset or self._keep_until is not None or self._taken < len(self._tail)

    def next_entry_pos(self, body_bytes: int) -> int:
        """Return the position of the next entry, if its body has this size."""
        end = self.get(self.end_index).end_pos if self._begin >= 0 else self._start_pos
        return next_pos(end, HEADER_BYTES + body_bytes, self._file_bytes)

    def append(self, entry: Entry) -> None:
        """Append an entry."""
        if entry.index != self.end_index + 1:
            raise InvariantError(f"entry {entry.index} appended after entry {self.end_index}")
        if self._begin < 0:
            self._begin = entry.index
        self._tail.append(entry)

    def truncate_after(self, index: int) -> None:
        """Remove the entries after an index; with -1, all."""
        if index >= self.end_index:
            return
        if index < self._begin:
            self._start_pos = self.get(self._begin).pos
            self.reset_to(index + 1)
            return
        if index < self._stored_end + self._taken:
            # These entries are stored, or being written, so the files must be truncated too.
            self._keep_until = index if self._keep_until is None else min(index, self._keep_until)
            self._taken = max(0, index - self._stored_end)
        del self._tail[max(0, index - self._stored_end) :]
        self._stored_end = min(self._stored_end, index)

    def reset_to(self, index: int) -> None:
        """Remove all entries; the next one gets this index."""
        self._is_reset, self._keep_until = True, None
        self._tail.clear()
        self._taken = 0
        self._stored_end = index - 1
        self._begin = -1

    def take(self) -> Write:
        """Return the changes to write now. `written` must be called before the next `take`."""
        write = Write(self._is_reset, self._keep_until, tuple(self._tail[self._taken :]))
        self._is_reset, self._keep_until = False, None
        self._taken = len(self._tail)
        return write

    def written(self) -> None:
        """Record that the changes that `take` returned are durable."""
        self._stored_end += self._taken
        del self._tail[: self._taken]
        self._taken = 0
