"""The key index: finds records by UNIQ_KEY and by each of their KEYS. Source: RocketMQ IndexService.

Files are named after their creation time, yyyyMMddHHmmssSSS in local time. Only the newest file is written.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import TypeVar

from rocketpy.errors import StoreDamaged, StoreError
from rocketpy.protocol.java import utf8_hash
from rocketpy_broker.store.config import IndexConfig
from rocketpy_broker.store.files.checkpoint import DispatchProgress
from rocketpy_broker.store.files.disk import Clock, Disk, disk_errors
from rocketpy_broker.store.index.index_file import IndexFile
from rocketpy_broker.store.index.index_hash import key_hash, key_hashes

logger = logging.getLogger("rocketpy_broker.store.index_service")

NAME_LENGTH = 17
_PENDING_MAX = 3276
"""Number of entries, 64 KiB, that are written together."""
_ROWS_MAX = 64
"""Number of records whose keys are hashed together."""
_TOPICS_MAX = 4096


def index_file_name(now_ms: int) -> str:
    """Return the name of a file that is created at this time (ms since 1970)."""
    local = time.localtime(now_ms / 1000)
    return time.strftime("%Y%m%d%H%M%S", local) + f"{now_ms % 1000:03d}"


T = TypeVar("T")

IndexRow = tuple[int, bytes, bytes, int, int]
"""A record to index: hash of `topic#`, unique key, keys, physical offset, store timestamp (ms)."""


class IndexService:
    """All index files of a store. clock: returns ms since 1970, for file names."""

    def __init__(self, disk: Disk, directory: Path, config: IndexConfig, clock: Clock) -> None:
        self._disk = disk
        self.directory = directory
        self._config = config
        self._clock = clock
        self._files: list[IndexFile] = []
        self.directory_changed = True
        """Whether the directory has entries that may not be durable."""
        self.full: list[IndexFile] = []
        """Full files whose slots are not written yet; see `IndexFile.write_slots`."""
        self._topic_hashes: dict[bytes, int] = {}
        """Java's hash of `topic#` by topic."""
        self._rows: list[IndexRow] = []
        """Records that are not hashed yet."""
        self._write_at = _PENDING_MAX
        """Number of pending entries from which `write_many` writes them."""

    @property
    def files(self) -> list[IndexFile]:
        """The files, oldest first, after indexing the records in memory; these stay there if that fails."""
        if self._rows:
            with contextlib.suppress(StoreError):
                self._put_rows()
        return self._files

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
                (self._files if self._resume(file, progress) else unusable).append(file)
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
            return complete and bool(self._files)
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
        if not self._files:
            return progress.index_name == 0
        last = self._files[-1]
        at = int(last.path.name), last.next_entry, len(self._files)
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
            self._files.append(file)
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
        self._rows = [row for row in self._rows if row[3] < offset]  # not empty if the disk is full
        while kept and self._files[kept - 1].end_offset >= offset:
            kept -= 1
        deleted = self._files[kept:]
        del self._files[kept:]
        self.full = [file for file in self.full if file not in deleted]
        is_complete = not deleted
        self._delete(deleted)
        return is_complete

    # -- writing ---------------------------------------------------------------------------------

    def put(self, topic: bytes, unique_key: bytes, keys: bytes, offset: int, timestamp: int) -> None:
        """Index a record by its unique key and by each of its keys. A record that is indexed is ignored.

        topic, unique_key, keys: UTF-8; keys are separated by spaces; empty for none. timestamp: store
        timestamp in ms. The record stays in memory until `write_many` has enough of them: hashing many keys
        together takes a quarter of the time.
        """
        if not self._rows or offset > self._rows[-1][3]:
            self._rows.append((self.topic_hash(topic), unique_key, keys, offset, timestamp))

    def _put_rows(self) -> None:
        """Index the records in memory. Raises DiskFull, StoreError; then they remain there."""
        if self._rows:
            self._put_columns(*zip(*self._rows, strict=True))
            self._rows.clear()

    def put_many(
        self,
        topic_hashes: Sequence[int],
        unique_keys: Sequence[bytes],
        keys: Sequence[bytes],
        offsets: Sequence[int],
        timestamps: Sequence[int],
    ) -> None:
        """Index many records, in log order.

        topic_hashes: `topic_hash` of each record's topic. keys: of each record, as in `put`. Raises DiskFull,
        StoreError; then it can be called again with the same records.
        """
        self._put_rows()
        self._put_columns(topic_hashes, unique_keys, keys, offsets, timestamps)
        self.write_many()

    def _put_columns(
        self,
        topic_hashes: Sequence[int],
        unique_keys: Sequence[bytes],
        keys: Sequence[bytes],
        offsets: Sequence[int],
        timestamps: Sequence[int],
    ) -> None:
        if self._files:
            known = bisect_left(offsets, self._files[-1].end_offset)
            if known:
                topic_hashes, unique_keys, keys = topic_hashes[known:], unique_keys[known:], keys[known:]
                offsets, timestamps = offsets[known:], timestamps[known:]
        if not offsets:
            return
        if b" " in b"".join(keys):
            rows = zip(topic_hashes, unique_keys, keys, offsets, timestamps, strict=True)
            topic_hashes, unique_keys, keys, offsets, timestamps = zip(*_key_by_key(rows), strict=True)
        hashes: Sequence[int]
        physical_offsets: Sequence[int]
        times: Sequence[int]
        if any(keys) or not all(unique_keys):
            hashes = _interleaved(key_hashes(topic_hashes, unique_keys), key_hashes(topic_hashes, keys))
            present = _interleaved(unique_keys, keys)
            physical_offsets, times = _interleaved(offsets, offsets), _interleaved(timestamps, timestamps)
            if not all(present):
                hashes, physical_offsets, times = (
                    list(compress(part, present)) for part in (hashes, physical_offsets, times)
                )
            if not hashes:
                return
        else:
            hashes, physical_offsets, times = key_hashes(topic_hashes, unique_keys), offsets, timestamps
        self._put_hashes(hashes, physical_offsets, times)

    def _put_hashes(self, hashes: Sequence[int], offsets: Sequence[int], timestamps: Sequence[int]) -> None:
        start = 0
        while start < len(hashes):
            file = self._files[-1] if self._files else self._add_file()
            if file.is_full:
                file.write_entries()
                file = self._add_file()
            stop = min(len(hashes), start + file.room)
            file.put_many(hashes[start:stop], offsets[start:stop], timestamps[start:stop])
            start = stop

    def topic_hash(self, topic: bytes) -> int:
        """Return Java's hash of `topic#`, for `put_many`. topic: in UTF-8."""
        hash_code = self._topic_hashes.get(topic)
        if hash_code is None:
            if len(self._topic_hashes) >= _TOPICS_MAX:
                self._topic_hashes.clear()
            hash_code = self._topic_hashes[topic] = utf8_hash(topic + b"#")
        return hash_code

    def _add_file(self) -> IndexFile:
        previous = self._files[-1] if self._files else None
        name = index_file_name(self._clock())
        if previous is not None and name <= previous.path.name:  # the clock went back; names must increase
            name = _next_name(previous.path.name)
        file = self._new_file(name)
        file.create(previous)
        self.directory_changed = True
        if previous is not None:
            self.full.append(previous)
        self._files.append(file)
        return file

    def write_many(self) -> None:
        """Index the records in memory and write pending entries, if there are many of them.

        Raises DiskFull, StoreError if a file cannot be created. Entries that cannot be written remain
        pending.
        """
        if len(self._rows) >= _ROWS_MAX:
            self._put_rows()
        if self._files and self._files[-1].pending >= self._write_at:
            self._write_at = _PENDING_MAX
            try:
                self._files[-1].write_entries()
            except StoreError as error:
                self._write_at = 2 * self._files[-1].pending
                logger.debug("cannot write %d index entries yet: %s", self._files[-1].pending, error)

    def write_entries(self) -> None:
        """Index the records in memory and write all pending entries. Raises DiskFull, StoreError."""
        self._put_rows()
        if self._files:
            self._files[-1].write_entries()

    def finish(self) -> None:
        """Write and flush everything, for a clean stop. Raises DiskFull, StoreError."""
        self._put_rows()
        for file in self._files[-1:] + self.full:
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
            wanted = key_hash(self.topic_hash(topic.encode()), key.encode())
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
        self._rows.clear()
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
        for file in self._files:
            file.close()


def _key_by_key(rows: Iterable[IndexRow]) -> Iterator[IndexRow]:
    """Yield a row for each key; the first row of a record also has its unique key."""
    for topic_hash, unique_key, keys, offset, timestamp in rows:
        first = unique_key
        for key in keys.split(b" "):
            yield topic_hash, first, key, offset, timestamp
            first = b""


def _interleaved(first: Sequence[T], second: Sequence[T]) -> list[T]:
    """Return the elements of both in turn: first[0], second[0], first[1], …"""
    both = [*first, *second]
    both[::2], both[1::2] = first, second
    return both


def _next_name(name: str) -> str:
    return f"{int(name) + 1:0{NAME_LENGTH}d}"
