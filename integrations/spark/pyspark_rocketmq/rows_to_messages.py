"""Converts Arrow batches to messages, for the sink.

| column | type | meaning |
|---|---|---|
| body | string or binary | the body; with `format` json or msgpack, a field of it, like columns not listed |
| topic | string | the topic; ignored if option `topic` is set |
| tags | string | one tag |
| keys | string or array<string> | a string is split at spaces |
| properties | map<string,string> | user properties; null values are omitted |
| flag, delayLevel | int | 0 when null |
| deliverAt | timestamp | when consumers get the message; a null means now |
| shardingKey | string | equal keys are sent to the same queue |
| brokerName, queueId | string, int | the queue; both or neither |

A null means that the value is missing; a null body is marked, see `bodies`. With `format` raw, the other
columns of the source are ignored, so that rows that were read can be written again. Unknown columns are
then rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.bodies import (
    MARKED_BODY,
    PROPERTY_BODY_MARK,
    ROW_ERRORS,
    BodyEncoder,
    EncodingFailed,
    mark_of,
)
from pyspark_rocketmq.encoded_rows import encode_rows, joined_keys, maps_of, message_columns, texts_of
from pyspark_rocketmq.options import SinkOptions
from pyspark_rocketmq.record_arrays import Ints
from rocketpy import Message, MessageColumns, MessageQueue, RocketError
from rocketpy.client.client_ids import LOOPBACK
from rocketpy.errors import ConfigInvalid, MessageInvalid, TopicInvalid
from rocketpy.message.encoded import EncodedBatch
from rocketpy.message.message import check_properties
from rocketpy.protocol.message.message_id import UniqueIdGenerator

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

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
    "deliverAt": frozenset({"timestamp"}),
    "shardingKey": _TEXT,
    "brokerName": _TEXT,
    "queueId": _NUMBER,
}
"""Supported columns and their types, in Spark's notation."""
_IGNORED: Final = frozenset(
    {"queueOffset", "sysFlag", "msgId", "reconsumeTimes", "bornTimestamp", "storeTimestamp"}
)
"""Columns of the source that are ignored when sending."""
_GROUPING: Final = frozenset({"delayLevel", "deliverAt", "shardingKey", "queueId"})
"""Columns whose values may require different requests, as different topics do."""
_CANONICAL: Final = {name.lower(): name for name in (*_TYPES, *_IGNORED)}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COLLATION: Final = re.compile(r" collate \w+", re.IGNORECASE)
_CHUNK_BYTES: Final = 8 << 20
"""Approximate size of the rows that are converted together; bounds the memory for copies."""
_RECORD_OVERHEAD_BYTES: Final = 256
"""Approximate size of a stored record without its body."""
_NULL_TOPIC: Final = "the topic is null; give each row a topic, or set option topic"

QueueChoice = tuple[str, int] | str | None
"""What a row says about its queue: broker and id, or a sharding key; None for any queue."""
FindQueue = Callable[[str, QueueChoice, int], MessageQueue | None]
"""Returns the queue of a row, by topic, choice and row number; None for any. Raises RowNotSent."""


class RowNotSent(RuntimeError):
    """A row that could not be sent, with its position and the reason.

    Raised in the task, so that Spark reports it and retries the task as configured.
    """

    def __init__(self, rows: str, topic: str, cause: BaseException) -> None:
        outcome = f" ({cause.outcome.value})" if isinstance(cause, RocketError) else ""
        notes = "".join(f"; {note}" for note in getattr(cause, "__notes__", ()))
        target = f", topic {topic!r}" if topic else ""
        super().__init__(f"{rows} not sent{target}: {type(cause).__name__}: {cause}{outcome}{notes}")


class RequestRows(NamedTuple):
    """Rows for one request."""

    topic: str
    queue: MessageQueue | None
    """None for any."""
    is_delayed: bool
    """The rows must be sent one by one."""
    numbers: Sequence[int]
    """Row numbers in the partition, ascending."""
    bodies: pa.Array
    size: int
    """Bytes of the bodies."""
    longest: int
    """Bytes of the longest body."""
    columns: Mapping[str, pa.Array]
    """The other columns of the rows, by name."""


class Ids:
    """What identifies the rows of a task: row ids, and unique ids of messages.

    prefix: of the row ids; the row's number follows. address: of the client, packed.
    """

    def __init__(self, prefix: str, address: bytes = LOOPBACK) -> None:
        self.prefix: Final = prefix
        self._generator = UniqueIdGenerator(address)

    def new_unique(self, count: int) -> list[str]:
        """Return new unique ids."""
        return self._generator.take(time_ns() // 1_000_000, count)


class _Group(NamedTuple):
    """Rows of a chunk that may share a request, by their positions in the chunk, ascending."""

    topic: str
    queue: MessageQueue | None
    is_delayed: bool
    rows: Sequence[int]


def fields_of(schema: StructType) -> list[tuple[str, str]]:
    """Return names and types (`simpleString`) of a frame's columns, without the collations of strings."""
    return [(field.name, _COLLATION.sub("", field.dataType.simpleString())) for field in schema.fields]


class Columns:
    """Maps a frame's columns to messages. A plain value: it is pickled for executors.

    fields: from `fields_of`. Raises ConfigInvalid for a frame that cannot be sent, so that a query fails
    during planning.
    """

    def __init__(self, fields: Sequence[tuple[str, str]], options: SinkOptions) -> None:
        self._positions: dict[str, int] = {}
        self._options = options
        whole_row = options.format != "raw"
        data: list[tuple[int, str, str]] = []
        for position, (name, type_name) in enumerate(fields):
            known = _CANONICAL.get(name.lower())
            if whole_row and (known is None or known == "body" or known in _IGNORED):
                data.append((position, name, type_name))
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
                    raise ConfigInvalid(
                        f"two columns are called {known!r}, ignoring case; rename or drop one"
                    )
                self._positions[known] = position
        self._encoder = BodyEncoder(data, options.format) if whole_row else None
        self._check()
        names = self._positions.keys()
        self._is_grouped = not options.topic or bool(names & _GROUPING)

    def _check(self) -> None:
        columns = self._positions.keys()
        if self._encoder is None and "body" not in columns:
            raise ConfigInvalid("column 'body' is missing; add it, or set option format to json or msgpack")
        if "topic" not in columns and not self._options.topic:
            raise ConfigInvalid("the topic is missing; set option topic or add a column 'topic'")
        if ("brokerName" in columns) != ("queueId" in columns):
            raise ConfigInvalid(
                "columns 'brokerName' and 'queueId' require each other; one of them is missing"
            )
        if "brokerName" in columns and "shardingKey" in columns:
            raise ConfigInvalid("columns 'shardingKey' and 'queueId' both select the queue; drop one")

    # -- requests -----------------------------------------------------------------------------

    def split_into_requests(
        self, batch: pa.RecordBatch, first_row: int, find_queue: FindQueue
    ) -> Iterator[RequestRows]:
        """Divide an Arrow batch into requests. Rows for one queue keep their order, except delayed rows.

        first_row: number of the first row in the partition. Raises RowNotSent for a row whose body cannot be
        encoded, or whose queue is incomplete or does not exist.
        """
        step = max(1, batch.num_rows * _CHUNK_BYTES // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, step):
            chunk = batch.slice(start, step)
            yield from self._split_chunk(chunk, first_row + start, find_queue)

    def _split_chunk(
        self, chunk: pa.RecordBatch, first_row: int, find_queue: FindQueue
    ) -> Iterator[RequestRows]:
        options = self._options
        bodies = self._bodies(chunk, first_row)
        lengths = pc.fill_null(pc.binary_length(bodies), 0).to_numpy().astype(np.int64)
        columns = {
            name: chunk.column(position) for name, position in self._positions.items() if name != "body"
        }
        for topic, queue, is_delayed, group in self._groups(columns, lengths, first_row, find_queue):
            for rows, size, longest in _split(group, lengths, options.batch_rows, options.batch_bytes):
                numbers, select = _numbers(rows, first_row), _selection(rows)
                own = {name: select(column) for name, column in columns.items()}
                yield RequestRows(topic, queue, is_delayed, numbers, select(bodies), size, longest, own)

    def _bodies(self, chunk: pa.RecordBatch, first_row: int) -> pa.Array:
        """Return the bodies as an array of bytes. Raises RowNotSent."""
        if self._encoder is None:
            return chunk.column(self._positions["body"]).cast(pa.binary())
        try:
            return pa.array(self._encoder.encode(chunk), pa.binary())
        except EncodingFailed as error:
            cause = error.__cause__ or error
            cause.add_note(str(error))
            row = f"row {first_row + error.row} of the partition"
            raise RowNotSent(row, self._options.topic, cause) from cause

    def _groups(
        self,
        columns: Mapping[str, pa.Array],
        lengths: Ints,
        first_row: int,
        find_queue: FindQueue,
    ) -> Iterable[_Group]:
        """Group the rows of a chunk by topic, queue and whether they are delayed.

        With compression, rows without a queue are also grouped by whether their bodies will be compressed.
        Compressed and plain bodies cannot share a request, so alternating lengths would cause many requests.
        """
        options = self._options
        separates = options.compression != "none" and lengths.max() > options.compress_above_bytes
        long_above = options.compress_above_bytes if separates else lengths.max()
        if (not self._is_grouped and lengths.min() > long_above) or not (self._is_grouped or separates):
            return [_Group(options.topic, None, False, range(len(lengths)))]
        found: dict[tuple[str, MessageQueue | None, bool, bool], list[int]] = {}
        queues: dict[tuple[str, QueueChoice], MessageQueue | None] = {}
        topics: Iterable[str | None] = repeat(options.topic)
        if not options.topic:
            topics = _values(columns, "topic")
        choices, levels = self._queue_choices(columns, first_row), _values(columns, "delayLevel")
        times = _micros(columns)
        for row, (topic, choice, level, micros, length) in enumerate(
            zip(topics, choices, levels, times, lengths.tolist(), strict=False)
        ):
            if topic is None:
                raise RowNotSent(f"row {first_row + row} of the partition", "", TopicInvalid(_NULL_TOPIC))
            target = (topic, choice)
            queue = None
            if choice is not None:
                if target not in queues:
                    queues[target] = find_queue(*target, first_row + row)
                queue = queues[target]
            is_delayed = bool(level) or micros is not None
            key = (topic, queue, is_delayed, queue is None and length > long_above)
            found.setdefault(key, []).append(row)
        return [
            _Group(topic, queue, is_delayed, rows) for (topic, queue, is_delayed, _), rows in found.items()
        ]

    def _queue_choices(self, columns: Mapping[str, pa.Array], first_row: int) -> Iterable[QueueChoice]:
        if "shardingKey" in columns:
            return _values(columns, "shardingKey")
        if "queueId" not in columns:
            return repeat(None)
        pairs = zip(_values(columns, "brokerName"), _values(columns, "queueId"), strict=True)
        return (self._pair(broker, queue_id, row) for row, (broker, queue_id) in enumerate(pairs, first_row))

    def _pair(self, broker: str | None, queue_id: int | None, number: int) -> tuple[str, int] | None:
        if broker is None and queue_id is None:
            return None
        if broker is not None and queue_id is not None and queue_id >= 0:
            return broker, queue_id
        error = MessageInvalid(
            f"brokerName is {broker!r} and queueId {queue_id!r}; a queue needs both, and its id is at least 0"
        )
        raise RowNotSent(f"row {number} of the partition", self._options.topic, error) from error

    # -- messages -----------------------------------------------------------------------------

    def messages(self, request: RequestRows, ids: Ids) -> Sequence[Message]:
        """Return the messages of a request. Raises RowNotSent for an invalid row."""
        if len(request.numbers) > 1 and not request.is_delayed:
            try:
                return self._batch(request, ids)
            except ROW_ERRORS:
                pass  # one by one, so that the error names the invalid row
        return list(self._single_messages(request, ids.prefix))

    def _batch(self, request: RequestRows, ids: Ids) -> MessageColumns | EncodedBatch:
        options, columns = self._options, request.columns
        name = options.row_id_property
        content = (
            np.array(request.numbers, np.int64).tobytes(),
            texts_of(request.bodies),
            texts_of(columns["tags"]) if "tags" in columns else None,
            texts_of(joined_keys(columns["keys"])) if "keys" in columns else None,
            maps_of(columns["properties"]) if "properties" in columns else None,
            pc.fill_null(columns["flag"], 0).to_numpy().astype(np.int32).tobytes()
            if "flag" in columns
            else None,
            (name.encode(), ids.prefix.encode()) if name else None,
        )
        is_compressed = options.compression != "none" and request.longest > options.compress_above_bytes
        if is_compressed or options.body_checksum != "none":
            return message_columns(request.topic, *content)
        unique_ids = ids.new_unique(len(request.numbers))
        body, names = encode_rows("".join(unique_ids).encode(), *content)
        check_properties([name.decode() for name in names])
        return EncodedBatch(request.topic, body, unique_ids, request.longest)

    def _single_messages(self, request: RequestRows, prefix: str) -> Iterator[Message]:
        columns = request.columns
        name = self._options.row_id_property
        number = request.numbers[0]
        try:
            for number, body, tags, keys, given, flag, level, micros in zip(
                request.numbers,
                request.bodies.to_pylist(),
                _values(columns, "tags"),
                _values(columns, "keys"),
                _values(columns, "properties"),
                _values(columns, "flag"),
                _values(columns, "delayLevel"),
                _micros(columns),
                strict=False,
            ):
                properties = {key: value for key, value in given or () if value is not None}
                if (mark := mark_of(body)) is not None:
                    properties[PROPERTY_BODY_MARK] = mark
                if name:
                    properties[name] = f"{prefix}{number}"
                yield Message(
                    request.topic,
                    body or MARKED_BODY,
                    tags=tags,
                    keys=keys or (),
                    deliver_at=None if micros is None else _EPOCH + timedelta(microseconds=micros),
                    delay_level=level or 0,
                    flag=flag or 0,
                    properties=properties,
                )
        except ROW_ERRORS as error:
            raise RowNotSent(f"row {number} of the partition", request.topic, error) from error


def _split(
    rows: Sequence[int], lengths: Ints, most_rows: int, most_bytes: int
) -> Iterator[tuple[Sequence[int], int, int]]:
    """Yield the rows of each request, the bytes of their bodies, and those of the longest.

    A single row may exceed `most_bytes`.
    """
    lengths = lengths[rows]
    start = 0
    while start < len(rows):
        part = lengths[start : start + most_rows]
        if int(part.sum()) + len(part) * _RECORD_OVERHEAD_BYTES > most_bytes:
            ends = np.cumsum(part + _RECORD_OVERHEAD_BYTES)
            part = part[: max(1, int(np.searchsorted(ends, most_bytes, side="right")))]
        yield rows[start : start + len(part)], int(part.sum()), int(part.max())
        start += len(part)


def _numbers(rows: Sequence[int], first_row: int) -> Sequence[int]:
    """Return the numbers of rows in the partition."""
    if _are_consecutive(rows):
        return range(first_row + rows[0], first_row + rows[-1] + 1)
    return [first_row + row for row in rows]


def _selection(rows: Sequence[int]) -> Callable[[pa.Array], pa.Array]:
    """Return a function that selects these rows of a column; if they are consecutive, without a copy."""
    if _are_consecutive(rows):
        start, count = rows[0], len(rows)
        return lambda column: column.slice(start, count)
    indexes = pa.array(rows, pa.int32())
    return lambda column: column.take(indexes)


def _are_consecutive(rows: Sequence[int]) -> bool:
    """Whether no row is missing between the first and the last; the rows ascend."""
    return rows[-1] - rows[0] == len(rows) - 1


def _values(columns: Mapping[str, pa.Array], name: str) -> Iterable[Any]:
    """Return a column as Python values, or None repeatedly if it is missing."""
    column = columns.get(name)
    return repeat(None) if column is None else column.to_pylist()


def _micros(columns: Mapping[str, pa.Array]) -> Iterable[int | None]:
    """Return column `deliverAt` in µs since 1970, as whole numbers: a datetime cannot have every time."""
    column = columns.get("deliverAt")
    if column is None:
        return repeat(None)
    numbers: list[int | None] = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    return numbers
