"""The key index: finds records by UNIQ_KEY and by each of their KEYS. Source: RocketMQ IndexService.

Files are named by when they were made, yyyyMMddHHmmssSSS in local time; the last one is written.
"""

from __future__ import annotations

import contextlib
import logging
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

_NAME_LENGTH = 17
_PENDING_MAX = 3276
"""Entries; 64 KiB."""
_ROWS_MAX = 64
"""Records that wait until their keys are hashed together."""
_TOPICS_MAX = 4096


def index_file_name(now_ms: int) -> str:
    """File name for a file made at that time (ms since 1970)."""
    local = time.localtime(now_ms / 1000)
    return time.strftime("%Y%m%d%H%M%S", local) + f"{now_ms % 1000:03d}"


T = TypeVar("T")

IndexRow = tuple[int, bytes, bytes, int, int]
"""One record for `IndexService.put_many`: topic's head, unique key, keys, physical offset, store time."""


class IndexService:
    """All index files of a store.

    clock: ms since 1970, for file names.
    """

    def __init__(self, disk: Disk, directory: Path, config: IndexConfig, clock: Clock) -> None:
        self._disk = disk
        self.directory = directory
        self._config = config
        self._clock = clock
        self._files: list[IndexFile] = []
        self.directory_changed = True
        """Whether there are names that may not be durable."""
        self.full: list[IndexFile] = []
        """Full files whose slots are not written yet; see `IndexFile.write_slots`."""
        self._topic_hashes: dict[bytes, int] = {}
        """Java's hash of `topic#` by topic."""
        self._rows: list[IndexRow] = []
        """Records that wait to be put."""
        self._write_at = _PENDING_MAX
        """How many waiting entries `write_many` writes."""

    @property
    def files(self) -> list[IndexFile]:
        """The files, oldest first, with all records that were put, unless the disk is full."""
        if self._rows:
            with contextlib.suppress(StoreError):
                self._put_rows()
        return self._files

    @property
    def end_offset(self) -> int:
        """Physical offset of the newest record in the index; records below it are skipped. 0 when empty."""
        return self.files[-1].end_offset if self.files else 0

    # -- opening ---------------------------------------------------------------------------------

    def load(
        self, *, clean: bool, checkpoint_timestamp: int, progress: DispatchProgress | None = None
    ) -> bool:
        """Load the directory's files. Returns False when some were deleted: their records must be indexed
        again.

        clean: after an unclean stop, files newer than the checkpoint are deleted, as 4.6.0 does: the slots
        and entries of a file that was not full may not match. Damaged files are deleted too, with all files
        after them. progress: names the file that is continued nevertheless. Then True means that the index
        is as it was at that checkpoint.
        """
        unfit: list[IndexFile] = []
        if progress is not None:
            self._delete_newer(progress.index_name)
        for name in self._disk.list_dir(self.directory):
            if len(name) != _NAME_LENGTH or not name.isdigit():
                continue
            file = self._new_file(name)
            if progress is not None and int(name) == progress.index_name and self._resume(file, progress):
                self._files.append(file)
            elif not unfit and self._load_file(
                file, clean=clean or progress is not None, checkpoint_timestamp=checkpoint_timestamp
            ):
                self._keep(file)
            else:
                logger.warning("index file %s is deleted and rebuilt from the commit log", file.path)
                unfit.append(file)
        complete = not unfit
        self._delete(unfit)
        if progress is None:
            return complete and bool(self._files)
        if not (complete and self._is_at(progress)):  # one that is missing may be anywhere
            self.destroy()
            return False
        return True

    def _delete_newer(self, index_name: int) -> None:
        for name in self._disk.list_dir(self.directory):
            if len(name) == _NAME_LENGTH and name.isdigit() and int(name) > index_name:
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
        """Load the file as the checkpoint describes it, finished since or not; False when it cannot be."""
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
        """Return the progress to save in a checkpoint once the entries written so far are flushed."""
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
        else:  # made, and never finished: a Java broker that recovered rocketpy's store keeps it
            file.delete()

    @staticmethod
    def _load_file(file: IndexFile, *, clean: bool, checkpoint_timestamp: int) -> bool:
        try:
            file.load()
        except StoreDamaged as error:
            logger.warning("%s", error)
            return False
        return clean or 0 < file.end_timestamp <= checkpoint_timestamp

    def cut_from(self, offset: int) -> bool:
        """Delete files with records at or after that physical offset; False when there were any."""
        kept = len(self.files)
        self._rows = [row for row in self._rows if row[3] < offset]  # those that a full disk kept waiting
        while kept and self._files[kept - 1].end_offset >= offset:
            kept -= 1
        cut = self._files[kept:]
        del self._files[kept:]
        self.full = [file for file in self.full if file not in cut]
        complete = not cut
        self._delete(cut)
        return complete

    # -- writing ---------------------------------------------------------------------------------

    def put(self, topic: bytes, unique_key: bytes, keys: bytes, offset: int, timestamp: int) -> None:
        """Index one record under its unique key, then under each of its keys; empty means none.

        topic, unique_key, keys: UTF-8; keys separated by blanks. timestamp: store time in ms. The record
        waits in memory for others: hashing many keys at once takes a quarter of the time for each. A record
        that was put before is skipped.
        """
        if not self._rows or offset > self._rows[-1][3]:
            self._rows.append((self.topic_hash(topic), unique_key, keys, offset, timestamp))

    def _put_rows(self) -> None:
        """Index the waiting records. Raises DiskFull, StoreError; then they stay pending."""
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
        """Index many records at once, in log order.

        topic_hashes: `topic_hash` of each record's topic. keys: of each, as in `put`.
        Raises DiskFull, StoreError; then it may be put again.
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
        places: Sequence[int]
        times: Sequence[int]
        if any(keys) or not all(unique_keys):
            hashes = _interleaved(key_hashes(topic_hashes, unique_keys), key_hashes(topic_hashes, keys))
            present = _interleaved(unique_keys, keys)
            places, times = _interleaved(offsets, offsets), _interleaved(timestamps, timestamps)
            if not all(present):
                hashes, places, times = (list(compress(part, present)) for part in (hashes, places, times))
            if not hashes:
                return
        else:
            hashes, places, times = key_hashes(topic_hashes, unique_keys), offsets, timestamps
        self._put_hashes(hashes, places, times)

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
        """Java's hash of `topic#`, for `put_many`. topic: in UTF-8."""
        head = self._topic_hashes.get(topic)
        if head is None:
            if len(self._topic_hashes) >= _TOPICS_MAX:
                self._topic_hashes.clear()
            head = self._topic_hashes[topic] = utf8_hash(topic + b"#")
        return head

    def _add_file(self) -> IndexFile:
        previous = self._files[-1] if self._files else None
        name = index_file_name(self._clock())
        if previous is not None and name <= previous.path.name:  # the clock went back; names must go up
            name = _next_name(previous.path.name)
        file = self._new_file(name)
        file.create(previous)
        self.directory_changed = True
        if previous is not None:
            self.full.append(previous)
        self._files.append(file)
        return file

    def write_many(self) -> None:
        """Index waiting records and write waiting entries, if there are many. Raises DiskFull, StoreError.

        Entries that cannot be written wait for `write_entries`.
        """
        if len(self._rows) >= _ROWS_MAX:
            self._put_rows()
        if self._files and self._files[-1].pending >= self._write_at:
            self._write_at = _PENDING_MAX
            try:
                self._files[-1].write_entries()
            except StoreError as error:
                self._write_at = 2 * self._files[-1].pending
                logger.debug("%d index entries wait in memory: %s", self._files[-1].pending, error)

    def write_entries(self) -> None:
        """Index waiting records and write waiting entries. Raises DiskFull, StoreError."""
        self._put_rows()
        if self._files:
            self._files[-1].write_entries()

    def finish(self) -> None:
        """Write and flush everything: a clean stop. Raises DiskFull, StoreError."""
        self._put_rows()
        for file in self._files[-1:] + self.full:
            file.write_entries()
            file.write_slots()
        self.full.clear()

    # -- reading ---------------------------------------------------------------------------------

    def query(self, topic: str, key: str, count: int, begin: int, end: int) -> tuple[list[int], int, int]:
        """Find up to `count` (at most query_count_max) records of that key stored in [begin, end] (ms).

        Returns their physical offsets, newest files first; then store time and physical offset of the newest
        record in the index. Other keys with the same hash may be among them.
        """
        files = self.files
        if not files:
            return [], 0, 0
        count = min(count, self._config.query_count_max)
        wanted = key_hash(self.topic_hash(topic.encode()), key.encode())
        last = files[-1]
        last.keep_slots()
        offsets: list[int] = []
        for file in reversed(files):
            if file.overlaps(begin, end):
                offsets += file.find(wanted, count - len(offsets), begin, end)
            if file.begin_timestamp < begin or len(offsets) >= count:
                break
        return offsets, last.end_timestamp, last.end_offset

    # -- ending ----------------------------------------------------------------------------------

    def destroy(self) -> None:
        """Delete all files. Raises StoreError."""
        self.full.clear()
        self._rows.clear()
        self._delete(self.files)

    def _delete(self, files: list[IndexFile]) -> None:
        """Delete these files, newest first, each one durably before the next.

        Power loss then leaves the oldest of them, and never a gap, which could not be detected.
        Raises StoreError.
        """
        while files:
            files.pop().delete()
            with disk_errors("flush directory", self.directory):
                self._disk.fsync_dir(self.directory)

    def close(self) -> None:
        """Close all files; what is not written is lost."""
        for file in self._files:
            file.close()


def _key_by_key(rows: Iterable[IndexRow]) -> Iterator[IndexRow]:
    """A row for each key; the unique key goes with the first."""
    for head, unique_key, keys, offset, timestamp in rows:
        first = unique_key
        for key in keys.split(b" "):
            yield head, first, key, offset, timestamp
            first = b""


def _interleaved(first: Sequence[T], second: Sequence[T]) -> list[T]:
    """One of the first, one of the second, and so on."""
    both = [*first, *second]
    both[::2], both[1::2] = first, second
    return both


def _next_name(name: str) -> str:
    return f"{int(name) + 1:0{_NAME_LENGTH}d}"
