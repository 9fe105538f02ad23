"""Converts columns of Arrow batches to messages.

| column | type | meaning |
|---|---|---|
| body | string or binary | with `format` json or msgpack the body contains all columns not listed here |
| topic | string | unless option `topic` is set |
| tags | string | one tag |
| keys | string or array<string> | a string is split at spaces |
| properties | map<string,string> | user properties; null values are omitted |
| flag, delayLevel | int | 0 when null |
| shardingKey | string | equal keys are sent to the same queue |
| brokerName, queueId | string, int | the queue; both or neither |

A null means that the value is missing. Other columns of the source are ignored, so that rows that were read
can be written again; any other column is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from pyspark_rocketmq.options import SinkOptions
from rocketpy import Message, MessageColumns, RocketError
from rocketpy.errors import ConfigInvalid, MessageInvalid

_TEXT: Final = frozenset({"string"})
_NUMBER: Final = frozenset({"int", "smallint", "tinyint"})
_TYPES: Final = {
    "body": frozenset({"string", "binary"}),
    "topic": _TEXT,
    "tags": _TEXT,
    "keys": frozenset({"string", "array<string>"}),
    "properties": frozenset({"map<string,string>"}),
    "flag": _NUMBER,
    "delayLevel": _NUMBER,
    "shardingKey": _TEXT,
    "brokerName": _TEXT,
    "queueId": _NUMBER,
}
"""Supported columns and their types, in Spark's notation."""
_IGNORED: Final = frozenset(
    {"queueOffset", "sysFlag", "msgId", "reconsumeTimes", "bornTimestamp", "storeTimestamp"}
)
"""Columns of the source that are ignored when sending."""
_BATCHABLE: Final = frozenset({"body", "topic", "tags", "keys"})
"""Columns that can be processed without reading each row, if option `topic` is set."""
_ROW_ERRORS: Final = (RocketError, TypeError, ValueError, OverflowError)
"""Errors for a row that cannot become a message."""
_CANONICAL: Final = {name.lower(): name for name in (*_TYPES, *_IGNORED)}
_ENCODERS: Final[Mapping[str, Callable[[object], bytes]]] = {
    "json": msgspec.json.Encoder().encode,
    "msgpack": msgspec.msgpack.Encoder().encode,
}


class RowNotSent(RuntimeError):
    """A row that could not be sent, with its position and the reason.

    Raised in the task, so that Spark reports it and retries the task as configured.
    """

    def __init__(self, place: str, topic: str, cause: BaseException) -> None:
        outcome = f" ({cause.outcome.value})" if isinstance(cause, RocketError) else ""
        notes = "".join(f"; {note}" for note in getattr(cause, "__notes__", ()))
        target = f"topic {topic!r}" if topic else "no topic"
        super().__init__(f"{place} not sent, {target}: {type(cause).__name__}: {cause}{outcome}{notes}")


class Row(NamedTuple):
    """One message to send. where: its queue, as broker and id or as a sharding key; None for any."""

    message: Message
    where: tuple[str, int] | str | None


class Columns:
    """Maps a frame's columns to messages. A plain value: it is pickled for executors.

    fields: names and types (`simpleString`) of the frame's columns. Raises ConfigInvalid for a frame that
    cannot be sent, so that a query fails during planning.
    """

    can_batch: bool
    """Whether `message_columns` accepts the rows of this frame."""

    def __init__(self, fields: Sequence[tuple[str, str]], options: SinkOptions) -> None:
        self._positions: dict[str, int] = {}
        self._data: list[tuple[int, str]] = []
        self._options = options
        whole_row = options.format != "raw"
        for position, (name, type_name) in enumerate(fields):
            known = _CANONICAL.get(name.lower())
            if whole_row and (known is None or known == "body" or known in _IGNORED):
                if any(name == other for _, other in self._data):
                    raise ConfigInvalid(
                        f"two columns are called {name!r}; the body can contain only one of them"
                    )
                self._data.append((position, name))
            elif known is None:
                raise ConfigInvalid(
                    f"column {name!r} is unknown; the sink supports {', '.join(_TYPES)}; drop it, "
                    "or set option format to json or msgpack to include it in the body"
                )
            elif known in _TYPES:
                if type_name not in _TYPES[known]:
                    wanted = " or ".join(sorted(_TYPES[known]))
                    raise ConfigInvalid(f"column {name!r} is {type_name}; it must be {wanted}")
                if known in self._positions:
                    raise ConfigInvalid(f"two columns are called {known!r}, ignoring case")
                self._positions[known] = position
        self._check(whole_row=whole_row)
        self.can_batch = self._can_batch(fields)

    def _can_batch(self, fields: Sequence[tuple[str, str]]) -> bool:
        """Whether all rows have the same topic and options, so that they can be batched."""
        keys = self._positions.get("keys")
        return (
            bool(self._options.topic)
            and self._positions.keys() <= _BATCHABLE
            and (keys is None or fields[keys][1] == "string")
        )

    def _check(self, *, whole_row: bool) -> None:
        columns = self._positions.keys()
        if whole_row and not self._data:
            raise ConfigInvalid(f"no columns remain for the body with format {self._options.format}")
        if not whole_row and "body" not in columns:
            raise ConfigInvalid("column 'body' is missing; add it, or set option format to json or msgpack")
        if "topic" not in columns and not self._options.topic:
            raise ConfigInvalid("the topic is missing; set option topic or add a column 'topic'")
        if ("brokerName" in columns) != ("queueId" in columns):
            raise ConfigInvalid(
                "columns 'brokerName' and 'queueId' require each other; one of them is missing"
            )
        if "brokerName" in columns and "shardingKey" in columns:
            raise ConfigInvalid("columns 'shardingKey' and 'queueId' both select the queue; drop one")

    def message_columns(self, batch: pa.RecordBatch, prefix: str, first_row: int) -> MessageColumns | None:
        """Return all messages of a batch; None if a row is invalid or must be sent individually.

        Arguments as of `rows`, which names the invalid row.
        """
        options = self._options
        properties: dict[str, list[str]] = {}
        try:
            bodies = list(self._bodies(batch))
            if options.row_id_property:
                numbers = range(first_row, first_row + len(bodies))
                properties = {options.row_id_property: [f"{prefix}{number}" for number in numbers]}
            if max(map(len, bodies)) > options.sends_singly_above:  # type: ignore[arg-type] # see below
                return None
            return MessageColumns(
                options.topic,
                bodies,  # type: ignore[arg-type] # a null raises TypeError
                tags=self._texts(batch, "tags"),
                keys=self._texts(batch, "keys"),
                properties=properties,
            )
        except _ROW_ERRORS:
            return None

    def rows(self, batch: pa.RecordBatch, prefix: str, first_row: int) -> Iterator[Row]:
        """The messages of one Arrow batch, in order. Raises RowNotSent for an invalid row.

        prefix: of the row ids, which end with the row number. first_row: number of the first row.
        """
        values = self._values
        name = self._options.row_id_property
        row = first_row
        topic: Any = self._options.topic
        topics: Iterable[Any] = repeat(topic) if topic else values(batch, "topic")
        try:
            for body, topic, tags, keys, given, flag, delay, where in zip(
                self._bodies(batch),
                topics,
                values(batch, "tags"),
                values(batch, "keys"),
                values(batch, "properties"),
                values(batch, "flag"),
                values(batch, "delayLevel"),
                self._queues(batch),
                strict=False,
            ):
                properties = _properties(given) if given else {}
                if name:
                    properties[name] = f"{prefix}{row}"
                yield Row(
                    Message(
                        topic,
                        b"" if body is None else body,
                        tags=tags,
                        keys=keys or (),
                        delay_level=delay or 0,
                        flag=flag or 0,
                        properties=properties,
                    ),
                    where,
                )
                row += 1
        except _ROW_ERRORS as error:
            raise RowNotSent(f"row {row} of the partition", str(topic or ""), error) from error

    def _texts(self, batch: pa.RecordBatch, name: str) -> list[str | None] | None:
        position = self._positions.get(name)
        texts: list[str | None] | None = None if position is None else batch.column(position).to_pylist()
        return texts

    def _values(self, batch: pa.RecordBatch, name: str) -> Iterable[Any]:
        """Return a column as Python values, or None repeatedly if it is missing."""
        position = self._positions.get(name)
        return repeat(None) if position is None else batch.column(position).to_pylist()

    def _bodies(self, batch: pa.RecordBatch) -> Iterable[bytes | None]:
        encode = _ENCODERS.get(self._options.format)
        if encode is not None:
            return self._encoded(batch, encode)
        bodies: list[bytes | None] = batch.column(self._positions["body"]).cast(pa.binary()).to_pylist()
        return bodies

    def _encoded(self, batch: pa.RecordBatch, encode: Callable[[object], bytes]) -> Iterator[bytes]:
        names = [name for _, name in self._data]
        columns = [_plain(batch.column(position)) for position, _ in self._data]
        return (encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True))

    def _queues(self, batch: pa.RecordBatch) -> Iterable[tuple[str, int] | str | None]:
        if "shardingKey" in self._positions:
            return self._values(batch, "shardingKey")
        if "queueId" not in self._positions:
            return repeat(None)
        pairs = zip(self._values(batch, "brokerName"), self._values(batch, "queueId"), strict=True)
        return (_pair(broker, queue_id) for broker, queue_id in pairs)


def _pair(broker: str | None, queue_id: int | None) -> tuple[str, int] | None:
    if broker is None and queue_id is None:
        return None
    if broker is None or queue_id is None:
        raise MessageInvalid(f"brokerName is {broker!r} and queueId {queue_id!r}; both or neither")
    return broker, queue_id


def _properties(pairs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    return {name: value for name, value in pairs if value is not None}


def _plain(column: pa.Array) -> Iterable[Any]:
    """A column's values, with maps at any depth as dicts."""
    convert = _converter(column.type)
    try:
        values: list[Any] = column.to_pylist()
        return values if convert is None else [convert(value) for value in values]
    except _ROW_ERRORS:
        # Convert values one by one, so that the error names the invalid row.
        single = (value.as_py() for value in column)
        return single if convert is None else map(convert, single)


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return a function that converts maps from lists of pairs to dicts; None for a type without maps."""
    if pa.types.is_map(kind):
        inner = _converter(kind.item_type)
        return lambda pairs: (
            None if pairs is None else {key: inner(value) if inner else value for key, value in pairs}
        )
    if pa.types.is_list(kind):
        inner = _converter(kind.value_type)
        return None if inner is None else lambda items: items if items is None else [inner(i) for i in items]
    if pa.types.is_struct(kind):
        converters = {field.name: _converter(field.type) for field in kind}
        if not any(converters.values()):
            return None
        return lambda row: (
            None if row is None else {k: c(row[k]) if c else row[k] for k, c in converters.items()}
        )
    return None
