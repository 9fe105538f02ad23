"""The wheel and the timer log: reads and writes slots and units.

Both are read with `pread` and written with `pwrite`. A unit is written before its slot, so after a kill no
slot leads to a unit that is missing. After power loss one may: see `TimerFiles.recover`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from rocketpy.errors import StoreDamaged, StoreError
from rocketpy_broker.services.timers.batches import NewInSlot
from rocketpy_broker.services.timers.formats import (
    BLANK_BYTES,
    CHECKPOINT_FILE_BYTES,
    EMPTY_SLOT,
    NO_UNIT,
    PRECISION_MS,
    SLOT,
    UNIT,
    WHEEL_BYTES,
    WHEEL_SLOTS,
    Slot,
    TimerCheckpoint,
    Unit,
    encode_blank,
    is_blank,
    set_previous,
)
from rocketpy_broker.store.files.disk import Disk, disk_errors, make_durable_dir, store_error
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue

log = logging.getLogger("rocketpy.broker.timers")

_READ_BYTES: Final = 1 << 16
_BLOCK_BYTES: Final = 1 << 14
_NO_BYTES: Final = bytes(UNIT.size)
_SLOTS_READ: Final = _READ_BYTES // SLOT.size


class TimerFilesDamaged(StoreDamaged):
    """The files contradict each other or the log; they must be built again."""


class CheckpointFile:
    """The file `timercheck`, which is written in place, as RocketMQ does."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path
        self._handle = -1

    def load(self) -> TimerCheckpoint | None:
        """Return the checkpoint; None without a file. Raises StoreError, RemoteProtocolError."""
        with disk_errors("read", self.path):
            if not self._disk.exists(self.path):
                return None
            return TimerCheckpoint.decode_file(self._disk.pread(self._open(), CHECKPOINT_FILE_BYTES, 0))

    def save(self, checkpoint: TimerCheckpoint) -> None:
        """Write and flush the checkpoint. Safe in a thread. Raises DiskFull, StoreError."""
        is_new = not self._disk.exists(self.path)
        if is_new:
            make_durable_dir(self._disk, self.path.parent)
        with disk_errors("write", self.path):
            handle = self._open()
            self._disk.pwrite(handle, checkpoint.encode_file(), 0)
            self._disk.fdatasync(handle)
            if is_new:
                self._disk.fsync_dir(self.path.parent)

    def _open(self) -> int:
        if self._handle < 0:
            self._handle = self._disk.open(self.path, create=True)
        return self._handle

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0:
            self._disk.close(self._handle)
            self._handle = -1


class TimerWheel:
    """The file `timerwheel`. It is created, sparse, with the first slot."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path
        self._handle = -1
        self._unwritten: dict[int, Slot] = {}
        """Slots that could not be written, by second."""
        self.needs_flush = False

    def exists(self) -> bool:
        """Whether there is a file. Raises TimerFilesDamaged for one of another length."""
        with disk_errors("look up", self.path):
            if not self._disk.exists(self.path):
                return False
            size = self._disk.size(self.path)
        if size != WHEEL_BYTES:
            raise TimerFilesDamaged(f"{self.path} has {size} bytes, expected {WHEEL_BYTES}")
        return True

    def slot(self, second: int) -> Slot:
        """Return the slot of a second, which is empty without timers. Raises StoreError."""
        if second in self._unwritten:
            return self._unwritten[second]
        if self._handle < 0 and not self.exists():
            return EMPTY_SLOT
        data = self._pread(SLOT.size, second % WHEEL_SLOTS * SLOT.size)
        found = Slot(*SLOT.unpack(data))
        return found if found.second == second and found.last >= 0 else EMPTY_SLOT

    def put(self, slots: Iterable[Slot]) -> None:
        """Write slots. Those that cannot be written are kept, and tried again by the next call."""
        self._unwritten.update((slot.second, slot) for slot in slots)
        self.needs_flush = self.needs_flush or len(self._unwritten) > 0
        try:
            while self._unwritten:
                slot = next(iter(self._unwritten.values()))
                at = slot.second % WHEEL_SLOTS * SLOT.size
                self._disk.pwrite(self._writable(), SLOT.pack(*slot), at)
                del self._unwritten[slot.second]
        except OSError as error:
            log.error("%s", store_error("write", self.path, error))

    def slots(self, first: int) -> Iterator[Slot]:
        """Yield all slots with timers whose second is `first` or later. Raises StoreError.

        Holes of the file are skipped.
        """
        if self._handle < 0 and not self.exists():
            return
        at = 0
        while (data_at := self._next_data(at)) is not None and data_at < WHEEL_BYTES:
            at = data_at - data_at % SLOT.size
            data = self._pread(min(_READ_BYTES, WHEEL_BYTES - at), at)
            for fields in SLOT.iter_unpack(data[: len(data) // SLOT.size * SLOT.size]):
                if fields[0] >= max(first, 1) and fields[2] >= 0:
                    yield Slot(*fields)
            at += _READ_BYTES

    def next_second(self, second: int, end: int) -> int:
        """Return the first second from `second` on with timers; `end` without one before it."""
        end = min((other for other in self._unwritten if second <= other < end), default=end)
        while second < end:
            index = second % WHEEL_SLOTS
            count = min(end - second, WHEEL_SLOTS - index, _SLOTS_READ)
            data = self._pread(count * SLOT.size, index * SLOT.size)
            for number, fields in enumerate(SLOT.iter_unpack(data)):
                if fields[0] == second + number and fields[2] >= 0:
                    return second + number
            second += count
        return end

    def _next_data(self, at: int) -> int | None:
        with disk_errors("read", self.path):
            return self._disk.next_data(self._readable(), at)

    def _pread(self, size: int, at: int) -> bytes:
        try:
            return self._disk.pread(self._readable(), size, at)
        except OSError as error:
            raise store_error("read", self.path, error) from error

    def _readable(self) -> int:
        if self._handle < 0:
            self._handle = self._disk.open(self.path)
        return self._handle

    def _writable(self) -> int:
        if self._handle < 0:
            self._handle = self._disk.create(self.path, WHEEL_BYTES)
            self._disk.fsync_dir(self.path.parent)
        return self._handle

    def flush(self) -> None:
        """Make the slots durable. Safe in a thread. Raises StoreError, also for unwritten slots."""
        if self._unwritten:
            raise StoreError(f"{len(self._unwritten)} slots of {self.path} could not be written yet")
        if self.needs_flush and self._handle >= 0:
            self.needs_flush = False
            try:
                with disk_errors("flush", self.path):
                    self._disk.fdatasync(self._handle)
            except StoreError:
                self.needs_flush = True
                raise

    def delete(self) -> None:
        """Delete the file."""
        self.close()
        self._unwritten.clear()
        with disk_errors("delete", self.path):
            self._disk.unlink(self.path)

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0:
            self._disk.close(self._handle)
            self._handle = -1


class TimerLog:
    """The files of `timerlog/`."""

    def __init__(self, disk: Disk, directory: Path, file_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._file_bytes = file_bytes
        self._files = MappedFileQueue(disk, directory, file_bytes)
        self._block = b""
        self._block_at = 0

    def load(self) -> None:
        """Find the files. Raises StoreDamaged for those of another size, StoreError."""
        self._files.close()
        self._files = MappedFileQueue(self._disk, self._directory, self._file_bytes)
        self._block = b""
        self._files.load()
        if self._files.strays:
            raise TimerFilesDamaged(
                f"{self._directory}: a file before {self._files.strays[0].path} is missing"
            )

    @property
    def begin(self) -> int:
        """Position of the first unit."""
        return self._files.min_offset

    @property
    def end(self) -> int:
        """Position after the last unit."""
        return self._files.max_offset

    def room(self) -> tuple[int, int]:
        """Return the position of the next unit, and how many units fit into its file."""
        at, size = self.end, self._file_bytes
        left = size - at % size
        if UNIT.size + BLANK_BYTES > left:
            at, left = at + left, size
        return at, (left - BLANK_BYTES) // UNIT.size

    def append(self, data: bytes) -> None:
        """Write encoded units at the position that `room` returned, into one file.

        Raises DiskFull, StoreError. Then no unit counts, and the next `append` writes to the same place.
        """
        position, _ = self.room()
        last = self._files.last
        if last is None or position >= last.end:
            if last is not None and not last.is_full:
                last.write(last.wrote, encode_blank(last.size - last.wrote))
                last.wrote = last.size
            last = self._files.add_file(position)
        last.write(position - last.start, data)
        last.wrote = position - last.start + len(data)

    def unit(self, position: int) -> Unit | None:
        """Return the unit at a position; None if there is none. Raises StoreError.

        Units are read in blocks: neighbours are followed in either direction.
        """
        at = position - self._block_at
        if not 0 <= at <= len(self._block) - UNIT.size:
            at = self._read_block(position)
        return Unit.decode(self._block, at) if at >= 0 else None

    def encoded(self, positions: Iterable[int]) -> bytes:
        """Return the units at these positions, which may not be intact. Raises StoreError."""
        found = []
        for position in positions:
            at = position - self._block_at
            if not 0 <= at <= len(self._block) - UNIT.size:
                at = self._read_block(position)
            found.append(self._block[at : at + UNIT.size].ljust(UNIT.size, b"\0") if at >= 0 else _NO_BYTES)
        return b"".join(found)

    def _read_block(self, position: int) -> int:
        """Read the block with a position; return where in the block it is, -1 if it is in no file."""
        file = self._files.find(position)
        if file is None or position < 0:
            return -1
        start = position - file.start
        if position < self._block_at:
            start = max(0, start + UNIT.size - _BLOCK_BYTES)
        self._block = file.read(start, min(_BLOCK_BYTES, file.wrote - start))
        self._block_at = file.start + start
        return position - self._block_at

    def units(self, position: int) -> Iterator[tuple[int, Unit]]:
        """Yield (position, unit) from a position on, up to the first bytes that are no unit."""
        for file in self._files.mapped_files:
            at = max(position - file.start, 0)
            while at + UNIT.size + BLANK_BYTES <= file.size:
                data = file.read(at, _READ_BYTES // UNIT.size * UNIT.size)
                count = 0
                while (unit := Unit.decode(data, count)) is not None:
                    yield file.start + at + count, unit
                    count += UNIT.size
                at += count
                if len(data) - count >= UNIT.size:
                    break
            if at + UNIT.size + BLANK_BYTES <= file.size and not is_blank(file.read(at, BLANK_BYTES)):
                return

    def cut(self, position: int) -> None:
        """Drop the bytes from a position on. Raises StoreError."""
        self._files.truncate(position)
        self._block = b""

    def mark_unflushed(self, position: int) -> None:
        """Note that the process that wrote the units from a position on may not have flushed them."""
        unflushed = [file for file in self._files.mapped_files if file.end > position]
        if unflushed:
            self._files.mark_unflushed(unflushed)

    def delete_expired(self, min_physical: int) -> list[Callable[[], None]]:
        """Remove files whose last unit points below the start of the log; return what deletes them."""
        deletions = []
        while len(self._files.mapped_files) > 1:
            first = self._files.mapped_files[0]
            unit = Unit.decode(first.read(_last_place(first.size), UNIT.size))
            if unit is not None and unit.physical_offset >= min_physical:
                break
            deletions.append(self._files.take_first().delete)
        return deletions

    def flush(self) -> None:
        """Make the units durable. Safe in a thread. Raises StoreError."""
        for path in self._files.unsynced_directories():
            with disk_errors("flush", path):
                self._disk.fsync_dir(path)
        self._files.directories_synced()
        for target in list(self._files.unflushed()):
            file = target.file
            try:
                file.flush()
                file.flushed, file.flushed_changes = target.until, target.changes
            finally:
                file.release()

    def delete(self) -> None:
        """Delete all files."""
        self._files.destroy()
        self._files = MappedFileQueue(self._disk, self._directory, self._file_bytes)
        self._block = b""

    def close(self) -> None:
        """Close the files."""
        self._files.close()


def _last_place(file_bytes: int) -> int:
    """Return where the last unit of a full file of the timer log begins."""
    return (file_bytes - BLANK_BYTES) // UNIT.size * UNIT.size - UNIT.size


class TimerFiles:
    """Wheel, timer log and checkpoint of one store directory."""

    def __init__(self, disk: Disk, root: Path, log_file_bytes: int) -> None:
        self._disk = disk
        self._root = root
        self.wheel = TimerWheel(disk, root / "timerwheel")
        self.log = TimerLog(disk, root / "timerlog", log_file_bytes)
        self.checkpoint_file = CheckpointFile(disk, root / "config" / "timercheck")
        self._log_file_bytes = log_file_bytes

    def recover(self, checkpoint: TimerCheckpoint, log_end: int) -> Unit | None:
        """Find the end of the timer log, and link units to the wheel that are not; return the last unit.

        log_end: end of the commit log; units beyond it are dropped, since power loss took their messages.
        Raises TimerFilesDamaged, StoreError.
        """
        self.log.load()
        return self._recover(checkpoint, log_end)

    def _recover(self, checkpoint: TimerCheckpoint, log_end: int) -> Unit | None:
        has_wheel = self.wheel.exists()
        flushed = checkpoint.log_flushed
        if flushed > self.log.end or (flushed and not self.log.end):
            raise TimerFilesDamaged(f"timers were enqueued up to {flushed}, but the timer log is missing")
        start = max(flushed, self.log.begin) if has_wheel else self.log.begin
        end, last = start, None
        slots: dict[int, Slot] = {}
        for position, unit in self.log.units(start):
            if unit.physical_offset + unit.size > log_end:
                break
            self._link(slots, position, unit)
            end, last = position + UNIT.size, unit
        if last is None and end > self.log.begin:
            last = self._last_before(end)
        self.log.cut(end)
        self.log.mark_unflushed(flushed)
        self.wheel.needs_flush = self.wheel.needs_flush or has_wheel
        self.wheel.put(list(slots.values()))
        if has_wheel and any(slot.last >= end for slot in self.wheel.slots(0)):
            log.warning(
                "the timer wheel has slots beyond the timer log; it is built again from the timer log"
            )
            self.wheel.delete()
            return self._recover(checkpoint, log_end)
        return last

    def _link(self, slots: dict[int, Slot], position: int, unit: Unit) -> None:
        """Make a unit the last one of its slot, unless the wheel has it already."""
        second = unit.slot_ms // PRECISION_MS
        slot = slots.get(second) or self.wheel.slot(second)
        if slot.last < position:
            slots[second] = slot.with_last(second, position, recalls=unit.recalls)

    def _last_before(self, end: int) -> Unit | None:
        """Return the unit that ends at a position, or before the blank unit that ends there."""
        unit = self.log.unit(end - UNIT.size)
        if unit is not None or end % self._log_file_bytes:
            return unit
        size = self._log_file_bytes
        return self.log.unit(end - size + _last_place(size))

    def add(self, units: bytes, slots: Iterable[NewInSlot]) -> int:
        """Append the units that `timer_units` returned for the next position; return how many slots are new.

        At most as many as `TimerLog.room` says. The first unit of each slot is linked to the last one that it
        has. Raises DiskFull, StoreError; then nothing was added.
        """
        begin, _ = self.log.room()
        linked, changed, new = bytearray(units), dict[int, Slot](), 0
        for second, first, last, timers in slots:
            slot = changed.get(second)
            if slot is None:
                slot = self.wheel.slot(second)
                new += slot.last == NO_UNIT
            set_previous(linked, first - begin, slot.last)
            begins = first if slot.first == NO_UNIT else slot.first
            changed[second] = Slot(second, begins, last, slot.timers + timers)
        self.log.append(bytes(linked))
        self.wheel.put(changed.values())
        return new

    def flush(self) -> None:
        """Make units and slots durable. Safe in a thread. Raises StoreError."""
        self.log.flush()
        self.wheel.flush()

    def reset(self) -> None:
        """Delete wheel and timer log. Raises StoreError."""
        self.wheel.delete()
        self.log.delete()

    def close(self) -> None:
        """Close all files."""
        self.wheel.close()
        self.log.close()
        self.checkpoint_file.close()
