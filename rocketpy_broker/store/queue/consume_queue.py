"""The consume queue of one (topic, queue id): the positions of its messages in the commit log.

It consists of files of 20-byte units. Unit n starts at byte 20 * n of the queue. All integers are big-endian:

| offset | size | field                                                                   |
|-------:|-----:|-------------------------------------------------------------------------|
|      0 |    8 | physical offset of the record in the commit log                         |
|      8 |    4 | size of the record                                                      |
|     12 |    8 | tags code: Java's String.hashCode of the tag, 0 without; due time in ms |
|        |      | in SCHEDULE_TOPIC_XXXX                                                  |

The first messages of a queue may never have been in this store. Their units are blank: offset 0, size
0x7fffffff. Consume queues can be rebuilt from the commit log at any time.
Source: RocketMQ ConsumeQueue.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from rocketpy.errors import StoreDamaged, StoreError
from rocketpy_broker.store.files.disk import Disk
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import Deletion, MappedFileQueue
from rocketpy_broker.store.queue.queue_checksums import FileChecksum, QueueChecksums

logger = logging.getLogger("rocketpy_broker.store.consume_queue")

UNIT = struct.Struct(">qiq")
UNIT_BYTES = UNIT.size
BLANK_SIZE = 0x7FFFFFFF
BLANK_UNIT = UNIT.pack(0, BLANK_SIZE, 0)
_STEP_UNITS = 200
"""Distance of the units that `rewrite_unflushed` reads from the end backwards."""
_CRC_READ_BYTES = 1 << 20
_GAP_UNITS_MAX = 5_000_000
"""A longer gap between queue offsets is damage, not missing messages. Its blank units would take 100 MB."""
_KEPT_UNITS = 3200
_PIECE_BYTES = UNIT_BYTES * 3200
"""Size of the reads that count the units of a file."""
_pack = UNIT.pack


class QueueUnit(NamedTuple):
    """Says where the record of one message is."""

    physical_offset: int
    size: int
    """BLANK_SIZE in a gap."""
    tags_code: int
    """Hash of the tags."""


class PutTotals(msgspec.Struct, gc=False, eq=False):
    """Counters of the messages put into queues, and of their bytes in the commit log."""

    count: int = 0
    size: int = 0


class ConsumeQueue:
    """The units of one queue. `put` keeps new units in memory; `write_out` writes them.

    Reads also find the units in memory, so a full disk does not stop consumers.

    pending_bytes_max: `put` tries to write when this many bytes are in memory. If that fails, the units
    remain in memory; `write_out`, called by each thorough flush, raises the error. puts: counters that this
    queue adds to. changed: contains this queue from its first change until its next flush is planned. opened:
    contains its open files. Queues may share the last three.
    """

    __slots__ = ("_changed", "_pending", "_pending_max", "_write_at", "checksums", "files",
                 "max_physical_offset", "min_offset", "next_offset", "puts", "queue_id", "topic")  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        topic: str,
        queue_id: int,
        segment_bytes: int,
        *,
        pending_bytes_max: int = 4096,
        puts: PutTotals | None = None,
        changed: dict[ConsumeQueue, None] | None = None,
        opened: dict[MappedFile, None] | None = None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        path = directory / topic / str(queue_id)
        self.files = MappedFileQueue(disk, path, segment_bytes, opened={} if opened is None else opened)
        self.checksums = QueueChecksums()
        self.min_offset = 0
        """First queue offset whose record is still in the commit log, as of `correct_min_offset`."""
        self.next_offset = 0
        """Queue offset of the next unit."""
        self.max_physical_offset = -1
        """Commit log offset just after the newest record; records below it are not added again."""
        self.puts = PutTotals() if puts is None else puts
        self._changed = {} if changed is None else changed
        self._pending = bytearray()
        """The units that are only in memory."""
        self._pending_max = max(1, pending_bytes_max // UNIT_BYTES) * UNIT_BYTES
        self._write_at = self._pending_max
        """Bytes in memory from which `put` tries to write them."""

    @property
    def units_per_file(self) -> int:
        """Number of units in one file."""
        return self.files.file_bytes // UNIT_BYTES

    # -- writing ---------------------------------------------------------------------------------

    def put(self, offset: int, size: int, tags_code: int, queue_offset: int) -> bool:
        """Add the unit of a record; return False if it exists. Records must come in commit-log order.

        Raises StoreDamaged if the queue offset is too far ahead of the last unit.
        """
        if offset + size <= self.max_physical_offset:
            return False
        if queue_offset != self.next_offset and not self._skip_to(queue_offset):
            return False
        if not self._pending:
            self._changed[self] = None
        self._pending += _pack(offset, size, tags_code)
        self.next_offset = queue_offset + 1
        self.max_physical_offset = offset + size
        self.puts.count += 1
        self.puts.size += size
        if len(self._pending) >= self._write_at:
            self._try_write_out()
        return True

    def put_many(self, queue_offset: int, begin: int, end: int, size: int, units: bytes) -> int:
        """Add consecutive units, in commit-log order; return the number of new ones. See `put`.

        queue_offset: of the first unit. begin: physical offset of its record. end: after the last record.
        size: bytes of all records.
        """
        count = len(units) // UNIT_BYTES
        if end <= self.max_physical_offset:
            return 0
        if queue_offset != self.next_offset or begin < self.max_physical_offset:
            numbered = enumerate(UNIT.iter_unpack(units), queue_offset)
            return sum([self.put(at, length, code, number) for number, (at, length, code) in numbered])
        if not self._pending:
            self._changed[self] = None
        self._pending += units
        self.next_offset = queue_offset + count
        self.max_physical_offset = end
        self.puts.count += count
        self.puts.size += size
        if len(self._pending) >= self._write_at:
            self._try_write_out()
        return count

    def _skip_to(self, queue_offset: int) -> bool:
        """Continue at a later queue offset, filling the gap with blank units; False for an earlier one."""
        if self.max_physical_offset < 0:
            self.begin_at(queue_offset)
            return True
        if queue_offset == 0:
            logger.warning(
                "%s: beginning again at offset 0 without %d units: the topic was deleted and created again",
                self.files.directory,
                self.next_offset - self.min_offset,
            )
            self.begin_at(0)
            return True
        if queue_offset < self.next_offset:
            logger.warning(
                "%s: ignoring a record with queue offset %d, which exists; the next one is %d",
                self.files.directory,
                queue_offset,
                self.next_offset,
            )
            return False
        if queue_offset - self.next_offset > _GAP_UNITS_MAX:
            raise StoreDamaged(
                f"{self.files.directory}: the next record in the commit log has queue offset {queue_offset}, "
                f"but this queue ends with {self.next_offset - 1}; to rebuild it, remove this directory and "
                "restart"
            )
        # 4.6.0 logs a bug, and gives the unit a wrong queue offset.
        logger.error(
            "%s: no records for queue offsets from %d to before %d; filling the gap with blank units",
            self.files.directory, self.next_offset, queue_offset,
        )  # fmt: skip
        self._changed[self] = None
        self._pending += BLANK_UNIT * (queue_offset - self.next_offset)
        self.next_offset = queue_offset
        return True

    def has_expired(self, begin: int) -> bool:
        """Whether the records of all units are before `begin`, an offset of the commit log.

        False without units: such a queue is new, or keeps a place from which it continues; see `begin_at`.
        """
        return 0 <= self.max_physical_offset <= begin

    def begin_at(self, queue_offset: int) -> None:
        """Start an empty queue at this queue offset, since its earlier messages were never in this store."""
        self._changed[self] = None
        self._pending.clear()
        self.checksums.forget_from(0)
        self.files.destroy()
        # As 4.6.0 (fillPreBlank): the first file is the one that contains this offset.
        first = queue_offset - queue_offset % self.units_per_file
        with contextlib.suppress(StoreError):  # on a full disk, `write_out` creates it later
            self.files.add_file(first * UNIT_BYTES).wrote = 0
        self._pending += BLANK_UNIT * (queue_offset - first)
        self.min_offset = self.next_offset = queue_offset

    def drop_before(self, physical_offset: int) -> None:
        """Drop the units of records before this commit log offset. At least one unit must remain."""
        low, high = self.min_offset, self.next_offset
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is None or unit.physical_offset < physical_offset:
                low = middle + 1
            else:
                high = middle
        kept, at = bytearray(), low
        while at < self.next_offset and (data := self.read_units(at, _KEPT_UNITS)):
            kept += data
            at += len(data) // UNIT_BYTES
        end = self.max_physical_offset
        self.begin_at(low)
        self._pending += kept
        self.next_offset, self.max_physical_offset = at, end
        self._try_write_out()

    @property
    def has_pending(self) -> bool:
        """Whether there are units that are only in memory."""
        return bool(self._pending)

    @property
    def is_closed(self) -> bool:
        """Whether a write would need another file descriptor."""
        last = self.files.last
        return last is None or last.is_full or not last.is_open

    @property
    def needs_file(self) -> bool:
        """Whether its units cannot be written before `make_file` has created the next file."""
        if not self._pending or self.files.preallocated is not None:
            return False
        last = self.files.last
        is_next = self.files.next_start(self._written_units * UNIT_BYTES) == self.files.next_start()
        return is_next and (last is None or last.is_full)

    def make_file(self) -> MappedFile:
        """Create the next file, for `files.adopt_preallocated`. Safe in a thread. Raises StoreError."""
        return self.files.create_preallocated(self.files.next_start())

    def write_out(self) -> None:
        """Write the units that are only in memory. Raises DiskFull, StoreError; unwritten ones stay there."""
        if not self._pending:
            return
        for file, part in self.files.append(bytes(self._pending), self._written_units * UNIT_BYTES):
            self.checksums.wrote(file.start, file.wrote - len(part), part)
            del self._pending[: len(part)]
        self._write_at = self._pending_max

    def _try_write_out(self) -> None:
        """Call `write_out`. After an error, try again when twice as many bytes are in memory."""
        try:
            self.write_out()
        except StoreError as error:
            self._write_at = 2 * len(self._pending)
            count = len(self._pending) // UNIT_BYTES
            logger.debug("%s: cannot write %d units yet: %s", self.files.directory, count, error)

    @property
    def _written_units(self) -> int:
        """Queue offset of the first unit that is only in memory."""
        return self.next_offset - len(self._pending) // UNIT_BYTES

    # -- reading ---------------------------------------------------------------------------------

    def read_units(self, queue_offset: int, count: int) -> bytes | None:
        """Return up to `count` units of one file, from `queue_offset` on; None if there is no unit.

        Units below `min_offset` are not returned, as in 4.6.0. No bytes if the file became shorter.
        """
        if not self.min_offset <= queue_offset < self.next_offset:
            return None
        per_file = self.files.file_bytes // UNIT_BYTES
        count = min(count, per_file - queue_offset % per_file)
        written_end = self._written_units
        if queue_offset + count <= written_end:  # the usual case
            return self._read_written(queue_offset, count * UNIT_BYTES)
        first, end = max(queue_offset - written_end, 0), queue_offset + count - written_end
        pending = bytes(self._pending[first * UNIT_BYTES : end * UNIT_BYTES])
        if queue_offset >= written_end:
            return pending
        size = (written_end - queue_offset) * UNIT_BYTES
        written = self._read_written(queue_offset, size)
        return written + pending if written is not None and len(written) == size else written

    def _read_written(self, queue_offset: int, size: int) -> bytes | None:
        offset = queue_offset * UNIT_BYTES
        file = self.files.find(offset)
        if file is None:
            return None
        position = offset - file.start
        if position + size > file.wrote:
            size = file.wrote - position
        if size <= 0:
            return None
        data = file.read(position, size)
        return data if len(data) == size else data[: len(data) // UNIT_BYTES * UNIT_BYTES]

    def unit(self, queue_offset: int) -> QueueUnit | None:
        """Return one unit; None if there is none."""
        data = self.read_units(queue_offset, 1)
        return QueueUnit._make(UNIT.unpack(data)) if data is not None and len(data) == UNIT_BYTES else None

    def units(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield every unit, also blank ones, as (queue offset, physical offset, size, tags code)."""
        for file in self.files.mapped_files:
            first = file.start // UNIT_BYTES
            data = file.read(0, file.wrote)
            for position, unit in enumerate(UNIT.iter_unpack(data[: len(data) // UNIT_BYTES * UNIT_BYTES])):
                yield first + position, *unit
        for queue_offset, unit in enumerate(UNIT.iter_unpack(bytes(self._pending)), self._written_units):
            yield queue_offset, *unit

    def roll_next_file(self, queue_offset: int) -> int:
        """Return the queue offset at which the file after the one of `queue_offset` starts."""
        return queue_offset + self.units_per_file - queue_offset % self.units_per_file

    # -- recovery and cleaning -------------------------------------------------------------------

    def recover(self, dispatched_offset: int = -1) -> None:
        """Find the end of a loaded queue: the first unit with offset < 0 or size <= 0.

        The search starts at the third-last file, as in 4.6.0, or earlier at the first unflushed unit.
        dispatched_offset: units of records below this offset are flushed; -1 when not known.
        """
        self._changed[self] = None
        mapped_files = self.files.mapped_files
        begin = max(0, len(mapped_files) - 3)
        if dispatched_offset >= 0:
            begin = min(begin, self._first_unflushed(dispatched_offset))
        for index in range(begin, len(mapped_files)):
            file = mapped_files[index]
            count, end = _count_file(file, file.size)
            if count:
                self.max_physical_offset = end
            if count * UNIT_BYTES < file.size:
                self.files.truncate(file.start + count * UNIT_BYTES, erase=False)
                break
        self.next_offset = self.files.max_offset // UNIT_BYTES

    def _first_unflushed(self, dispatched_offset: int) -> int:
        """Return the index of the last file whose first unit is of a record below the offset, or 0."""
        mapped_files = self.files.mapped_files
        first = len(mapped_files)
        while first > 0:
            first -= 1
            data = mapped_files[first].read(0, UNIT_BYTES)
            if len(data) == UNIT_BYTES:
                offset, size, _ = UNIT.unpack(data)
                if 0 <= offset < dispatched_offset and size > 0:
                    break
        return first

    def rewrite_unflushed(self, dispatched_offset: int) -> None:
        """Rewrite the units of records from this commit log offset on, so that the next flush includes them.

        dispatched_offset: -1 rewrites nothing, but includes all files in the next flush.
        """
        self._changed[self] = None
        self.write_out()
        mapped_files = self.files.mapped_files[self._first_unflushed(dispatched_offset) :]
        self.files.mark_unflushed(mapped_files)
        if dispatched_offset < 0:
            return
        for file in mapped_files:
            position = file.wrote
            while position > 0:
                offset, _, _ = UNIT.unpack(file.read(position - UNIT_BYTES, UNIT_BYTES))
                if offset < dispatched_offset:
                    break
                position = max(0, position - _STEP_UNITS * UNIT_BYTES)
            file.rewrite(position)

    def begins_blank(self) -> bool:
        """Whether the queue starts with a blank unit; see `begin_at`."""
        return bool(self.files.mapped_files) and self.files.mapped_files[0].read(0, UNIT_BYTES) == BLANK_UNIT

    def zero_rest(self) -> None:
        """Zero the bytes after the last unit, which a crash may have left there."""
        self._changed[self] = None
        self.write_out()
        last = self.files.last
        if last is not None:
            last.erase(last.wrote)

    def truncate(self, physical_offset: int) -> None:
        """Drop the units of records from this commit log offset on, and zero the bytes after them."""
        self._changed[self] = None
        self.write_out()
        while (last := self.files.last) is not None:
            count, end = _count_file(last, last.wrote, physical_offset)
            if count or len(self.files.mapped_files) == 1:
                self.truncate_at(last.start // UNIT_BYTES + count)
                if count:
                    self.max_physical_offset = end
                break
            self.truncate_at(last.start // UNIT_BYTES)
            self.files.mapped_files.pop().delete()
        if self.next_offset == 0:
            self.max_physical_offset = -1
        self.max_physical_offset = min(self.max_physical_offset, physical_offset)

    def truncate_at(self, queue_offset: int) -> None:
        """Drop the units from `queue_offset` on. The caller updates `max_physical_offset`."""
        self._changed[self] = None
        self.write_out()
        self.checksums.forget_from(queue_offset * UNIT_BYTES)
        self.files.truncate(queue_offset * UNIT_BYTES)
        self.next_offset = queue_offset

    def correct_min_offset(self, physical_offset: int) -> None:
        """Set `min_offset` to the first unit whose record is at or after this commit log offset.

        Only the oldest file is searched, as in 4.6.0. If it has no such unit, the minimum is at least the
        start of that file. A consumer could not advance from an offset whose file is deleted.
        """
        oldest = self.files.min_offset // UNIT_BYTES
        first = self._first_at(physical_offset)
        self.min_offset = max(self.min_offset, oldest) if first is None else first

    def first_at(self, physical_offset: int) -> int:
        """Return the queue offset of the first unit whose record is at or after this commit log offset.

        Only the oldest file is searched. If it has no such unit, return the next offset of the queue.
        """
        first = self._first_at(physical_offset)
        return self.next_offset if first is None else first

    def _first_at(self, physical_offset: int) -> int | None:
        mapped_files = self.files.mapped_files
        if mapped_files:
            position = _search(mapped_files[0], physical_offset)
            if position is not None:
                return mapped_files[0].start // UNIT_BYTES + position
        if len(mapped_files) > 1:
            return None
        position = _search_linearly(self._pending, physical_offset)
        return None if position is None else self._written_units + position

    def take_expired(self, physical_offset: int) -> Iterator[MappedFile]:
        """Remove and yield the oldest files whose records are all below this commit log offset.

        The caller deletes them. The last file is kept. Source: RocketMQ deleteExpiredFileByOffset.
        """
        while len(self.files.mapped_files) > 1:
            first = self.files.mapped_files[0]
            offset, _, _ = UNIT.unpack(first.read(first.size - UNIT_BYTES, UNIT_BYTES))
            if offset >= physical_offset:
                break
            self._changed[self] = None
            yield self.files.take_first()

    # -- checksums -------------------------------------------------------------------------------

    def adopt_checksums(self, checksums: Iterable[FileChecksum]) -> None:
        """Use the checksums that the last stop saved."""
        for checksum in checksums:
            self.checksums.set(checksum.start, checksum.covered, checksum.crc)

    def checksum_of(self, file: MappedFile, *, may_read: bool) -> FileChecksum | None:
        """Return the checksum of a file's written part. may_read: if False, None unless it is known."""
        covered, crc = self.checksums.get(file.start) or (-1, 0)
        if covered != file.wrote:
            if not may_read:
                return None
            covered, crc = file.wrote, self._compute_crc(file, file.wrote)
        return FileChecksum(self.topic, self.queue_id, file.start, covered, crc)

    def is_intact(self, checksum: FileChecksum) -> bool:
        """Whether the file exists and has this checksum."""
        file = next((file for file in self.files.mapped_files if file.start == checksum.start), None)
        return file is not None and self._compute_crc(file, checksum.covered) == checksum.crc

    @staticmethod
    def _compute_crc(file: MappedFile, covered: int) -> int:
        crc = 0
        for at in range(0, covered, _CRC_READ_BYTES):
            crc = zlib.crc32(file.read(at, min(_CRC_READ_BYTES, covered - at)), crc)
        return crc

    def abandon(self) -> Deletion:
        """Forget all units; return what deletes the queue's files."""
        self._pending.clear()
        self.checksums.forget_from(0)
        self.min_offset = self.next_offset = 0
        self.max_physical_offset = -1
        return self.files.abandon()

    def destroy(self) -> None:
        """Delete the queue's files. Raises StoreError."""
        self.abandon()()


def _search(file: MappedFile, physical_offset: int) -> int | None:
    """Return the index of the first unit in a file whose record is at or after the offset; None without one.

    Offsets increase from unit to unit, so this is a binary search. With blank units, all units are compared.
    """
    low, high = 0, file.wrote // UNIT_BYTES
    count = high
    while low < high:
        middle = (low + high) // 2
        unit = file.read(middle * UNIT_BYTES, UNIT_BYTES)
        if unit == BLANK_UNIT:
            return _search_linearly(file.read(0, file.wrote), physical_offset)
        if UNIT.unpack(unit)[0] >= physical_offset:
            high = middle
        else:
            low = middle + 1
    return low if low < count else None


def _search_linearly(data: bytes | bytearray, physical_offset: int) -> int | None:
    for position, (offset, size, _) in enumerate(UNIT.iter_unpack(data)):
        if offset >= physical_offset and not (offset == 0 and size == BLANK_SIZE):
            return position
    return None


def _count_file(file: MappedFile, size: int, physical_end: int | None = None) -> tuple[int, int]:
    """Count the units in the first `size` bytes of a file; see `_count_units`.

    The file is read in pieces, since most of it may be a hole. Returns (number of units, end of the last
    record).
    """
    count, end = 0, -1
    for at in range(0, size, _PIECE_BYTES):
        data = file.read(at, min(_PIECE_BYTES, size - at))
        units, last_end, is_whole = _count_units(data, physical_end)
        if units:
            count, end = at // UNIT_BYTES + units, last_end
        if not is_whole:
            break
    return count, end


def _count_units(data: bytes, physical_end: int | None = None) -> tuple[int, int, bool]:
    """Count the units before the first one that is invalid, or whose record is at or after `physical_end`.

    Returns (their number, end of the last one's record, whether all units were counted). Blank units are
    counted only if another unit follows them.
    """
    count, end = 0, -1
    usable = len(data) // UNIT_BYTES * UNIT_BYTES
    for position, (offset, size, _) in enumerate(UNIT.iter_unpack(data[:usable]), 1):
        if offset < 0 or size <= 0 or (physical_end is not None and offset >= physical_end):
            return count, end, False
        if size != BLANK_SIZE or offset:
            count, end = position, offset + size
    return count, end, True
