"""What readers of a log and retention ask of its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rocketpy_broker.store.log.mapped_file import MappedFile


class LogFiles(Protocol):
    """Files of one size that follow each other without a gap. Offsets in bytes from the log's start."""

    file_bytes: int

    @property
    def directory(self) -> Path:
        """Where the newest are."""

    @property
    def mapped_files(self) -> Sequence[MappedFile]:
        """All, oldest first."""

    @property
    def min_offset(self) -> int:
        """Where the oldest starts."""

    @property
    def max_offset(self) -> int:
        """Just behind the last byte written."""

    def find(self, offset: int) -> MappedFile | None:
        """Return the one that holds this offset, written or not."""

    def read(self, offset: int, size: int) -> bytes | None:
        """Return written bytes within one file; None when they are not all there."""

    def take_first(self) -> MappedFile:
        """Take the oldest out, for the caller to delete; never the one being written."""

    def drop_strays(self) -> int:
        """Delete what is no part of the log; return how many files that were."""
