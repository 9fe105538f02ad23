"""The key index: finds records by UNIQ_KEY and by each of their KEYS. Source: RocketMQ IndexService.

Files are named by when they were made, yyyyMMddHHmmssSSS in local time; the last one is written.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from rocketpy.errors import StoreDamaged
from rocketpy.protocol.java import utf8_hash
from rocketpy_broker.store.clock import Clock
from rocketpy_broker.store.config import IndexConfig
from rocketpy_broker.store.disk import Disk
from rocketpy_broker.store.index_file import IndexFile, positive_hash

__all__ = ["IndexQueryResult", "IndexService", "index_file_name"]

logger = logging.getLogger(__name__)

_NAME_LENGTH = 17
_PENDING_BYTES_MAX = 1 << 16
_PREFIX_LENGTH = 24
_PREFIXES_MAX = 4096
_POWER_32 = 1 << 32


def index_file_name(now_ms: int) -> str:
    """File name for a file made at that time (ms since 1970)."""
    local = time.localtime(now_ms / 1000)
    return time.strftime("%Y%m%d%H%M%S", local) + f"{now_ms % 1000:03d}"


@dataclass(slots=True)
class IndexQueryResult:
    """What a query found.

    offsets: physical offsets, newest first; of all records whose key has the hash.
    last_update_timestamp, last_update_offset: the newest record in the index.
    """

    offsets: list[int] = field(default_factory=list)
    last_update_timestamp: int = 0
    last_update_offset: int = 0


class IndexService:
    """All index files of a store.

    clock: ms since 1970, for file names.
    """

    def __init__(self, disk: Disk, directory: Path, config: IndexConfig, clock: Clock) -> None:
        self._disk = disk
        self.directory = directory
        self._config = config
        self._clock = clock
        self.files: list[IndexFile] = []
        self.full: list[IndexFile] = []
        """Full files whose slots are not written yet; see `IndexFile.write_slots`."""
        self._prefixes: dict[bytes, int] = {}

    @property
    def end_offset(self) -> int:
        """Physical offset of the newest record in the index; records below it are skipped. 0 when empty."""
        return self.files[-1].header.end_offset if self.files else 0

    # -- opening ---------------------------------------------------------------------------------

    def load(self, *, clean: bool, checkpoint_timestamp: int) -> bool:
        """Take over the directory's files; False when some had to go, so that records must be indexed again.

        clean: after an unclean stop, files newer than the checkpoint are deleted, as 4.6.0 does, for a
        file that was not full has slots and entries that do not fit together. Damaged files go too, with
        all files behind them.
        """
        complete = True
        for name in self._disk.list_dir(self.directory):
            if len(name) != _NAME_LENGTH or not name.isdigit():
                continue
            file = IndexFile(self._disk, self.directory / name, self._config.slots, self._config.entries)
            if complete and self._load_file(file, clean=clean, checkpoint_timestamp=checkpoint_timestamp):
                self.files.append(file)
            else:
                logger.warning("index file %s is deleted and rebuilt from the commit log", file.path)
                file.delete()
                complete = False
        return complete and bool(self.files)

    @staticmethod
    def _load_file(file: IndexFile, *, clean: bool, checkpoint_timestamp: int) -> bool:
        try:
            file.load()
        except StoreDamaged as error:
            logger.warning("%s", error)
            return False
        header = file.header
        return header.next_entry > 1 and (clean or header.end_timestamp <= checkpoint_timestamp)

    def cut_from(self, offset: int) -> bool:
        """Delete files with records at or behind that physical offset; False when there were any."""
        complete = True
        while self.files and self.files[-1].header.end_offset >= offset:
            self.files.pop().delete()
            complete = False
        return complete

    # -- writing ---------------------------------------------------------------------------------

    def put(
        self, topic: bytes, unique_key: bytes | None, keys: bytes | None, offset: int, timestamp: int
    ) -> None:
        """Index one record under its unique key, then under each of its keys.

        topic, unique_key, keys: UTF-8; keys separated by blanks. timestamp: store time in ms.
        Raises DiskFull, StoreError.
        """
        file = self.files[-1] if self.files else None
        if file is not None and offset < file.header.end_offset:
            return
        prefix = topic + b"#"
        if unique_key is not None:
            self._put_hash(self._hash_unique(prefix, unique_key), offset, timestamp)
        if keys:
            for key in keys.split(b" "):
                if key:
                    self._put_hash(positive_hash(utf8_hash(prefix + key)), offset, timestamp)

    def _put_hash(self, key_hash: int, offset: int, timestamp: int) -> None:
        files = self.files
        file = files[-1] if files and not files[-1].is_full else self._add_file()
        file.put(key_hash, offset, timestamp)
        if file.pending_bytes >= _PENDING_BYTES_MAX or file.is_full:
            file.write_entries()

    def _hash_unique(self, prefix: bytes, key: bytes) -> int:
        """`positive_hash`, faster: ids of one client share all but their last digits for a minute or so."""
        if len(key) <= _PREFIX_LENGTH or not key.isascii():
            return positive_hash(utf8_hash(prefix + key))
        head = prefix + key[:_PREFIX_LENGTH]
        tail = key[_PREFIX_LENGTH:]
        head_hash = self._prefixes.get(head)
        if head_hash is None:
            if len(self._prefixes) >= _PREFIXES_MAX:
                self._prefixes.clear()
            head_hash = self._prefixes[head] = utf8_hash(head)
        code = head_hash * pow(31, len(tail), _POWER_32) + utf8_hash(tail)
        return positive_hash(((code + 0x80000000) & 0xFFFFFFFF) - 0x80000000)

    def _add_file(self) -> IndexFile:
        previous = self.files[-1] if self.files else None
        name = index_file_name(self._clock())
        if previous is not None and name <= previous.path.name:  # the clock went back; names must go up
            name = _next_name(previous.path.name)
        path = self.directory / name
        file = IndexFile(self._disk, path, self._config.slots, self._config.entries)
        file.create(previous.header if previous is not None else None)
        if previous is not None:
            self.full.append(previous)
        self.files.append(file)
        return file

    def write_entries(self) -> None:
        """Write what `put` keeps waiting. Raises DiskFull, StoreError."""
        if self.files:
            self.files[-1].write_entries()

    def finish(self) -> None:
        """Write and flush everything: a clean stop. Raises DiskFull, StoreError."""
        for file in self.files[-1:] + self.full:
            file.write_entries()
            file.write_slots()
        self.full.clear()

    # -- reading ---------------------------------------------------------------------------------

    def query(self, topic: str, key: str, count: int, begin: int, end: int) -> IndexQueryResult:
        """Up to `count` (at most query_count_max) records of that key stored in [begin, end] (ms).

        Newest files first. Other keys with the same hash may be among them.
        """
        result = IndexQueryResult()
        count = min(count, self._config.query_count_max)
        key_hash = positive_hash(utf8_hash(f"{topic}#{key}".encode()))
        for file in reversed(self.files):
            if file is self.files[-1]:
                result.last_update_timestamp = file.header.end_timestamp
                result.last_update_offset = file.header.end_offset
            if file.overlaps(begin, end):
                result.offsets += file.find(key_hash, count - len(result.offsets), begin, end)
            if file.header.begin_timestamp < begin or len(result.offsets) >= count:
                break
        return result

    # -- ending ----------------------------------------------------------------------------------

    def destroy(self) -> None:
        """Delete all files."""
        while self.files:
            self.files.pop().delete()
        self.full.clear()

    def close(self) -> None:
        """Close all files; what is not written is lost."""
        for file in self.files:
            file.close()


def _next_name(name: str) -> str:
    return f"{int(name) + 1:0{_NAME_LENGTH}d}"
