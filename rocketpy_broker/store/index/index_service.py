"""The key index: finds records by UNIQ_KEY and by each of their KEYS. Source: RocketMQ IndexService.

Files are named after their creation time, yyyyMMddHHmmssSSS in local time. Only the newest file is written.
"""

from __future__ import annotations

import logging
import sys
import time
from bisect import bisect_left
from functools import partial
from pathlib import Path

from rocketpy.errors import StoreDamaged, StoreError
from rocketpy_broker.store.config import IndexConfig
from rocketpy_broker.store.files.checkpoint import DispatchProgress
from rocketpy_broker.store.files.disk import Clock, Disk, disk_errors
from rocketpy_broker.store.index.index_file import ROW, IndexFile
from rocketpy_broker.store.index.index_hash import index_hash

logger = logging.getLogger("rocketpy_broker.store.index_service")

NAME_LENGTH = 17
_PENDING_MAX = 3276
"""Number of entries, 64 KiB, that are written together."""


def index_file_name(now_ms: int) -> str:
    """Return the name of a file that is created at this time (ms since 1970)."""
    local = time.localtime(now_ms / 1000)
    return time.strftime("%Y%m%d%H%M%S", local) + f"{now_ms % 1000:03d}"


class IndexService:
    """All index files of a store. clock: returns ms since 1970, for file names."""

    def __init__(self, disk: Disk, directory: Path, config: IndexConfig, clock: Clock) -> None:
        self._disk = disk
        self.directory = directory
        self._config = config
        self._clock = clock
        self.files: list[IndexFile] = []
        """Oldest first."""
        self.directory_changed = True
        """Whether the directory has entries that may not be durable."""
        self.full: list[IndexFile] = []
        """Full files whose slots are not written yet; see `IndexFile.write_slots`."""
        self._write_at = _PENDING_MAX
        """Number of pending entries from which `put` writes them."""

    @property
    def end_offset(self) -> int:
        """Physical offset of the newest indexed record; 0 without one. Records below it are ignored."""
        return self.files[-1].end_offset if self.files else 0

    # -- opening ---------------------------------------------------------------------------------

    def load(
        self, *, clean: bool, checkpoint_timestamp: int, progress: DispatchProgress | None = None
    ) -> bool:
        """Load the files, and delete unusable ones. Returns False if records must be indexed again.

        clean: False also deletes files newer than `checkpoint_timestamp` (ms), as 4.6.0 does. In a file that
        was not full, slots and entries may not match. A damaged file is deleted together with all later ones.
        progress: describes the newest file at the checkpoint, which is continued. Then True means that the
        index is as it was at that checkpoint.
        """
        unusable: list[IndexFile] = []
        if progress is not None:
            self._delete_newer(progress.index_name)
        for name in self._disk.list_dir(self.directory):
            if len(name) != NAME_LENGTH or not name.isdigit():
                continue
            file = self._new_file(name)
            if progress is not None and int(name) == progress.index_name and not unusable:
                (self.files if self._resume(file, progress) else unusable).append(file)
            elif not unusable and self._load_file(
                file, clean=clean or progress is not None, checkpoint_timestamp=checkpoint_timestamp
            ):
                self._keep(file)
            else:
                logger.warning("deleting index file %s; it is rebuilt from the commit log", file.path)
                unusable.append(file)
        complete = not unusable
        self._delete(unusable)
        if progress is None:
            return complete and bool(self.files)
        if not (complete and self._is_at(progress)):  # any of the files may be missing
            self.destroy()
            return False
        return True

    def _delete_newer(self, index_name: int) -> None:
        for name in self._disk.list_dir(self.directory):
            if len(name) == NAME_LENGTH and name.isdigit() and int(name) > index_name:
                self._new_file(name).delete()

    def _new_file(self, name: str) -> IndexFile:
        return IndexFile(self._disk, self.directory / name, self._config.slots, self._config.entries)

    def _is_at(self, progress: DispatchProgress) -> bool:
        if not self.files:
            return progress.index_name == 0
        last = self.files[-1]
        at = int(last.path.name), last.next_entry, len(self.files)
        return at == (progress.index_name, progress.index_entries, progress.index_count)

    @staticmethod
    def _resume(file: IndexFile, progress: DispatchProgress) -> bool:
        """Load the file in the state that the checkpoint describes; return False if that fails."""
        try:
            file.load()
            if not 1 < progress.index_entries <= file.entry_limit:
                file.close()
                return False
            file.resume(
                (
                    progress.begin_timestamp, progress.end_timestamp, progress.begin_offset,
                    progress.end_offset, progress.index_inserts, progress.index_entries,
                )
            )  # fmt: skip
        except StoreError as error:
            logger.warning("%s", error)
            file.close()
            return False
        return True

    def progress(self, units: int) -> DispatchProgress:
        """Return the progress for a checkpoint, which may be saved once all written entries are flushed."""
        if not self.files:
            return DispatchProgress(units)
        file = self.files[-1]
        return DispatchProgress(
            units, int(file.path.name), file.next_entry, file.inserts, file.begin_timestamp,
            file.end_timestamp, file.begin_offset, file.end_offset, len(self.files),
        )  # fmt: skip

    def _keep(self, file: IndexFile) -> None:
        if file.next_entry > 1:
            self.files.append(file)
        else:  # an empty file, which a Java broker has kept when it recovered this store
            file.delete()

    @staticmethod
    def _load_file(file: IndexFile, *, clean: bool, checkpoint_timestamp: int) -> bool:
        try:
            file.load()
        except StoreDamaged as error:
            logger.warning("%s", error)
            return False
        return clean or 0 < file.end_timestamp <= checkpoint_timestamp

    def delete_from(self, offset: int) -> bool:
        """Delete files with records from this physical offset on; return True if there were none."""
        kept = len(self.files)
        while kept and self.files[kept - 1].end_offset >= offset:
            kept -= 1
        deleted = self.files[kept:]
        del self.files[kept:]
        self.full = [file for file in self.full if file not in deleted]
        is_complete = not deleted
        self._delete(deleted)
        return is_complete

    # -- writing ---------------------------------------------------------------------------------

    def put(self, rows: bytes) -> None:
        """Index keys, in log order, and write pending entries, if there are many of them.

        rows: see `ROW`; those of records that are indexed are ignored. Raises DiskFull, StoreError if a file
        cannot be created; then it can be called again with the same rows. Entries that cannot be written
        remain pending.
        """
        if self.files:
            rows = rows_from(rows, self.files[-1].end_offset)
        start = 0
        while start < len(rows):
            file = self.files[-1] if self.files else self._add_file()
            if file.is_full:
                file.write_entries()
                file = self._add_file()
            stop = min(len(rows), start + file.room * ROW.size)
            file.put(rows[start:stop])
            start = stop
        if self.files and self.files[-1].pending >= self._write_at:
            self._write_at = _PENDING_MAX
            try:
                self.files[-1].write_entries()
            except StoreError as error:
                self._write_at = 2 * self.files[-1].pending
                logger.debug("cannot write %d index entries yet: %s", self.files[-1].pending, error)

    def _add_file(self) -> IndexFile:
        previous = self.files[-1] if self.files else None
        name = index_file_name(self._clock())
        if previous is not None and name <= previous.path.name:  # the clock went back; names must increase
            name = _next_name(previous.path.name)
        file = self._new_file(name)
        file.create(previous)
        self.directory_changed = True
        if previous is not None:
            self.full.append(previous)
        self.files.append(file)
        return file

    def write_entries(self) -> None:
        """Write all pending entries. Raises DiskFull, StoreError."""
        if self.files:
            self.files[-1].write_entries()

    def finish(self) -> None:
        """Write and flush everything, for a clean stop. Raises DiskFull, StoreError."""
        for file in self.files[-1:] + self.full:
            file.write_entries()
            file.write_slots()
        self.full.clear()

    # -- reading ---------------------------------------------------------------------------------

    def find(self, topic: str, key: str, begin: int, end: int, count_max: int = sys.maxsize) -> list[int]:
        """Return the physical offsets of records of a key that may be stored in a time range, newest first.

        Some may have another key with the same hash, or another time; see `IndexFile.find`. All files are
        searched, since their times do not increase if the clock was set back. Differs: 4.6.0 stops at the
        first record, and the first file, before `begin`, and misses the records of that time behind it.
        """
        found: list[int] = []
        files = self.files
        if files:
            wanted = index_hash(topic.encode(), key.encode())
            files[-1].keep_slots()
            for file in reversed(files):
                found += file.find(wanted, begin, end, count_max - len(found))
        return found

    @property
    def newest(self) -> tuple[int, int]:
        """Store timestamp (ms) and physical offset of the newest indexed record; 0 and 0 without one."""
        files = self.files
        return (files[-1].end_timestamp, files[-1].end_offset) if files else (0, 0)

    # -- ending ----------------------------------------------------------------------------------

    def destroy(self) -> None:
        """Delete all files. Raises StoreError."""
        self.full.clear()
        self._delete(self.files)

    def _delete(self, files: list[IndexFile]) -> None:
        """Delete files, newest first, each one durably before the next. Raises StoreError.

        So power loss never leaves a gap between files, which recovery could not detect.
        """
        while files:
            files.pop().delete()
            with disk_errors("flush directory", self.directory):
                self._disk.fsync_dir(self.directory)

    def close(self) -> None:
        """Close all files without writing anything."""
        for file in self.files:
            file.close()


def rows_from(rows: bytes, begin: int) -> bytes:
    """Return the rows (see `ROW`) of records from physical offset `begin` on. All are in log order."""
    if not rows or _offset_in(rows, 0) >= begin:
        return rows
    return rows[bisect_left(range(len(rows) // ROW.size), begin, key=partial(_offset_in, rows)) * ROW.size :]


def _offset_in(rows: bytes, number: int) -> int:
    _, offset, _ = ROW.unpack_from(rows, number * ROW.size)
    return int(offset)


def _next_name(name: str) -> str:
    return f"{int(name) + 1:0{NAME_LENGTH}d}"
