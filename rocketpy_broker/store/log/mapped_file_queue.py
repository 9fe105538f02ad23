"""A log made of mapped_files in one directory: RocketMQ's MappedFileQueue.

Offsets are bytes from the start of the log; the first file need not start at 0, since old files are
deleted. Files follow each other without a gap and all have one size.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from rocketpy.errors import StoreDamaged, StoreError, ensure
from rocketpy_broker.store.config import CommitLogConfig
from rocketpy_broker.store.files.disk import Disk, disk_errors
from rocketpy_broker.store.log.mapped_file import MappedFile

logger = logging.getLogger("rocketpy_broker.store.segment_queue")


class FlushTarget:
    """One file to flush and how far it had been written when the flush began."""

    __slots__ = ("changes", "file", "until")

    def __init__(self, file: MappedFile) -> None:
        file.hold()
        self.file = file
        self.until = file.wrote
        self.changes = file.changes


class MappedFileQueue:
    """The mapped_files of one directory, oldest first.

    file_bytes: length of every file. reserve_bytes, opened: see `MappedFile`; queues may share `opened`.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        file_bytes: int,
        *,
        reserve_bytes: int = 0,
        opened: dict[MappedFile, None] | None = None,
    ) -> None:
        self._disk = disk
        self._opened = {} if opened is None else opened
        self.directory = directory
        self.file_bytes = file_bytes
        self._reserve_bytes = reserve_bytes
        self.mapped_files: list[MappedFile] = []
        self.strays: list[MappedFile] = []
        """Files after a missing one, found by `load`; `classify_files` decides about them."""
        self.spare: MappedFile | None = None
        """The next file, preallocated before it is needed and not part of the log yet."""
        self._unsynced_directory = False

    # -- offsets ---------------------------------------------------------------------------------

    @property
    def last(self) -> MappedFile | None:
        """The file being written, None in an empty log."""
        return self.mapped_files[-1] if self.mapped_files else None

    @property
    def min_offset(self) -> int:
        """Where the oldest file starts; 0 in an empty log."""
        return self.mapped_files[0].start if self.mapped_files else 0

    @property
    def max_offset(self) -> int:
        """Just after the last byte written; 0 in an empty log."""
        last = self.last
        return last.start + last.wrote if last else 0

    @property
    def flushed_offset(self) -> int:
        """Everything below survives power loss."""
        for file in self.mapped_files:
            if file.flushed < file.wrote or not file.is_full:
                return file.start + file.flushed
        return self.max_offset

    def find(self, offset: int) -> MappedFile | None:
        """The file that holds this offset, written or not; None outside the log's files."""
        mapped_files = self.mapped_files
        if not mapped_files:
            return None
        index = (offset - mapped_files[0].start) // self.file_bytes
        return mapped_files[index] if 0 <= index < len(mapped_files) else None

    # -- opening ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the directory's files, each as if written to its end; see `strays`.

        Raises StoreDamaged for files that are too long or have an invalid start offset. A file may be too
        short after a crash, since its length is not durable before its first flush. It is extended with
        zeros, and recovery detects missing records.
        """
        names = [name for name in self._disk.list_dir(self.directory) if len(name) == 20 and name.isdigit()]
        for name in names:
            file = self._new_file(int(name))
            self._check_place(file)
            file.wrote = file.flushed = self.file_bytes
            if self.strays or file.start != self.next_start(file.start):
                self.strays.append(file)
            else:
                self.mapped_files.append(file)
        for file in [*self.mapped_files, *self.strays]:
            self._check_length(file)

    def _new_file(self, start: int) -> MappedFile:
        return MappedFile(
            self._disk,
            self.directory,
            start,
            self.file_bytes,
            reserve_bytes=self._reserve_bytes,
            opened=self._opened,
        )

    def _check_place(self, file: MappedFile) -> None:
        if file.start % self.file_bytes:
            raise self._misplaced(file)

    def _misplaced(self, file: MappedFile) -> StoreDamaged:
        return StoreDamaged(
            f"{file.path}: expected the file that starts at {self.next_start(file.start)}, at a "
            f"multiple of {self.file_bytes}; a file is missing, or the configured file size is "
            f"{self.file_bytes} and not the one this store was made with"
        )

    def classify_files(self, flushed_offset: int, min_offset: int) -> None:
        """Separate the log's files from those that a power loss left over, which become `strays`.

        Names below `min_offset`, whose files are expired, may be back; above `flushed_offset` any may be
        lost. Both are -1 when not known. Raises StoreDamaged if a file is missing that was flushed.
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
                else str(self._misplaced(kept[count]))
            )
        self.mapped_files, self.strays = kept[:count], expired + kept[count:]

    def drop_strays(self) -> int:
        """Delete them; returns how many."""
        count = len(self.strays)
        while self.strays:
            self.strays.pop().delete()
            self._unsynced_directory = True
        return count

    def _check_length(self, file: MappedFile) -> None:
        with disk_errors("look at", file.path):
            length = self._disk.size(file.path)
        if length == self.file_bytes:
            return
        if length > self.file_bytes:
            raise StoreDamaged(
                f"{file.path} has {length} bytes, the configured file size is {self.file_bytes}; "
                "set it to the size this store was made with, or restore the file"
            )
        logger.warning("%s has %d of %d bytes: extended", file.path, length, self.file_bytes)
        file.create()

    # -- growing ---------------------------------------------------------------------------------

    def next_start(self, offset: int = 0) -> int:
        """Where the next file would start; in an empty log the file that holds `offset`."""
        last = self.last
        return last.end if last else offset - offset % self.file_bytes

    def create_preallocated(self, start: int) -> MappedFile:
        """Create and preallocate the file that starts there. Safe in a thread; see `adopt_preallocated`."""
        file = self._new_file(start)
        with disk_errors("make directory", self.directory):
            self._disk.make_dir(self.directory)
        try:
            file.create()
        except StoreError:
            file.close()  # the name stays, and is taken by the next attempt
            raise
        return file

    def adopt_preallocated(self, file: MappedFile) -> None:
        """Keep a file from `create_preallocated` for `add_file`; one that comes too late is closed."""
        self._unsynced_directory = True
        if file.start == self.next_start() and self.spare is None:
            self.spare = file
        else:
            file.close()

    def add_file(self, offset: int = 0) -> MappedFile:
        """Begin the next file, the spare one when it is ready. Raises DiskFull, StoreError."""
        start = self.next_start(offset)
        file = self.spare
        if file is None or file.start != start:
            file = self.create_preallocated(start)
        self.spare = None
        self._unsynced_directory = True
        self.mapped_files.append(file)
        return file

    def delete_preallocated(self) -> None:
        """Delete the next file that was never used, as 4.6.0 does when it stops."""
        if self.spare is not None:
            self.spare.delete()
            self.spare = None
            self._unsynced_directory = True

    def append(self, data: bytes, offset: int = 0) -> Iterator[tuple[MappedFile, bytes]]:
        """Write `data` at the log's end, one call a file; yields each file with the part written to it.

        offset: where an empty log begins. Raises DiskFull, StoreError; parts that were yielded stay.
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
        """Written bytes at `offset`, within one file; None when they are not all there."""
        file = self.find(offset)
        if file is None or size < 0:
            return None
        position = offset - file.start
        if position + size > file.wrote:
            return None
        return file.read(position, size)

    # -- cutting ---------------------------------------------------------------------------------

    def truncate(self, offset: int, *, erase: bool = True) -> int:
        """Cut the log at `offset`: later files are deleted, bytes after it are zeroed.

        erase: 4.6.0 only moves its position and leaves the stale bytes; so do we when False.
        Returns how many bytes other than zeros were wiped or deleted.
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
        # A thread deletes it, and `close_idle` of all files must not close it too.
        self._opened.pop(file, None)
        return file

    def destroy(self) -> None:
        """Delete all files and the directory."""
        self.delete_preallocated()
        self.drop_strays()
        while self.mapped_files:
            self.mapped_files.pop().delete()
        with disk_errors("remove directory", self.directory):
            self._disk.remove_dir(self.directory)

    # -- flushing --------------------------------------------------------------------------------

    def unflushed(self) -> Iterator[FlushTarget]:
        """Segments with written bytes that are not flushed, each held until `mark_flushed`."""
        for file in self.mapped_files:
            if file.needs_flush:
                yield FlushTarget(file)

    def unsynced_directories(self) -> list[Path]:
        """Directories whose new names are not durable: this one and the two above it, or none."""
        if not self._unsynced_directory:
            return []
        return [self.directory, self.directory.parent, self.directory.parent.parent]

    def mark_unflushed(self, mapped_files: Sequence[MappedFile]) -> None:
        """Treat these files and their names as unflushed; see `MappedFile.mark_unflushed`."""
        for file in mapped_files:
            file.mark_unflushed()
        self._unsynced_directory = True

    def rewrite(self, offset: int) -> None:
        """Write again, unchanged, what lies at or after that offset, and the zeros after it.

        Raises StoreError.
        """
        for file in self.mapped_files:
            if file.end > offset:
                file.rewrite(max(0, offset - file.start))
                file.rewrite_zeros()

    def directories_synced(self) -> None:
        """To be called when the directories were synced and no file has been made since."""
        self._unsynced_directory = False

    def close_idle(self) -> int:
        """`MappedFile.close_idle` for all files; returns how many must stay open."""
        return sum(file.close_idle() for file in self.mapped_files)

    def close(self) -> None:
        """Close all files."""
        for file in [*self.mapped_files, *self.strays]:
            file.close()
        if self.spare is not None:
            self.spare.close()


class Preallocator:
    """Decides when more is needed; `make` does it, and may run in a thread."""

    __slots__ = ("_files", "_margin")

    def __init__(self, files: MappedFileQueue, config: CommitLogConfig) -> None:
        self._files = files
        # The next file is created once fewer bytes than this are left in the last one.
        self._margin = min(config.segment_bytes // 2, max(config.reserve_bytes, config.message_bytes_max))

    def is_wanted(self) -> bool:
        """Whether the log is near the end of its reserved blocks, or of its file."""
        last = self._files.last
        if last is None:
            return False
        return last.wants_reserve() or (self._files.spare is None and last.size - last.wrote < self._margin)

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
    """Files of one size that follow each other without a gap. Offsets in bytes from the log's start."""

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
        """Just after the last byte written."""

    def find(self, offset: int) -> MappedFile | None:
        """Return the file of this offset, whether the offset is written or not."""

    def read(self, offset: int, size: int) -> bytes | None:
        """Return written bytes within one file; None when they are not all there."""

    def take_first(self) -> MappedFile:
        """Remove and return the oldest file, which the caller deletes; never the one being written."""

    def drop_strays(self) -> int:
        """Delete the files that are not part of the log; return their number."""


def read_across(files: LogFiles, begin: int, end: int) -> bytes | None:
    """Written bytes in [begin, end), of as many files as it takes; None when they are not all there."""
    pieces: list[bytes] = []
    while begin < end:
        piece = files.read(begin, min(end - begin, files.file_bytes - begin % files.file_bytes))
        if piece is None:
            return None
        pieces.append(piece)
        begin += len(piece)
    return b"".join(pieces)
