"""The bodies of messages: encodes rows, and marks null and empty bodies.

RocketMQ's clients refuse to send an empty body. So a row with a null or empty body, such as a tombstone,
becomes a message with a body of one zero byte. Its property `SPARK_BODY` is `null` or `empty`. The source
restores the null or empty body.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from rocketpy import RocketError
from rocketpy.errors import ConfigInvalid

PROPERTY_BODY_MARK: Final = "SPARK_BODY"
MARKED_BODY: Final = b"\0"
ROW_ERRORS: Final = (RocketError, TypeError, ValueError, OverflowError)
"""Errors for a row that cannot become a message."""

_NULL: Final = "null"
_EMPTY: Final = "empty"
_ENCODERS: Final[Mapping[str, Callable[[object], bytes]]] = {
    "json": msgspec.json.Encoder().encode,
    "msgpack": msgspec.msgpack.Encoder().encode,
}
_UNSUPPORTED: Final = re.compile(
    r"map<(?:struct|array|map)<|\binterval(?! day| hour| minute| second|:)|\bvariant\b(?!:)"
)
"""Matches names of types that a body cannot contain: maps with struct, array or map keys; intervals with
months; variants. A name before a colon is a field name."""


def mark_of(body: bytes | None) -> str | None:
    """Return `null` or `empty` for such a body, None for any other."""
    if body is None:
        return _NULL
    return None if body else _EMPTY


def unmarked(body: bytes, mark: str | None) -> bytes | None:
    """Return the body that the row had before it was marked. mark: the property `SPARK_BODY`, if any."""
    if mark is None or body != MARKED_BODY:
        return body
    return {_NULL: None, _EMPTY: b""}.get(mark, body)


class BodyEncoder:
    """Encodes columns of a frame as bodies: a JSON object or a MessagePack map for each row.

    fields: position, name and type (`simpleString`) of each column. format_: `json` or `msgpack`. Raises
    ConfigInvalid for a column that a body cannot contain.
    """

    def __init__(self, fields: Sequence[tuple[int, str, str]], format_: str) -> None:
        self._fields = [(position, name) for position, name, _ in fields]
        self._format = format_
        if not fields:
            raise ConfigInvalid(
                f"no columns remain for the body with format {format_}; add one, or set option format to raw"
            )
        names: set[str] = set()
        for _, name, type_name in fields:
            if name in names:
                raise ConfigInvalid(
                    f"two columns are called {name!r}, but a body can contain only one; rename or drop one"
                )
            names.add(name)
            if _UNSUPPORTED.search(type_name):
                raise ConfigInvalid(
                    f"column {name!r} is {type_name}, which format {format_} cannot contain; cast or drop it"
                )

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return the bodies of all rows. Raises EncodingFailed."""
        encode = _ENCODERS[self._format]
        bodies: list[bytes] = []
        try:
            names = [name for _, name in self._fields]
            columns = [_plain(batch.column(position)) for position, _ in self._fields]
            for row in zip(*columns, strict=True):
                bodies.append(encode(dict(zip(names, row, strict=True))))  # noqa: PERF401 - counts the rows
        except ROW_ERRORS as error:
            raise EncodingFailed(len(bodies), self._bad_column(batch, len(bodies))) from error
        return bodies

    def _bad_column(self, batch: pa.RecordBatch, row: int) -> str:
        """Return the name of the column whose value in a row cannot be encoded."""
        encode = _ENCODERS[self._format]
        for position, name in self._fields:
            try:
                encode(next(iter(_plain(batch.column(position).slice(row, 1)))))
            except ROW_ERRORS:
                return name
        return ""


class EncodingFailed(ValueError):
    """A row cannot be encoded. row: its index in the batch. `__cause__`: the error of the conversion."""

    def __init__(self, row: int, column: str) -> None:
        super().__init__(f"column {column!r} cannot be encoded")
        self.row = row


def _plain(column: pa.Array) -> Iterable[Any]:
    """Return a column's values, with maps at any depth as dicts."""
    convert = _converter(column.type)
    try:
        values: list[Any] = column.to_pylist()
        return values if convert is None else [convert(value) for value in values]
    except ROW_ERRORS:
        # Convert values one by one, so that the error names the invalid row.
        return _one_by_one(column, convert)


def _one_by_one(column: pa.Array, convert: Callable[[Any], Any] | None) -> Iterator[Any]:
    for value in column:
        yield value.as_py() if convert is None else convert(value.as_py())


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
