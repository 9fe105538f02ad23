"""Reads a file of JSON lines for the demo: the lines to send, and the lines that cannot be sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["MAX_BODY_BYTES", "Line", "Lines", "read_lines"]

MAX_BODY_BYTES = 4 * 1024 * 1024 - 4096
"""Brokers accept messages of 4 MiB by default, including topic, tags and keys."""

TAG_FIELDS = ("type", "event", "event_type", "kind")
"""The first of these fields that an event has becomes its tag, by which consumers can filter."""
KEY_FIELDS = ("id", "uuid", "key", "order_id", "user_id", "sku")
"""Each of these fields that an event has becomes a key, by which the message can be looked up."""
LONGEST_NAME = 100
"""Maximum length of a tag or key; longer values are cut."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line to send. number: in the file, from 1. body: the line without surrounding whitespace."""

    number: int
    body: bytes
    tags: str | None = None
    keys: tuple[str, ...] = ()


@dataclass(slots=True)
class Lines:
    """The lines of a file. refused: the number of each line that cannot be sent, and the reason."""

    good: list[Line] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)


def read_lines(path: Path) -> Lines:
    """Read a file; blank lines are skipped. Raises OSError when it cannot be read."""
    lines = Lines()
    with path.open("rb") as file:
        for number, (body, size) in enumerate(_pieces(file), start=1):
            if size > MAX_BODY_BYTES:
                reason = f"{size:,} bytes; a message may have {MAX_BODY_BYTES:,}"
                lines.refused.append((number, reason))
            elif body:
                _add(lines, number, body)
    return lines


def _pieces(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield each line without surrounding whitespace, and its size in bytes.

    Only the beginning of a line that is too long is kept.
    """
    while line := file.readline(MAX_BODY_BYTES + 2):
        end, too_much = line, 0
        while not end.endswith(b"\n") and (end := file.readline(1 << 20)):
            too_much += len(end)
        body = line.strip()
        yield body, len(body) + too_much


def _add(lines: Lines, number: int, body: bytes) -> None:
    try:
        event = json.loads(body)
    except json.JSONDecodeError as error:
        lines.refused.append((number, f"not JSON: {error.msg} at column {error.colno}"))
    except (ValueError, RecursionError) as error:  # not UTF-8, or nested too deeply
        lines.refused.append((number, f"not JSON: {error}"))
    else:
        fields = event if isinstance(event, dict) else {}
        lines.good.append(Line(number, body, _tag(fields), _keys(fields)))


def _tag(event: dict[str, Any]) -> str | None:
    return next(filter(None, (_name(event.get(field)) for field in TAG_FIELDS)), None)


def _keys(event: dict[str, Any]) -> tuple[str, ...]:
    names = (_name(event.get(field)) for field in KEY_FIELDS)
    return tuple(dict.fromkeys(name for name in names if name))


def _name(value: object) -> str:
    """Return a text or number as a tag or key; empty for any other value.

    RocketMQ's separators (spaces, U+0001, U+0002) and other unprintable characters become underscores.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return "".join(c if c.isprintable() and c != " " else "_" for c in str(value)[:LONGEST_NAME])
