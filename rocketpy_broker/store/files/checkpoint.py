"""The file `checkpoint`: how far the store's files were flushed.

| offset | size | field                                                          | since    |
|-------:|-----:|----------------------------------------------------------------|----------|
|      0 |    8 | physicMsgTimestamp: store time of the last flushed record      | 4.x      |
|      8 |    8 | logicsMsgTimestamp: … whose consume queue unit is flushed      | 4.x      |
|     16 |    8 | indexMsgTimestamp: … in the last full, flushed index file      | 4.x      |
|     24 |    4 | magic "RPCK"                                                   | rocketpy |
|     28 |    4 | CRC-32 of bytes 0 to 24 and 32 to 80                           | rocketpy |
|     32 |    8 | flushed_offset: the commit log below survives power loss       | rocketpy |
|     40 |    8 | dispatched_offset: consume queues below are flushed            | rocketpy |
|     48 |    8 | log_end: end of the log at a clean stop, -1 otherwise          | rocketpy |
|     56 |    8 | index_files: their number at a clean stop, -1 otherwise        | rocketpy |
|     64 |    8 | tail_offset: start of a record not far before log_end          | rocketpy |
|     72 |    8 | min_offset: where the log begins; files below are expired      | rocketpy |
|     80 |    4 | magic "RPIX"                                                   | rocketpy |
|     84 |    4 | CRC-32 of bytes 0 to 24, 32 to 80 and 88 to 160                | rocketpy |
|     88 |   72 | how far the queues and the unfinished index file are flushed,  | rocketpy |
|        |      | see `DispatchProgress`, eight bytes a field                    |          |
|    160 | 3936 | zeros                                                          |          |

All integers are big-endian. The CRC also covers the three timestamps. If a Java broker has used the directory
since, the timestamps differ, and rocketpy's part is ignored.
"""

from __future__ import annotations

import dataclasses
import logging
import struct
import threading
import zlib
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path

from rocketpy_broker.store.files.disk import Disk, disk_errors, store_error

logger = logging.getLogger("rocketpy_broker.store.checkpoint")

CHECKPOINT_BYTES = 4096
_TIMESTAMPS = struct.Struct(">qqq")
_MAGIC_AND_CRC = struct.Struct(">4sI")
_OFFSETS = struct.Struct(">qqqqqq")
_PROGRESS = struct.Struct(">9q")
_MAGIC = b"RPCK"
_PROGRESS_MAGIC = b"RPIX"
_MARGIN_MS = 3000


@dataclass(frozen=True, slots=True)
class DispatchProgress:
    """State of consume queues and index when both were flushed up to the checkpoint's dispatched_offset.

    `index_inserts` to `end_offset` are the header of the newest index file. The header is written to the
    file, like its slots, only when the file is full or the store stops.
    """

    units: int = 0
    """Sum of the next queue offsets of all queues."""
    index_name: int = 0
    """Name of the newest index file as a number; 0 without files, -1 if the index is switched off."""
    index_entries: int = 0
    """Number of its next entry."""
    index_inserts: int = 0
    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    index_count: int = 0
    """Number of index files; all but the newest are flushed completely."""


@dataclass(slots=True)
class Checkpoint:
    """The content of the file. Times in ms since 1970; offsets in bytes, -1 when not known."""

    physic_timestamp: int = 0
    logics_timestamp: int = 0
    index_timestamp: int = 0
    flushed_offset: int = -1
    dispatched_offset: int = -1
    log_end: int = -1
    index_files: int = -1
    tail_offset: int = -1
    min_offset: int = -1
    progress: DispatchProgress | None = None

    @property
    def min_timestamp(self) -> int:
        """Records stored before this time (ms) are flushed, in log and queues. Includes a margin of 3 s."""
        return max(0, min(self.physic_timestamp, self.logics_timestamp) - _MARGIN_MS)

    def encode(self) -> bytes:
        """Return the 4096 bytes of the file."""
        times = _TIMESTAMPS.pack(*_times_of(self))
        offsets = _OFFSETS.pack(*_offsets_of(self))
        header = _MAGIC_AND_CRC.pack(_MAGIC, zlib.crc32(times + offsets))
        page = times + header + offsets
        if self.progress is not None:
            progress = _PROGRESS.pack(*_progress_of(self.progress))
            page += _MAGIC_AND_CRC.pack(_PROGRESS_MAGIC, zlib.crc32(times + offsets + progress)) + progress
        return page.ljust(CHECKPOINT_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Decode the file. Offsets are -1 if rocketpy's part is missing or does not match its checksum."""
        data = data.ljust(CHECKPOINT_BYTES, b"\0")
        times = _TIMESTAMPS.unpack_from(data)
        magic, crc = _MAGIC_AND_CRC.unpack_from(data, 24)
        if magic == _MAGIC and crc == zlib.crc32(data[:24] + data[32:80]):
            checkpoint = cls(*times, *_OFFSETS.unpack_from(data, 32))
            magic, crc = _MAGIC_AND_CRC.unpack_from(data, 80)
            if magic == _PROGRESS_MAGIC and crc == zlib.crc32(data[:24] + data[32:80] + data[88:160]):
                checkpoint.progress = DispatchProgress(*_PROGRESS.unpack_from(data, 88))
            return checkpoint
        if magic == _MAGIC:
            logger.warning(
                "ignoring the offsets in the checkpoint: they do not match their checksum; a Java broker has "
                "changed the timestamps, or the file is damaged"
            )
        return cls(*times)


# The fields of each part, in the order of the file. attrgetter is faster than dataclasses.astuple.
_NAMES = [field.name for field in fields(Checkpoint)]
_times_of = attrgetter(*_NAMES[:3])
_offsets_of = attrgetter(*_NAMES[3:9])
_progress_of = attrgetter(*(field.name for field in fields(DispatchProgress)))


class CheckpointFile:
    """The open checkpoint file. The flush thread and the checkpoint thread both write it."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path
        self._handle = -1
        self._lock = threading.Lock()
        self._content = Checkpoint()
        self._advanced_flushed = self._advanced_min = -1
        """The highest offsets of `advance_flushed_offset` and `advance_min_offset`."""

    def load(self) -> Checkpoint:
        """Open the file, and create it if it is missing. Raises StoreError."""
        try:
            self._handle = self._disk.open(self.path, create=True)
            self._content = Checkpoint.decode(self._disk.pread(self._handle, CHECKPOINT_BYTES, 0))
            return dataclasses.replace(self._content)
        except OSError as error:
            raise store_error("read", self.path, error) from error

    def save(self, checkpoint: Checkpoint) -> None:
        """Write and flush the file. Safe in a thread. Raises StoreError.

        The checkpoint may be older than what `advance_flushed_offset` or `advance_min_offset` has saved.
        Their offsets remain if they are higher, until `truncate`.
        """
        with self._lock:
            self._content = dataclasses.replace(
                checkpoint,
                flushed_offset=max(checkpoint.flushed_offset, self._advanced_flushed),
                min_offset=max(checkpoint.min_offset, self._advanced_min),
            )
            self._write(self._content)

    def truncate(self, checkpoint: Checkpoint) -> None:
        """Save a checkpoint for a log that will be truncated, so that offsets may be lower than before."""
        with self._lock:
            self._advanced_flushed = self._advanced_min = -1
        self.save(checkpoint)

    def advance_flushed_offset(self, offset: int) -> None:
        """Save `offset` as flushed offset if it is higher. Safe in a thread. Raises StoreError."""
        with self._lock:
            self._advanced_flushed = max(offset, self._advanced_flushed)
            if offset > self._content.flushed_offset:
                self._content = dataclasses.replace(self._content, flushed_offset=offset)
                self._write(self._content)

    def advance_min_offset(self, offset: int) -> None:
        """Save `offset` as minimum offset if it is higher. Safe in a thread. Raises StoreError."""
        with self._lock:
            self._advanced_min = max(offset, self._advanced_min)
            if offset > self._content.min_offset:
                self._content = dataclasses.replace(self._content, min_offset=offset)
                self._write(self._content)

    def _write(self, checkpoint: Checkpoint) -> None:
        with disk_errors("write", self.path):
            self._disk.pwrite(self._handle, checkpoint.encode(), 0)
            self._disk.fdatasync(self._handle)

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0:
            self._disk.close(self._handle)
            self._handle = -1
