"""Reads TAGS, KEYS and UNIQ_KEY from properties.

Messages of one producer usually have the same properties in the same order: a layout. The first message of a
layout is parsed, and a regular expression is built from its property names. Matching it takes a third of the
time of parsing, or a sixth for many messages together. If all values have equal lengths, slicing takes less
than half of that. `tools/bench/codecs.py` measures each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from rocketpy.protocol.message.properties import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY, find

_TAGS: Final = PROPERTY_TAGS.encode()
_KEYS: Final = PROPERTY_KEYS.encode()
_UNIQ: Final = PROPERTY_UNIQ_KEY.encode()
_WANTED: Final = (_TAGS, _KEYS, _UNIQ)
_LAYOUTS_MAX: Final = 8
_NAMES_MAX: Final = 24
_LAYOUTS_BUILT_MAX: Final = 64
"""Maximum number of layouts that are ever built: they are useless if all messages differ."""

_NUL: Final = b"\0"
"""Separates the properties of many records: the store rejects properties that contain it."""


class _Layout(NamedTuple):
    """The regular expression of a layout."""

    match: Callable[[bytes], re.Match[bytes] | None]
    """Matches the properties of one record."""
    wanted: tuple[int, int, int]
    """Numbers of its groups for TAGS, KEYS and UNIQ_KEY."""
    find_all: Callable[[bytes], list[tuple[bytes, ...]]]
    """Returns the groups for the properties of many records, which are separated by NULs."""


class PropertyFields:
    """Reads the fields of many records. Call it with the UTF-8 text of a record's properties."""

    __slots__ = ("_layouts", "_layouts_built")

    def __init__(self) -> None:
        self._layouts: list[_Layout] = []
        self._layouts_built = 0

    def __call__(self, properties: bytes) -> tuple[bytes, bytes, bytes]:
        """Return the values of TAGS, KEYS and UNIQ_KEY; empty when missing."""
        for match, (tags, keys, unique_key), _ in self._layouts:
            found = match(properties)
            if found is not None:
                return found.group(tags, keys, unique_key)  # type: ignore[return-value]
        if self._layouts_built < _LAYOUTS_BUILT_MAX:
            self._build_layout(properties)
        return index_fields(properties)

    def columns(
        self, properties: Sequence[bytes]
    ) -> tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]:
        """Return all values of TAGS, all of KEYS and all of UNIQ_KEY, for one or more records."""
        count = len(properties)
        all_properties = _NUL.join(properties)
        if all_properties.count(_NUL) == count - 1:
            slices = self._common_slices(properties[0], all_properties, count)
            if slices is not None:
                sliced_tags, sliced_keys, sliced_unique_keys = (
                    [text[part] for text in properties] if part.start < part.stop else [b""] * count
                    for part in slices
                )
                return sliced_tags, sliced_keys, sliced_unique_keys
            for layout in self._layouts:
                found = layout.find_all(all_properties)
                if len(found) == count:  # the properties of each record matched completely
                    columns = list(zip(*found, strict=True))
                    tags, keys, unique_key = layout.wanted
                    return columns[tags - 1], columns[keys - 1], columns[unique_key - 1]
                if found:  # several layouts
                    break
        tags_of, keys_of, unique_keys_of = zip(*map(self, properties), strict=True)
        return tags_of, keys_of, unique_keys_of

    def _common_slices(self, first: bytes, all_properties: bytes, count: int) -> list[slice] | None:
        """Return the slices of TAGS, KEYS and UNIQ_KEY; None unless they are the same in all records.

        first: the properties of the first record. all_properties: those of all records, separated by NULs.
        """
        step = len(first) + 1
        if (
            len(all_properties) + 1 != step * count
            or all_properties[step - 1 :: step].count(_NUL) != count - 1
            or all_properties.count(b"\x01") != first.count(b"\x01") * count
            or all_properties.count(b"\x02") != first.count(b"\x02") * count
        ):
            return None
        for match, wanted, _ in self._layouts:
            found = match(first)
            if found is not None:
                if all(all_properties[at::step].count(first[at]) == count for at in _fixed_offsets(first)):
                    return [slice(*found.span(group)) for group in wanted]
                break
        return None

    def _build_layout(self, properties: bytes) -> None:
        """Build the regular expressions for these properties, if they are well-formed."""
        self._layouts_built += 1
        names = [piece.partition(b"\x01")[0] for piece in properties.split(b"\x02")]
        if names.pop() or len(names) > _NAMES_MAX or any(names.count(name) > 1 for name in _WANTED):
            return
        pattern = b"".join(
            re.escape(name) + (b"\x01([^\0\x01\x02]+)\x02" if name in _WANTED else b"\x01[^\0\x01\x02]*\x02")
            for name in names
        )
        wanted = [name for name in names if name in _WANTED]
        # Two empty groups for missing values: findall returns tuples only for several groups.
        tags, keys, unique_key = (
            wanted.index(name) + 1 if name in wanted else len(wanted) + 1 for name in _WANTED
        )
        pattern += b"()()"
        layout = _Layout(
            re.compile(pattern).fullmatch,
            (tags, keys, unique_key),
            re.compile(rb"(?<![^\0])" + pattern + rb"(?![^\0])").findall,
        )
        self._layouts = [layout, *self._layouts[: _LAYOUTS_MAX - 1]]


def _fixed_offsets(properties: bytes) -> Iterator[int]:
    """Yield the positions of names and separators in well-formed properties."""
    start = 0
    for piece in properties.split(b"\x02")[:-1]:
        yield from range(start, start + piece.index(b"\x01") + 1)
        start += len(piece) + 1
        yield start - 1


def index_fields(properties: bytes) -> tuple[bytes, bytes, bytes]:
    """Return TAGS, KEYS and UNIQ_KEY, empty when missing. One pass replaces three calls of `find`."""
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
        if b"\x01" in piece[9:] or len(piece) == 5:  # malformed, so `find` skips this piece
            return (
                find(properties, _TAGS) or b"",
                find(properties, _KEYS) or b"",
                find(properties, _UNIQ) or b"",
            )
    return tags, keys, unique_key
