"""RecallHandle: its text is that of RocketMQ 5.3.3."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpy.errors import MessageInvalid
from rocketpy.protocol.message.recall_handle import RecallHandle

HANDLE = RecallHandle("Orders", "broker-a", 1798761600001, "7F0000010A0B18B4AAC21E5F4B2D0000")
TEXT = "djEgT3JkZXJzIGJyb2tlci1hIDE3OTg3NjE2MDAwMDEgN0YwMDAwMDEwQTBCMThCNEFBQzIxRTVGNEIyRDAwMDA="
WORDS = st.text(st.characters(exclude_characters=" ", codec="utf-8"), min_size=1)


def text_of(raw: str) -> str:
    return base64.urlsafe_b64encode(raw.encode()).decode()


def test_a_handle_of_java_is_read_and_written() -> None:
    """A message could not be recalled with the handle from the other make's client."""
    assert RecallHandle.decode(TEXT) == HANDLE
    assert RecallHandle.decode(TEXT.rstrip("=")) == HANDLE  # some senders leave the padding out
    assert HANDLE.encode() == TEXT


@given(st.builds(RecallHandle, WORDS, WORDS, st.integers(0, 10**18 - 1), WORDS))
def test_a_handle_survives_its_text(handle: RecallHandle) -> None:
    """It would name another message."""
    assert RecallHandle.decode(handle.encode()) == handle


@pytest.mark.parametrize("time", ["soon", "", "1e9", "9" * 19])
def test_a_time_that_is_no_number_is_minus_1(time: str) -> None:
    """As in RocketMQ, whose brokers answer that the time is not valid."""
    assert RecallHandle.decode(text_of(f"v1 T b {time} id more")).deliver_ms == -1


@pytest.mark.parametrize(
    "text",
    ["", "x", "?" * 8, text_of("v2 T b 1 id"), text_of("v1 T b 1"), None, b"x", "\ud800", "é=="],
)
def test_another_text_is_rejected(text: object) -> None:
    """The error would come from the depths of a decoder."""
    with pytest.raises(
        MessageInvalid, match="is not a recall handle; pass the recall_handle of a SendResult"
    ):
        RecallHandle.decode(text)
