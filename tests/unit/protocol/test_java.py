"""Java's String.hashCode, on which tag filters, index slots and consistent hashing depend."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import characters, integers, sets, text

from rocketpy.protocol.java import string_hash, string_hashes, tags_code, trim, utf8_hash
from tests.golden_data import vectors


@pytest.mark.parametrize("vector", vectors("hashCodes"), ids=lambda vector: ascii(vector["string"]))
def test_hash_is_javas(vector: dict[str, object]) -> None:
    """QUIRKS 44: a broker of the other kind would filter messages out that the consumer wants."""
    string = str(vector["string"])
    assert string_hash(string) == vector["javaHashCode"] == utf8_hash(string.encode())
    assert tags_code(string) == vector["tagsCode"]


def plain_hash(units: list[int]) -> int:
    total = 0
    for unit in units:
        total = (31 * total + unit) % 2**32
    return total - 2**32 if total >= 2**31 else total


def test_characters_beyond_the_bmp_count_twice() -> None:
    """A key with an emoji in it would not be found in an index that Java wrote."""
    assert string_hash("a\U0001f600") == plain_hash([0x61, 0xD83D, 0xDE00])


def test_short_texts() -> None:
    """A key of some length, or with high characters in it, would not be found."""
    for length in range(40):
        for units in ([0x7F] * length, [(7 * place + length) % 128 for place in range(length)]):
            assert utf8_hash(bytes(units)) == plain_hash(units)


def test_long_texts() -> None:
    """A key longer than the table of powers would get a wrong hash."""
    for length in (511, 512, 513, 5000):
        assert string_hash("x" * length) == plain_hash([0x78] * length)
        assert string_hash("\u4e2d" * length) == plain_hash([0x4E2D] * length)


@given(sets(text(alphabet=characters(codec="utf-8"), max_size=40)), integers(0, 300), integers(0, 40))
def test_many_texts_have_the_hashes_of_each(texts: set[str], count: int, length: int) -> None:
    """A subscription to many tags would match other messages than one to few."""
    together = {f"{number:0{length}d}" for number in range(count)}
    assert string_hashes(texts | together) == set(map(string_hash, texts | together))


@pytest.mark.parametrize("character", [*map(chr, range(0x100)), *"\u1680\u2003\u2028\u3000\ufeff"])
def test_trim_removes_what_java_removes(character: str) -> None:
    """A tag or a setting would lose characters that belong to it, or keep those that do not."""
    text = f"{character}a{character}b{character}"
    assert trim(text) == (f"a{character}b" if character <= " " else text)
