"""TAGS, KEYS and UNIQ_KEY out of a record's properties, once a message.

Messages of one producer have the same properties in the same order. The first of a kind is taken apart with
care, and a pattern made of its names; the next ones only have to match it, in a third of the time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from rocketpy.protocol.properties import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY, find

__all__ = ["PropertyFields", "index_fields"]

_TAGS: Final = PROPERTY_TAGS.encode()
_KEYS: Final = PROPERTY_KEYS.encode()
_UNIQ: Final = PROPERTY_UNIQ_KEY.encode()
_WANTED: Final = (_TAGS, _KEYS, _UNIQ)
_LAYOUTS_MAX: Final = 8
_NAMES_MAX: Final = 24
_LEARN_MAX: Final = 64
"""So many layouts are tried out; a topic whose messages are all different is not worth more."""

Match = Callable[[bytes], "re.Match[bytes] | None"]


class PropertyFields:
    """Reads the fields of many records. Call it with the properties' text in UTF-8."""

    __slots__ = ("_layouts", "_learned")

    def __init__(self) -> None:
        self._layouts: list[tuple[Match, tuple[int, int, int]]] = []
        self._learned = 0

    def __call__(self, properties: bytes) -> tuple[bytes, bytes, bytes]:
        """The values of TAGS, KEYS and UNIQ_KEY, empty when missing."""
        for match, (tags, keys, unique_key) in self._layouts:
            found = match(properties)
            if found is not None:
                return found.group(tags, keys, unique_key)  # type: ignore[return-value]
        if self._learned < _LEARN_MAX:
            self._learn(properties)
        return index_fields(properties)

    def _learn(self, properties: bytes) -> None:
        """Make a pattern of these names, if they are as they should be."""
        self._learned += 1
        names = [piece.partition(b"\x01")[0] for piece in properties.split(b"\x02")]
        if names.pop() or len(names) > _NAMES_MAX or any(names.count(name) > 1 for name in _WANTED):
            return
        pattern = b"".join(
            re.escape(name) + (b"\x01([^\x01\x02]+)\x02" if name in _WANTED else b"\x01[^\x01\x02]*\x02")
            for name in names
        )
        wanted = [name for name in names if name in _WANTED]
        # The last group is empty, for what is missing.
        tags, keys, unique_key = (
            wanted.index(name) + 1 if name in wanted else len(wanted) + 1 for name in _WANTED
        )
        layout = (re.compile(pattern + b"()").fullmatch, (tags, keys, unique_key))
        self._layouts = [layout, *self._layouts[: _LAYOUTS_MAX - 1]]


def index_fields(properties: bytes) -> tuple[bytes, bytes, bytes]:
    """The values of TAGS, KEYS and UNIQ_KEY, empty when missing: `properties.find` thrice in one pass."""
    tags = keys = unique_key = b""
    for piece in properties.split(b"\x02"):
        name = piece[:5]
        if name == b"TAGS\x01":
            tags = piece[5:]
        elif name == b"KEYS\x01":
            keys = piece[5:]
        elif name == b"UNIQ_" and piece.startswith(b"UNIQ_KEY\x01"):
            unique_key = piece[9:]
        else:
            continue
        if b"\x01" in piece[9:] or len(piece) == 5:  # malformed: such a piece does not count
            return (
                find(properties, _TAGS) or b"",
                find(properties, _KEYS) or b"",
                find(properties, _UNIQ) or b"",
            )
    return tags, keys, unique_key
