"""Messages in columns: the same on the wire as one by one, and no less checked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpy import Message, MessageColumns
from rocketpy.errors import MessageInvalid, TopicInvalid
from rocketpy.producer.send.request_template import properties_text

BODIES = [b"one", b"two"]

texts = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20
).filter(lambda text: not text.isspace())
optional = st.none() | texts.filter(lambda text: " " not in text and "||" not in text)
flags = st.integers(-(2**31), 2**31 - 1)
rows = st.lists(
    st.tuples(st.binary(min_size=1, max_size=9), optional, optional, texts, st.none() | texts, flags),
    min_size=1,
)


@given(rows)
def test_columns_have_the_properties_of_their_messages(given_rows: list[Any]) -> None:
    """A tag, key or property would be lost, or stand with another message."""
    bodies, tags, keys, shops, percents, numbers = map(list, zip(*given_rows, strict=True))
    columns = MessageColumns(
        "T", bodies, tags=tags, keys=keys, properties={"shop": shops, "100%s": percents}, flags=numbers
    )
    singles = [
        Message(
            "T",
            body,
            tags=tag,
            keys=key or (),
            properties={"shop": shop} | ({"100%s": percent} if percent is not None else {}),
            flag=flag,
        )
        for body, tag, key, shop, percent, flag in given_rows
    ]
    assert list(columns) == singles
    assert list(columns[1:]) == singles[1:]
    ids = [f"ID{number}" for number in range(len(bodies))]
    for checksum in ("", "crc-32c"):
        expected = [
            properties_text(message, one, checksum).encode()
            for message, one in zip(singles, ids, strict=True)
        ]
        assert columns.property_texts(ids, checksum) == expected
        assert columns[1:].property_texts(ids[1:], checksum) == expected[1:]


@pytest.mark.parametrize(
    ("bodies", "columns", "words"),
    [
        ([b"x", b""], {}, "body is empty"),
        ([b"x", None], {}, "body is empty"),
        ([b"x", "text"], {}, "is not bytes"),
        (BODIES, {"tags": ["a"]}, "tags has 1 values for 2 bodies"),
        (BODIES, {"tags": ["a", " "]}, "tags is ' '"),
        (BODIES, {"keys": ["a", "b\x01c"]}, "separate properties"),
        (BODIES, {"properties": {"a": ["x", ""]}}, "a is ''"),
        (BODIES, {"properties": {"a": ["x", "\n "]}}, "a is"),
        (BODIES, {"flags": [1]}, "flags has 1 values for 2 bodies"),
        (BODIES, {"flags": [1, 2**31]}, "flag is 2147483648"),
        (BODIES, {"flags": [1, None]}, "flag is None"),
        (BODIES, {"properties": {"a": ["x", "\ud800"]}}, "not valid Unicode"),
        (BODIES, {"properties": {"KEYS": ["x", "y"]}}, "reserved"),
    ],
)
def test_invalid_values_are_rejected(bodies: list[Any], columns: dict[str, Any], words: str) -> None:
    """One bad value would make a broker refuse the batch, or readers see other properties."""
    with pytest.raises(MessageInvalid, match=words):
        MessageColumns("T", bodies, **columns)


def test_the_topic_is_checked_even_without_messages() -> None:
    """An invalid name would be reported only when the first message arrives."""
    assert len(MessageColumns("T", [])) == 0
    with pytest.raises(TopicInvalid):
        MessageColumns("no topic", [])


@pytest.mark.parametrize(
    ("tags", "words"),
    [(["a", "b||c"], "one tag"), (["a ", "b"], "spaces at its ends"), (["a", " b"], "spaces at its ends")],
)
def test_tags_that_no_subscription_can_name_are_rejected(tags: list[str], words: str) -> None:
    """No consumer could select the message by its tag."""
    with pytest.raises(MessageInvalid, match=words):
        MessageColumns("T", [b"x", b"y"], tags=tags)


def test_tags_are_not_joined_for_the_check() -> None:
    """Two valid tags would be taken for an invalid one."""
    tags = ["a|", "|b", "c d", ""]
    assert MessageColumns("T", [b"x"] * 4, tags=tags).tags == tags
