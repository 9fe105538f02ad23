"""Java's String.hashCode, on which tag filters, index slots and consistent hashing depend."""

from __future__ import annotations

import pytest

from rocketpy.protocol.java import string_hash, tags_code, utf8_hash
from tests.golden_data import vectors


@pytest.mark.parametrize("vector", vectors("hashCodes"), ids=lambda vector: ascii(vector["string"]))
def test_hash_is_javas(vector: dict[str, object]) -> None:
    """QUIRKS 44: a broker of the other kind would filter messages out that the consumer wants."""
    text = str(vector["string"])
    assert string_hash(text) == vector["javaHashCode"] == utf8_hash(text.encode())
    assert tags_code(text) == vector["tagsCode"]


def plain_hash(units: list[int]) -> int:
    total = 0
    for unit in units:
        total = (31 * total + unit) % 2**32
    return total - 2**32 if total >= 2**31 else total


def test_characters_beyond_the_bmp_count_twice() -> None:
    """A key with an emoji in it would not be found in an index that Java wrote."""
    assert string_hash("a\U0001f600") == plain_hash([0x61, 0xD83D, 0xDE00])


def test_long_texts() -> None:
    """A key longer than the table of powers would get a wrong hash."""
    for length in (511, 512, 513, 5000):
        assert string_hash("x" * length) == plain_hash([0x78] * length)
        assert string_hash("\u4e2d" * length) == plain_hash([0x4E2D] * length)
