"""Reads the fields of many records at a time: Arrow arrays straight from the bytes of pull responses.

`rocketpy.protocol.message.record` and `properties` define the formats. The values are those of their
decoders, and `RecordArrays` rejects what `record.decode` rejects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa

from rocketpy.errors import RecordCorrupt
from rocketpy.native import has_native_form
from rocketpy.protocol.message.message_id import message_id
from rocketpy.protocol.message.properties import MAX_PROPERTIES_BYTES
from rocketpy.protocol.message.record import (
    FIXED_BYTES,
    HEAD_BYTES,
    HEAD_FORMATS,
    HEAD_OFFSETS,
    MAX_TOPIC_BYTES,
    MESSAGE_MAGIC,
    V6_EXTRA_BYTES,
    head_fields,
)
from rocketpy.protocol.message.sysflag import MessageSysFlag

_BORN_V6: Final = MessageSysFlag.BORN_HOST_V6
_STORE_V6: Final = MessageSysFlag.STORE_HOST_V6
_V6: Final = _BORN_V6 | _STORE_V6
_BORN_HOST_AT: Final = HEAD_OFFSETS["born_host"]
_STORE_HOST_AT: Final = HEAD_OFFSETS["store_host"]
_SIZE: Final = head_fields("size")
_NAME_VALUE_SEPARATOR, _PROPERTY_SEPARATOR = 1, 2
"""The bytes after a property's name, and after its value."""

Ints = np.ndarray[Any, np.dtype[np.int64]]


def scan(data: bytes) -> Ints | None:
    """Return the byte offsets of records in pull responses; None if a length or magic number is invalid."""
    starts = record_starts(data)
    return None if starts is None else np.frombuffer(starts, np.int64)


@has_native_form
def record_starts(data: bytes) -> bytes | None:
    """Find where each record begins, as `scan` does; return the bytes of an array of 64-bit integers."""
    starts: list[int] = []
    at, end, unpack, append = 0, len(data), _SIZE.unpack_from, starts.append
    while end - at >= FIXED_BYTES:
        append(at)
        size = unpack(data, at)[0]
        if size < FIXED_BYTES:
            return None
        at += size
    found = np.array(starts, np.int64)
    if at != end or (read_field(data, "magic", found) != MESSAGE_MAGIC).any():
        return None
    return found.tobytes()


def read_field(data: bytes, name: str, starts: Ints) -> Ints:
    """Return an integer field of the head, by its name, for each record that begins at one of `starts`.

    For a field after the hosts, `starts` include the additional bytes of IPv6 hosts.
    """
    if not len(starts):
        return starts
    kind, offset = np.dtype(f">{HEAD_FORMATS[name]}"), HEAD_OFFSETS[name]
    count = len(data) - offset - kind.itemsize + 1
    # A view with a stride of one byte: its element i is the integer at byte i + offset.
    at_every_byte = np.ndarray((count,), kind, data, offset, (1,))
    return at_every_byte[starts].astype(np.int64)


@has_native_form
def record_parts(data: bytes, starts: bytes) -> tuple[bytes, bytes, bytes, bytes, list[bytes]]:
    """Find the parts of the records that begin at `starts`, and check their lengths and the bodies' CRCs.

    Returns where each body begins, and where each body, topic and record ends, as bytes of 64-bit integers;
    then the topics, each once. Raises RecordCorrupt.
    """
    begins = np.frombuffer(starts, np.int64)
    sys_flags = read_field(data, "sys_flag", begins)
    longer = V6_EXTRA_BYTES * (((sys_flags & _BORN_V6) != 0) + 1 * ((sys_flags & _STORE_V6) != 0))
    ends = begins + read_field(data, "size", begins)
    bodies = begins + (HEAD_BYTES + longer)
    _require(bodies <= ends, "a record is too short for the hosts of its sysFlag")
    body_ends = bodies + read_field(data, "body_length", begins + longer)
    _require(body_ends >= bodies, "a negative body length")
    _require(body_ends + 3 <= ends, "a body ends after its record")
    numbers = np.frombuffer(data, np.uint8)
    topic_lengths = numbers[body_ends].astype(np.int64)
    topic_ends = body_ends + 1 + topic_lengths
    _require(topic_lengths <= MAX_TOPIC_BYTES, "a topic is too long")
    _require(topic_ends + 2 <= ends, "a topic ends after its record")
    lengths = numbers[topic_ends].astype(np.int64) << 8 | numbers[topic_ends + 1]
    _require(lengths <= MAX_PROPERTIES_BYTES, "properties are too long")
    _require(topic_ends + 2 + lengths == ends, "properties do not end with their record")
    crcs = [crc32(data[at:end]) for at, end in zip(bodies.tolist(), body_ends.tolist(), strict=True)]
    _require(
        np.array(crcs, np.int64) & 0x7FFFFFFF == read_field(data, "body_crc", begins),
        "a body differs from its CRC",
    )
    topics = _slices(data, body_ends + 1, topic_ends).unique().to_pylist()
    return bodies.tobytes(), body_ends.tobytes(), topic_ends.tobytes(), ends.tobytes(), topics


@has_native_form
def property_buffers(
    data: bytes, begins: bytes, ends: bytes, names: list[bytes], hidden: list[bytes] | None
) -> list[bytes]:
    """Split the properties of messages into columns of texts. As in `properties.decode`, malformed ones are
    dropped.

    begins, ends: where the properties of each message are in `data`, as bytes of 64-bit integers.

    Returns the buffers of Arrow arrays: for each of `names` the bitmap of the messages with this property,
    offsets and values. Then, unless `hidden` is None, those of a map with all properties whose name is not
    in `hidden`: offsets of the messages; offsets and names; offsets and values.
    """
    texts = _slices(data, np.frombuffer(begins, np.int64), np.frombuffer(ends, np.int64))
    try:
        properties = _Properties(texts)
    except pa.ArrowInvalid:  # not UTF-8
        texts = [text.decode("utf-8", "replace").encode() for text in texts.to_pylist()]
        properties = _Properties(pa.array(texts, pa.binary()))
    buffers = []
    for name in names:
        values = properties.values_of(name.decode())
        valid = np.packbits(values.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
        buffers += [valid.tobytes(), *_text_buffers(values)]
    if hidden is not None:
        found = properties.maps_without({name.decode() for name in hidden})
        offsets = found.buffers()[1].to_pybytes()
        buffers += [offsets, *_text_buffers(found.keys), *_text_buffers(found.items)]
    return buffers


class RecordArrays:
    """The fields of records, each as an array.

    Args:
        data: The bytes of all records, less than 2 GiB.
        starts: Where each record begins, ascending, from `scan`.

    Raises:
        RecordCorrupt: The lengths in a record contradict each other, or a body differs from its CRC.
    """

    def __init__(self, data: bytes, starts: Ints) -> None:
        self.data: Final = data
        self._starts = starts
        self.sys_flags: Final[Ints] = read_field(data, "sys_flag", starts)
        self._store_shift: Ints | int = 0
        self._body_shift: Ints | int = 0
        """Additional bytes of IPv6 hosts before the store host and before the body."""
        if (self.sys_flags & _V6).any():
            self._store_shift = V6_EXTRA_BYTES * ((self.sys_flags & _BORN_V6) != 0)
            self._body_shift = self._store_shift + V6_EXTRA_BYTES * ((self.sys_flags & _STORE_V6) != 0)
        *parts, topics = record_parts(data, starts.tobytes())
        body_at, body_ends, self._topic_ends, self._ends = (np.frombuffer(part, np.int64) for part in parts)
        self.body_at: Final = body_at
        self.body_ends: Final = body_ends
        try:
            self.topics: Final = [topic.decode() for topic in topics]
            """The topics of the records, each once."""
        except UnicodeDecodeError as error:
            raise RecordCorrupt(0, f"a topic is not UTF-8: {error.reason}") from None

    def __len__(self) -> int:
        return len(self._starts)

    def select(self, rows: Iterable[int]) -> RecordArrays:
        """Return some of the records, by row number."""
        return RecordArrays(self.data, self._starts[np.fromiter(rows, np.int64)])

    def field(self, name: str) -> Ints:
        """Return an integer field of the head, by its name, for each record."""
        offset = HEAD_OFFSETS[name]
        if offset < _BORN_HOST_AT:
            return read_field(self.data, name, self._starts)
        shift = self._store_shift if offset < _STORE_HOST_AT else self._body_shift
        return read_field(self.data, name, self._starts + shift)

    def bodies(self) -> pa.Array:
        """Return the bodies as they are stored."""
        return _slices(self.data, self.body_at, self.body_ends)

    def properties(self, names: Sequence[str], hidden: Iterable[str] | None = None) -> list[pa.Array]:
        """Return the values of properties, an array for each name; null for messages without it.

        Unless `hidden` is None, the last array is a map for each message: its properties except those with a
        name in `hidden`. As in a dict, a repeated name keeps the position of its first property, and the
        value of its last.
        """
        if not names and hidden is None:
            return []
        begins, ends = (self._topic_ends + 2).tobytes(), self._ends.tobytes()
        wanted = [name.encode() for name in names]
        others = None if hidden is None else [name.encode() for name in hidden]
        buffers = [pa.py_buffer(each) for each in property_buffers(self.data, begins, ends, wanted, others)]
        columns = [
            pa.Array.from_buffers(pa.string(), len(self), buffers[at : at + 3])
            for at in range(0, 3 * len(names), 3)
        ]
        if hidden is not None:
            of_rows, *buffers = buffers[-5:]
            offsets = pa.Array.from_buffers(pa.int32(), len(self) + 1, [None, of_rows])
            count = offsets[-1].as_py()
            keys, values = (
                pa.Array.from_buffers(pa.string(), count, [None, *buffers[at : at + 2]]) for at in (0, 2)
            )
            columns.append(pa.MapArray.from_arrays(offsets, keys, values))
        return columns

    def message_ids(self, unique_ids: pa.Array) -> pa.Array:
        """Return the unique ids of the producers; the broker's id where there is none."""
        if not unique_ids.null_count:
            return unique_ids
        hosts_at = self._starts + (_STORE_HOST_AT + self._store_shift)
        host_ends = self._starts + (_STORE_HOST_AT + 8 + self._body_shift)
        hosts = zip(
            hosts_at.tolist(), host_ends.tolist(), self.field("physical_offset").tolist(), strict=True
        )
        ids = [
            unique_id or message_id(self.data[at:end], offset)
            for unique_id, (at, end, offset) in zip(unique_ids.to_pylist(), hosts, strict=True)
        ]
        return pa.array(ids, pa.string())


class _Properties:
    """The properties of many messages: arrays of their names and values, in order.

    texts: the properties of each message, encoded. Raises ArrowInvalid if one is not UTF-8.
    """

    def __init__(self, texts: pa.Array) -> None:
        self._count = len(texts)
        row_ends = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, 4 * texts.offset)[1:]
        data = texts.buffers()[2] or pa.py_buffer(b"")
        content = np.frombuffer(data, np.uint8)[: row_ends[-1]]
        rows, begins, name_ends, ends = _split(content, row_ends)
        self.rows = rows
        """The index of each property's message."""
        parts = _parts(data, np.stack((begins, name_ends, name_ends + 1, ends), axis=1).ravel())
        names = parts.take(pa.array(np.arange(len(begins)) * 4)).dictionary_encode()
        self._names = names.dictionary.cast(pa.string())
        self._codes = names.indices.to_numpy()
        """The name of each property, as an index into `_names`."""
        self.values = parts.take(pa.array(np.arange(len(begins)) * 4 + 2)).cast(pa.string())
        """The value of each property."""

    def values_of(self, name: str) -> pa.Array:
        """Return the value of a property for each message; null where there is none."""
        indexes = np.full(self._count, -1)
        found = np.flatnonzero(self._codes == self._names.index(name).as_py())
        indexes[self.rows[found]] = found  # of several in a row, the last one stays
        return self.values.take(pa.array(indexes, mask=indexes < 0))

    def maps_without(self, names: Collection[str]) -> pa.Array:
        """Return the properties of each message as a map, except those with these names."""
        kept = np.array([name not in names for name in self._names.to_pylist()], np.bool_)
        firsts = lasts = np.flatnonzero(kept[self._codes])
        keys = self.rows[firsts] * len(self._names) + self._codes[firsts]  # one for each (message, name)
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
    """Find the well-formed properties: their rows, begins, ends of names, and ends of values."""
    separators, is_last, widths = _find_separators(data, row_ends)
    lasts = np.flatnonzero(is_last)  # for each property, the index of its last separator
    firsts = np.concatenate(([0], lasts + 1))[:-1]  # and of its first one
    counts = lasts - firsts  # of separators between name and value
    ends = separators[lasts]
    begins = np.concatenate(([0], ends + widths[lasts]))[:-1]
    separators = np.append(separators, [len(data)] * 2)
    name_ends = separators[firsts]
    value_ends = np.where(counts > 1, separators[firsts + 1], ends)
    properties_before = np.searchsorted(begins, row_ends)
    rows = np.repeat(np.arange(len(row_ends)), np.diff(properties_before, prepend=0))
    # Additional separators are accepted, and ignored, only at the end of the value.
    is_whole = (counts > 0) & (value_ends > name_ends + 1) & (ends - value_ends == np.maximum(counts - 1, 0))
    if is_whole.all():
        return rows, begins, name_ends, value_ends
    return rows[is_whole], begins[is_whole], name_ends[is_whole], value_ends[is_whole]


def _find_separators(data: np.ndarray[Any, Any], row_ends: np.ndarray[Any, Any]) -> tuple[Ints, Any, Ints]:
    """Return the offsets of the separators, whether each ends a property, and the width of each in bytes.

    The last property of a row needs no separator; the end of the row then counts as one without width.
    """
    separators = np.flatnonzero(data - 1 < _PROPERTY_SEPARATOR)  # in unsigned bytes, 0 - 1 is 255
    is_last = data[separators] == _PROPERTY_SEPARATOR
    row_begins = np.concatenate(([0], row_ends[:-1]))
    filled_ends = row_ends[row_ends > row_begins]
    open_ends = filled_ends[data[filled_ends - 1] != _PROPERTY_SEPARATOR]
    widths = np.repeat((0, 1), (len(open_ends), len(separators)))
    if not len(open_ends):
        return separators, is_last, widths
    separators = np.concatenate((open_ends, separators))
    is_last = np.concatenate((np.full(len(open_ends), True), is_last))
    order = np.argsort(separators, kind="stable")  # the end of a row goes before the first byte of the next
    return separators[order], is_last[order], widths[order]


def _slices(data: bytes, begins: Ints, ends: Ints) -> pa.Array:
    """Return the bytes from each begin to its end, without a copy of `data`. The pairs ascend."""
    parts = _parts(pa.py_buffer(data), np.stack((begins, ends), axis=1).ravel())
    return parts.take(pa.array(np.arange(len(begins)) * 2))


def _parts(data: pa.Buffer, bounds: Ints) -> pa.Array:
    """Return the bytes between each bound and the next, without a copy; the last element is empty."""
    offsets = pa.py_buffer(np.append(bounds, bounds[-1:]).astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(bounds), [None, offsets, data])


def _text_buffers(texts: pa.Array) -> tuple[bytes, bytes]:
    """Return the offsets and the content of texts that begin at the start of their buffers."""
    _, offsets, content = texts.buffers()
    return offsets.to_pybytes()[: 4 * len(texts) + 4], b"" if content is None else content.to_pybytes()


def _require(holds: np.ndarray[Any, Any], problem: str) -> None:
    if not holds.all():
        raise RecordCorrupt(0, problem)
