"""The consume queue of one (topic, queue id): where in the commit log its messages are.

Files of 20-byte units, unit n at byte 20 * n of the queue, all integers big-endian:

| offset | size | field                                                                   |
|-------:|-----:|-------------------------------------------------------------------------|
|      0 |    8 | physical offset of the record in the commit log                         |
|      8 |    4 | size of the record                                                      |
|     12 |    8 | tags code: Java's String.hashCode of the tag, 0 without; due time in ms |
|        |      | in SCHEDULE_TOPIC_XXXX                                                  |

A queue that begins in the middle (its first messages were never here) is filled up to there with
units of offset 0, size 0x7fffffff. Consume queues can be rebuilt from the commit log at any time.
Source: RocketMQ ConsumeQueue.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rocketpy.errors import StoreDamaged, StoreError
from rocketpy_broker.store.files.disk import Disk
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue
from rocketpy_broker.store.queue.queue_checksums import FileChecksum, QueueChecksums

logger = logging.getLogger("rocketpy_broker.store.consume_queue")

UNIT = struct.Struct(">qiq")
UNIT_BYTES = UNIT.size
BLANK_SIZE = 0x7FFFFFFF
BLANK_UNIT = UNIT.pack(0, BLANK_SIZE, 0)
_STEP_UNITS = 200
_SUM_BYTES = 1 << 20
_GAP_UNITS_MAX = 5_000_000
_PIECE_BYTES = UNIT_BYTES * 3200
_pack = UNIT.pack


class PutTotals:
    """Messages put into queues, and their bytes in the commit log. Numbers that only grow."""

    __slots__ = ("count", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0


class ConsumeQueue:
    """The units of one queue. `put` keeps the newest in memory; `write_out` writes them.

    Reads write nothing: they find the newest units in memory, so that a full disk does not stop them.
    pending_bytes_max: `put` tries to write once so many bytes wait. When that fails, the units stay in memory
    and can be read; `write_out`, called with each thorough flush, raises the error.
    puts: totals that this queue adds to. changed: contains this queue from its first change until its next
    flush is planned. opened: contains its open files. Queues may share all three.
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
        self.files = MappedFileQueue(disk, directory / topic / str(queue_id), segment_bytes, opened=opened)
        self.checksums = QueueChecksums()
        self.min_offset = 0
        """First queue offset whose record is still in the commit log, as of `correct_min_offset`."""
        self.next_offset = 0
        """Queue offset of the next unit: one after the last."""
        self.max_physical_offset = -1
        """Commit log offset just after the newest record here; records below it are here already."""
        self.puts = PutTotals() if puts is None else puts
        self._changed = {} if changed is None else changed
        self._pending: list[bytes] = []
        self._pending_max = self._write_at = max(1, pending_bytes_max // UNIT_BYTES)

    @property
    def units_per_file(self) -> int:
        """Units in one file."""
        return self.files.file_bytes // UNIT_BYTES

    # -- writing ---------------------------------------------------------------------------------

    def put(self, offset: int, size: int, tags_code: int, queue_offset: int) -> bool:
        """Add the unit of one record; False when it exists already.

        Units come in commit-log order. Raises StoreDamaged for one that cannot follow those here.
        """
        if offset + size <= self.max_physical_offset:
            return False
        if queue_offset != self.next_offset and not self._jump(queue_offset):
            return False
        if not self._pending:
            self._changed[self] = None
        self._pending.append(_pack(offset, size, tags_code))
        self.next_offset = queue_offset + 1
        self.max_physical_offset = offset + size
        self.puts.count += 1
        self.puts.size += size
        if len(self._pending) >= self._write_at:
            self._try_write_out()
        return True

    def put_run(
        self, offsets: Sequence[int], sizes: Sequence[int], tags_codes: Sequence[int], numbers: Sequence[int]
    ) -> bool:
        """`put` for records in log order, at once where they follow each other; False when all were here.

        numbers: their queue offsets.
        """
        first, last = numbers[0], numbers[-1]
        follows = first == self.next_offset and last - first == len(numbers) - 1
        if offsets[-1] + sizes[-1] <= self.max_physical_offset:
            return False
        if not follows or offsets[0] + sizes[0] <= self.max_physical_offset:
            added = list(map(self.put, offsets, sizes, tags_codes, numbers))  # each of them
            return any(added)
        if not self._pending:
            self._changed[self] = None
        self._pending += map(_pack, offsets, sizes, tags_codes)
        self.next_offset = last + 1
        self.max_physical_offset = offsets[-1] + sizes[-1]
        self.puts.count += len(numbers)
        self.puts.size += sum(sizes)
        if len(self._pending) >= self._write_at:
            self._try_write_out()
        return True

    def _jump(self, queue_offset: int) -> bool:
        """Make a unit that is not the next one the next one, if it may be."""
        if self.max_physical_offset < 0:
            self.begin_at(queue_offset)
            return True
        if queue_offset < self.next_offset:
            logger.warning(
                "%s: unit %d exists already; the next one is %d",
                self.files.directory,
                queue_offset,
                self.next_offset,
            )
            return False
        if queue_offset - self.next_offset > _GAP_UNITS_MAX:
            raise StoreDamaged(
                f"{self.files.directory}: the next record in the commit log is message {queue_offset}, this "
                f"queue ends with {self.next_offset - 1}; remove the queue's directory to have it rebuilt"
            )
        # 4.6.0 logs a bug and writes to the wrong place; numbering must stay right.
        logger.error(
            "%s: no units from %d to %d; filled with blanks",
            self.files.directory, self.next_offset, queue_offset,
        )  # fmt: skip
        self._changed[self] = None
        self._pending.extend([BLANK_UNIT] * (queue_offset - self.next_offset))
        self.next_offset = queue_offset
        return True

    def begin_at(self, queue_offset: int) -> None:
        """Give the first unit of a queue without any this number: those before it were never here."""
        self._changed[self] = None
        self._pending.clear()
        self.checksums.cut(0)
        self.files.destroy()
        # As 4.6.0 (fillPreBlank): the queue starts in the file that holds this offset.
        first = queue_offset - queue_offset % self.units_per_file
        with contextlib.suppress(StoreError):  # on a full disk `write_out` makes it later
            self.files.add_file(first * UNIT_BYTES).wrote = 0
        self._pending.extend([BLANK_UNIT] * (queue_offset - first))
        self.min_offset = self.next_offset = queue_offset

    @property
    def has_pending(self) -> bool:
        """Whether units wait in memory."""
        return bool(self._pending)

    @property
    def needs_file(self) -> bool:
        """Whether its units wait for the file that `make_file` makes."""
        if not self._pending or self.files.spare is not None:
            return False
        last = self.files.last
        is_next = self.files.next_start(self._written_units * UNIT_BYTES) == self.files.next_start()
        return is_next and (last is None or last.is_full)

    def make_file(self) -> MappedFile:
        """Make the next file. Safe in a thread; see `adopt_file`. Raises DiskFull, StoreError."""
        return self.files.create_preallocated(self.files.next_start())

    def write_out(self) -> None:
        """Write pending units, one call a file. Raises DiskFull, StoreError; the rest stays pending."""
        if not self._pending:
            return
        for file, part in self.files.append(b"".join(self._pending), self._written_units * UNIT_BYTES):
            self.checksums.wrote(file.start, file.wrote - len(part), part)
            del self._pending[: len(part) // UNIT_BYTES]
        self._write_at = self._pending_max

    def _try_write_out(self) -> None:
        """`write_out`; after an error, try again once twice as many units wait."""
        try:
            self.write_out()
        except StoreError as error:
            self._write_at = 2 * len(self._pending)
            logger.debug("%s: %d units wait in memory: %s", self.files.directory, len(self._pending), error)

    @property
    def _written_units(self) -> int:
        """Queue offset of the first unit that is only in memory."""
        return self.next_offset - len(self._pending)

    # -- reading ---------------------------------------------------------------------------------

    def read_units(self, queue_offset: int, count: int) -> bytes | None:
        """Up to `count` units from there on, within one file; None when there is no such unit.

        Offsets below `min_offset` have none, as in 4.6.0.
        """
        if queue_offset < self.min_offset or queue_offset >= self.next_offset:
            return None
        count = min(count, self.roll_next_file(queue_offset) - queue_offset)
        pending, waiting = self._written_units, b""
        if queue_offset + count > pending:
            first = max(queue_offset - pending, 0)
            waiting = b"".join(self._pending[first : queue_offset + count - pending])
        if queue_offset >= pending:
            return waiting
        size = min(count, pending - queue_offset) * UNIT_BYTES
        written = self._read_written(queue_offset, size)
        return written + waiting if written is not None and len(written) == size else written

    def _read_written(self, queue_offset: int, size: int) -> bytes | None:
        file = self.files.find(queue_offset * UNIT_BYTES)
        if file is None:
            return None
        position = queue_offset * UNIT_BYTES - file.start
        size = min(size, file.wrote - position)
        return file.read(position, size) if size > 0 else None

    def unit(self, queue_offset: int) -> tuple[int, int, int] | None:
        """(physical offset, size, tags code) of one unit; None when there is none."""
        data = self.read_units(queue_offset, 1)
        return UNIT.unpack(data) if data is not None and len(data) == UNIT_BYTES else None

    def units(self) -> Iterator[tuple[int, int, int, int]]:
        """Every unit as (queue offset, physical offset, size, tags code), blanks included."""
        for file in self.files.mapped_files:
            first = file.start // UNIT_BYTES
            data = file.read(0, file.wrote)
            for position, unit in enumerate(UNIT.iter_unpack(data[: len(data) // UNIT_BYTES * UNIT_BYTES])):
                yield first + position, *unit
        for number, waiting in enumerate(self._pending, self._written_units):
            yield number, *UNIT.unpack(waiting)

    def roll_next_file(self, queue_offset: int) -> int:
        """Queue offset at which the next file starts."""
        return queue_offset + self.units_per_file - queue_offset % self.units_per_file

    def range_by_time(self, timestamp: int) -> range:
        """Queue offsets of the first file written to at or after that time, else of the last.

        Units that wait in memory belong to the last file. Empty without units.
        """
        mapped_files = self.files.mapped_files
        for file in mapped_files[:-1]:
            if file.modified_ms() >= timestamp:
                return range(file.start // UNIT_BYTES, (file.start + file.wrote) // UNIT_BYTES)
        first = mapped_files[-1].start // UNIT_BYTES if mapped_files else self._written_units
        return range(first, self.next_offset)

    # -- recovery and cleaning -------------------------------------------------------------------

    def recover(self, dispatched_offset: int = -1) -> None:
        """Find the end of a loaded queue: units are valid while offset >= 0 and size > 0.

        dispatched_offset: units of records below are flushed; -1 when not known. Starts where they end, or
        at the third-last file, as 4.6.0 does.
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
        """Position among the files of the last one that begins with a unit of a record below that offset."""
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
        """Write the units of records at or after that commit log offset again, for the next flush."""
        self._changed[self] = None
        self.write_out()
        mapped_files = self.files.mapped_files[self._first_unflushed(dispatched_offset) :]
        self.files.mark_unflushed(mapped_files)
        for file in mapped_files if dispatched_offset >= 0 else ():
            position = file.wrote
            while position > 0:
                offset, _, _ = UNIT.unpack(file.read(position - UNIT_BYTES, UNIT_BYTES))
                if offset < dispatched_offset:
                    break
                position = max(0, position - _STEP_UNITS * UNIT_BYTES)
            file.rewrite(position)

    def begins_blank(self) -> bool:
        """Whether the queue begins with a blank unit, since its first messages were never here."""
        return bool(self.files.mapped_files) and self.files.mapped_files[0].read(0, UNIT_BYTES) == BLANK_UNIT

    def wipe_rest(self) -> None:
        """Erase bytes after the last unit, which a crash may have left there."""
        self._changed[self] = None
        self.write_out()
        last = self.files.last
        if last is not None:
            last.erase(last.wrote)

    def truncate(self, physical_offset: int) -> None:
        """Drop the units of records at or after that commit log offset, and stale bytes after them."""
        self._changed[self] = None
        self.write_out()
        while (last := self.files.last) is not None:
            count, end = _count_file(last, last.wrote, physical_offset)
            if count or len(self.files.mapped_files) == 1:
                self.cut(last.start // UNIT_BYTES + count)
                if count:
                    self.max_physical_offset = end
                break
            self.cut(last.start // UNIT_BYTES)
            self.files.mapped_files.pop().delete()
        if self.next_offset == 0:
            self.max_physical_offset = -1
        self.max_physical_offset = min(self.max_physical_offset, physical_offset)

    def cut(self, queue_offset: int) -> None:
        """Make `queue_offset` the next one, dropping the units after it. `max_physical_offset` stays."""
        self._changed[self] = None
        self.write_out()
        self.checksums.cut(queue_offset * UNIT_BYTES)
        self.files.truncate(queue_offset * UNIT_BYTES)
        self.next_offset = queue_offset

    def correct_min_offset(self, physical_offset: int) -> None:
        """Set `min_offset` to the first unit whose record lies at or after that commit log offset.

        Searches the oldest file only, as 4.6.0 does. If no unit is found there, the minimum stays, but moves
        up to the start of that file: a consumer could not advance from an offset whose file is deleted.
        """
        oldest = self.files.min_offset // UNIT_BYTES
        first = self._first_at(physical_offset)
        self.min_offset = max(self.min_offset, oldest) if first is None else first

    def first_at(self, physical_offset: int) -> int:
        """Queue offset of the first unit whose record lies at or after that commit log offset.

        Looks into the oldest file only; the next offset when that has none.
        """
        first = self._first_at(physical_offset)
        return self.next_offset if first is None else first

    def _first_at(self, physical_offset: int) -> int | None:
        mapped_files = self.files.mapped_files
        if mapped_files:
            position = _first_at(mapped_files[0], physical_offset)
            if position is not None:
                return mapped_files[0].start // UNIT_BYTES + position
        if len(mapped_files) > 1:
            return None
        position = _first_at_slowly(b"".join(self._pending), physical_offset)
        return None if position is None else self._written_units + position

    def take_expired(self, physical_offset: int) -> Iterator[MappedFile]:
        """Take out the oldest files whose newest record lies below that commit log offset; never the last.

        The caller deletes them. Source: RocketMQ deleteExpiredFileByOffset.
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
        """Take over the checksums that the last run saved."""
        for one in checksums:
            self.checksums.know(one.start, one.covered, one.crc)

    def checksum_of(self, file: MappedFile, *, may_read: bool) -> FileChecksum | None:
        """The checksum of a file's written part; None when it is not known and the file may not be read."""
        covered, crc = self.checksums.get(file.start) or (-1, 0)
        if covered != file.wrote:
            if not may_read:
                return None
            covered, crc = file.wrote, self._read_sum(file, file.wrote)
        return FileChecksum(self.topic, self.queue_id, file.start, covered, crc)

    def is_intact(self, sum_: FileChecksum) -> bool:
        """Whether the file has that checksum. False when there is no such file."""
        file = next((one for one in self.files.mapped_files if one.start == sum_.start), None)
        return file is not None and self._read_sum(file, sum_.covered) == sum_.crc

    @staticmethod
    def _read_sum(file: MappedFile, covered: int) -> int:
        crc = 0
        for at in range(0, covered, _SUM_BYTES):
            crc = zlib.crc32(file.read(at, min(_SUM_BYTES, covered - at)), crc)
        return crc

    def destroy(self) -> None:
        """Delete the queue's files."""
        self._pending.clear()
        self.checksums.cut(0)
        self.files.destroy()
        self.min_offset = self.next_offset = 0
        self.max_physical_offset = -1


def _first_at(file: MappedFile, physical_offset: int) -> int | None:
    """Position of the file's first unit of a record at or after that offset; None when it has none.

    Offsets rise from unit to unit, so a binary search finds it; with blank units every unit is compared.
    """
    low, high = 0, file.wrote // UNIT_BYTES
    count = high
    while low < high:
        middle = (low + high) // 2
        unit = file.read(middle * UNIT_BYTES, UNIT_BYTES)
        if unit == BLANK_UNIT:
            return _first_at_slowly(file.read(0, file.wrote), physical_offset)
        if UNIT.unpack(unit)[0] >= physical_offset:
            high = middle
        else:
            low = middle + 1
    return low if low < count else None


def _first_at_slowly(data: bytes, physical_offset: int) -> int | None:
    for position, (offset, size, _) in enumerate(UNIT.iter_unpack(data)):
        if offset >= physical_offset and not (offset == 0 and size == BLANK_SIZE):
            return position
    return None


def _count_file(file: MappedFile, size: int, physical_end: int | None = None) -> tuple[int, int]:
    """`_count_units` of a file's first `size` bytes, read a piece at a time: most of it may be a hole."""
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
    """Return (units before the first that is invalid or at or after `physical_end`, end of the last's
    record, whether there was no such unit).

    Blank units count only in front of one that is not.
    """
    count, end = 0, -1
    usable = len(data) // UNIT_BYTES * UNIT_BYTES
    for position, (offset, size, _) in enumerate(UNIT.iter_unpack(data[:usable]), 1):
        if offset < 0 or size <= 0 or (physical_end is not None and offset >= physical_end):
            return count, end, False
        if size != BLANK_SIZE or offset:
            count, end = position, offset + size
    return count, end, True
