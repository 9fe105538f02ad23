"""Measures the lag of a slave by reading its commit log, in the same way for both makes.

The lag of a message is the time from its store timestamp, which the master sets, until its record is in the
slave's file. Both times are in milliseconds, and the file is read every millisecond.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from rocketpy.protocol.message.record import BLANK_MAGIC, head_fields

_START = head_fields("size", "magic", "store_timestamp")


class LogTail:
    """Reads new records in the log files of `directory`, beginning with the record at `offset`."""

    def __init__(self, directory: Path, offset: int, segment_bytes: int) -> None:
        self._directory = directory
        self._offset = offset
        self._segment_bytes = segment_bytes
        self._map: mmap.mmap | None = None

    def timestamps(self) -> Iterator[int]:
        """Store timestamps of the records since the last call."""
        while (found := self._next()) is not None:
            size, magic, timestamp = found
            self._offset += size
            if magic == BLANK_MAGIC:
                self.close()
            else:
                yield timestamp

    def close(self) -> None:
        """Close the file."""
        if self._map is not None:
            self._map.close()
            self._map = None

    def _next(self) -> tuple[int, int, int] | None:
        if self._map is None and not self._open():
            return None
        at = self._offset % self._segment_bytes
        if self._map is None or at + _START.size > self._segment_bytes:
            return None
        size, magic, timestamp = _START.unpack_from(self._map, at)
        if size and magic == BLANK_MAGIC:
            return size, magic, 0
        return (size, magic, timestamp) if size and timestamp else None

    def _open(self) -> bool:
        path = self._directory / f"{self._offset - self._offset % self._segment_bytes:020d}"
        if not path.exists() or path.stat().st_size < self._segment_bytes:
            return False
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), self._segment_bytes, access=mmap.ACCESS_READ)
        return True


class LagWatch:
    """Counts messages by their lag in whole milliseconds, in a thread, inside a `with` block."""

    def __init__(self, tail: LogTail) -> None:
        self._tail = tail
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.lags: Counter[int] = Counter()

    def percentile_ms(self, share: float) -> int:
        """The lag that this share of the messages does not exceed."""
        wanted, seen = share * self.lags.total(), 0
        for lag in sorted(self.lags):
            seen += self.lags[lag]
            if seen >= wanted:
                return lag
        return 0

    def _run(self) -> None:
        while not self._end.wait(0.001):
            now_ms = time.time() * 1000
            self.lags.update(max(0, int(now_ms - stamp)) for stamp in self._tail.timestamps())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._tail.close()
