"""Computes the hashes of many index keys together.

The key of the index is `topic#key`. Its hash is Java's String.hashCode, a polynomial in 31 over the
characters. In Python, a loop over the characters would be the most expensive part of dispatch. Here one big
integer has a 64-bit lane for each key, and one multiplication by 31 advances all lanes. A common prefix is
hashed once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import Final

from rocketpy.native import has_native_form
from rocketpy.protocol.java import hash_polynomial, utf8_hash, utf16_units

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
_LENGTH_MAX: Final = 96
_MASK_EVERY: Final = 6
"""Number of steps (times 31, plus 7 bits) after which a lane that was below 2**32 is still below 2**64."""
_POWERS: Final = tuple(pow(31, length, 1 << 32) for length in range(_LENGTH_MAX + 1))


def positive_hash(hash_code: int) -> int:
    """Return the absolute value of a Java hash code; 0 for the minimum, which has no positive counterpart."""
    return 0 if hash_code == -_SIGN else abs(hash_code)


@has_native_form
def key_hashes(topic_hashes: Sequence[int], keys: Sequence[bytes]) -> list[int]:
    """Return the `positive_hash` of `topic#key` for each of many keys.

    topic_hashes: Java's hash of `topic#` for each key. keys: UTF-8; the hash of an empty key is unspecified.
    """
    if not keys:
        return []
    length = max(map(len, keys))
    all_keys = b"".join(keys)
    if length > _LENGTH_MAX or not all_keys.isascii():
        return list(map(key_hash, topic_hashes, keys))
    if length * len(keys) == len(all_keys):
        lanes, shared = _same_length(keys, all_keys, length)
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
        # Leading zeros do not change the polynomial.
        padded = b"".join(map(bytes.rjust, keys, repeat(length), repeat(b"\0")))
        lanes = _lanes(padded, len(keys), 0, length)
        powers = map(_POWERS.__getitem__, map(len, keys))
        codes = [
            (lane + topic_hash * power) & _MASK
            for lane, topic_hash, power in zip(lanes, topic_hashes, powers, strict=True)
        ]
    return [code if code < _SIGN else -code & 0x7FFFFFFF for code in codes]


def _same_length(keys: Sequence[bytes], all_keys: bytes, length: int) -> tuple[Sequence[int], int]:
    """Return the polynomials of the keys without their common prefix, and the prefix's part of each hash."""
    low, high = min(keys), max(keys)
    shared = next((index for index in range(length) if low[index] != high[index]), length)
    lanes = _lanes(all_keys, len(keys), shared, length)
    return lanes, utf8_hash(all_keys[:shared]) * _POWERS[length - shared]


def _lanes(all_keys: bytes, count: int, start: int, length: int) -> Sequence[int]:
    """Return the polynomial of characters `start` to `length` of each key, not reduced to 32 bits."""
    spread = bytearray(8 * count)
    total = 0
    mask = _lane_mask(count)
    for position in range(start, length):
        spread[::8] = all_keys[position::length]
        total = total * 31 + int.from_bytes(spread, "little")
        if (position - start) % _MASK_EVERY == _MASK_EVERY - 1:
            total &= mask
    return struct.unpack(f"<{count}Q", total.to_bytes(8 * count, "little"))


@lru_cache(maxsize=8)
def _lane_mask(count: int) -> int:
    return int.from_bytes(b"\xff\xff\xff\xff\0\0\0\0" * count, "little")


def key_hash(topic_hash: int, key: bytes) -> int:
    """Return the `positive_hash` of `topic#key`. topic_hash: Java's hash of `topic#`. key: in UTF-8.

    The hash of a + b is hash(a) * 31 ** len(b) + hash(b).
    """
    units = key if key.isascii() else utf16_units(key.decode("utf-8", "replace"))
    length = len(units)
    power = _POWERS[length] if length <= _LENGTH_MAX else pow(31, length, 1 << 32)
    code = (topic_hash * power + hash_polynomial(units)) & _MASK
    return code if code < _SIGN else -code & 0x7FFFFFFF
