"""Properties: written as Java writes them, read as Java reads them."""

from __future__ import annotations

from typing import Any

import pytest

from rocketpy.errors import MessageInvalid
from rocketpy.protocol.message import properties
from tests.golden_data import vectors


@pytest.mark.parametrize("vector", vectors("messageProperties2String"))
def test_written_as_java_writes(vector: dict[str, object]) -> None:
    """QUIRKS 21: brokers and filters would see other properties than the sender set."""
    given, order = vector["properties"], vector["order"]
    assert isinstance(given, dict)
    assert isinstance(order, list)
    text = properties.encode({name: given[name] for name in order})
    assert text == vector["string"]
    assert text.encode().hex() == vector["hexUtf8"]


@pytest.mark.parametrize("vector", vectors("string2messageProperties"))
def test_read_as_java_reads(vector: dict[str, Any]) -> None:
    """QUIRKS 21: a consumer would get properties that a Java consumer of the same message does not get."""
    assert properties.decode(vector["string"]) == vector["properties"]
    assert properties.decode(bytes.fromhex(vector["hexUtf8"])) == vector["properties"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x01b\x01\x02", {"a": "b"}),
        ("a\x01b\x01c\x02d\x01e\x02", {"d": "e"}),
        ("\x01b\x02", {"": "b"}),
        ("a\x01\x01b\x02", {}),
        ("a\x01b\x02a\x01c\x02", {"a": "c"}),
        ("a\x01b\x02a\x01\x02", {"a": "b"}),
        ("\x02\x02a\x01b", {"a": "b"}),
    ],
)
def test_odd_pieces_are_read_as_javas_split_would(text: str, expected: dict[str, str]) -> None:
    """QUIRKS 21: properties with empty parts would be read differently than by Java's split."""
    assert properties.decode(text) == expected


def test_a_separator_inside_a_value_is_rejected() -> None:
    """A value from user data could smuggle in a second property, such as another delay level."""
    for bad in ({"a": "b\x02DELAY\x013"}, {"a\x01": "b"}, {"a": "\x01"}):
        with pytest.raises(MessageInvalid, match=r"U\+0001"):
            properties.encode(bad)


def test_bytes_that_are_not_utf8_are_replaced() -> None:
    """One broken message would make its whole queue unreadable."""
    assert properties.decode(b"a\x01\xff\x02") == {"a": "\ufffd"}


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"TAGS\x01A\x02", b"A"),
        (b"TAGS\x01A", b"A"),
        (b"X_TAGS\x01B\x02TAGS\x01A\x02K\x01v\x02", b"A"),
        (b"K\x01TAGS\x02", None),
        (b"TAGS\x01A\x02TAGS\x01\x02", b"A"),
        (b"TAGS\x01A\x01B\x02", None),
        (b"", None),
    ],
)
def test_find_returns_the_value_of_decode(raw: bytes, value: bytes | None) -> None:
    """A message would be filtered by another tag than its consumer sees."""
    assert properties.find(raw, b"TAGS") == value
    assert properties.decode(raw).get("TAGS") == (None if value is None else value.decode())


def test_reserved_names_are_rocketmqs() -> None:
    """A delay level or a key under another name would be ignored by every RocketMQ broker."""
    constants = next(table for table in vectors("constants") if table["class"] == "MessageConst")
    theirs = {value for name, value in constants.items() if name.startswith("PROPERTY_")}
    ours = {getattr(properties, name) for name in vars(properties) if name.startswith("PROPERTY_")}
    assert ours - {properties.PROPERTY_SEPARATOR} == theirs
    assert constants["KEY_SEPARATOR"] == properties.KEY_SEPARATOR


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (None, ()), ("", ()), ("  ", ()), ("a", ("a",)), (" a  b ", ("a", "b")),
        ("a\tb\u3000c\u00a0d", ("a\tb\u3000c\u00a0d",)),
    ],
)  # fmt: skip
def test_keys_are_separated_by_spaces_only(text: str | None, keys: tuple[str, ...]) -> None:
    """Java splits at U+0020; a look-up of a key with other whitespace would find nothing."""
    assert properties.split_keys(text) == keys
