"""Computes the hashes of many index keys together.

The key of the index is `topic#key`. Its hash is Java's String.hashCode, a polynomial in 31 over the
characters. In Python, hashing key by key takes four times as long (`tools.bench.codecs`), and an append in
process a tenth longer (`tools.bench.store`). Here one big integer has a 64-bit lane for each key, and one
multiplication by 31 advances all lanes. A common prefix is hashed once.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from rocketpy.native import has_native_form
from rocketpy.protocol.java import hash_polynomial, utf8_hash, utf16_units

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
_LENGTH_MAX: Final = 96
_MASK_EVERY: Final = 6
"""Number of steps (times 31, plus 7 bits) after which a lane that was below 2**32 is still below 2**64."""
_TOGETHER_MIN: Final = 6
"""Below this number of keys of one length, hashing them one by one is faster."""
_POWERS: Final = tuple(pow(31, length, 1 << 32) for length in range(_LENGTH_MAX + 1))


def positive_hash(hash_code: int) -> int:
    """Return the absolute value of a Java hash code; 0 for the minimum, which has no positive counterpart."""
    return 0 if hash_code == -_SIGN else abs(hash_code)


def key_hashes(topic_hashes: Sequence[int], keys: Sequence[bytes]) -> list[int]:
    """Return the `positive_hash` of `topic#key` for each of many keys.

    topic_hashes: Java's hash of `topic#` for each key. keys: UTF-8; not empty.
    """
    if len(keys) < _TOGETHER_MIN:
        return list(map(key_hash, topic_hashes, keys))
    hashes = [0] * len(keys)
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for place, length in enumerate(map(len, keys)):
        by_length[length].append(place)
    for length, places in by_length.items():
        some = [keys[place] for place in places]
        if len(some) < _TOGETHER_MIN or length > _LENGTH_MAX or not b"".join(some).isascii():
            for place, key in zip(places, some, strict=True):
                hashes[place] = key_hash(topic_hashes[place], key)
            continue
        power = _POWERS[length]
        for place, lane in zip(places, _lanes(some, length), strict=True):
            code = (lane + topic_hashes[place] * power) & _MASK
            hashes[place] = code if code < _SIGN else -code & 0x7FFFFFFF
    return hashes


def _lanes(keys: Sequence[bytes], length: int) -> Sequence[int]:
    """Return the polynomials of ASCII keys of one length, not reduced to 32 bits."""
    low, high = min(keys), max(keys)
    shared = next((index for index in range(length) if low[index] != high[index]), length)
    count, all_keys = len(keys), b"".join(keys)
    spread, mask = bytearray(8 * count), _lane_mask(count)
    total = int.from_bytes((hash_polynomial(low[:shared]) & _MASK).to_bytes(8, "little") * count, "little")
    for position in range(shared, length):
        spread[::8] = all_keys[position::length]
        total = total * 31 + int.from_bytes(spread, "little")
        if (position - shared) % _MASK_EVERY == _MASK_EVERY - 1:
            total &= mask
    return struct.unpack(f"<{count}Q", total.to_bytes(8 * count, "little"))


@lru_cache(maxsize=8)
def _lane_mask(count: int) -> int:
    return int.from_bytes(b"\xff\xff\xff\xff\0\0\0\0" * count, "little")


@has_native_form
def index_hash(topic: bytes, key: bytes) -> int:
    """Return the `positive_hash` of `topic#key`, for a look-up. topic, key: in UTF-8."""
    return key_hash(utf8_hash(topic + b"#"), key)


def key_hash(topic_hash: int, key: bytes) -> int:
    """Return the `positive_hash` of `topic#key`. topic_hash: Java's hash of `topic#`. key: in UTF-8.

    The hash of a + b is hash(a) * 31 ** len(b) + hash(b).
    """
    units = key if key.isascii() else utf16_units(key.decode("utf-8", "replace"))
    length = len(units)
    power = _POWERS[length] if length <= _LENGTH_MAX else pow(31, length, 1 << 32)
    code = (topic_hash * power + hash_polynomial(units)) & _MASK
    return code if code < _SIGN else -code & 0x7FFFFFFF
