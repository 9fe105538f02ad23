"""One file of the key index: a hash table from keys to records.

The key is `topic#key`; its hash is the absolute value of Java's String.hashCode. All integers are big-endian:

| offset            | size  | field                                                             |
|------------------:|------:|-------------------------------------------------------------------|
|                 0 |     8 | store time of the first record, ms                                 |
|                 8 |     8 | store time of the newest record                                   |
|                16 |     8 | physical offset of the first record                               |
|                24 |     8 | physical offset of the newest record                              |
|                32 |     4 | number of inserts                                                 |
|                36 |     4 | number of the next entry; the first is 1, since 0 means none      |
|                40 | 4 * S | slots: number of the newest entry whose hash modulo S is this slot |
|        40 + 4 * S | 20 * N | entries: hash i32, physical offset i64, seconds since the file's  |
|                   |       | first record i32, number of the slot's previous entry i32          |

Slots change in random order, so they stay in memory until the file is full or the store stops cleanly.
Entries are written in batches. After a crash, an unfinished file is resumed after the entries that the
checkpoint counts. Without such a checkpoint, it is rebuilt from the commit log, as in 4.6.0.
Source: RocketMQ IndexFile, IndexHeader.
"""

from __future__ import annotations

import contextlib
import struct
import sys
from array import array
from pathlib import Path

from rocketpy.errors import StoreDamaged, StoreError, ensure
from rocketpy.native import has_native_form
from rocketpy_broker.store.files.disk import Disk, disk_errors, store_error

HEADER = struct.Struct(">qqqqii")
HEADER_BYTES = HEADER.size
SLOT_BYTES = 4
ENTRY = struct.Struct(">iqii")
ENTRY_BYTES = ENTRY.size
_ENTRY_HASH_AND_OFFSET = struct.Struct(">iq8x")
_SECONDS_MAX = 0x7FFFFFFF
_CHUNK_SLOTS = 1 << 18
_BLOCK_ENTRIES = 50
"""Entries that a search reads together: those of a frequent key are near each other."""
ROW = struct.Struct(">iqq")
"""A key to index: its `positive_hash`, and physical offset and store timestamp (ms) of its record."""
_ROW_OFFSET_AND_TIME = struct.Struct(">4xqq")


@has_native_form
def link_entries(slots: memoryview, rows: bytes, first: int, begin_ms: int) -> bytes:
    """Return the entries for these rows (see `ROW`), and make each the newest entry of its slot.

    slots: of the file, as C ints. first: number of the first entry. begin_ms: the time from which entries
    count seconds, see `IndexFile.begin_timestamp`; 0 for none.
    """
    slot_count, pack = len(slots), ENTRY.pack
    last_ms, seconds = begin_ms, 0
    entries = []
    for number, (key_hash, offset, time) in enumerate(ROW.iter_unpack(rows), first):
        slot = key_hash % slot_count
        previous = slots[slot]
        slots[slot] = number
        if time != last_ms:
            last_ms, since_ms = time, time - begin_ms
            seconds = min(since_ms // 1000, _SECONDS_MAX) if begin_ms > 0 and since_ms > 0 else 0
        entries.append(pack(key_hash, offset, seconds, previous if 0 <= previous <= number else 0))
    return b"".join(entries)


class IndexFile:
    """An index file: the newest one, which is being written, or an older one.

    slots: S above. entries: N above; number 0 is never used, so the file has room for N - 1 entries.
    """

    def __init__(self, disk: Disk, path: Path, slots: int, entries: int) -> None:
        self._disk = disk
        self.path = path
        self._slot_count = slots
        self.entry_limit = entries
        """N above."""
        self._entries_at = HEADER_BYTES + slots * SLOT_BYTES
        self.begin_timestamp = 0
        self.end_timestamp = 0
        self.begin_offset = 0
        self.end_offset = 0
        self.inserts = 0
        self.next_entry = 1
        self._handle = -1
        self._slots: memoryview | None = None
        self._pending = bytearray()
        """Entries that are not written yet."""
        self._pending_from = 1
        self.is_dirty = False
        """Whether slots or header have changes that are not written to the file."""

    @property
    def size(self) -> int:
        """Length of the file."""
        return self._entries_at + self.entry_limit * ENTRY_BYTES

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another entry."""
        return self.next_entry >= self.entry_limit

    @property
    def room(self) -> int:
        """Number of entries that still fit."""
        return self.entry_limit - self.next_entry

    # -- opening ---------------------------------------------------------------------------------

    def create(self, previous: IndexFile | None) -> None:
        """Create the file with its full size, sparse. Raises DiskFull, StoreError, and removes the file then.

        previous: the full file before this one. Until its first entry, this file begins and ends where
        `previous` ends.
        """
        try:
            self._disk.make_dir(self.path.parent)
            self._handle = self._disk.create(self.path, self.size)
        except OSError as error:
            with contextlib.suppress(StoreError):
                self.delete()
            raise store_error("create", self.path, error) from error
        if previous is not None:
            self.begin_timestamp = self.end_timestamp = previous.end_timestamp
            self.begin_offset = self.end_offset = previous.end_offset
        self._slots = memoryview(bytearray(self._slot_count * SLOT_BYTES)).cast("i")
        self.is_dirty = True

    def load(self) -> None:
        """Open an existing file. Raises StoreDamaged when its size or header is invalid."""
        with disk_errors("open", self.path):
            length = self._disk.size(self.path)
            self._handle = self._disk.open(self.path)
        if length != self.size:
            raise StoreDamaged(
                f"{self.path} has {length} bytes, but {self._slot_count} slots and {self.entry_limit} "
                f"entries need {self.size}; set maxHashSlotNum and maxIndexNum to the values that it was "
                "created with"
            )
        (
            self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset, self.inserts,
            next_entry,
        ) = HEADER.unpack(self._read(0, HEADER_BYTES))  # fmt: skip
        if next_entry > self.entry_limit:
            raise StoreDamaged(
                f"{self.path}: its header counts {next_entry} entries, more than "
                f"maxIndexNum={self.entry_limit}; remove the file and restart to rebuild it"
            )
        self.next_entry = self._pending_from = max(1, next_entry)  # 0 in a file that was never written

    def resume(self, header: tuple[int, int, int, int, int, int]) -> None:
        """Continue a loaded file that was not full, and rebuild its slots from its entries.

        header: the values of the header, in the order of the file. The last one is the number of the next
        entry; all entries before it are flushed. Raises StoreDamaged if they are not those of the header:
        after a crash, a file system may show zeros in place of a file's content.
        """
        (
            self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset, self.inserts,
            self.next_entry,
        ) = header  # fmt: skip
        self._pending_from = self.next_entry
        slots = self._slots = memoryview(bytearray(self._slot_count * SLOT_BYTES)).cast("i")
        slot_count = self._slot_count
        newest = self.begin_offset  # entries have the order of the log
        for first in range(1, self.next_entry, _CHUNK_SLOTS):
            count = min(_CHUNK_SLOTS, self.next_entry - first)
            data = self._read(self._entries_at + first * ENTRY_BYTES, count * ENTRY_BYTES)
            for number, (key_hash, offset) in enumerate(_ENTRY_HASH_AND_OFFSET.iter_unpack(data), first):
                slots[key_hash % slot_count] = number
                if offset < newest:
                    raise StoreDamaged(f"{self.path}: entry {number} is damaged; the index is rebuilt")
                newest = offset
        if newest != self.end_offset:
            raise StoreDamaged(f"{self.path}: the last entry is damaged; the index is rebuilt")
        self.is_dirty = True

    def sync(self) -> None:
        """Flush the written entries. Safe in a thread. Raises StoreError."""
        with disk_errors("flush", self.path):
            self._disk.fdatasync(self._handle)

    def keep_slots(self) -> None:
        """Load the slots into memory, so that look-ups need fewer reads."""
        if self._slots is None:
            self._load_slots()

    def _load_slots(self) -> memoryview:
        values = array("i")
        ensure(values.itemsize == SLOT_BYTES, "a C int does not have 4 bytes on this platform")
        values.frombytes(self._read(HEADER_BYTES, self._slot_count * SLOT_BYTES))
        if sys.byteorder == "little":
            values.byteswap()
        self._slots = memoryview(values)
        return self._slots

    # -- writing ---------------------------------------------------------------------------------

    def put(self, rows: bytes) -> None:
        """Add entries for one or more rows (see `ROW`), at most `room`."""
        slots = self._slots if self._slots is not None else self._load_slots()
        self.end_offset, self.end_timestamp = _ROW_OFFSET_AND_TIME.unpack_from(rows, len(rows) - ROW.size)
        if self.next_entry == 1:  # relative to the end of the previous file, as in 4.6.0
            self._pending += link_entries(slots, rows[: ROW.size], 1, self.begin_timestamp)
            self.begin_offset, self.begin_timestamp = _ROW_OFFSET_AND_TIME.unpack_from(rows)
            self.next_entry = 2
            self.inserts += 1
            rows = rows[ROW.size :]
        self._pending += link_entries(slots, rows, self.next_entry, self.begin_timestamp)
        self.inserts += len(rows) // ROW.size
        self.next_entry += len(rows) // ROW.size
        self.is_dirty = True

    @property
    def pending(self) -> int:
        """Number of entries that are not written yet."""
        return len(self._pending) // ENTRY_BYTES

    def write_entries(self) -> None:
        """Write the pending entries with one call. Raises DiskFull, StoreError; then they remain pending."""
        if not self._pending:
            return
        self._write(self._entries_at + self._pending_from * ENTRY_BYTES, bytes(self._pending))
        self._pending_from += self.pending
        self._pending.clear()

    def write_slots(self) -> None:
        """Write slots, then the header, and flush the file. Safe in a thread once the file is full.

        Raises DiskFull, StoreError; then it can be called again.
        """
        slots = self._slots
        if slots is None or not self.is_dirty:
            return
        for start in range(0, self._slot_count, _CHUNK_SLOTS):
            chunk = array("i", slots[start : start + _CHUNK_SLOTS].tobytes())
            if not any(chunk):
                continue
            if sys.byteorder == "little":
                chunk.byteswap()
            self._write(HEADER_BYTES + start * SLOT_BYTES, chunk.tobytes())
        header = HEADER.pack(
            self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset,
            self.inserts, self.next_entry,
        )  # fmt: skip
        self._write(0, header)
        with disk_errors("flush", self.path):
            self._disk.fdatasync(self._handle)
        self.is_dirty = False

    def forget_slots(self) -> None:
        """Free the memory of the slots, which must be written."""
        ensure(not self.is_dirty, f"{self.path} has slots that are not written")
        self._slots = None

    # -- reading ---------------------------------------------------------------------------------

    def find(self, key_hash: int, begin: int, end: int, count_max: int = sys.maxsize) -> list[int]:
        """Return the physical offsets of records that may be stored in [begin, end] (ms), newest first.

        Some may have another key with the same hash, or another time: an entry has whole seconds, and 0 for a
        time before the file's first record. So no time ends the search: a clock may have been set back.
        """
        found: list[int] = []
        began, block, block_from = self.begin_timestamp, b"", 0
        number = self._newest_of(key_hash % self._slot_count)
        while 0 < number < self.next_entry and len(found) < count_max:
            if number >= self._pending_from:  # not written yet
                entry = ENTRY.unpack_from(self._pending, (number - self._pending_from) * ENTRY_BYTES)
            else:
                if not block_from <= number < block_from + len(block) // ENTRY_BYTES:
                    block_from = max(1, number + 1 - _BLOCK_ENTRIES)
                    size = (number + 1 - block_from) * ENTRY_BYTES
                    block = self._read(self._entries_at + block_from * ENTRY_BYTES, size)
                entry = ENTRY.unpack_from(block, (number - block_from) * ENTRY_BYTES)
            entry_hash, offset, seconds, previous = entry
            if seconds < 0:
                break
            first = began + seconds * 1000
            is_new = not found or offset != found[-1]  # a record may have a key twice
            if (
                entry_hash == key_hash
                and is_new
                and (
                    number == 1  # relative to the end of the previous file; see `put`
                    or ((first <= end or seconds == 0) and (begin <= first + 999 or seconds == _SECONDS_MAX))
                )
            ):
                found.append(offset)
            if previous >= number:
                break
            number = previous
        return found

    def _newest_of(self, slot: int) -> int:
        """Return the number of the newest entry of a slot; 0 without one."""
        if self._slots is not None:
            return self._slots[slot]
        data = self._read(HEADER_BYTES + slot * SLOT_BYTES, SLOT_BYTES)
        return int.from_bytes(data, "big", signed=True)

    def entries(self) -> list[tuple[int, int, int, int]]:
        """Return all entries from number 1 on: (hash, physical offset, seconds, previous number)."""
        data = self._read(self._entries_at + ENTRY_BYTES, (self._pending_from - 1) * ENTRY_BYTES)
        return list(ENTRY.iter_unpack(data + self._pending))

    # -- ending ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the file without writing pending entries and slots."""
        if self._handle >= 0:
            self._disk.close(self._handle)
            self._handle = -1

    def delete(self) -> None:
        """Close and remove the file."""
        self.close()
        with disk_errors("delete", self.path):
            self._disk.unlink(self.path)

    def _read(self, position: int, size: int) -> bytes:
        try:
            data = self._disk.pread(self._handle, size, position)
        except OSError as error:
            raise store_error("read", self.path, error) from error
        if len(data) != size:
            raise StoreDamaged(
                f"{self.path} ends at {position + len(data)}, but {size} bytes are needed at {position}; "
                "remove the file and restart to rebuild it"
            )
        return data

    def _write(self, position: int, data: bytes) -> None:
        with disk_errors("write", self.path):
            self._disk.pwrite(self._handle, data, position)
