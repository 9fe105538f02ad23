"""One file of a log: preallocated, written from start to end, and named after its start offset in the log.

The name is RocketMQ's, but the file is not memory-mapped: appends use `pwrite`, reads use `pread`.
Three positions, in bytes from the start of the file: `flushed <= wrote <= size`. Bytes after `wrote` are not
part of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from rocketpy.errors import InvariantError
from rocketpy_broker.store.files.disk import Disk, disk_errors, store_error

_ERASE_BYTES = 1 << 20
_ZEROS = bytes(4096)


def mapped_file_name(start: int) -> str:
    """Return the name of the file that starts at this offset: 20 digits."""
    return f"{start:020d}"


class MappedFile(msgspec.Struct, gc=False, eq=False):
    """A file of `size` bytes that holds the log from offset `start` on.

    Consume queues have many thousands, which the garbage collector does not scan.
    """

    _disk: Disk
    directory: str
    start: int
    size: int
    reserve_bytes: int = 0
    """Disk blocks are allocated this far ahead of the written bytes; 0: never. So an append does not run out
    of space, and an empty store does not occupy a whole file."""
    opened: dict[MappedFile, None] = msgspec.field(default_factory=dict)
    """Contains this file while it is open."""
    wrote: int = 0
    flushed: int = 0
    changes: int = 0
    """Number of changes other than appends: of the length, or bytes that were zeroed."""
    flushed_changes: int = 0
    """Number of these changes that are flushed."""
    _handle: int = -1
    _reserved: int = 0
    _holders: int = 0
    _retired: bool = False

    @property
    def path(self) -> Path:
        """Path of the file, made at each call in 10 µs. A stored one would take more memory than all else."""
        return Path(self.directory, mapped_file_name(self.start))

    @property
    def end(self) -> int:
        """Log offset of the end of this file, where the next file starts."""
        return self.start + self.size

    @property
    def is_full(self) -> bool:
        """Whether the last byte was written."""
        return self.wrote >= self.size

    @property
    def handle(self) -> int:
        """File descriptor. The file is opened on first use, so old files of a large store need none."""
        if self._handle < 0:
            if self._retired:
                raise InvariantError(f"{self.path} is used after it was closed or deleted")
            path = self.path
            with disk_errors("open", path):
                self._handle = self._disk.open(path)
            self.opened[self] = None
        return self._handle

    def create(self) -> None:
        """Create the file with its full length, sparse, and reserve its first blocks.

        Also extends a file that a crash left too short. Raises DiskFull, StoreError.
        """
        self.changes += 1
        path = self.path
        with disk_errors("create", path):
            self._handle = self._disk.create(path, self.size)
        self.opened[self] = None
        self.reserve()

    def wants_reserve(self) -> bool:
        """Whether less than half of `reserve_bytes` is reserved ahead of the written bytes."""
        step = self.reserve_bytes
        return step > 0 and self._reserved < self.size and self._reserved - self.wrote < step // 2

    def reserve(self) -> None:
        """Reserve `reserve_bytes` ahead of the writes. Safe in a thread. Raises DiskFull, StoreError."""
        if self.reserve_bytes <= 0:
            return
        start = max(self._reserved, self.wrote)
        until = min(self.size, self.wrote + self.reserve_bytes)
        if until <= start:
            return
        with disk_errors("reserve space in", self.path):
            self._disk.preallocate(self.handle, start, until - start)
        self._reserved = until

    def write(self, position: int, data: bytes) -> None:
        """Write all of `data` at `position` of the file. The caller advances `wrote`.

        Raises DiskFull, StoreError; then any part of the data may have reached the file.
        """
        if position + len(data) > self.size:
            raise InvariantError(f"write past the end of {self.path}")
        try:
            self._disk.pwrite(self._handle if self._handle >= 0 else self.handle, data, position)
        except OSError as error:
            raise store_error(f"write {len(data)} bytes at {position} of", self.path, error) from error

    def read(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes at `position`, also beyond `wrote`; fewer at the end of the file."""
        try:
            return self._disk.pread(self._handle if self._handle >= 0 else self.handle, size, position)
        except OSError as error:
            raise store_error(f"read {size} bytes at {position} of", self.path, error) from error

    def next_data(self, position: int) -> int | None:
        """Return the first position at or after `position` that may hold non-zero bytes; None without one."""
        if position >= self.size:
            return None
        with disk_errors("find data in", self.path):
            return self._disk.next_data(self.handle, position)

    def _next_hole(self, position: int) -> int:
        """Return the end of the data at `position`. Most of a new file is a hole, which is slow to read."""
        with disk_errors("find data in", self.path):
            return self._disk.next_hole(self.handle, position)

    def data_ranges(self, position: int, until: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield (position, size) of the pieces in [position, until) with non-zero bytes."""
        for at, size in self._data_pieces(position, self.size if until is None else until):
            used = _used(self.read(at, size))
            if used:
                yield at, used

    def _data_pieces(self, position: int, until: int) -> Iterator[tuple[int, int]]:
        """Yield (position, size) of the pieces in [position, until) that are not holes; they may be zeros."""
        hole = position
        while (at := self.next_data(position)) is not None and at < until:
            if at >= hole:
                hole = self._next_hole(at)
            size = min(_ERASE_BYTES, until - at, max(1, hole - at))
            yield at, size
            position = at + size

    def erase(self, position: int, until: int | None = None) -> int:
        """Zero the data in [position, until); return the number of bytes written.

        Otherwise the next recovery could find records that were truncated.
        """
        erased = 0
        for at, size in self.data_ranges(position, until):
            self.changes += 1
            self.write(at, bytes(size))
            erased += size
        return erased

    @property
    def needs_flush(self) -> bool:
        """Whether any byte or change of the file may not be durable."""
        return self.flushed < self.wrote or self.flushed_changes < self.changes

    def mark_unflushed(self) -> None:
        """Treat the whole file as unflushed, since the process that wrote it may not have flushed it."""
        self.flushed = 0
        self.changes += 1

    def rewrite(self, position: int) -> None:
        """Write the bytes from `position` up to `wrote` again, unchanged."""
        while position < self.wrote:
            data = self.read(position, min(_ERASE_BYTES, self.wrote - position))
            self.write(position, data)
            position += len(data)

    def rewrite_zeros(self) -> None:
        """Write zeros after the written bytes, where the file has blocks.

        After a failed flush the page cache may have zeros where the disk still has truncated bytes.
        """
        for at, size in self._data_pieces(self.wrote, self.size):
            self.changes += 1
            self.write(at, bytes(size))

    def flush(self) -> None:
        """Flush the file in this thread, without changing `flushed`. Raises StoreError."""
        with disk_errors("flush", self.path):
            self._disk.fdatasync(self.handle)

    def is_in_place(self) -> bool:
        """Whether the open file is still in its directory; True while it is closed. Raises StoreError."""
        with disk_errors("look up", self.path):
            return self._handle < 0 or self._disk.is_at(self._handle, self.path)

    def modified_ms(self) -> int:
        """Return the time of the last write, in ms since 1970."""
        with disk_errors("read the time of", self.path):
            return self._disk.modified_ms(self.path)

    def hold(self) -> None:
        """Keep the file open for another thread until `release`."""
        self._holders += 1

    @property
    def is_held(self) -> bool:
        """Whether a thread holds the file open."""
        return self._holders > 0

    def release(self) -> None:
        """Undo one `hold`. The last `release` closes the file if it was closed or deleted meanwhile."""
        self._holders -= 1
        if self._retired:
            self._close_handle()

    def close(self) -> None:
        """Close the file now, or at the last `release`."""
        self._retired = True
        self._close_handle()

    @property
    def is_open(self) -> bool:
        """Whether there is a file handle."""
        return self._handle >= 0

    def close_idle(self) -> bool:
        """Close the file until its next use, unless a thread holds it or some of it is unflushed.

        Returns whether it is still open.
        """
        if self._handle >= 0 and self._holders == 0 and not self.needs_flush:
            self._close_handle()
        return self._handle >= 0

    def delete(self) -> None:
        """Remove the file from its directory and close it."""
        with disk_errors("delete", self.path):
            self._disk.unlink(self.path)
        self.close()

    def _close_handle(self) -> None:
        if self._handle >= 0 and self._holders == 0:
            # Cleared before the close: afterwards the same number may be the descriptor of another file.
            handle, self._handle = self._handle, -1
            self.opened.pop(self, None)
            self._disk.close(handle)


def _used(data: bytes) -> int:
    """Return the length of the data without trailing zeros. `rstrip` alone would check each byte."""
    end = len(data)
    while end >= len(_ZEROS) and data.endswith(_ZEROS, 0, end):
        end -= len(_ZEROS)
    return len(data[:end].rstrip(b"\0"))
