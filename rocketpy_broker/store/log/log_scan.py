"""Reads and checks the records of a commit log in order, to find where the log ends and why.

Files are allocated before they are written, so their length says nothing. The log ends at the first position
without a valid record. The reason there tells the end of a write from damage.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Final

from rocketpy.errors import RecordCorrupt, TopicInvalid, TornTail
from rocketpy.protocol.message.record import (
    BLANK_MAGIC,
    HEAD_OFFSETS,
    MESSAGE_MAGIC,
    MIN_BLANK_BYTES,
    RecordView,
    peek,
    read_start,
)
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import LogFiles
from rocketpy_broker.store.log.messages import check_topic

_WINDOW_BYTES: Final = 4 << 20
_TAIL_BYTES: Final = 16 << 20
_MAGIC: Final = MESSAGE_MAGIC.to_bytes(4, "big")
_MAGIC_AT: Final = HEAD_OFFSETS["magic"]
SECTOR_BYTES: Final = 512
"""The unit that a disk writes completely or not at all."""
_ZERO_SECTOR: Final = bytes(SECTOR_BYTES)


class LogTail:
    """Keeps the offset of a record about 16 to 32 MiB before the end of the log.

    After a clean stop the log is checked from there. 4.6.0 checks it from the third-last file, which takes
    minutes with files of 1 GiB.
    """

    __slots__ = ("_next_offset", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._next_offset = offset
        """Replaces `offset` when the log has grown by another 16 MiB."""

    def advance(self, boundary: int) -> None:
        """Record that the log now ends at `boundary`, the end of a record."""
        if boundary - self._next_offset >= _TAIL_BYTES:
            self.offset, self._next_offset = self._next_offset, boundary


def files_from(files: LogFiles, offset: int) -> Iterator[tuple[MappedFile, int]]:
    """Yield the file that contains `offset` and its position there, then each later file with position 0."""
    file = files.find(offset)
    position = offset - file.start if file is not None else 0
    while file is not None:
        yield file, position
        file, position = files.find(file.end), 0


BulkReader = Callable[[bytes, int, int], tuple[int, int]]
"""Reads plain records: called with a window, a position, and the physical offset of the window's first byte.

Returns the position of the first record that it did not read, and the store timestamp of the last one read.
"""


class LogScan:
    """Iterates over the records from `start` on, and checks each.

    start: offset of a record or of a file. check_crc: also check the bodies. bulk: reads plain records; the
    iteration does not yield them. A record must contain its own physical offset, and a blank record must end
    at the end of its file.
    """

    def __init__(
        self, files: LogFiles, start: int, *, check_crc: bool = True, bulk: BulkReader | None = None
    ) -> None:
        self._files = files
        self._check_crc = check_crc
        self._bulk = bulk
        self.end = start
        """Offset just after the last whole record. A blank record is included once a record follows it."""
        self.stop: RecordCorrupt | None = None
        """Why the scan ended; None if only zeros follow, as usual after the last record."""
        self.last_store_timestamp = 0
        self.tail = LogTail(start)

    def __iter__(self) -> Iterator[RecordView]:
        for file, position in files_from(self._files, self.end):
            may_continue = yield from self._scan_file(file, position)
            if not may_continue:
                return

    def _scan_file(self, file: MappedFile, position: int) -> Generator[RecordView, None, bool]:
        """Yield the records of a file; return whether the log may continue in the next file."""
        window, base = b"", position
        while file.wrote - position >= MIN_BLANK_BYTES:
            position = self._read_plain(file, window, position, base)
            try:
                view = peek(window, position - base, check_crc=self._check_crc)
            except TornTail as torn:
                window, base = _read_window(file, position, window[position - base :]), position
                if window:
                    continue
                return self._stop_at(file, position, torn.reason)
            except RecordCorrupt as corrupt:
                if read_start(window, position - base) == (0, 0):
                    return False
                return self._stop_at(file, position, corrupt.reason)
            if view.magic == BLANK_MAGIC:
                if position + view.size == file.size:
                    return True
                reason = f"a blank record of {view.size} bytes does not reach the end of the file"
                return self._stop_at(file, position, reason)
            if view.physical_offset != file.start + position:
                reason = f"the record has the physical offset {view.physical_offset}"
                return self._stop_at(file, position, reason)
            if problem := problem_of(view, position):
                return self._stop_at(file, position, problem)
            position += view.size
            self.end = file.start + position
            self.last_store_timestamp = view.store_timestamp
            self.tail.advance(self.end)
            yield view
        return False

    def _read_plain(self, file: MappedFile, window: bytes, position: int, base: int) -> int:
        """Let `bulk` read plain records of the window; return the position of the next record."""
        if self._bulk is None or not window:
            return position
        end, timestamp = self._bulk(window, position - base, file.start + base)
        if base + end > position:
            self.end = file.start + base + end
            self.last_store_timestamp = timestamp
            self.tail.advance(self.end)
        return base + end

    def _stop_at(self, file: MappedFile, position: int, reason: str) -> bool:
        self.stop = RecordCorrupt(file.start + position, reason)
        return False


def problem_of(view: RecordView, position: int) -> str:
    """Return what is wrong with the fields that no checksum covers; an empty text if nothing is."""
    try:
        check_topic(view.topic, view.queue_id)
    except TopicInvalid:
        return f"{view.topic!r}/{view.queue_id} is not a valid queue"
    return "topic or properties are torn" if _is_torn(view, position) else ""


def _is_torn(view: RecordView, position: int) -> bool:
    """Whether the topic has a zero, the properties end in one, or a sector of both is all zeros.

    The CRC covers only the body. rocketpy writes no zeros into properties. A Java broker may, so a single
    zero before the end does not prove damage.
    """
    if b"\0" not in view.properties and "\0" not in view.topic:
        return False
    if view.properties[-1:] == b"\0" or "\0" in view.topic:
        return True
    tail = view.topic.encode() + b"\1\1" + view.properties
    start = position + view.size - len(tail)
    return _has_zero_sector(tail, start)


def _has_zero_sector(data: bytes, position: int) -> bool:
    """Whether a sector, or the part of a sector at either end of `data`, is all zeros.

    position: where `data` starts in its file.
    """
    first = min(-position % SECTOR_BYTES, len(data))
    last = len(data) - (position + len(data)) % SECTOR_BYTES
    if any(part and not part.strip(b"\0") for part in (data[:first], data[max(first, last) :])):
        return True
    at = data.find(_ZERO_SECTOR, first, last)
    while at != -1:
        at += -(position + at) % SECTOR_BYTES
        if data.startswith(_ZERO_SECTOR, at):
            return True
        at = data.find(_ZERO_SECTOR, at, last)
    return False


def has_lost_sector(files: LogFiles, start: int, end: int) -> bool:
    """Whether the log between these offsets lacks a file, or has a sector or part of a sector of zeros.

    Power loss leaves zeros instead of sectors that were written and not flushed.
    """
    while start < end:
        file = files.find(start)
        if file is None:
            return True
        size = min(end, file.end, start + _WINDOW_BYTES) - start
        if _has_zero_sector(file.read(start - file.start, size), start - file.start):
            return True
        start += size
    return False


def _read_window(file: MappedFile, position: int, rest: bytes) -> bytes:
    """Return bytes from `position` on with at least the whole record; none if the file ends inside it.

    rest: the bytes from `position` on that were read before, which end inside the record.
    """
    needed = read_start(rest)[0] if len(rest) >= MIN_BLANK_BYTES else MIN_BLANK_BYTES
    if position + needed > file.wrote:
        return b""
    window = file.read(position, min(file.wrote - position, max(needed, _WINDOW_BYTES)))
    return window if len(window) >= needed else b""


def find_record(files: LogFiles, offset: int) -> RecordView | None:
    """Search for a record at any position from `offset` on. CRC and physical offset are checked."""
    for file, position in files_from(files, offset):
        view = _find_in_file(file, position)
        if view is not None:
            return view
    return None


def _find_in_file(file: MappedFile, position: int) -> RecordView | None:
    while (data_at := file.next_data(position)) is not None:
        base = max(position, data_at - MIN_BLANK_BYTES)
        window = file.read(base, _WINDOW_BYTES)
        hit = window.find(_MAGIC)
        while hit >= 0:
            at = base + hit - _MAGIC_AT
            view = _try_record(file, at) if at >= position else None
            if view is not None:
                return view
            hit = window.find(_MAGIC, hit + 1)
        if len(window) < _WINDOW_BYTES:
            return None
        position = base + len(window) - MIN_BLANK_BYTES
    return None


def _try_record(file: MappedFile, position: int) -> RecordView | None:
    size, _ = read_start(file.read(position, MIN_BLANK_BYTES))
    if size > file.size - position:
        return None
    try:
        view = peek(file.read(position, max(size, MIN_BLANK_BYTES)), check_crc=True)
    except RecordCorrupt:
        return None
    is_valid = view.physical_offset == file.start + position and not problem_of(view, position)
    return view if is_valid else None
