"""A log that consists of mapped files in one directory.

Offsets are bytes from the start of the log. All files have one size, and each starts where the previous one
ends. Old files are deleted, so the first one may start after 0. Source: RocketMQ MappedFileQueue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from rocketpy.errors import StoreDamaged, StoreError, ensure
from rocketpy_broker.store.config import CommitLogConfig
from rocketpy_broker.store.files.disk import Disk, disk_errors
from rocketpy_broker.store.log.mapped_file import MappedFile

logger = logging.getLogger("rocketpy_broker.store.segment_queue")  # applications set its level


Deletion = Callable[[], None]
"""Deletes files that the store has forgotten. Blocks; safe in a thread.

Raises StoreError; then it may be called again.
"""


class FlushTarget:
    """One file to flush, and how far it was written when the flush was planned. Keeps the file open."""

    __slots__ = ("changes", "file", "until")

    def __init__(self, file: MappedFile) -> None:
        file.hold()
        self.file = file
        self.until = file.wrote
        self.changes = file.changes


class MappedFileQueue(msgspec.Struct, gc=False, eq=False):
    """The mapped files of one directory, oldest first.

    Consume queues have many thousands, which the garbage collector does not scan.
    """

    _disk: Disk
    _directory: Path | str
    file_bytes: int
    """Length of every file."""
    reserve_bytes: int = 0
    """See `MappedFile`."""
    opened: dict[MappedFile, None] = msgspec.field(default_factory=dict)
    """See `MappedFile`; queues may share it."""
    mapped_files: list[MappedFile] = msgspec.field(default_factory=list)
    strays: Sequence[MappedFile] = ()
    """Files after a gap, found by `load`. `classify_files` decides which of them belong to the log."""
    preallocated: MappedFile | None = None
    """The next file, if it was created in advance. It is not part of the log yet."""
    _unsynced_directory: bool = False

    def __post_init__(self) -> None:
        self._directory = str(self._directory)  # a Path consists of several objects

    @property
    def directory(self) -> Path:
        """The directory of the files."""
        return Path(self._directory)

    # -- offsets ---------------------------------------------------------------------------------

    @property
    def last(self) -> MappedFile | None:
        """The newest file, which is being written; None in an empty log."""
        return self.mapped_files[-1] if self.mapped_files else None

    @property
    def min_offset(self) -> int:
        """Start offset of the oldest file; 0 in an empty log."""
        return self.mapped_files[0].start if self.mapped_files else 0

    @property
    def max_offset(self) -> int:
        """Offset just after the last written byte; 0 in an empty log."""
        last = self.last
        return last.start + last.wrote if last else 0

    @property
    def flushed_offset(self) -> int:
        """Bytes below this offset survive power loss."""
        for file in self.mapped_files:
            if file.flushed < file.wrote or not file.is_full:
                return file.start + file.flushed
        return self.max_offset

    def find(self, offset: int) -> MappedFile | None:
        """Return the file of this offset, whether the offset is written or not; None outside the files."""
        mapped_files = self.mapped_files
        if not mapped_files:
            return None
        index = (offset - mapped_files[0].start) // self.file_bytes
        return mapped_files[index] if 0 <= index < len(mapped_files) else None

    # -- opening ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the files of the directory. Their written position is set to the end, until recovery finds it.

        Files after a gap go to `strays`. Raises StoreDamaged for files that are too long or have an invalid
        start offset. After a crash a file may be too short, since its length is not durable before its first
        flush. It is extended with zeros, and recovery detects the missing records.
        """
        strays: list[MappedFile] = []
        names = [name for name in self._disk.list_dir(self.directory) if len(name) == 20 and name.isdigit()]
        for name in names:
            file = self._new_file(int(name))
            self._check_start(file)
            file.wrote = file.flushed = self.file_bytes
            if strays or file.start != self.next_start(file.start):
                strays.append(file)
            else:
                self.mapped_files.append(file)
        self.strays = strays
        for file in [*self.mapped_files, *self.strays]:
            self._check_length(file)

    def _new_file(self, start: int) -> MappedFile:
        return MappedFile(
            self._disk,
            str(self._directory),
            start,
            self.file_bytes,
            reserve_bytes=self.reserve_bytes,
            opened=self.opened,
        )

    def _check_start(self, file: MappedFile) -> None:
        if file.start % self.file_bytes:
            raise self._wrong_start(file)

    def _wrong_start(self, file: MappedFile) -> StoreDamaged:
        return StoreDamaged(
            f"{file.path}: expected a file that starts at {self.next_start(file.start)}, a multiple of "
            f"{self.file_bytes}. If a file is missing, restore it. If the store was created with another "
            f"file size, set that size: the configured file size is {self.file_bytes}"
        )

    def classify_files(self, flushed_offset: int, min_offset: int) -> None:
        """Separate the files of the log from those that a power loss left over, which become `strays`.

        Power loss may restore deleted files below `min_offset`, and remove any file above `flushed_offset`.
        Both offsets are -1 when not known. Raises StoreDamaged if a flushed file is missing.
        """
        found = [*self.mapped_files, *self.strays]
        if not found:
            return
        expired = [file for file in found if file.end <= min_offset]
        kept = found[len(expired) :]
        expected = found[0].start if min_offset < 0 else min_offset
        count = 0
        while count < len(kept) and kept[count].start == expected:
            expected = kept[count].end
            count += 1
        if count < len(kept) and not 0 <= flushed_offset <= expected:
            raise StoreDamaged(
                f"{self.directory}: the file that starts at {expected} is missing, but the log was flushed "
                f"up to {flushed_offset}. Restore the file from a replica or a copy"
                if flushed_offset >= 0
                else str(self._wrong_start(kept[count]))
            )
        self.mapped_files, self.strays = kept[:count], expired + kept[count:]

    def drop_strays(self) -> int:
        """Delete the stray files, and return their number."""
        count = len(self.strays)
        while self.strays:
            *self.strays, last = self.strays
            last.delete()
            self._unsynced_directory = True
        return count

    def _check_length(self, file: MappedFile) -> None:
        with disk_errors("read the size of", file.path):
            length = self._disk.size(file.path)
        if length == self.file_bytes:
            return
        if length > self.file_bytes:
            raise StoreDamaged(
                f"{file.path} has {length} bytes, but the configured file size is {self.file_bytes}; "
                "set the size that this store was created with, or restore the file"
            )
        logger.warning("%s has only %d of %d bytes; extending it", file.path, length, self.file_bytes)
        file.create()

    # -- growing ---------------------------------------------------------------------------------

    def next_start(self, offset: int = 0) -> int:
        """Return the start offset of the next file; in an empty log, of the file that contains `offset`."""
        last = self.last
        return last.end if last else offset - offset % self.file_bytes

    def create_preallocated(self, start: int) -> MappedFile:
        """Create the file that starts at `start`. Safe in a thread. Raises DiskFull, StoreError.

        Pass the result to `adopt_preallocated`.
        """
        file = self._new_file(start)
        with disk_errors("make directory", self.directory):
            self._disk.make_dir(self.directory)
        try:
            file.create()
        except StoreError:
            file.close()  # the next attempt uses the file that may exist now
            raise
        return file

    def adopt_preallocated(self, file: MappedFile) -> None:
        """Keep a file from `create_preallocated` for `add_file`; close it if another one took its place."""
        self._unsynced_directory = True
        if file.start == self.next_start() and self.preallocated is None:
            self.preallocated = file
        else:
            file.close()

    def add_file(self, offset: int = 0) -> MappedFile:
        """Add the next file to the log, the preallocated one if there is one. Raises DiskFull, StoreError."""
        start = self.next_start(offset)
        file = self.preallocated
        if file is None or file.start != start:
            file = self.create_preallocated(start)
        self.preallocated = None
        self._unsynced_directory = True
        self.mapped_files.append(file)
        return file

    def delete_preallocated(self) -> None:
        """Delete the preallocated file, as 4.6.0 does when it stops."""
        if self.preallocated is not None:
            self.preallocated.delete()
            self.preallocated = None
            self._unsynced_directory = True

    def append(self, data: bytes, offset: int = 0) -> Iterator[tuple[MappedFile, bytes]]:
        """Write `data` at the end of the log; yield each file and the part of `data` written to it.

        offset: start of an empty log. Raises DiskFull, StoreError; parts that were yielded remain written.
        """
        written = 0
        while written < len(data):
            last = self.last
            if last is None or last.is_full:
                last = self.add_file(offset)
            part = data[written : written + last.size - last.wrote]
            last.write(last.wrote, part)
            last.wrote += len(part)
            written += len(part)
            yield last, part

    # -- reading ---------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes | None:
        """Return written bytes of one file; None unless all of them are written."""
        file = self.find(offset)
        if file is None or size < 0:
            return None
        position = offset - file.start
        if position + size > file.wrote:
            return None
        return file.read(position, size)

    # -- truncating and deleting -----------------------------------------------------------------

    def truncate(self, offset: int, *, erase: bool = True) -> int:
        """Truncate the log at `offset`: delete later files, and zero the bytes after it.

        erase: False leaves the stale bytes, as 4.6.0 does. Returns the number of non-zero bytes that were
        zeroed or deleted. Raises StoreError.
        """
        wiped = 0
        while self.mapped_files and self.mapped_files[-1].start > offset:
            file = self.mapped_files.pop()
            wiped += sum(size for _, size in file.data_ranges(0))
            file.delete()
            self._unsynced_directory = True
        last = self.last
        if last is None or offset >= last.end:
            return wiped
        position = max(0, offset - last.start)
        if erase:
            wiped += last.erase(position)
        last.wrote = position
        last.flushed = min(last.flushed, position)
        return wiped

    def take_first(self) -> MappedFile:
        """Remove and return the oldest file, which the caller deletes; never the one being written."""
        ensure(len(self.mapped_files) > 1, f"the last file of {self.directory} is in use")
        self._unsynced_directory = True
        file = self.mapped_files.pop(0)
        file.close_idle()
        # Another thread deletes the file, so `close_idle` in this thread must not touch it.
        self.opened.pop(file, None)
        return file

    def abandon(self) -> Deletion:
        """Close all files, and forget them. Returns what deletes them and the directory."""
        files = [*self.strays, *self.mapped_files]
        if self.preallocated is not None:
            files.append(self.preallocated)
        self.strays, self.preallocated = (), None
        self.mapped_files.clear()
        for file in files:
            file.close()
        paths = [file.path for file in files]
        return partial(_delete_files, self._disk, self.directory, paths)

    def destroy(self) -> None:
        """Delete all files and the directory. Raises StoreError."""
        self.abandon()()

    # -- flushing --------------------------------------------------------------------------------

    def unflushed(self) -> Iterator[FlushTarget]:
        """Yield the files that need a flush. Each is kept open until `FlushPlan.release`."""
        for file in self.mapped_files:
            if file.needs_flush:
                yield FlushTarget(file)

    def unsynced_directories(self) -> list[Path]:
        """Return the directories whose entries may not be durable: this one and its two parents, or none."""
        if not self._unsynced_directory:
            return []
        return [self.directory, self.directory.parent, self.directory.parent.parent]

    def mark_unflushed(self, mapped_files: Sequence[MappedFile]) -> None:
        """Treat these files and their names as unflushed; see `MappedFile.mark_unflushed`."""
        for file in mapped_files:
            file.mark_unflushed()
        self._unsynced_directory = True

    def rewrite(self, offset: int) -> None:
        """Write the bytes from `offset` on again, unchanged, and the zeros after them. Raises StoreError."""
        for file in self.mapped_files:
            if file.end > offset:
                file.rewrite(max(0, offset - file.start))
                file.rewrite_zeros()

    def directories_synced(self) -> None:
        """Record that the directories were synced. No file may have been created since."""
        self._unsynced_directory = False

    def close_idle(self) -> int:
        """Close files that are flushed and not in use; return the number of those that stay open."""
        return sum(file.close_idle() for file in self.mapped_files)

    def close(self) -> None:
        """Close all files."""
        for file in [*self.mapped_files, *self.strays]:
            file.close()
        if self.preallocated is not None:
            self.preallocated.close()


def _delete_files(disk: Disk, directory: Path, files: Sequence[Path]) -> None:
    for path in files:
        with disk_errors("delete", path):
            disk.unlink(path)
    with disk_errors("remove directory", directory):
        disk.remove_dir(directory)


class Preallocator:
    """Reserves disk space ahead of the writes, and creates the next file; `make` may run in a thread."""

    __slots__ = ("_files", "_margin")

    def __init__(self, files: MappedFileQueue, config: CommitLogConfig) -> None:
        self._files = files
        self._margin = min(config.segment_bytes // 2, max(config.reserve_bytes, config.message_bytes_max))
        """The next file is created once the last one has fewer bytes left than this."""

    def is_wanted(self) -> bool:
        """Whether `make` has work: the writes are near the end of the reserved blocks or of the file."""
        last = self._files.last
        if last is None:
            return False
        return last.wants_reserve() or (
            self._files.preallocated is None and last.size - last.wrote < self._margin
        )

    def make(self) -> MappedFile | None:
        """Reserve space in the last file, or return the next one. Blocks. Raises DiskFull, StoreError."""
        last = self._files.last
        if last is None:
            return None
        if last.wants_reserve():
            last.reserve()
            return None
        return self._files.create_preallocated(last.end)


class LogFiles(Protocol):
    """The files of a log: equal sizes, no gaps. Offsets are bytes from the start of the log."""

    file_bytes: int

    @property
    def directory(self) -> Path:
        """Directory of the newest files."""

    @property
    def mapped_files(self) -> Sequence[MappedFile]:
        """All files, oldest first."""

    @property
    def min_offset(self) -> int:
        """Start offset of the oldest file."""

    @property
    def max_offset(self) -> int:
        """Offset just after the last written byte."""

    def find(self, offset: int) -> MappedFile | None:
        """Return the file of this offset, whether the offset is written or not."""

    def read(self, offset: int, size: int) -> bytes | None:
        """Return written bytes of one file; None unless all of them are written."""

    def take_first(self) -> MappedFile:
        """Remove and return the oldest file, which the caller deletes; never the one being written."""

    def drop_strays(self) -> int:
        """Delete the files that are not part of the log; return their number."""


def read_across(files: LogFiles, begin: int, end: int) -> bytes | None:
    """Return the bytes in [begin, end), which may span files; None unless all of them are written."""
    pieces: list[bytes] = []
    while begin < end:
        piece = files.read(begin, min(end - begin, files.file_bytes - begin % files.file_bytes))
        if piece is None:
            return None
        pieces.append(piece)
        begin += len(piece)
    return b"".join(pieces)
