"""Reads entries by index: the newest from memory, older ones in batches from the files.

A lagging follower receives consecutive entries, so a read also loads the next ones. Each entry is compared
with its index unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rocketpy.errors import RecordCorrupt, StoreDamaged
from rocketpy_broker.replication.dledger.core.entry import (
    INDEX_UNIT_BYTES,
    Entry,
    IndexUnit,
    decode_entry,
    decode_index_unit,
    encode_index_unit,
)
from rocketpy_broker.replication.dledger.storage.entry_scan import entry_at
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue

_RECENT_BYTES_MAX: Final = 32 << 20
_AHEAD_BYTES: Final = 128 << 10
_AHEAD_ENTRIES_MAX: Final = 4096
_AHEAD_BYTES_MAX: Final = 8 << 20
REMEDY: Final = "restart this peer with an empty directory, so that it copies the ledger from the others"
"""Advice in the errors of a damaged ledger."""


class LedgerReader:
    """Reads from a ledger's data and index files."""

    def __init__(self, data: MappedFileQueue, index: MappedFileQueue) -> None:
        self._data = data
        self._index = index
        self._recent: dict[int, Entry] = {}
        self._recent_bytes = 0
        self._ahead: dict[int, Entry] = {}
        self._ahead_bytes = 0

    def get(self, index: int) -> Entry:
        """Return an entry of the ledger. Raises StoreDamaged, StoreError."""
        entry = self._recent.get(index) or self._ahead.get(index)
        return entry if entry is not None else self._read_ahead(index)

    def _unit(self, index: int) -> IndexUnit:
        data = self._index.read(index * INDEX_UNIT_BYTES, INDEX_UNIT_BYTES)
        unit = decode_index_unit(data) if data is not None else None
        if unit is None or unit.index != index:
            raise StoreDamaged(f"{self._index.directory} has no unit for entry {index}; {REMEDY}")
        return unit

    def _read_ahead(self, index: int) -> Entry:
        """Read an entry, and the complete ones in the next 128 KiB."""
        unit = self._unit(index)
        file = self._data.find(unit.pos)
        position = unit.pos - file.start if file is not None else 0
        if file is None or position + unit.size > file.wrote:
            raise StoreDamaged(f"{self._data.directory} has no entry {index} at {unit.pos}; {REMEDY}")
        window = file.read(position, min(max(unit.size, _AHEAD_BYTES), file.wrote - position))
        if len(self._ahead) > _AHEAD_ENTRIES_MAX or self._ahead_bytes > _AHEAD_BYTES_MAX:
            self._drop_ahead()
        found = _entries_in(window, unit.pos)
        units = self._index.read(index * INDEX_UNIT_BYTES, len(found) * INDEX_UNIT_BYTES)
        if units is None:  # the units are in two files
            found = found[:1]
            units = self._index.read(index * INDEX_UNIT_BYTES, INDEX_UNIT_BYTES) or b""
        if not found or encode_index_unit(found[0]) != units[:INDEX_UNIT_BYTES]:
            raise StoreDamaged(
                f"entry {index} in {self._data.directory} at {unit.pos} does not match the index; {REMEDY}"
            )
        for number, entry in enumerate(found):
            at = number * INDEX_UNIT_BYTES
            if encode_index_unit(entry) != units[at : at + INDEX_UNIT_BYTES]:
                break
            self._ahead[entry.index] = entry
            self._ahead_bytes += entry.size
        return found[0]

    def _drop_ahead(self) -> None:
        self._ahead.clear()
        self._ahead_bytes = 0

    def at(self, pos: int) -> Entry:
        """Return the entry at a position. Raises StoreDamaged, StoreError."""
        file = self._data.find(pos)
        entry = entry_at(file, pos - file.start) if file is not None else None
        if entry is None:
            raise StoreDamaged(f"{self._data.directory} has no entry at {pos}; {REMEDY}")
        return entry

    def last_before(self, pos: int, begin: int, end: int) -> int:
        """Return the index of the newest entry from `begin` to `end` that ends at or before `pos`.

        Returns `begin` - 1 if there is none.

        Raises StoreDamaged, StoreError.
        """
        low, high = begin, end + 1
        while low < high:  # finds the first entry that ends after `pos`
            middle = (low + high) // 2
            unit = self._unit(middle)
            if unit.pos + unit.size <= pos:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def cache(self, entries: Sequence[Entry]) -> None:
        """Keep newly written entries in memory: they will be read soon, to send them to followers."""
        recent = self._recent
        for entry in entries:
            recent[entry.index] = entry
            self._recent_bytes += entry.size
        while self._recent_bytes > _RECENT_BYTES_MAX:
            self._recent_bytes -= recent.pop(next(iter(recent))).size

    def forget(self, last: int) -> None:
        """Drop truncated entries: those after this index."""
        for index in [index for index in self._recent if index > last]:
            self._recent_bytes -= self._recent.pop(index).size
        self._drop_ahead()


def _entries_in(window: bytes, pos: int) -> list[Entry]:
    """Return the complete entries at the start of the window. pos: position of the window."""
    found: list[Entry] = []
    at = 0
    while at < len(window):
        try:
            entry = decode_entry(window, at, pos + at)
        except RecordCorrupt:
            break
        if not isinstance(entry, Entry):
            break
        found.append(entry)
        at += entry.size
    return found
