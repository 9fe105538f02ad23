"""Converts messages to Arrow batches with the columns of the source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from rocketpy import MessageExt
from rocketpy.errors import ConfigInvalid
from rocketpy.message import RESERVED_PROPERTIES

_TIME: Final = pa.timestamp("us", tz="UTC")
_TIME_MS_MIN: Final = -62_135_596_800_000
_TIME_MS_MAX: Final = 253_402_300_799_999
"""Years 1 to 9999, the range of Spark's timestamps."""
_TEXTS: Final = pa.map_(pa.string(), pa.string())


def _own_properties(message: MessageExt) -> list[tuple[str, str]]:
    return [pair for pair in message.properties.items() if pair[0] not in RESERVED_PROPERTIES]


def _microseconds(time_ms: int) -> int | None:
    """None for a time outside the range of timestamps: producers may set any value."""
    return time_ms * 1000 if _TIME_MS_MIN <= time_ms <= _TIME_MS_MAX else None


_COLUMNS: Final[dict[str, tuple[str, pa.DataType, Callable[[MessageExt], Any]]]] = {
    "topic": ("string", pa.string(), lambda message: message.topic),
    "brokerName": ("string", pa.string(), lambda message: message.queue.broker_name),
    "queueId": ("int", pa.int32(), lambda message: message.queue.queue_id),
    "queueOffset": ("bigint", pa.int64(), lambda message: message.queue_offset),
    "msgId": ("string", pa.string(), lambda message: message.message_id),
    "tags": ("string", pa.string(), lambda message: message.tags),
    "keys": ("string", pa.string(), lambda message: " ".join(message.keys) or None),
    "body": ("binary", pa.binary(), lambda message: message.body),
    "properties": ("map<string,string>", _TEXTS, _own_properties),
    "flag": ("int", pa.int32(), lambda message: message.flag),
    "sysFlag": ("int", pa.int32(), lambda message: message.sys_flag),
    "reconsumeTimes": ("int", pa.int32(), lambda message: message.reconsume_times),
    "bornTimestamp": ("timestamp", _TIME, lambda message: _microseconds(message.born_timestamp)),
    "storeTimestamp": ("timestamp", _TIME, lambda message: _microseconds(message.store_timestamp)),
}
"""Name -> Spark type, Arrow type, and function of a message. Times in microseconds."""

SCHEMA: Final = ", ".join(f"{name} {type_name}" for name, (type_name, _, _) in _COLUMNS.items())
"""The source's columns in Spark's DDL."""


def check_schema(fields: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Validate a schema of names and types, and return the names. Raises ConfigInvalid."""
    for name, type_name in fields:
        known = _COLUMNS.get(name)
        if known is None:
            raise ConfigInvalid(f"the source has no column {name!r}; it has {', '.join(_COLUMNS)}")
        if known[0] != type_name:
            raise ConfigInvalid(f"column {name!r} is {known[0]}, not {type_name}; cast it after reading")
    return tuple(name for name, _ in fields)


def to_batch(messages: Sequence[MessageExt], names: Sequence[str]) -> pa.RecordBatch:
    """The messages as one Arrow batch with these columns."""
    arrays = []
    for name in names:
        _, kind, value = _COLUMNS[name]
        arrays.append(pa.array([value(message) for message in messages], kind))
    return pa.RecordBatch.from_arrays(arrays, names=list(names))
