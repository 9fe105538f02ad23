"""The soak would pass a broker that loses or moves messages."""

from __future__ import annotations

import pytest

from rocketpy import MessageExt, MessageQueue, SendResult, SendStatus
from rocketpy.protocol.message import record
from tools.soak.bodies import body_of, number_of
from tools.soak.places import Places

QUEUE = MessageQueue("Soak", "broker-a", 0)


def ack(offset: int) -> SendResult:
    return SendResult(SendStatus.SEND_OK, "id", "offset id", QUEUE, offset)


def read(offset: int) -> MessageExt:
    host = record.host_bytes("127.0.0.1", 10911)
    data = record.encode_record(b"Soak", 0, 0, offset, 0, 0, 1, host, 1, host, 0, 0, b"body", b"")
    return MessageExt(record.decode(data), QUEUE, b"body")


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        ("ack 1 0, read 1 0", ""),
        ("read 1 0, ack 1 0", ""),
        ("read 1 0, ack 2 1, read 2 1", ""),
        ("ack 1 0, read 1 0, read 1 1", ""),
        ("ack 1 0", "is lost"),
        ("ack 1 0, read 1 1", "is lost"),
        ("read 1 0, ack 1 5", "acknowledged at"),
        ("ack 1 0, read 1 0, ack 2 2, read 2 2", "came where 1 was due"),
        ("ack 1 0, read 1 0, ack 2 0, read 2 0", "came where 1 was due"),
    ],
)
def test_a_wrong_acknowledgement_is_reported(steps: str, complaint: str) -> None:
    """Steps: ack or read, number of the message, offset in the queue."""
    places = Places()
    for step in steps.split(", "):
        what, number, offset = step.split()
        if what == "ack":
            places.note_ack(int(number), ack(int(offset)))
        else:
            places.note_read(read(int(offset)), int(number))
    places.settle()
    assert [complaint in problem for problem in places.problems] == ([True] if complaint else [])


def test_a_damaged_body_has_no_number() -> None:
    """A flipped bit would be counted as a message well received."""
    assert [number_of(body_of(number)) for number in range(12)] == list(range(12))
    assert number_of(body_of(7)[:-1] + b"?") is None
    assert number_of(b"") is None
