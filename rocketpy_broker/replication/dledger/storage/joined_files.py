"""The files of a store that began without DLedger: those of its old commit log, then those of its ledger.

Both have one size, and the ledger begins where the old log's last file ends, so an offset tells the file.
Source: DLedgerCommitLog of RocketMQ 4.6.0, where that offset is the dividedCommitlogOffset.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue


class JoinedFiles:
    """`LogFiles` of both."""

    def __init__(self, old: MappedFileQueue, ledger: MappedFileQueue) -> None:
        self.old = old
        self.ledger = ledger
        self.file_bytes = ledger.file_bytes

    @property
    def directory(self) -> Path:
        """Of the ledger's data."""
        return self.ledger.directory

    @property
    def mapped_files(self) -> Sequence[MappedFile]:
        """All, oldest first."""
        return [*self.old.mapped_files, *self.ledger.mapped_files]

    @property
    def min_offset(self) -> int:
        """Where the oldest starts."""
        return (self.old if self.old.mapped_files else self.ledger).min_offset

    @property
    def max_offset(self) -> int:
        """Just behind the last byte written."""
        return self.ledger.max_offset

    def _part(self, offset: int) -> MappedFileQueue:
        return self.old if self.old.mapped_files and offset < self.old.max_offset else self.ledger

    def find(self, offset: int) -> MappedFile | None:
        """Return the one that holds this offset, written or not."""
        return self._part(offset).find(offset)

    def read(self, offset: int, size: int) -> bytes | None:
        """Return written bytes within one file; None when they are not all there."""
        return self._part(offset).read(offset, size)

    def take_first(self) -> MappedFile:
        """Take the oldest out; of the old log the last one, too."""
        return self.old.mapped_files.pop(0) if self.old.mapped_files else self.ledger.take_first()

    def drop_strays(self) -> int:
        """Both are whole since they were opened."""
        return 0
