"""Message traces: the texts that the real clients sent."""

from __future__ import annotations

import pytest

from rocketpy.errors import RemoteProtocolError
from rocketpy.protocol.message.trace import (
    Consumed,
    ConsumeOutcome,
    Consuming,
    MessageKind,
    Sent,
    TraceRecord,
    decode,
    encode,
)
from tests import golden_data


def recorded(scenario: str, number: int) -> str:
    """The body of a trace message that a Java client sent (QUIRKS 40)."""
    return str(golden_data.frames(scenario)[number].info["bodyText"])


def test_a_producers_report_is_the_recorded_one() -> None:
    """RocketMQ's tools would show no trace of a message, or the wrong fields."""
    text = recorded("extra", 117)
    record = Sent(
        1795253724350,
        "DefaultRegion",
        "x_trace_p",
        "XTopic",
        "C000020200004E0E2F2A690DFCBD0001",
        "TagTrace",
        "TK1",
        "127.0.0.1:20410",
        11,
        15,
        MessageKind.NORMAL,
        "7F00000100004FBA00000000000002E4",
        success=True,
    )
    assert decode(text) == [record]
    assert encode([record]) == text


def test_a_consumers_reports_are_the_recorded_ones() -> None:
    """The consumer's half of a message's trace would be lost, or not matched with its end."""
    text = recorded("ctrace", 43)
    request, message = "C000020200004E0E2F2A69119A340001", "C000020200004E0E2F2A691198550000"
    records: list[TraceRecord] = [
        Consuming(1795253961268, None, "y_trace_c", request, message, 0, "YK"),
        Consumed(request, message, 1, True, "YK", ConsumeOutcome.SUCCESS),
    ]
    assert decode(text) == records
    assert encode(records) == text


def test_an_absent_text_is_the_word_null() -> None:
    """A message without tags or keys would be shown with the tag "null", or break Java's reader."""
    record = Sent(1, None, "g", "T", "ID", None, None, None, 1, 2, MessageKind.HALF, None, success=False)
    text = encode([record])
    assert (
        text
        == "Pub\x011\x01null\x01g\x01T\x01ID\x01null\x01null\x01null\x011\x012\x011\x01null\x01false" + "\x02"
    )
    assert decode(text) == [record]


def test_reports_of_older_and_newer_clients_are_read() -> None:
    """A reader would stop at the first report of another version."""
    older = "Pub\x011\x01r\x01g\x01T\x01ID\x01t\x01k\x01h\x011\x012\x010\x01true"
    newer = "EndTransaction\x011\x01r"
    records = decode(f"{newer}\x02{older}\x02SubAfter\x01R\x01ID\x013\x01false\x01k\x02")
    assert [type(record) for record in records] == [Sent, Consumed]
    assert isinstance(records[0], Sent)
    assert (records[0].offset_message_id, records[0].success) == (None, True)


@pytest.mark.parametrize("text", ["Pub\x01now", "SubBefore\x011", "SubAfter\x01r\x01m\x01soon\x01true\x01k"])
def test_a_broken_report_is_reported(text: str) -> None:
    """A tool would fail with an IndexError, or show half a report as a whole one."""
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        decode(text)
