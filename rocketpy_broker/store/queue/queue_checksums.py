"""Checksums of the files of consume queues, kept in memory and saved by a clean stop.

A flipped bit in a unit sends consumers to a wrong offset, or hides a message from filters by tag. RocketMQ's
format has no checksum for units. So rocketpy saves them in the file `queuesums` of the store directory:

| offset | size | field                                                          |
|-------:|-----:|----------------------------------------------------------------|
|      0 |    4 | magic "RPQS"                                                   |
|      4 |    4 | CRC-32 of everything after it                                  |
|      8 |    8 | where the commit log ended when the store was stopped          |
|     16 |      | entries, one for each file of a queue                          |

An entry: queue id (4), start of the file (8), bytes covered (8), their CRC-32 (4), length of the topic (2),
the topic in UTF-8. All integers are big-endian. The file is used only by the first start after a clean stop,
and only if the checkpoint has the same end of the log. If a Java broker used the store in between, rocketpy's
part of the checkpoint is ignored, and so is this file.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

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


class QueueChecksums(msgspec.Struct, gc=False, eq=False):
    """The known checksums of one queue's files, by start of the file."""

    _checksums: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)

    def wrote(self, start: int, position: int, data: bytes) -> None:
        """Update a checksum after a write. start: of the file. position: of `data` in the file."""
        covered, crc = self._checksums.get(start, (-1, 0)) if position else (0, 0)
        if position == covered:
            self._checksums[start] = (covered + len(data), zlib.crc32(data, crc))
        else:
            self._checksums.pop(start, None)  # the bytes before `position` are not known

    def set(self, start: int, covered: int, crc: int) -> None:
        """Set the checksum of the first `covered` bytes of a file."""
        self._checksums[start] = (covered, crc)

    def forget_from(self, end: int) -> None:
        """Drop the checksums of files with covered bytes after `end`, a position in the queue."""
        for start, (covered, _) in list(self._checksums.items()):
            if start + covered > end:
                del self._checksums[start]

    def get(self, start: int) -> tuple[int, int] | None:
        """Return (bytes covered, their CRC-32) of a file; None when not known."""
        return self._checksums.get(start)


def encode_checksums(checksums: Iterable[FileChecksum], log_end: int) -> bytes:
    """Return the content of the file `queuesums`. log_end: end of the commit log.

    A damaged queue offset in the log may create a file that starts beyond 63 bits; it is left out.
    """
    body = [log_end.to_bytes(8, "big")]
    for checksum in checksums:
        queue_id, start = checksum.queue_id, checksum.start
        if start >= 2**63:
            continue
        topic = checksum.topic.encode()
        body += [_ENTRY.pack(queue_id, start, checksum.covered, checksum.crc, len(topic)), topic]
    text = b"".join(body)
    return _MAGIC + zlib.crc32(text).to_bytes(4, "big") + text


def decode_checksums(data: bytes, log_end: int) -> list[FileChecksum]:
    """Return the checksums in the file; none if it is damaged, or was saved with another end of the log."""
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
