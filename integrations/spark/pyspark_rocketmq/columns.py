"""From the columns of Arrow batches to messages.

| column | type | meaning |
|---|---|---|
| body | string or binary | with `format` json or msgpack the body is made of all columns not named here |
| topic | string | unless the option `topic` says it for all |
| tags | string | one tag |
| keys | string or array<string> | a text is split at spaces |
| properties | map<string,string> | the user's properties; null values are left out |
| flag, delayLevel | int | 0 when null |
| shardingKey | string | equal keys to the same queue |
| brokerName, queueId | string, int | the queue itself, both or neither |

A null means that the row has no such thing. The other columns of the source are ignored, so that what was
read can be written again; any other column is refused.
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
"""What the sink reads, and the types it takes, as Spark spells them."""
_IGNORED: Final = frozenset(
    {"queueOffset", "sysFlag", "msgId", "reconsumeTimes", "bornTimestamp", "storeTimestamp"}
)
"""Columns of the source that mean nothing to a message that is sent."""
_TOGETHER: Final = frozenset({"body", "topic", "tags", "keys"})
"""Columns of frames whose rows need not be looked at one by one, where an option says the topic."""
_NO_MESSAGE: Final = (RocketError, TypeError, ValueError, OverflowError)
"""What making a message of a row raises."""
_CANONICAL: Final = {name.lower(): name for name in (*_TYPES, *_IGNORED)}
_ENCODERS: Final[Mapping[str, Callable[[object], bytes]]] = {
    "json": msgspec.json.Encoder().encode,
    "msgpack": msgspec.msgpack.Encoder().encode,
}


class RowNotSent(RuntimeError):
    """A row that could not be sent, with the place where it stands and the reason.

    Raised in the task, so that Spark shows it and tries the task again, as often as it is told to.
    """

    def __init__(self, place: str, topic: str, cause: BaseException) -> None:
        outcome = f" ({cause.outcome.value})" if isinstance(cause, RocketError) else ""
        notes = "".join(f"; {note}" for note in getattr(cause, "__notes__", ()))
        target = f"topic {topic!r}" if topic else "no topic"
        super().__init__(f"{place} not sent, {target}: {type(cause).__name__}: {cause}{outcome}{notes}")


class Row(NamedTuple):
    """One message to send. where: the queue it must go to, by name and number, or by a key; None for any."""

    message: Message
    where: tuple[str, int] | str | None


class Columns:
    """What a frame's columns mean. A plain value: it travels from the driver to the executors.

    fields: names and types (`simpleString`) of the frame's columns. Raises ConfigInvalid for a frame that
    cannot be sent, so that a query fails when it is planned.
    """

    go_together: bool
    """Whether `together` may take the rows of this frame."""

    def __init__(self, fields: Sequence[tuple[str, str]], options: SinkOptions) -> None:
        self._places: dict[str, int] = {}
        self._data: list[tuple[int, str]] = []
        self._options = options
        whole_row = options.format != "raw"
        for place, (name, type_name) in enumerate(fields):
            known = _CANONICAL.get(name.lower())
            if whole_row and (known is None or known == "body" or known in _IGNORED):
                if any(name == other for _, other in self._data):
                    raise ConfigInvalid(f"two columns are called {name!r}; the body could hold one of them")
                self._data.append((place, name))
            elif known is None:
                raise ConfigInvalid(
                    f"column {name!r} means nothing to the sink, which knows {', '.join(_TYPES)}; drop it, "
                    "or set option format to json or msgpack for a body made of the row"
                )
            elif known in _TYPES:
                if type_name not in _TYPES[known]:
                    wanted = " or ".join(sorted(_TYPES[known]))
                    raise ConfigInvalid(f"column {name!r} is {type_name}; it must be {wanted}")
                if known in self._places:
                    raise ConfigInvalid(f"two columns are called {known!r}, but for upper and lower case")
                self._places[known] = place
        self._check(whole_row=whole_row)
        self.go_together = self._go_together(fields)

    def _go_together(self, fields: Sequence[tuple[str, str]]) -> bool:
        """Whether rows differ in nothing that would part them, so that `together` may take them."""
        keys = self._places.get("keys")
        return (
            bool(self._options.topic)
            and self._places.keys() <= _TOGETHER
            and (keys is None or fields[keys][1] == "string")
        )

    def _check(self, *, whole_row: bool) -> None:
        places = self._places
        if whole_row and not self._data:
            raise ConfigInvalid(f"no column is left for a body with format {self._options.format}")
        if not whole_row and "body" not in places:
            raise ConfigInvalid("column 'body' is missing; or set option format to json or msgpack")
        if "topic" not in places and not self._options.topic:
            raise ConfigInvalid("no topic: neither option topic nor a column 'topic' is there")
        if ("brokerName" in places) != ("queueId" in places):
            raise ConfigInvalid("columns 'brokerName' and 'queueId' go together; one of them is missing")
        if "brokerName" in places and "shardingKey" in places:
            raise ConfigInvalid("columns 'shardingKey' and 'queueId' both choose the queue; drop one")

    def together(self, batch: pa.RecordBatch, prefix: str, first_row: int) -> MessageColumns | None:
        """The messages of one Arrow batch at once; None where one of them is none, or is to travel alone.

        Arguments as of `rows`, which names the row at fault.
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
        except _NO_MESSAGE:
            return None

    def rows(self, batch: pa.RecordBatch, prefix: str, first_row: int) -> Iterator[Row]:
        """The messages of one Arrow batch, in order. Raises RowNotSent for a row that is no message.

        prefix: of the rows' ids, which end with the row's number. first_row: number of the first one.
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
        except _NO_MESSAGE as error:
            raise RowNotSent(f"row {row} of the partition", str(topic or ""), error) from error

    def _texts(self, batch: pa.RecordBatch, name: str) -> list[str | None] | None:
        place = self._places.get(name)
        texts: list[str | None] | None = None if place is None else batch.column(place).to_pylist()
        return texts

    def _values(self, batch: pa.RecordBatch, name: str) -> Iterable[Any]:
        """A column as Python values, or nothing as often as wanted."""
        place = self._places.get(name)
        return repeat(None) if place is None else batch.column(place).to_pylist()

    def _bodies(self, batch: pa.RecordBatch) -> Iterable[bytes | None]:
        encode = _ENCODERS.get(self._options.format)
        if encode is not None:
            return self._encoded(batch, encode)
        bodies: list[bytes | None] = batch.column(self._places["body"]).cast(pa.binary()).to_pylist()
        return bodies

    def _encoded(self, batch: pa.RecordBatch, encode: Callable[[object], bytes]) -> Iterator[bytes]:
        names = [name for _, name in self._data]
        columns = [_plain(batch.column(place)) for place, _ in self._data]
        return (encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True))

    def _queues(self, batch: pa.RecordBatch) -> Iterable[tuple[str, int] | str | None]:
        if "shardingKey" in self._places:
            return self._values(batch, "shardingKey")
        if "queueId" not in self._places:
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
    """A column's values, with maps as dicts, however deep they are."""
    make = _maker(column.type)
    try:
        values: list[Any] = column.to_pylist()
        return values if make is None else [make(value) for value in values]
    except _NO_MESSAGE:
        # One by one, so that it is known which row is at fault.
        singly = (value.as_py() for value in column)
        return singly if make is None else map(make, singly)


def _maker(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What turns Arrow's list of pairs into a dict where the type has a map; None where it has none."""
    if pa.types.is_map(kind):
        inner = _maker(kind.item_type)
        return lambda pairs: (
            None if pairs is None else {key: inner(value) if inner else value for key, value in pairs}
        )
    if pa.types.is_list(kind):
        inner = _maker(kind.value_type)
        return None if inner is None else lambda items: items if items is None else [inner(i) for i in items]
    if pa.types.is_struct(kind):
        makers = {field.name: _maker(field.type) for field in kind}
        if not any(makers.values()):
            return None
        return lambda row: row if row is None else {k: m(row[k]) if m else row[k] for k, m in makers.items()}
    return None
