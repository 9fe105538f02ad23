"""Opens the files of a store read-only, without recovery and lock. A Java broker may have written them.

A torn tail is not truncated, and missing queues are not rebuilt. So after an unclean stop, the files are
shown as they are on disk.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, NoReturn

from rocketpy.errors import StoreError, StoreLocked
from rocketpy.protocol.message.delays import DelayLevels
from rocketpy_broker.store.config import StoreConfig
from rocketpy_broker.store.files.checkpoint import Checkpoint
from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.index.index_file import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, IndexFile
from rocketpy_broker.store.index.index_service import NAME_LENGTH
from rocketpy_broker.store.log.log_scan import LogScan, find_record
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import LogFiles, MappedFileQueue
from rocketpy_broker.store.log.message_log import RecordScan
from rocketpy_broker.store.queue.consume_queue import UNIT_BYTES, ConsumeQueue

_ENTRIES_PER_SLOT = 4
"""As in RocketMQ: maxIndexNum is 4 times maxHashSlotNum."""
_LOG_NAME_DIGITS = 20


class ReadOnlyDisk(OsDisk):
    """The files of the operating system, read-only: every change raises OSError."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """See `Disk.open`; never creates."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _reject(*_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.EROFS, "the store is open read-only")

    create: Any = _reject
    extend: Any = _reject
    preallocate: Any = _reject
    pwrite: Any = _reject
    fdatasync: Any = _reject
    fsync_dir: Any = _reject
    make_dir: Any = _reject
    rename: Any = _reject
    unlink: Any = _reject
    remove_dir: Any = _reject


class ReadOnlyStore:
    """The files of one store directory.

    config: its file sizes are used where the files do not determine them. force: also open a store that a
    broker has open, which otherwise raises StoreLocked. Raises StoreError if the directory is not a store.
    """

    def __init__(self, config: StoreConfig, *, force: bool = False) -> None:
        self.config = config
        self._disk = ReadOnlyDisk()
        self.problems: list[str] = []
        """Problems with the names and lengths of files."""
        if not force:
            self._check_lock()
        self.is_clean = not self._disk.exists(config.root / "abort")
        self.checkpoint = self._read_checkpoint()
        self.log: LogFiles = self._open_log()
        self.queues = {(queue.topic, queue.queue_id): queue for queue in self._load_queues()}
        self.has_index = self._disk.is_dir(config.index_directory)
        """Whether the store has an index directory: a store without an index has none."""
        self.index_files = self._load_index()
        self.delays_ms = DelayLevels(config.delay_levels).delays_ms
        """Of the delay levels."""

    def _check_lock(self) -> None:
        path = self.config.root / "lock"
        if not self._disk.exists(path):
            return
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            holder = self._disk.lock(handle)
        finally:
            os.close(handle)
        if holder is not None:
            user = f"process {holder}" if holder else "another process"
            raise StoreLocked(
                f"{self.config.root} is in use by {user}; stop it, or pass --force-read to read files while "
                "they are written"
            )

    def _read_checkpoint(self) -> Checkpoint:
        path = self.config.root / "checkpoint"
        return Checkpoint.decode(path.read_bytes() if path.exists() else b"")

    # -- commit log and consume queues -----------------------------------------------------------

    def _open_log(self) -> LogFiles:
        """Open the files that contain the records; overridden for a ledger. `_close_log` closes them."""
        self._commit_log = self._load_log(self.config.commit_log_directory)
        return self._commit_log

    def _load_log(self, directory: Path) -> MappedFileQueue:
        """Load the files of a log. The first one determines their size. Raises StoreError."""
        if not self._disk.is_dir(directory):
            raise StoreError(
                f"{self.config.root} is not a store: it has no directory {directory.name}; pass the "
                "storePathRootDir of a broker"
            )
        names = self._names(directory)
        size = self._disk.size(directory / names[0]) if names else self.config.commit_log.segment_bytes
        return self._load(MappedFileQueue(self._disk, directory, size or 1))

    def scan(self, start: int, *, check_crc: bool = True) -> RecordScan:
        """Return a scan of the log from `start` on, the offset of a record."""
        return LogScan(self.log, start, check_crc=check_crc)

    def log_problems(self, scan: RecordScan) -> list[str]:
        """Return the problems of the log itself. scan: a finished scan of the whole log."""
        flushed, next_record = self.checkpoint.flushed_offset, find_record(self.log, scan.end)
        reason = scan.stop.reason if scan.stop is not None else "there are only zeros"
        if scan.end < flushed:
            return [f"commit log: damaged at {scan.end}: {reason}; it was flushed up to {flushed}"]
        if next_record is not None and next_record.store_timestamp >= scan.last_store_timestamp:
            next_offset = next_record.physical_offset
            return [f"commit log: damaged at {scan.end}: {reason}; a record follows at {next_offset}"]
        if scan.stop is not None and self.is_clean:
            return [f"commit log: torn at {scan.end}: {reason}, although the last stop was clean"]
        return []

    def summary(self) -> dict[str, Any]:
        """Return additional fields for `store stats`; empty unless the store has a ledger."""
        return {}

    def _names(self, directory: Path) -> list[str]:
        return [
            name for name in self._disk.list_dir(directory)
            if len(name) == _LOG_NAME_DIGITS and name.isdigit()
        ]  # fmt: skip

    def _load(self, files: MappedFileQueue) -> MappedFileQueue:
        for name in self._names(files.directory):
            file = MappedFile(self._disk, str(files.directory), int(name), files.file_bytes)
            length = self._disk.size(file.path)
            if files.mapped_files and file.start != files.mapped_files[-1].end:
                self.problems.append(
                    f"{file.path}: expected the file that starts at {files.mapped_files[-1].end}"
                )
                break
            if length != files.file_bytes:
                self.problems.append(f"{file.path}: {length} bytes, expected {files.file_bytes}")
            file.wrote = min(length, files.file_bytes)
            files.mapped_files.append(file)
        return files

    def _load_queues(self) -> list[ConsumeQueue]:
        root = self.config.consume_queue_directory
        queues = []
        for topic in self._disk.list_dir(root):
            for name in self._disk.list_dir(root / topic):
                names = self._names(root / topic / name) if name.isdigit() else []
                if names:
                    queues.append(self._load_queue(root, topic, int(name), names[0]))
        return queues

    def _load_queue(self, root: Path, topic: str, queue_id: int, first: str) -> ConsumeQueue:
        size = self._disk.size(root / topic / str(queue_id) / first) or UNIT_BYTES
        queue = ConsumeQueue(self._disk, root, topic, queue_id, size)
        self._load(queue.files)
        try:
            queue.recover()
        except StoreError as error:
            self.problems.append(f"queue {topic}/{queue_id}: cannot find its end: {error}")
        queue.correct_min_offset(self.log.min_offset)
        queue.files.close_idle()
        return queue

    # -- index -----------------------------------------------------------------------------------

    def _load_index(self) -> list[IndexFile]:
        directory = self.config.index_directory
        files = []
        for name in self._disk.list_dir(directory):
            if len(name) != NAME_LENGTH or not name.isdigit():
                continue
            slots, entries = self._index_sizes(self._disk.size(directory / name))
            file = IndexFile(self._disk, directory / name, slots, entries)
            try:
                file.load()
            except StoreError as error:
                self.problems.append(str(error))
                continue
            if file.next_entry > 1:
                files.append(file)
            else:
                file.close()
        return files

    def _index_sizes(self, length: int) -> tuple[int, int]:
        """Return the numbers of slots and entries in a file of `length` bytes.

        If its size is not the configured one, assume four entries for each slot.
        """
        index = self.config.index
        if length == HEADER_BYTES + SLOT_BYTES * index.slots + ENTRY_BYTES * index.entries:
            return index.slots, index.entries
        slots = (length - HEADER_BYTES) // (SLOT_BYTES + ENTRY_BYTES * _ENTRIES_PER_SLOT)
        return slots, slots * _ENTRIES_PER_SLOT

    def close(self) -> None:
        """Close all files."""
        self._close_log()
        for queue in self.queues.values():
            queue.files.close()
        for file in self.index_files:
            file.close()

    def _close_log(self) -> None:
        self._commit_log.close()
