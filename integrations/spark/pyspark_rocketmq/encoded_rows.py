"""Encodes the rows of a request as the body of a batch, from the buffers of their Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, repeat
from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_rocketmq.bodies import MARKED_BODY, PROPERTY_BODY_MARK, mark_of
from rocketpy import MessageColumns
from rocketpy.native import has_native_form
from rocketpy.protocol.message.batch import encode_batch

_NAMES_MAX: Final = 64
"""Maximum number of property names in a request. With more, its messages are created one by one."""
_ANY_TOPIC: Final = "any"

Texts = tuple[bytes | None, bytes, bytes]
"""A column of texts: the bitmap of rows that have one, or None if all have; 32-bit offsets; the texts."""
Maps = tuple[bytes, Texts, Texts]
"""A column of maps: 32-bit offsets of the rows; names; values."""


@has_native_form
def encode_rows(
    unique_ids: bytes,
    numbers: bytes,
    bodies: Texts,
    tags: Texts | None,
    keys: Texts | None,
    properties: Maps | None,
    flags: bytes | None,
    row_ids: tuple[bytes, bytes] | None,
) -> tuple[bytes, list[bytes]]:
    """Encode rows as the body of a batch; return it, and the names of the properties.

    unique_ids: one after the other, equally long. The other arguments are those of `message_columns`, which
    also has the errors.
    """
    messages = message_columns(_ANY_TOPIC, numbers, bodies, tags, keys, properties, flags, row_ids)
    width = len(unique_ids) // len(messages)
    ids = unique_ids.decode()
    texts = messages.property_texts([ids[at : at + width] for at in range(0, len(ids), width)])
    body = encode_batch(zip(messages.flags or repeat(0), messages.bodies, texts, strict=False))
    ours = {PROPERTY_BODY_MARK, "" if row_ids is None else row_ids[0].decode()}
    return body, [name.encode() for name in messages.properties if name not in ours]


def message_columns(
    topic: str,
    numbers: bytes,
    bodies: Texts,
    tags: Texts | None,
    keys: Texts | None,
    properties: Maps | None,
    flags: bytes | None,
    row_ids: tuple[bytes, bytes] | None,
) -> MessageColumns:
    """Return rows as messages. A null or empty body is marked.

    numbers: of the rows in the partition, 64-bit integers. flags: 32-bit integers. row_ids: the name of the
    property, and its value up to the row's number.

    Raises TopicInvalid and MessageInvalid; MessageTooLarge for properties; ValueError for texts that are not
    UTF-8 and for more than 64 names.
    """
    count = len(numbers) // 8
    columns = {} if properties is None else _property_columns(properties, count)
    contents = _array(bodies, count, pa.binary()).to_pylist()
    if not all(contents):
        columns[PROPERTY_BODY_MARK] = list(map(mark_of, contents))
        contents = [content or MARKED_BODY for content in contents]
    if row_ids is not None:
        name, prefix = (text.decode() for text in row_ids)
        columns[name] = [f"{prefix}{number}" for number in np.frombuffer(numbers, np.int64).tolist()]
    return MessageColumns(
        topic,
        contents,
        tags=None if tags is None else _array(tags, count, pa.string()).to_pylist(),
        keys=None if keys is None else _array(keys, count, pa.string()).to_pylist(),
        properties=columns,
        flags=None if flags is None else np.frombuffer(flags, np.int32).tolist(),
    )


def texts_of(column: pa.Array) -> Texts:
    """Return the buffers of a column of texts or bytes."""
    if pa.types.is_large_string(column.type):
        column = column.cast(pa.string())
    if not len(column):
        return None, bytes(4), b""
    _, offsets, content = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset)
    first, last = int(ends[0]), int(ends[-1])
    text = b"" if content is None else content[first:last].to_pybytes()
    return _validity(column), (ends - first).tobytes(), text


def maps_of(column: pa.MapArray) -> Maps:
    """Return the buffers of a column of properties; a null is a map without any."""
    if column.null_count:
        column = column.take(pa.array(np.arange(len(column))))  # then nulls have no entries
    offsets = column.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    names, values = (each.slice(first, last - first) for each in (column.keys, column.items))
    return (offsets - first).astype(np.int32).tobytes(), texts_of(names), texts_of(values)


def joined_keys(column: pa.Array) -> pa.Array:
    """Return the keys of each row as one text. Raises ValueError for an invalid key in an array."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column
    arrays: list[list[str] | None] = column.to_pylist()
    keys = [key for array in arrays if array for key in array]
    if not all(keys) or " " in "".join(keys):
        raise ValueError("a key is missing, or contains a space")
    return pa.array([" ".join(array) if array else None for array in arrays], pa.string())


def _validity(column: pa.Array) -> bytes | None:
    if not column.null_count:
        return None
    return np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little").tobytes()


def _array(texts: Texts, count: int, kind: pa.DataType) -> pa.Array:
    buffers = [None if each is None else pa.py_buffer(each) for each in texts]
    return pa.Array.from_buffers(kind, count, buffers)


def _property_columns(properties: Maps, count: int) -> dict[str, Sequence[str | None]]:
    """Return the user properties as a column for each name. Raises ValueError for too many names."""
    offsets = np.frombuffer(properties[0], np.int32).tolist()
    names, values = (_array(each, offsets[-1], pa.string()).to_pylist() for each in properties[1:])
    width = len(names) // count
    own = names[:width]
    if (
        width
        and offsets == list(range(0, len(names) + 1, width))
        and names == own * count
        and len(set(own)) == width
    ):  # all rows have the same names
        return {name: values[index::width] for index, name in enumerate(own)}
    found: dict[str, list[str | None]] = {}
    for row, (begin, end) in enumerate(pairwise(offsets)):
        for index in range(begin, end):
            found.setdefault(names[index], [None] * count)[row] = values[index]
        if len(found) > _NAMES_MAX:
            raise ValueError("properties with too many different names for columns")
    return dict(found)
