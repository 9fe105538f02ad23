"""A log made of segments in one directory: RocketMQ's MappedFileQueue.

Offsets are bytes from the start of the log; the first file need not start at 0, since old files are
deleted. Files follow each other without a gap and all have one size.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from rocketpy.errors import StoreDamaged, StoreError, ensure
from rocketpy_broker.store.files.disk import Disk, store_error
from rocketpy_broker.store.log.mapped_file import Segment

logger = logging.getLogger("rocketpy_broker.store.segment_queue")


class FlushTarget:
    """One segment to flush and how far it had been written when the flush began."""

    __slots__ = ("changes", "segment", "until")

    def __init__(self, segment: Segment) -> None:
        segment.hold()
        self.segment = segment
        self.until = segment.wrote
        self.changes = segment.changes


class SegmentQueue:
    """The segments of one directory, oldest first.

    segment_bytes: length of every file. reserve_bytes: see `Segment`.
    """

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int, *, reserve_bytes: int = 0) -> None:
        self._disk = disk
        self.directory = directory
        self.segment_bytes = segment_bytes
        self._reserve_bytes = reserve_bytes
        self.segments: list[Segment] = []
        self.strays: list[Segment] = []
        """Files behind one that is missing, found by `load`; whoever loads must say what they are."""
        self.spare: Segment | None = None
        """The next file, preallocated before it is needed and not part of the log yet."""
        self._unsynced_directory = False

    # -- offsets ---------------------------------------------------------------------------------

    @property
    def last(self) -> Segment | None:
        """The segment being written, None in an empty log."""
        return self.segments[-1] if self.segments else None

    @property
    def min_offset(self) -> int:
        """Where the oldest file starts; 0 in an empty log."""
        return self.segments[0].start if self.segments else 0

    @property
    def max_offset(self) -> int:
        """Just behind the last byte written; 0 in an empty log."""
        last = self.last
        return last.start + last.wrote if last else 0

    @property
    def flushed_offset(self) -> int:
        """Everything below survives power loss."""
        for segment in self.segments:
            if segment.flushed < segment.wrote or not segment.is_full:
                return segment.start + segment.flushed
        return self.max_offset

    def find(self, offset: int) -> Segment | None:
        """The segment that holds this offset, written or not; None outside the log's files."""
        segments = self.segments
        if not segments:
            return None
        index = (offset - segments[0].start) // self.segment_bytes
        return segments[index] if 0 <= index < len(segments) else None

    # -- opening ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Take over the directory's files, each as if written to its end; see `strays`.

        Raises StoreDamaged for files that are too long or start where none may. A file that is too short is
        what a crash leaves, for its length is not durable before its first flush: it is mended with zeros,
        and whoever reads it finds out whether anything is gone.
        """
        names = [name for name in self._disk.list_dir(self.directory) if len(name) == 20 and name.isdigit()]
        for name in names:
            segment = Segment(
                self._disk, self.directory, int(name), self.segment_bytes, reserve_bytes=self._reserve_bytes
            )
            self._check_place(segment)
            segment.wrote = segment.flushed = self.segment_bytes
            if self.strays or segment.start != self.next_start(segment.start):
                self.strays.append(segment)
            else:
                self.segments.append(segment)
        for segment in [*self.segments, *self.strays]:
            self._check_length(segment)

    def _check_place(self, segment: Segment) -> None:
        if segment.start % self.segment_bytes:
            raise self._misplaced(segment)

    def _misplaced(self, segment: Segment) -> StoreDamaged:
        return StoreDamaged(
            f"{segment.path}: expected the file that starts at {self.next_start(segment.start)}, at a "
            f"multiple of {self.segment_bytes}; a file is missing, or the configured file size is "
            f"{self.segment_bytes} and not the one this store was made with"
        )

    def sort_out(self, flushed_offset: int, min_offset: int) -> None:
        """Tell the log's files from what power loss left of others; those become `strays`.

        Names below `min_offset`, whose files are expired, may be back; above `flushed_offset` any may be
        lost. Both are -1 when not known. Raises StoreDamaged if a file is missing that was flushed.
        """
        found = [*self.segments, *self.strays]
        if not found:
            return
        expired = [segment for segment in found if segment.end <= min_offset]
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
        self.segments, self.strays = kept[:count], expired + kept[count:]

    def drop_strays(self) -> int:
        """Delete them; returns how many."""
        count = len(self.strays)
        while self.strays:
            self.strays.pop().delete()
            self._unsynced_directory = True
        return count

    def _check_length(self, segment: Segment) -> None:
        try:
            length = self._disk.size(segment.path)
        except OSError as error:
            raise store_error("look at", segment.path, error) from error
        if length == self.segment_bytes:
            return
        if length > self.segment_bytes:
            raise StoreDamaged(
                f"{segment.path} has {length} bytes, the configured file size is {self.segment_bytes}; "
                "set it to the size this store was made with, or restore the file"
            )
        logger.warning("%s has %d of %d bytes: extended", segment.path, length, self.segment_bytes)
        segment.create()

    # -- growing ---------------------------------------------------------------------------------

    def next_start(self, offset: int = 0) -> int:
        """Where the next file would start; in an empty log the file that holds `offset`."""
        last = self.last
        return last.end if last else offset - offset % self.segment_bytes

    def make_spare(self, start: int) -> Segment:
        """Create and preallocate the file that starts there. Safe in a thread; see `adopt_spare`."""
        segment = Segment(
            self._disk, self.directory, start, self.segment_bytes, reserve_bytes=self._reserve_bytes
        )
        try:
            self._disk.make_dir(self.directory)
        except OSError as error:
            raise store_error("make directory", self.directory, error) from error
        try:
            segment.create()
        except StoreError:
            segment.close()  # the name stays, and is taken by the next attempt
            raise
        return segment

    def adopt_spare(self, segment: Segment) -> None:
        """Keep a file from `make_spare` until `add_segment` wants it; too late, it is closed."""
        self._unsynced_directory = True
        if segment.start == self.next_start() and self.spare is None:
            self.spare = segment
        else:
            segment.close()

    def add_segment(self, offset: int = 0) -> Segment:
        """Begin the next file, the spare one when it is ready. Raises DiskFull, StoreError."""
        start = self.next_start(offset)
        segment = self.spare
        if segment is None or segment.start != start:
            segment = self.make_spare(start)
        self.spare = None
        self._unsynced_directory = True
        self.segments.append(segment)
        return segment

    def drop_spare(self) -> None:
        """Delete the next file that was never used, as 4.6.0 does when it stops."""
        if self.spare is not None:
            self.spare.delete()
            self.spare = None
            self._unsynced_directory = True

    # -- reading ---------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes | None:
        """Written bytes at `offset`, within one file; None when they are not all there."""
        segment = self.find(offset)
        if segment is None or size < 0:
            return None
        position = offset - segment.start
        if position + size > segment.wrote:
            return None
        return segment.read(position, size)

    # -- cutting ---------------------------------------------------------------------------------

    def truncate(self, offset: int, *, erase: bool = True) -> int:
        """Cut the log at `offset`: later files are deleted, bytes behind it are zeroed.

        erase: 4.6.0 only moves its position and leaves the stale bytes; so do we when False.
        Returns how many bytes other than zeros were wiped or deleted.
        """
        wiped = 0
        while self.segments and self.segments[-1].start > offset:
            segment = self.segments.pop()
            wiped += sum(size for _, size in segment.data_ranges(0))
            segment.delete()
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

    def take_first(self) -> Segment:
        """Take the oldest file out, for the caller to delete; never the one being written."""
        ensure(len(self.segments) > 1, f"the last file of {self.directory} is in use")
        self._unsynced_directory = True
        return self.segments.pop(0)

    def destroy(self) -> None:
        """Delete all files and the directory."""
        self.drop_spare()
        self.drop_strays()
        while self.segments:
            self.segments.pop().delete()
        try:
            self._disk.remove_dir(self.directory)
        except OSError as error:
            raise store_error("remove directory", self.directory, error) from error

    # -- flushing --------------------------------------------------------------------------------

    def unflushed(self) -> Iterator[FlushTarget]:
        """Segments with written bytes that are not flushed, each held until `mark_flushed`."""
        for segment in self.segments:
            if segment.needs_flush:
                yield FlushTarget(segment)

    def unsynced_directories(self) -> list[Path]:
        """Directories whose new names are not durable: this one and the two above it, or none."""
        if not self._unsynced_directory:
            return []
        return [self.directory, self.directory.parent, self.directory.parent.parent]

    def doubt(self, segments: Sequence[Segment]) -> None:
        """Take nothing in these files for flushed, nor their names; see `Segment.doubt`."""
        for segment in segments:
            segment.doubt()
        self._unsynced_directory = True

    def rewrite(self, offset: int) -> None:
        """Write again, unchanged, what lies at or behind that offset, and the zeros behind it.

        Raises StoreError.
        """
        for segment in self.segments:
            if segment.end > offset:
                segment.rewrite(max(0, offset - segment.start))
                segment.rewrite_zeros()

    def directories_synced(self) -> None:
        """To be called when the directories were synced and no file has been made since."""
        self._unsynced_directory = False

    @property
    def open_files(self) -> int:
        """How many files are open."""
        return sum(segment.is_open for segment in self.segments)

    def rest(self) -> int:
        """Close files until they are needed again; returns how many must stay open. See `Segment.rest`."""
        return sum(segment.rest() for segment in self.segments)

    def close(self) -> None:
        """Close all files."""
        for segment in [*self.segments, *self.strays]:
            segment.close()
        if self.spare is not None:
            self.spare.close()
