"""Converts messages to Arrow batches, for the source: its columns and their types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.bodies import MARKED_BODY, PROPERTY_BODY_MARK, unmarked
from pyspark_rocketmq.offsets import QueueName
from pyspark_rocketmq.record_arrays import RecordArrays
from rocketpy.errors import ConfigInvalid
from rocketpy.message import RESERVED_PROPERTIES
from rocketpy.protocol.message.properties import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    TIMER_PROPERTIES,
    split_keys,
)

_TIME: Final = pa.timestamp("us", tz="UTC")
_TIME_MS_MIN: Final = -62_135_596_800_000
_TIME_MS_MAX: Final = 253_402_300_799_999
"""Years 1 to 9999, the range of Spark's timestamps."""
_HIDDEN: Final = RESERVED_PROPERTIES | TIMER_PROPERTIES | {PROPERTY_BODY_MARK}


class Column(NamedTuple):
    """A column of a read."""

    name: str
    """As the user wrote it."""
    field: str
    """Its name in the source."""


class QueueMessages(NamedTuple):
    """Messages of one queue."""

    records: RecordArrays
    queue: QueueName
    bodies: pa.Array | None
    """Decompressed; None if no column needs them."""


class _Kind(NamedTuple):
    """A kind of column."""

    spark_type: str
    """As in DDL."""
    values: Callable[[QueueMessages, pa.Array], pa.Array]
    """Makes the column; the second argument has the values of its property, if it has one."""


def _bodies(messages: QueueMessages, _: pa.Array) -> pa.Array:
    """Return the bodies as they were written; the sink marks null and empty ones."""
    bodies = messages.bodies
    if bodies is None or not pc.any(pc.equal(bodies, MARKED_BODY)).as_py():
        return bodies
    (marks,) = messages.records.properties([PROPERTY_BODY_MARK])
    return pa.array(map(unmarked, bodies.to_pylist(), marks.to_pylist()), pa.binary())


def _number(name: str, kind: type[np.signedinteger]) -> Callable[[QueueMessages, pa.Array], pa.Array]:
    return lambda messages, _: pa.array(messages.records.field(name).astype(kind))


def _time(name: str) -> Callable[[QueueMessages, pa.Array], pa.Array]:
    """Return a column of microseconds; null outside the range of timestamps."""

    def column(messages: QueueMessages, _: pa.Array) -> pa.Array:
        times = messages.records.field(name)
        unknown = (times < _TIME_MS_MIN) | (times > _TIME_MS_MAX)
        return pa.array(np.where(unknown, 0, times) * 1000, mask=unknown).view(_TIME)

    return column


def _keys(_: QueueMessages, found: pa.Array) -> pa.Array:
    """Return the keys, separated by single spaces; null where there is none."""
    buffer = found.buffers()[2]
    text = b"" if buffer is None else buffer.to_pybytes()
    if b" " not in text:
        return found
    keys = [" ".join(split_keys(text)) or None for text in found.to_pylist()]
    return pa.array(keys, pa.string())


_COLUMNS: Final = {
    "topic": _Kind("string", lambda messages, _: pa.repeat(messages.queue.topic, len(messages.records))),
    "brokerName": _Kind(
        "string", lambda messages, _: pa.repeat(messages.queue.broker, len(messages.records))
    ),
    "queueId": _Kind(
        "int",
        lambda messages, _: pa.repeat(pa.scalar(messages.queue.queue_id, pa.int32()), len(messages.records)),
    ),
    "queueOffset": _Kind("bigint", _number("queue_offset", np.int64)),
    "msgId": _Kind("string", lambda messages, unique_ids: messages.records.message_ids(unique_ids)),
    "tags": _Kind("string", lambda _, tags: tags),
    "keys": _Kind("string", _keys),
    "body": _Kind("binary", _bodies),
    "properties": _Kind("map<string,string>", lambda _, properties: properties),
    "flag": _Kind("int", _number("flag", np.int32)),
    "sysFlag": _Kind("int", _number("sys_flag", np.int32)),
    "reconsumeTimes": _Kind("int", _number("reconsume_times", np.int32)),
    "bornTimestamp": _Kind("timestamp", _time("born_timestamp")),
    "storeTimestamp": _Kind("timestamp", _time("store_timestamp")),
}
"""Name of a column -> its kind."""
_PROPERTIES: Final = {"msgId": PROPERTY_UNIQ_KEY, "tags": PROPERTY_TAGS, "keys": PROPERTY_KEYS}
"""Name of a column -> the property with its values."""
_CANONICAL: Final = {name.lower(): name for name in _COLUMNS}


def source_schema(*, include_headers: bool = True) -> str:
    """Return the source's columns in Spark's DDL. include_headers: with the column `properties`."""
    columns = {name: kind.spark_type for name, kind in _COLUMNS.items()}
    if not include_headers:
        del columns["properties"]
    return ", ".join(f"{name} {type_name}" for name, type_name in columns.items())


def check_schema(fields: Sequence[tuple[str, str]], *, include_headers: bool = True) -> tuple[Column, ...]:
    """Return the columns of a schema, whose names may have any case. Raises ConfigInvalid."""
    columns = []
    for name, type_name in fields:
        known = _CANONICAL.get(name.lower())
        if known is None:
            raise ConfigInvalid(f"the source has no column {name!r}; it has {', '.join(_COLUMNS)}")
        wanted = _COLUMNS[known].spark_type
        if wanted != type_name:
            raise ConfigInvalid(f"column {name!r} is {wanted}, not {type_name}; cast it after reading")
        if known == "properties" and not include_headers:
            raise ConfigInvalid("column 'properties' needs option includeHeaders=true")
        columns.append(Column(name, known))
    return tuple(columns)


def to_batch(messages: QueueMessages, columns: Sequence[Column]) -> pa.RecordBatch:
    """Return messages as one Arrow batch with these columns."""
    fields = {column.field for column in columns}
    names = {field: name for field, name in _PROPERTIES.items() if field in fields}
    hidden = _HIDDEN if "properties" in fields else None
    found = dict(
        zip([*names, "properties"], messages.records.properties([*names.values()], hidden), strict=False)
    )
    arrays = [_COLUMNS[column.field].values(messages, found.get(column.field)) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])
