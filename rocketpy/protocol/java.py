"""Java's hash of strings, which RocketMQ's formats depend on."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, repeat
from operator import mul
from struct import unpack
from typing import Final

_TABLE_LENGTH: Final = 512
_POWERS: Final = tuple(
    accumulate(repeat(31, _TABLE_LENGTH - 1), lambda power, base: power * base & 0xFFFFFFFF, initial=1)
)
"""31**k modulo 2**32, by k."""


def string_hash(text: str) -> int:
    """Return Java's ``String.hashCode`` of a string, a signed 32-bit number.

    It runs over UTF-16 units, so a character beyond the BMP counts as two.
    """
    if text.isascii():
        return _hash_of(text.encode())
    units = text.encode("utf-16-be", "surrogatepass")
    return _hash_of(unpack(f">{len(units) // 2}H", units))


def utf8_hash(data: bytes) -> int:
    """Return `string_hash` of UTF-8 bytes; malformed bytes become U+FFFD, as in Java."""
    return _hash_of(data) if data.isascii() else string_hash(data.decode("utf-8", "replace"))


@lru_cache(maxsize=4096)
def tags_code(tags: str) -> int:
    """Return the hash of tags in a consume queue entry (QUIRKS 44), 0 for no tags.

    Cached, since a topic has few tags.
    """
    return string_hash(tags)


def _hash_of(units: bytes | tuple[int, ...]) -> int:
    total = 0
    if len(units) <= _TABLE_LENGTH:
        total = sum(map(mul, reversed(units), _POWERS))
    else:
        for unit in units:
            total = (total * 31 + unit) & 0xFFFFFFFF
    return ((total + 0x80000000) & 0xFFFFFFFF) - 0x80000000
