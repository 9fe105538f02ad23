"""Checksums of the consume queues' files, kept in memory while they grow and saved by a clean stop.

A flipped bit in a unit sends consumers to a wrong offset, or hides a message from filters by tag.
RocketMQ's format has no checksum for units, so a file `queuesums` beside the queues' directory has them:

| offset | size | field                                                          |
|-------:|-----:|----------------------------------------------------------------|
|      0 |    4 | magic "RPQS"                                                   |
|      4 |    4 | CRC-32 of everything after it                                  |
|      8 |    8 | where the commit log ended when the store was stopped          |
|     16 |      | entries, one for each file of a queue                          |

An entry: queue id (4), start of the file (8), bytes covered (8), their CRC-32 (4), length of the topic (2),
the topic in UTF-8. All integers are big-endian. The file counts only at the start after a clean stop, if the
checkpoint has the same end of the log. A Java broker that uses the store meanwhile changes the latter.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_HEADER = struct.Struct(">4sIq")
_ENTRY = struct.Struct(">iqqIH")
_MAGIC = b"RPQS"
_CRC_FROM = 8


class FileChecksum(NamedTuple):
    """The checksum of the first `covered` bytes of a queue's file that starts at `start`."""

    topic: str
    queue_id: int
    start: int
    covered: int
    crc: int


class QueueChecksums:
    """Checksums of one queue's files, by where they start: those that are known."""

    __slots__ = ("_checksums",)

    def __init__(self) -> None:
        self._checksums: dict[int, tuple[int, int]] = {}

    def wrote(self, start: int, position: int, data: bytes) -> None:
        """Note that `data` was written at `position` of the file that starts at `start`."""
        covered, crc = self._checksums.get(start, (-1, 0)) if position else (0, 0)
        if position == covered:
            self._checksums[start] = (covered + len(data), zlib.crc32(data, crc))
        else:
            self._checksums.pop(start, None)  # not from its beginning: nothing is known

    def know(self, start: int, covered: int, crc: int) -> None:
        """Take a checksum over from the last run."""
        self._checksums[start] = (covered, crc)

    def cut(self, end: int) -> None:
        """Forget files with covered bytes at or after that place in the queue."""
        for start, (covered, _) in list(self._checksums.items()):
            if start + covered > end:
                del self._checksums[start]

    def get(self, start: int) -> tuple[int, int] | None:
        """Return (bytes covered, their CRC-32) of a file; None when not known."""
        return self._checksums.get(start)


def encode_checksums(checksums: Iterable[FileChecksum], log_end: int) -> bytes:
    """Return the content of the file. log_end: where the commit log ends.

    Files at places beyond 64 bits are left out: a damaged queue offset in the log leads there.
    """
    body = [log_end.to_bytes(8, "big")]
    for one in checksums:
        if one.start >= 2**63:
            continue
        topic = one.topic.encode()
        body += [_ENTRY.pack(one.queue_id, one.start, one.covered, one.crc, len(topic)), topic]
    text = b"".join(body)
    return _MAGIC + zlib.crc32(text).to_bytes(4, "big") + text


def decode_checksums(data: bytes, log_end: int) -> list[FileChecksum]:
    """Return what the file has; nothing when it is damaged, or of another stop than at `log_end`."""
    if len(data) < _HEADER.size:
        return []
    magic, crc, end = _HEADER.unpack_from(data)
    if magic != _MAGIC or crc != zlib.crc32(data[_CRC_FROM:]) or end != log_end:
        return []
    return list(_entries(data))


def _entries(data: bytes) -> Iterator[FileChecksum]:
    at = _HEADER.size
    while at < len(data):
        queue_id, start, covered, crc, length = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        yield FileChecksum(data[at : at + length].decode(), queue_id, start, covered, crc)
        at += length
