"""Reads the fields of many records at a time: Arrow arrays straight from the bytes of pull responses.

`rocketpy.protocol.message.record` and `properties` define the formats. The values are those of their
decoders, and `RecordArrays` rejects what `record.decode` rejects.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from struct import Struct
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa

from rocketpy.errors import RecordCorrupt
from rocketpy.protocol.message.message_id import message_id
from rocketpy.protocol.message.properties import MAX_PROPERTIES_BYTES, PROPERTY_UNIQ_KEY
from rocketpy.protocol.message.record import FIXED_BYTES, MAX_TOPIC_BYTES, MESSAGE_MAGIC
from rocketpy.protocol.message.sysflag import MessageSysFlag

_BORN_V6: Final = MessageSysFlag.BORN_HOST_V6
_STORE_V6: Final = MessageSysFlag.STORE_HOST_V6
_V6: Final = _BORN_V6 | _STORE_V6


def _layout(bits: int) -> np.dtype[Any]:
    """The fixed part of a record up to its body. bits: those of sysFlag that tell of IPv6 hosts."""
    born, store = (f"V{20 if bits & bit else 8}" for bit in (_BORN_V6, _STORE_V6))
    return np.dtype([
        ("size", ">i4"), ("magic", ">u4"), ("body_crc", ">u4"), ("queue_id", ">i4"), ("flag", ">i4"),
        ("queue_offset", ">i8"), ("physical_offset", ">i8"), ("sys_flag", ">i4"), ("born_timestamp", ">i8"),
        ("born_host", born), ("store_timestamp", ">i8"), ("store_host", store), ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"), ("body_length", ">i4"),
    ])  # fmt: skip


_LAYOUTS: Final = {bits: _layout(bits) for bits in (0, _BORN_V6, _STORE_V6, _V6)}
_HEAD_BYTES: Final = _LAYOUTS[0].itemsize
_STORE_HOST_AT: Final = 64
_V6_BYTES: Final = 12
"""An IPv6 address is so much longer than an IPv4 address."""
_START: Final = Struct(">iI12xq")
"""Size, magic number, queue offset."""
_AFTER_NAME, _AFTER_PIECE = 1, 2
"""The separators of properties."""

Ints = np.ndarray[Any, np.dtype[np.int64]]


def scan(data: bytes) -> tuple[list[int], list[int]] | None:
    """Where the records of a pull response begin, and their queue offsets; None if a length is not valid."""
    starts: list[int] = []
    offsets: list[int] = []
    at, end, unpack = 0, len(data), _START.unpack_from
    while end - at >= FIXED_BYTES:
        size, magic, queue_offset = unpack(data, at)
        if magic != MESSAGE_MAGIC or size < FIXED_BYTES:
            return None
        starts.append(at)
        offsets.append(queue_offset)
        at += size
    return (starts, offsets) if at == end else None


class RecordArrays:
    """The fields of records, each as an array.

    Args:
        data: The bytes of all records, less than 2 GiB.
        starts: Where each record begins, ascending, from `scan`.

    Raises:
        RecordCorrupt: The lengths in a record contradict each other.
    """

    def __init__(self, data: bytes, starts: Iterable[int]) -> None:
        self.data: Final = data
        self._bytes = np.frombuffer(data, np.uint8)
        self._starts: Ints = np.fromiter(starts, np.int64)
        heads = self._heads(0, self._starts)
        self.sys_flags: Final[Ints] = heads["sys_flag"].astype(np.int64)
        bits = self.sys_flags & _V6
        head_bytes = np.full(len(bits), _HEAD_BYTES)
        for bit in (_BORN_V6, _STORE_V6):
            head_bytes += _V6_BYTES * ((bits & bit) != 0)
        ends = self._starts + heads["size"]
        _require(self._starts + head_bytes <= ends, "a record leaves no room for the hosts of its sysFlag")
        self._numbers = heads if not bits.any() else self._mixed(bits)
        self.body_at: Final[Ints] = self._starts + head_bytes
        self.body_ends: Final[Ints] = self.body_at + self.number("body_length")
        self._topic_ends, self._ends = self._check_lengths(ends)

    def __len__(self) -> int:
        return len(self._starts)

    def select(self, rows: Iterable[int]) -> RecordArrays:
        """Some of the records, by number."""
        return RecordArrays(self.data, self._starts[np.fromiter(rows, np.int64)])

    def number(self, name: str) -> Ints:
        """A number of the fixed part: see the module's table in `record`."""
        return self._numbers[name].astype(np.int64)

    def bodies(self) -> pa.Array:
        """The bodies as they are stored."""
        return _slices(self.data, self.body_at, self.body_ends)

    def check_crcs(self) -> None:
        """Compare every body with its CRC. Raises RecordCorrupt."""
        data = self.data
        found = [
            crc32(data[at:end])
            for at, end in zip(self.body_at.tolist(), self.body_ends.tolist(), strict=True)
        ]
        _require(
            np.array(found, np.int64) & 0x7FFFFFFF == self.number("body_crc"), "a body differs from its CRC"
        )

    @cached_property
    def properties(self) -> PropertyArrays:
        """All properties."""
        texts = _slices(self.data, self._topic_ends + 2, self._ends)
        try:
            return PropertyArrays(texts)
        except pa.ArrowInvalid:  # not UTF-8
            texts = [text.decode("utf-8", "replace").encode() for text in texts.to_pylist()]
            return PropertyArrays(pa.array(texts, pa.binary()))

    def message_ids(self) -> pa.Array:
        """The unique ids of the producers; the broker's id where there is none."""
        found = self.properties.values_of(PROPERTY_UNIQ_KEY)
        if not found.null_count:
            return found
        hosts_at = self._starts + _STORE_HOST_AT + _V6_BYTES * ((self.sys_flags & _BORN_V6) != 0)
        host_ends = hosts_at + 8 + _V6_BYTES * ((self.sys_flags & _STORE_V6) != 0)
        places = zip(
            hosts_at.tolist(), host_ends.tolist(), self.number("physical_offset").tolist(), strict=True
        )
        ids = [
            unique_id or message_id(self.data[at:end], offset)
            for unique_id, (at, end, offset) in zip(found.to_pylist(), places, strict=True)
        ]
        return pa.array(ids, pa.string())

    def _heads(self, bits: int, starts: Ints) -> np.ndarray[Any, Any]:
        """The fixed parts of records with these host bits. A record is longer than any of them."""
        layout = _LAYOUTS[bits]
        count = max(0, len(self.data) - layout.itemsize + 1)
        return np.ndarray((count,), layout, self.data, 0, (1,))[starts]

    def _mixed(self, bits: Ints) -> np.ndarray[Any, Any]:
        """The fixed parts of records with different hosts, which are left out."""
        heads = np.empty(len(bits), _LAYOUTS[0])
        for each in np.unique(bits).tolist():
            chosen = np.flatnonzero(bits == each)
            some = self._heads(each, self._starts[chosen])
            for name in heads.dtype.names or ():
                if not name.endswith("_host"):
                    heads[name][chosen] = some[name]
        return heads

    def _check_lengths(self, ends: Ints) -> tuple[Ints, Ints]:
        """Return the ends of topics and of records."""
        _require(self.body_ends >= self.body_at, "a negative body length")
        _require(self.body_ends + 3 <= ends, "a body ends after its record")
        topic_lengths = self._bytes[self.body_ends].astype(np.int64)
        topic_ends = self.body_ends + 1 + topic_lengths
        _require(topic_lengths <= MAX_TOPIC_BYTES, "a topic is too long")
        _require(topic_ends + 2 <= ends, "a topic ends after its record")
        lengths = self._bytes[topic_ends].astype(np.int64) << 8 | self._bytes[topic_ends + 1]
        _require(lengths <= MAX_PROPERTIES_BYTES, "properties are too long")
        _require(topic_ends + 2 + lengths == ends, "properties do not end with their record")
        for topic in _slices(self.data, self.body_ends + 1, topic_ends).unique().to_pylist():
            try:
                topic.decode()
            except UnicodeDecodeError as error:
                raise RecordCorrupt(0, f"a topic is not UTF-8: {error.reason}") from None
        return topic_ends, ends


class PropertyArrays:
    """The properties of many messages: arrays of their names and values, in order.

    Args:
        texts: The properties of each message, encoded. As in `properties.decode`, malformed pieces are
            dropped, and of two with one name the last counts.

    Attributes:
        rows: The message of each property.
        values: Their values.

    Raises:
        ArrowInvalid: A text is not UTF-8.
    """

    def __init__(self, texts: pa.Array) -> None:
        self._count = len(texts)
        row_ends = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, 4 * texts.offset)[1:]
        data = texts.buffers()[2] or pa.py_buffer(b"")
        content = np.frombuffer(data, np.uint8)[: row_ends[-1]]
        self.rows, begins, name_ends, ends = _split(content, row_ends)
        parts = _parts(data, np.stack((begins, name_ends, name_ends + 1, ends), axis=1).ravel())
        names = parts.take(pa.array(np.arange(len(begins)) * 4)).dictionary_encode()
        self._names = names.dictionary.cast(pa.string())
        self._codes = names.indices.to_numpy()
        self.values = parts.take(pa.array(np.arange(len(begins)) * 4 + 2)).cast(pa.string())

    def values_of(self, name: str) -> pa.Array:
        """The value of a property for each message; null where there is none."""
        places = np.full(self._count, -1)
        found = np.flatnonzero(self._codes == self._names.index(name).as_py())
        places[self.rows[found]] = found  # of several in a row, the last one stays
        return self.values.take(pa.array(places, mask=places < 0))

    def maps_without(self, names: frozenset[str]) -> pa.Array:
        """The properties of each message but those with these names, as maps."""
        kept = np.array([name not in names for name in self._names.to_pylist()], np.bool_)
        firsts = lasts = np.flatnonzero(kept[self._codes])
        keys = self.rows[firsts] * len(self._names) + self._codes[firsts]
        _, unique = np.unique(keys, return_index=True)
        if len(unique) < len(keys):
            _, from_end = np.unique(keys[::-1], return_index=True)
            order = np.argsort(unique)
            lasts = firsts[len(keys) - 1 - from_end[order]]
            firsts = firsts[unique[order]]
        offsets = np.zeros(self._count + 1, np.int32)
        np.cumsum(np.bincount(self.rows[firsts], minlength=self._count), out=offsets[1:])
        return pa.MapArray.from_arrays(
            pa.array(offsets),
            self._names.take(pa.array(self._codes[firsts])),
            self.values.take(pa.array(lasts)),
        )


def _split(data: np.ndarray[Any, Any], row_ends: np.ndarray[Any, Any]) -> tuple[Ints, Ints, Ints, Ints]:
    """Find the well-formed properties: their rows, begins, ends of names, and ends."""
    row_begins = np.concatenate(([0], row_ends[:-1]))
    separators = np.flatnonzero(data == _AFTER_PIECE)
    full = row_ends[row_ends > row_begins]
    open_ends = full[data[full - 1] != _AFTER_PIECE]  # the last property needs no separator
    is_separator = np.repeat((False, True), (len(open_ends), len(separators)))
    ends = np.concatenate((open_ends, separators))
    order = np.argsort(ends, kind="stable")  # an open end goes before the first byte of the next row
    ends, is_separator = ends[order], is_separator[order]
    begins = np.concatenate(([0], (ends + is_separator)[:-1]))
    name_separators = np.concatenate((np.flatnonzero(data == _AFTER_NAME), [len(data)] * 2))
    first = np.searchsorted(name_separators, begins)
    counts = np.searchsorted(name_separators, ends) - first
    name_ends = name_separators[first]
    value_ends = np.where(counts > 1, name_separators[first + 1], ends)
    # More separators may only end the value, where they are ignored.
    is_whole = (counts > 0) & (value_ends > name_ends + 1) & (ends - value_ends == np.maximum(counts - 1, 0))
    begins, name_ends, value_ends = begins[is_whole], name_ends[is_whole], value_ends[is_whole]
    return np.searchsorted(row_ends, begins, side="right"), begins, name_ends, value_ends


def _slices(data: bytes, begins: Ints, ends: Ints) -> pa.Array:
    """The bytes from each begin to each end; these ascend."""
    parts = _parts(pa.py_buffer(data), np.stack((begins, ends), axis=1).ravel())
    return parts.take(pa.array(np.arange(len(begins)) * 2))


def _parts(data: pa.Buffer, bounds: Ints) -> pa.Array:
    """The bytes between each bound and the next, without a copy."""
    places = pa.py_buffer(np.append(bounds, bounds[-1:]).astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(bounds), [None, places, data])


def _require(holds: np.ndarray[Any, Any], problem: str) -> None:
    if not holds.all():
        raise RecordCorrupt(0, problem)
