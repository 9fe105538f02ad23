"""The columns of the source: their types, and Arrow batches of them."""

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
    TIMER_PROPERTIES,
    split_keys,
)

_TIME: Final = pa.timestamp("us", tz="UTC")
_TIME_MS_MIN: Final = -62_135_596_800_000
_TIME_MS_MAX: Final = 253_402_300_799_999
"""Years 1 to 9999, the range of Spark's timestamps."""
"""The ASCII characters at which `str.split` splits."""


_HIDDEN: Final = RESERVED_PROPERTIES | TIMER_PROPERTIES | {PROPERTY_BODY_MARK}


class Column(NamedTuple):
    """A column of a read. name: as the user wrote it. field: its name in the source."""

    name: str
    field: str


class Rows(NamedTuple):
    """Messages of one queue. bodies: decompressed; None if no column needs them."""

    records: RecordArrays
    queue: QueueName
    bodies: pa.Array | None


def _bodies(rows: Rows) -> pa.Array:
    """Return the bodies as they were written; the sink marks null and empty ones."""
    bodies = rows.bodies
    if bodies is None or not pc.any(pc.equal(bodies, MARKED_BODY)).as_py():
        return bodies
    marks = rows.records.properties.values_of(PROPERTY_BODY_MARK).to_pylist()
    return pa.array(map(unmarked, bodies.to_pylist(), marks), pa.binary())


def _number(name: str, kind: type[np.signedinteger]) -> Callable[[Rows], pa.Array]:
    return lambda rows: pa.array(rows.records.field(name).astype(kind))


def _time(name: str) -> Callable[[Rows], pa.Array]:
    """Return a column of microseconds; null outside the range of timestamps."""

    def column(rows: Rows) -> pa.Array:
        times = rows.records.field(name)
        unknown = (times < _TIME_MS_MIN) | (times > _TIME_MS_MAX)
        return pa.array(np.where(unknown, 0, times) * 1000, mask=unknown).view(_TIME)

    return column


def _keys(rows: Rows) -> pa.Array:
    """Return the keys, separated by single spaces; null where there is none."""
    found = rows.records.properties.values_of(PROPERTY_KEYS)
    buffer = found.buffers()[2]
    text = b"" if buffer is None else buffer.to_pybytes()
    if b" " not in text:
        return found
    keys = [" ".join(split_keys(text)) or None for text in found.to_pylist()]
    return pa.array(keys, pa.string())


_COLUMNS: Final[dict[str, tuple[str, Callable[[Rows], pa.Array]]]] = {
    "topic": ("string", lambda rows: pa.repeat(rows.queue.topic, len(rows.records))),
    "brokerName": ("string", lambda rows: pa.repeat(rows.queue.broker, len(rows.records))),
    "queueId": ("int", lambda rows: pa.repeat(pa.scalar(rows.queue.queue_id, pa.int32()), len(rows.records))),
    "queueOffset": ("bigint", _number("queue_offset", np.int64)),
    "msgId": ("string", lambda rows: rows.records.message_ids()),
    "tags": ("string", lambda rows: rows.records.properties.values_of(PROPERTY_TAGS)),
    "keys": ("string", _keys),
    "body": ("binary", _bodies),
    "properties": (
        "map<string,string>",
        lambda rows: rows.records.properties.maps_without(_HIDDEN),
    ),
    "flag": ("int", _number("flag", np.int32)),
    "sysFlag": ("int", _number("sys_flag", np.int32)),
    "reconsumeTimes": ("int", _number("reconsume_times", np.int32)),
    "bornTimestamp": ("timestamp", _time("born_timestamp")),
    "storeTimestamp": ("timestamp", _time("store_timestamp")),
}
"""Spark type, and function that makes the column, by name."""
_CANONICAL: Final = {name.lower(): name for name in _COLUMNS}


def source_schema(*, include_headers: bool = True) -> str:
    """Return the source's columns in Spark's DDL. include_headers: with the column `properties`."""
    columns = {name: type_name for name, (type_name, _) in _COLUMNS.items()}
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
        if _COLUMNS[known][0] != type_name:
            raise ConfigInvalid(
                f"column {name!r} is {_COLUMNS[known][0]}, not {type_name}; cast it after reading"
            )
        if known == "properties" and not include_headers:
            raise ConfigInvalid("column 'properties' needs option includeHeaders=true")
        columns.append(Column(name, known))
    return tuple(columns)


def to_batch(rows: Rows, columns: Sequence[Column]) -> pa.RecordBatch:
    """Return messages as one Arrow batch with these columns."""
    arrays = [_COLUMNS[column.field][1](rows) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])
