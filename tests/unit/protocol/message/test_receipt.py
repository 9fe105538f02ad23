"""Receipts and the fields of a pop's response: their texts are those of RocketMQ 5.3.3."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpy.errors import MessageInvalid, RemoteProtocolError
from rocketpy.protocol.message import receipt
from rocketpy.protocol.message.receipt import Receipt, TopicKind

LONGS = st.integers(-(2**63), 2**63 - 1)
KINDS = st.sampled_from(TopicKind)
NAMES = st.text(st.characters(exclude_characters=" ", codec="utf-8"), min_size=1)
RECEIPTS = st.builds(Receipt, LONGS, LONGS, LONGS, LONGS, KINDS, NAMES, LONGS, st.none() | LONGS)
QUEUES = st.tuples(KINDS, LONGS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "12 1798761600001 60000 3 0 broker-a 7 14",
            Receipt(12, 1798761600001, 60000, 3, TopicKind.NORMAL, "broker-a", 7, 14),
        ),
        (
            "0 1798761600001 60000 999 2 b 0",
            Receipt(0, 1798761600001, 60000, 999, TopicKind.RETRY_V2, "b", 0),
        ),
    ],
)
def test_a_receipt_of_java_is_read_and_written(text: str, expected: Receipt) -> None:
    """The other make's broker would not find the check point."""
    assert Receipt.decode(text) == expected
    assert expected.encode() == text
    assert expected.is_ordered == (expected.revive_queue == 999)


@given(RECEIPTS)
def test_a_receipt_survives_its_text(value: Receipt) -> None:
    """The acknowledgement would name another delivery."""
    assert Receipt.decode(value.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"x",
        "",
        "1 2 3 4 0 b",
        "1 2 3 4 5 b 0",
        "1 2 3 4 0 b x",
        "1 _2 3 4 0 b 0",
        "1 2 ٣ 4 0 b 0",
        "9" * 5000,
    ],
)
def test_another_text_is_rejected(text: object) -> None:
    """The error would come from the depths of a decoder."""
    with pytest.raises(MessageInvalid, match="is not a receipt; pass a message that a consumer received"):
        Receipt.decode(text)


@pytest.mark.parametrize(
    ("kind", "topic"),
    [
        (TopicKind.NORMAL, "ns%T_1"),
        (TopicKind.RETRY_V1, "%RETRY%ns%g_ns%T_1"),
        (TopicKind.RETRY_V2, "%RETRY%ns%g+ns%T_1"),
    ],
)
def test_a_kind_names_the_topic_that_holds_the_message(kind: TopicKind, topic: str) -> None:
    """An acknowledgement would go to the topic of another message (KeyBuilder)."""
    assert kind.topic("ns%T_1", "ns%g") == topic
    assert TopicKind.of(topic) is kind


def test_the_fields_of_a_response_are_read() -> None:
    """Messages would get the receipts of other messages (ExtraInfoUtil)."""
    normal, retry = TopicKind.NORMAL, TopicKind.RETRY_V1
    assert receipt.parse_start_offsets("0 1 5;1 0 7") == {(normal, 1): 5, (retry, 0): 7}
    assert receipt.parse_message_offsets("0 1 5,6,9;1 0 7") == {(normal, 1): [5, 6, 9], (retry, 0): [7]}
    assert receipt.parse_order_counts("0 1 2;0 qo1%9 3") == {(normal, 1, None): 2, (normal, 1, 9): 3}
    for parse in (receipt.parse_start_offsets, receipt.parse_message_offsets, receipt.parse_order_counts):
        assert parse(None) == parse("") == {}


@given(
    st.dictionaries(QUEUES, LONGS),
    st.dictionaries(QUEUES, st.lists(LONGS, min_size=1)),
    st.dictionaries(st.tuples(KINDS, LONGS, st.none() | LONGS), LONGS),
)
def test_the_fields_survive_their_texts(
    starts: dict[tuple[TopicKind, int], int],
    offsets: dict[tuple[TopicKind, int], list[int]],
    counts: dict[tuple[TopicKind, int, int | None], int],
) -> None:
    """A broker's response would be read as another."""
    assert receipt.parse_start_offsets(receipt.encode_start_offsets(starts)) == starts
    assert receipt.parse_message_offsets(receipt.encode_message_offsets(offsets)) == offsets
    assert receipt.parse_order_counts(receipt.encode_order_counts(counts)) == counts


@pytest.mark.parametrize(
    "parse", [receipt.parse_start_offsets, receipt.parse_message_offsets, receipt.parse_order_counts]
)
@pytest.mark.parametrize("text", ["x", "0 1", "0 1 2 3", "3 1 2", "0 1 x", "0 x 1", "0 1 2;0 1 2", "0 1 2;"])
def test_a_malformed_field_is_an_error_of_the_peer(parse: Callable[[str], object], text: str) -> None:
    """A wrong receipt would be made in silence."""
    with pytest.raises(RemoteProtocolError, match="of the response to a pop is malformed"):
        parse(text)
