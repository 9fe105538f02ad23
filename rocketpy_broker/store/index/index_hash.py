"""Hashes of many index keys at a time.

The key of the index is `topic#key`, its hash Java's String.hashCode: a polynomial in 31 over the letters.
In Python, a loop over the characters would be the most expensive part of dispatch. Here one big integer has a
64-bit lane for each key, and one multiplication by 31 advances all lanes. A common prefix is hashed once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import Final

from rocketpy.protocol.java import hash_polynomial, utf8_hash, utf16_units

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
_LENGTH_MAX: Final = 96
_MASK_EVERY: Final = 6
"""A lane below 2**32 stays below 2**64 for so many steps of *31 + 7 bits."""
_POWERS: Final = tuple(pow(31, length, 1 << 32) for length in range(_LENGTH_MAX + 1))


def positive_hash(hash_code: int) -> int:
    """The absolute value of a Java hash code; 0 for the minimum, which has no positive counterpart."""
    return 0 if hash_code == -_SIGN else abs(hash_code)


def key_hashes(topic_hashes: Sequence[int], keys: Sequence[bytes]) -> list[int]:
    """`positive_hash` of `topic#key` for each of many keys.

    topic_hashes: Java's hash of the key's own `topic#`. keys: UTF-8, as many; an empty one gets any hash.
    """
    if not keys:
        return []
    length = max(map(len, keys))
    joined = b"".join(keys)
    if length > _LENGTH_MAX or not joined.isascii():
        return list(map(key_hash, topic_hashes, keys))
    if length * len(keys) == len(joined):
        lanes, shared = _same_length(keys, joined, length)
        first = topic_hashes[0]
        if topic_hashes.count(first) == len(topic_hashes):
            add = first * _POWERS[length] + shared
            codes = [(lane + add) & _MASK for lane in lanes]
        else:
            power = _POWERS[length]
            codes = [
                (lane + topic_hash * power + shared) & _MASK
                for lane, topic_hash in zip(lanes, topic_hashes, strict=True)
            ]
    else:
        # Zeros in front change nothing in the polynomial.
        padded = b"".join(map(bytes.rjust, keys, repeat(length), repeat(b"\0")))
        lanes = _lanes(padded, len(keys), 0, length)
        powers = map(_POWERS.__getitem__, map(len, keys))
        codes = [
            (lane + topic_hash * power) & _MASK
            for lane, topic_hash, power in zip(lanes, topic_hashes, powers, strict=True)
        ]
    return [code if code < _SIGN else -code & 0x7FFFFFFF for code in codes]


def _same_length(keys: Sequence[bytes], joined: bytes, length: int) -> tuple[Sequence[int], int]:
    """The polynomials of the keys without their common prefix, and what the prefix adds to each."""
    low, high = min(keys), max(keys)
    shared = next((place for place in range(length) if low[place] != high[place]), length)
    lanes = _lanes(joined, len(keys), shared, length)
    return lanes, utf8_hash(joined[:shared]) * _POWERS[length - shared]


def _lanes(joined: bytes, count: int, start: int, length: int) -> Sequence[int]:
    """The polynomials over characters `start` to `length` of each of `count` keys; not reduced."""
    spread = bytearray(8 * count)
    total = 0
    mask = _lane_mask(count)
    for position in range(start, length):
        spread[::8] = joined[position::length]
        total = total * 31 + int.from_bytes(spread, "little")
        if (position - start) % _MASK_EVERY == _MASK_EVERY - 1:
            total &= mask
    return struct.unpack(f"<{count}Q", total.to_bytes(8 * count, "little"))


@lru_cache(maxsize=8)
def _lane_mask(count: int) -> int:
    return int.from_bytes(b"\xff\xff\xff\xff\0\0\0\0" * count, "little")


def key_hash(topic_hash: int, key: bytes) -> int:
    """`positive_hash` of `topic#key`. topic_hash: Java's hash of `topic#`. key: in UTF-8.

    The hash of two texts in a row is that of the first, times 31 ** length of the second, plus the second's.
    """
    units = key if key.isascii() else utf16_units(key.decode("utf-8", "replace"))
    length = len(units)
    power = _POWERS[length] if length <= _LENGTH_MAX else pow(31, length, 1 << 32)
    code = (topic_hash * power + hash_polynomial(units)) & _MASK
    return code if code < _SIGN else -code & 0x7FFFFFFF
