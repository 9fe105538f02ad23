"""What `rocketpy consume --format` prints for unusual messages."""

from __future__ import annotations

import pytest

from rocketpy.message import MessageExt, MessageQueue
from rocketpy.protocol.message.record import Record
from rocketpy_cli.commands import dlq
from rocketpy_cli.formats import Format, find_format


def message_of(body: bytes, born_ms: int = 0) -> MessageExt:
    """A stored message."""
    record = Record(
        topic="T", queue_id=0, flag=0, queue_offset=0, physical_offset=0, sys_flag=0, born_timestamp=born_ms,
        born_host=b"", store_timestamp=0, store_host=b"", reconsume_times=0, prepared_transaction_offset=0,
        body=body, properties=b"",
    )  # fmt: skip
    return MessageExt(record, MessageQueue("T", "broker-a", 0), body)


@pytest.mark.parametrize("born_ms", [1 << 60, -(1 << 60)])
def test_a_time_outside_the_calendar_is_printed_in_ms(born_ms: int) -> None:
    """Producers set the time freely; one message could end `consume`, and its successors were never shown."""
    line = find_format("{store_time} {born_time}")([message_of(b"x", born_ms)])
    assert line == f"1970-01-01T00:00:00.000+00:00 {born_ms} ms\n".encode()


@pytest.mark.parametrize(
    "format_", [find_format("text"), find_format("json"), find_format("{body}"), dlq._as_lines]
)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_no_command_passes_control_characters_to_a_terminal(
    format_: Format, is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead letter could clear the screen of the operator who lists it. Pipes get the bytes as they are."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    found = format_([message_of("a\x1b[2J\x9bb".encode())])
    assert ("\x9b".encode() in found) is not is_terminal
