"""What `rocketpy consume --format` prints for unusual messages."""

from __future__ import annotations

import pytest

from rocketpy.message import MessageExt, MessageQueue
from rocketpy.protocol.message.record import Record
from rocketpy_cli.formats import find_format


@pytest.mark.parametrize("born_ms", [1 << 60, -(1 << 60)])
def test_a_time_outside_the_calendar_is_printed_in_ms(born_ms: int) -> None:
    """Producers set the time freely; one message could end `consume`, and its successors were never shown."""
    record = Record(
        topic="T", queue_id=0, flag=0, queue_offset=0, physical_offset=0, sys_flag=0, born_timestamp=born_ms,
        born_host=b"", store_timestamp=0, store_host=b"", reconsume_times=0, prepared_transaction_offset=0,
        body=b"x", properties=b"",
    )  # fmt: skip
    message = MessageExt(record, MessageQueue("T", "broker-a", 0), b"x")
    line = find_format("{store_time} {born_time}")([message])
    assert line == f"1970-01-01T00:00:00.000+00:00 {born_ms} ms\n".encode()
