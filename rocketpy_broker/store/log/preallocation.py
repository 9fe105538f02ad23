"""Reserves blocks and creates the next file of the commit log before an append needs them."""

from __future__ import annotations

from rocketpy_broker.store.config import CommitLogConfig
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue


class Preallocator:
    """Decides when more is needed; `make` does it, and may run in a thread."""

    __slots__ = ("_files", "_margin")

    def __init__(self, files: MappedFileQueue, config: CommitLogConfig) -> None:
        self._files = files
        # How near to its file's end the log may come before the next file is made.
        self._margin = min(config.segment_bytes // 2, max(config.reserve_bytes, config.message_bytes_max))

    def is_wanted(self) -> bool:
        """Is the log near the end of what is reserved, or of its file?"""
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
