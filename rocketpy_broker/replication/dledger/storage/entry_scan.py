"""Scans a ledger's data files entry by entry, and finds where and why they end.

After power loss, unflushed data may be missing in any combination; that is normal. Elsewhere it is damage,
and acknowledged entries are lost. Recovery needs the reason of the end to distinguish the two.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from struct import Struct
from typing import Final

from rocketpy.errors import RecordCorrupt, TornTail
from rocketpy_broker.replication.dledger.core.entry import HEADER_BYTES, MAGIC, Blank, Entry, decode_entry
from rocketpy_broker.store.log.log_scan import LogTail, files_from
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue

CheckEntry = Callable[[Entry], str]
"""Returns what is wrong with an entry's body, or an empty text. The ledger has no checksum of bodies."""
_WINDOW_BYTES: Final = 4 << 20
_MAGIC: Final = MAGIC.to_bytes(4, "big")
# Size and pos of an entry.
_PLACE: Final = Struct(">4xi16xq16x")


def accept_any(_entry: Entry) -> str:
    """Accept any body."""
    return ""


class EntryScan:
    """Iterates over the entries from `start` on, and checks each.

    start: offset of an entry or a file. Indexes must be consecutive, terms must not decrease, a blank must
    reach the end of its file, and each entry must contain its own position.
    """

    def __init__(self, files: MappedFileQueue, start: int, check: CheckEntry) -> None:
        self._files = files
        self._check = check
        self.end = start
        """End of the last valid entry."""
        self.last: Entry | None = None
        """The last valid entry."""
        self.stop: RecordCorrupt | None = None
        """Why the scan ended; None if only zeros or no more files follow."""
        self.tail = LogTail(start)

    def __iter__(self) -> Iterator[Entry]:
        for file, position in files_from(self._files, self.end):
            is_full = yield from self._scan_file(file, position)
            if not is_full:
                return

    def _scan_file(self, file: MappedFile, position: int) -> Generator[Entry, None, bool]:
        """Yield the entries of a file; return whether a blank ends it."""
        window, base = b"", position
        while True:
            try:
                found = decode_entry(window, position - base, file.start + position)
            except TornTail as torn:
                window, base = _read_window(file, position, window[position - base :]), position
                if window:
                    continue
                self.stop = torn
                return False
            except RecordCorrupt as corrupt:
                if any(window[position - base : position - base + 8]):
                    self.stop = corrupt
                return False
            problem = self._problem_of(found, file.size - position)
            if problem:
                self.stop = RecordCorrupt(file.start + position, problem)
                return False
            if isinstance(found, Blank):
                return True
            position += found.size
            self.end = file.start + position
            self.last = found
            self.tail.advance(self.end)
            yield found

    def find_later_entry(self) -> Entry | None:
        """Return the first valid entry after the end that may belong to the ledger, at any position.

        Indexes increase and terms never decrease. So an entry without a higher index than the last one, or
        with a lower term, is left over from a truncation. 0.1 does not zero truncated entries, and power loss
        may undo the zeroing.
        """
        for entry in _find_entries(self._files, self.end, self._check):
            if self.last is None or (entry.index > self.last.index and entry.term >= self.last.term):
                return entry
        return None

    def _problem_of(self, found: Entry | Blank, room: int) -> str:
        if isinstance(found, Blank):
            reason = f"a blank of {found.size} bytes does not reach the end of the file"
            return "" if found.size == room else reason
        last = self.last
        if last is not None and found.index != last.index + 1:
            return f"index {found.index} after {last.index}"
        if last is not None and found.term < last.term:
            return f"term {found.term} after {last.term}"
        return self._check(found)


def _read_window(file: MappedFile, position: int, rest: bytes) -> bytes:
    """Return bytes from `position` on, more than `rest`; empty if the entry there exceeds the file."""
    size = int.from_bytes(rest[4:8], "big") if len(rest) >= 8 else HEADER_BYTES
    if position + size > file.size:
        return b""
    window = file.read(position, min(file.size - position, max(size, _WINDOW_BYTES)))
    return window if len(window) > len(rest) else b""


def _find_entries(files: MappedFileQueue, offset: int, check: CheckEntry) -> Iterator[Entry]:
    """Yield the valid entries from `offset` on, at any position."""
    for file, start in files_from(files, offset):
        position = start
        for at, size in file.data_ranges(start):
            begin = max(position, at - len(_MAGIC))
            if begin >= at + size:
                continue  # the previous entry covers this range
            for found in _find_in_range(file, begin, at + size, check):
                yield found
                position = found.end_pos - file.start


def _find_in_range(file: MappedFile, begin: int, end: int, check: CheckEntry) -> Iterator[Entry]:
    data = file.read(begin, end - begin)
    hit = data.find(_MAGIC)
    while hit >= 0:
        found = entry_at(file, begin + hit)
        if found is not None and not check(found):
            yield found
            hit += found.size - 1
        hit = data.find(_MAGIC, hit + 1)


def entry_at(file: MappedFile, position: int) -> Entry | None:
    """Return the entry at a position of a data file; None if there is none."""
    header = file.read(position, HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    size, pos = _PLACE.unpack(header)
    if pos != file.start + position or not HEADER_BYTES <= size <= file.size - position:
        return None
    try:
        found = decode_entry(file.read(position, size), 0, pos)
    except RecordCorrupt:
        return None
    return found if isinstance(found, Entry) else None
