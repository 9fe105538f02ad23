"""Codecs of entries and index units, the contents of a ledger's files.

All numbers are big-endian. An entry, in a file of `data/`::

    offset  size  field
         0     4  magic, 1
         4     4  size of the whole entry, 48 + body
         8     8  index: 0, 1, 2, … in the ledger
        16     8  term of the leader that appended it
        24     8  pos: offset of this entry from the start of the first data file
        32     4  channel, 0 (reserved)
        36     4  chain CRC, 0 (never computed by 0.1)
        40     4  body CRC, 0 (never computed by 0.1)
        44     4  body length
        48     n  body: the message record, whose own physical offset is pos + 48 (QUIRKS 62)

An entry never crosses the end of a file: at least eight bytes stay free after it. If the next entry does not
fit, a blank fills the file: i32 -1, i32 rest of the file, then arbitrary bytes. An index unit has 32 bytes:
it is at index * 32 in the files of `index/`, which have 160 MiB each (QUIRKS 63)::

    offset  size  field                    offset  size  field
         0     4  magic, 1                     16     8  index
         4     8  pos of the entry             24     8  term
        12     4  size of the entry

Source: DLedgerEntry, DLedgerEntryCoder, MmapFileList of DLedger 0.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from rocketpy.errors import RecordCorrupt, RemoteProtocolError, TornTail
from rocketpy.protocol.headers.base import Int32, Int64

MAGIC: Final = 1
BLANK_MAGIC: Final = -1
_HEADER: Final = Struct(">iiqqqiiii")
HEADER_BYTES: Final = _HEADER.size
"""Size of the header: 48."""
_BLANK: Final = Struct(">ii")
_INDEX_UNIT: Final = Struct(">iqiqq")
INDEX_UNIT_BYTES: Final = _INDEX_UNIT.size
INDEX_FILE_BYTES: Final = INDEX_UNIT_BYTES * 5 * 1024 * 1024


class Entry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One entry. In the JSON of a push, the body is base64. Entries are equal only if their bytes are;
    followers rely on that.
    """

    body: bytes
    body_crc: Int32 = 0
    chain_crc: Int32 = 0
    channel: Int32 = 0
    index: Int64
    magic: Int32 = MAGIC
    pos: Int64
    """In bytes from the start of the first file."""
    size: Int32
    """Of the whole entry, in bytes."""
    term: Int64

    @classmethod
    def of(cls, index: int, term: int, pos: int, body: bytes) -> Entry:
        """Return the entry with this body, as 0.1 creates it."""
        return cls(body=body, index=index, pos=pos, size=HEADER_BYTES + len(body), term=term)

    @property
    def end_pos(self) -> int:
        """Position after its last byte."""
        return self.pos + self.size

    def check(self) -> None:
        """Raise RemoteProtocolError if no file could hold this entry."""
        if self.magic != MAGIC or self.size != HEADER_BYTES + len(self.body):
            raise RemoteProtocolError(
                f"entry {self.index}: magic {self.magic}, size {self.size} with a body of {len(self.body)}"
            )
        if self.index < 0 or self.pos < 0:
            raise RemoteProtocolError(f"invalid entry: index {self.index}, pos {self.pos}")


class Blank(NamedTuple):
    """Fills the rest of a data file."""

    size: int
    """Bytes up to the end of the file."""


@dataclass(frozen=True, slots=True)
class IndexUnit:
    """Position, size, index and term of an entry."""

    magic: int
    pos: int
    size: int
    index: int
    term: int


def encode_entry(entry: Entry) -> bytes:
    """Return the bytes of an entry in its data file."""
    header = _HEADER.pack(
        entry.magic,
        entry.size,
        entry.index,
        entry.term,
        entry.pos,
        entry.channel,
        entry.chain_crc,
        entry.body_crc,
        len(entry.body),
    )
    return header + entry.body


def decode_entry(data: bytes, start: int, pos: int) -> Entry | Blank:
    """Decode the entry or blank at `start` of `data`, a piece of a data file.

    pos: its position in the ledger; an entry must contain the same position.

    Raises:
        TornTail: The data ends inside the entry or blank.
        RecordCorrupt: The bytes are neither an entry nor a blank, such as zeros.
    """
    rest = len(data) - start
    if rest < _BLANK.size:
        raise TornTail(pos, f"{rest} bytes are left, fewer than a header")
    magic, size = _BLANK.unpack_from(data, start)
    if magic == BLANK_MAGIC:
        if size < _BLANK.size:
            raise RecordCorrupt(pos, f"a blank of {size} bytes")
        return Blank(size)
    if magic != MAGIC:
        raise RecordCorrupt(pos, f"magic {magic}, not {MAGIC}")
    if size < HEADER_BYTES:
        raise RecordCorrupt(pos, f"size {size}, smaller than its header")
    if rest < size:
        raise TornTail(pos, f"size {size}, but {rest} bytes are left")
    _, _, index, term, own_pos, channel, chain_crc, body_crc, body_bytes = _HEADER.unpack_from(data, start)
    if own_pos != pos or body_bytes != size - HEADER_BYTES or index < 0:
        raise RecordCorrupt(
            pos, f"inconsistent header: index {index}, pos {own_pos}, size {size}, body length {body_bytes}"
        )
    return Entry(
        body=bytes(data[start + HEADER_BYTES : start + size]),
        body_crc=body_crc,
        chain_crc=chain_crc,
        channel=channel,
        index=index,
        magic=magic,
        pos=pos,
        size=size,
        term=term,
    )


def encode_blank(size: int) -> bytes:
    """Return the first bytes of a blank of `size` bytes; the rest is arbitrary."""
    return _BLANK.pack(BLANK_MAGIC, size)


def next_pos(end_pos: int, size: int, file_bytes: int) -> int:
    """Return the position of an entry of `size` bytes that is appended at `end_pos`.

    It is the start of the next file if fewer than eight bytes, the size of a blank, would remain in this one.
    Source: MmapFileList.preAppend.
    """
    used = end_pos % file_bytes
    if used and size + _BLANK.size > file_bytes - used:
        return end_pos - used + file_bytes
    return end_pos


def encode_index_unit(entry: Entry) -> bytes:
    """Return the index unit of an entry, 32 bytes."""
    return _INDEX_UNIT.pack(entry.magic, entry.pos, entry.size, entry.index, entry.term)


def decode_index_unit(data: bytes, start: int = 0) -> IndexUnit | None:
    """Decode the unit at `start`; None if it is all zeros because it was never written.

    Raises TornTail, RecordCorrupt.
    """
    if len(data) - start < INDEX_UNIT_BYTES:
        raise TornTail(start, f"{len(data) - start} bytes are left, an index unit has {INDEX_UNIT_BYTES}")
    unit = IndexUnit(*_INDEX_UNIT.unpack_from(data, start))
    if unit == IndexUnit(0, 0, 0, 0, 0):
        return None
    if unit.magic != MAGIC or unit.size < HEADER_BYTES or unit.pos < 0 or unit.index < 0:
        raise RecordCorrupt(start, f"invalid index unit: {unit}")
    return unit
