"""JSON in the dialect of RocketMQ's Java side, fastjson.

fastjson 1.2.61 writes maps with integer keys without quotes and maps with objects as keys (QUIRKS 8)::

    {"brokerAddrs":{0:"127.0.0.1:20010"}}        {{"brokerName":"a","queueId":0,"topic":"T"}:5}

Standard JSON is tried first, since most bodies are standard. A small tolerant parser reads the others: it
also accepts single quotes, bare words as keys, trailing commas, NaN and Infinity. A key that is an object
becomes an `ObjectKey`, which is a hashable dict.

Output is standard JSON with quoted integer keys, which fastjson reads too; only maps with objects as keys are
written in its dialect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from rocketpy.errors import RemoteProtocolError

T = TypeVar("T")

MAX_DEPTH: Final = 32
"""Maximum nesting of objects and arrays in the tolerant parser."""
MAX_TOLERANT_BYTES: Final = 1 << 20
"""Maximum input of the tolerant parser; parsing that much takes up to two seconds in the caller's thread."""

# Possessive quantifiers (*+), and an end for every string, so that no input leads to backtracking.
_INTEGER_KEY: Final = re.compile(
    rb'("[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))|([{,]\s*+)(-?\d++)(\s*+:)',
    re.DOTALL,
)
_SPACE: Final = re.compile(r"\s*")
_STRING: Final = re.compile(r"""\"([^"\\]*+(?:\\.[^"\\]*+)*+)\"|'([^'\\]*+(?:\\.[^'\\]*+)*+)'""", re.DOTALL)
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_WORD: Final = re.compile(r"[-+]?[A-Za-z_$][\w$.]*")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_WORDS: Final = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
    "undefined": None,
}


class ObjectKey(dict[str, Any]):
    """An object as the key of a map. It must not be changed."""

    def __hash__(self) -> int:  # type: ignore[override] # a dict is not hashable, but a key must be
        return hash(frozenset((name, repr(value)) for name, value in self.items()))


def loads(data: bytes) -> Any:
    """Decode JSON; integer keys become strings.

    Raises RemoteProtocolError, with the position, for input that is neither standard JSON nor in
    fastjson's dialect.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError as error:
        raise RemoteProtocolError(f"JSON of {len(data)} bytes is nested too deep") from error
    try:
        return msgspec.json.decode(_INTEGER_KEY.sub(_quote_key, data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Parser(data).whole()


def decode(data: bytes, type_: type[T]) -> T:
    """Decode JSON to `type_`, a msgspec Struct or a container of Structs.

    Numbers may be written as strings, but not the reverse; unknown fields are skipped. Raises
    RemoteProtocolError, which names the invalid field.
    """
    hashable: Any = type_
    decoder: msgspec.json.Decoder[T] | None = _decoder(hashable)
    try:
        if decoder is not None:
            return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _mismatch(type_, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # not standard JSON; try the dialect
    try:
        return msgspec.convert(loads(data), type_, strict=False)
    except msgspec.ValidationError as error:
        raise _mismatch(type_, error) from error


def dumps(value: Any) -> bytes:
    """Encode a value for Java peers; Structs as keys of a map become objects as keys."""
    try:
        return msgspec.json.encode(value)
    except TypeError:
        return b"".join(pieces(value))


@cache
def _decoder(type_: Any) -> Any:
    """Return a decoder; None for a type with Structs as keys, which standard JSON cannot hold."""
    try:
        return msgspec.json.Decoder(type_, strict=False)
    except TypeError:
        return None


def _mismatch(type_: type[Any], error: msgspec.ValidationError) -> RemoteProtocolError:
    return RemoteProtocolError(f"body is not a valid {getattr(type_, '__name__', type_)}: {error}")


def _quote_key(match: re.Match[bytes]) -> bytes:
    string, before, digits, after = match.groups()
    return string if string is not None else b'%b"%b"%b' % (before, digits, after)


def pieces(value: Any) -> Iterator[bytes]:
    """Yield the pieces of what `dumps` returns, for a value that contains maps with Structs as keys."""
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        fields = ((msgspec.json.encode(name), getattr(value, field)) for name, field in names)
        return _members((name, item) for name, item in fields if item is not None)
    if isinstance(value, dict):
        return _members((_key(key), item) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return _items(value)
    return iter((msgspec.json.encode(value),))


def _members(members: Iterable[tuple[bytes, Any]]) -> Iterator[bytes]:
    start = b"{"
    for key, item in members:
        yield start + key + b":"
        try:  # most values contain no such map
            yield msgspec.json.encode(item)
        except TypeError:
            yield from pieces(item)
        start = b","
    yield b"{}" if start == b"{" else b"}"


def _items(items: Iterable[Any]) -> Iterator[bytes]:
    start = b"["
    for item in items:
        yield start
        yield from pieces(item)
        start = b","
    yield b"[]" if start == b"[" else b"]"


def _key(key: Any) -> bytes:
    return msgspec.json.encode(key if isinstance(key, msgspec.Struct | dict) else str(key))


class _Parser:
    """Parses one text in fastjson's dialect."""

    def __init__(self, data: bytes) -> None:
        if len(data) > MAX_TOLERANT_BYTES:
            raise RemoteProtocolError(
                f"{len(data)} bytes are not standard JSON; for fastjson's dialect the limit is "
                f"{MAX_TOLERANT_BYTES} bytes"
            )
        try:
            self.text = data.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"JSON is not UTF-8 at byte {error.start}") from error
        self.at = 0

    def whole(self) -> Any:
        value = self.value(MAX_DEPTH)
        if self.peek():
            raise self.error("unexpected text after the value")
        return value

    def value(self, depth: int) -> Any:
        start = self.peek()
        if start in {"{", "["}:
            if depth == 0:
                raise self.error(f"nested deeper than {MAX_DEPTH}")
            self.at += 1
            return self.object(depth - 1) if start == "{" else self.array(depth - 1)
        if start in {'"', "'"}:
            return self.string()
        return self.scalar()

    def object(self, depth: int) -> dict[Any, Any]:
        members = {}
        while not self.take("}"):
            key = self.key(depth)
            if not self.take(":"):
                raise self.error("expected ':'")
            members[key] = self.value(depth)
            if not self.take(",") and self.peek() != "}":
                raise self.error("expected ',' or '}'")
        return members

    def array(self, depth: int) -> list[Any]:
        items = []
        while not self.take("]"):
            items.append(self.value(depth))
            if not self.take(",") and self.peek() != "]":
                raise self.error("expected ',' or ']'")
        return items

    def key(self, depth: int) -> str | ObjectKey:
        start = self.peek()
        if start in {'"', "'"}:
            return self.string()
        if start == "{":
            return ObjectKey(self.value(depth))
        match = _NUMBER.match(self.text, self.at) or _WORD.match(self.text, self.at)
        if match is None:
            raise self.error("expected a key")
        self.at = match.end()
        return match.group()

    def string(self) -> str:
        match = _STRING.match(self.text, self.at)
        if match is None:
            raise self.error("unterminated string")
        self.at = match.end()
        text = match[1] if match[1] is not None else match[2]
        return _unescape(text) if "\\" in text else text

    def scalar(self) -> Any:
        match = _WORD.match(self.text, self.at)
        if match is not None and match.group() in _WORDS:
            self.at = match.end()
            return _WORDS[match.group()]
        match = _NUMBER.match(self.text, self.at)
        if match is None:
            raise self.error("expected a value")
        self.at = match.end()
        try:
            return float(match.group()) if match[1] or match[2] else int(match.group())
        except ValueError as error:
            raise self.error("number with too many digits") from error

    def peek(self) -> str:
        """Return the next character that is not a space; empty at the end."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def take(self, character: str) -> bool:
        found = self.peek() == character
        self.at += found
        return found

    def error(self, what: str) -> RemoteProtocolError:
        near = self.text[self.at : self.at + 20]
        return RemoteProtocolError(f"JSON of {len(self.text)} characters: {what} at {self.at}: {near!r}")


def _unescape(text: str) -> str:
    text = _ESCAPE.sub(_character, text)
    if _SURROGATE.search(text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _character(match: re.Match[str]) -> str:
    escape = match[1]
    return chr(int(escape[1:], 16)) if len(escape) > 1 else _ESCAPED.get(escape, escape)
