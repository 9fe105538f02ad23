"""Java's operations on strings that RocketMQ's formats depend on: hash and trim.

The consume queues hold the hashes of tags, the index those of keys, and `by_hash` chooses queues by them. A
hash unlike Java's would hide messages from its consumers, and send equal keys to different queues.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from itertools import accumulate, groupby, repeat
from operator import mul
from struct import iter_unpack, unpack
from typing import Final

_TABLE_LENGTH: Final = 512
_POWERS: Final = tuple(
    accumulate(repeat(31, _TABLE_LENGTH - 1), lambda power, base: power * base & 0xFFFFFFFF, initial=1)
)
"""31**k modulo 2**32, by k."""
_SHORT_LENGTH: Final = 32
"""Length of the longest text that `hash_polynomial` takes as one number."""
_STEP_1, _STEP_2, _STEP_4, _STEP_8, _STEP_16 = (256**count - 31**count for count in (1, 2, 4, 8, 16))
_LANES_1, _LANES_2, _LANES_4, _LANES_8 = (
    int.from_bytes((bytes(count) + b"\xff" * count) * (16 // count), "big") for count in (1, 2, 4, 8)
)
"""Masks that select the lower half of each lane: 1, 2, 4 or 8 bytes of a lane of 2, 4, 8 or 16."""
_TRIMMED: Final = "".join(map(chr, range(0x21)))
_BULK_MIN: Final = 16
"""Below this number of strings of one length, hashing them one by one is faster."""
_LANE_MASK: Final = b"\xff\xff\xff\xff\0"


def trim(text: str) -> str:
    """Return Java's ``String.trim``: the text without the characters up to U+0020 at both ends.

    `str.strip` also removes characters that Java keeps, such as U+00A0 and U+3000.
    """
    return text.strip(_TRIMMED)


def string_hash(text: str) -> int:
    """Return Java's ``String.hashCode`` of a string, a signed 32-bit number.

    It runs over UTF-16 units, so a character beyond the BMP counts as two.
    """
    return _signed(hash_polynomial(text.encode() if text.isascii() else utf16_units(text)))


def string_hashes(texts: Collection[str]) -> set[int]:
    """Return `string_hash` of many strings. 64 strings take 40 % of the time (tools/bench/codecs.py).

    The strings of one length are hashed together. A lane of 40 bits in one large number holds the hash of
    each string, and each step adds the next character of all strings.
    """
    hashes = {string_hash(text) for text in texts if not text.isascii()}
    for length, group in groupby(sorted(filter(str.isascii, texts), key=len), len):
        strings = list(group)
        count = len(strings)
        if count < _BULK_MIN:
            hashes.update(map(string_hash, strings))
            continue
        characters = "".join(strings).encode()
        lanes, mask, total = bytearray(5 * count), int.from_bytes(_LANE_MASK * count, "little"), 0
        for position in range(length):
            lanes[::5] = characters[position::length]
            total = (total * 31 & mask) + int.from_bytes(lanes, "little")
        lanes[:] = (total & mask).to_bytes(5 * count, "little")
        hashes.update(code for (code,) in iter_unpack("<ix", lanes))
    return hashes


def utf8_hash(data: bytes) -> int:
    """Return `string_hash` of UTF-8 bytes; malformed bytes become U+FFFD, as in Java."""
    return _signed(hash_polynomial(data if data.isascii() else utf16_units(data.decode("utf-8", "replace"))))


@lru_cache(maxsize=4096)
def tags_code(tags: str) -> int:
    """Return the hash of tags in a unit of a consume queue (QUIRKS 44), 0 for no tags.

    Cached, since a topic has few tags.
    """
    return string_hash(tags)


def utf16_units(text: str) -> tuple[int, ...]:
    """Return the UTF-16 units of a string, which its hash runs over."""
    units = text.encode("utf-16-be", "surrogatepass")
    return unpack(f">{len(units) // 2}H", units)


def hash_polynomial(units: bytes | tuple[int, ...]) -> int:
    """Return a number whose lowest 32 bits are the hash of ASCII characters, or of UTF-16 units.

    Up to 32 ASCII characters take half the time of a sum (tools/bench/codecs.py). The bytes are lanes of one
    number, and each step joins two neighbours to a lane of twice the width. `high * 2**width + low` minus
    `high * (2**width - 31**count)` is `high * 31**count + low`, where `low` has `count` characters.
    """
    if len(units) <= _SHORT_LENGTH and isinstance(units, bytes):
        total = int.from_bytes(units, "big")
        total -= _STEP_1 * (total >> 8 & _LANES_1)
        total -= _STEP_2 * (total >> 16 & _LANES_2)
        total -= _STEP_4 * (total >> 32 & _LANES_4)
        total -= _STEP_8 * (total >> 64 & _LANES_8)
        return total - _STEP_16 * (total >> 128)
    if len(units) <= _TABLE_LENGTH:
        return sum(map(mul, reversed(units), _POWERS))
    total = 0
    for unit in units:
        total = (total * 31 + unit) & 0xFFFFFFFF
    return total


def _signed(number: int) -> int:
    return ((number + 0x80000000) & 0xFFFFFFFF) - 0x80000000
