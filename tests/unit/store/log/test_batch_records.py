"""The records of a batch are those of the same messages sent singly; what has no record is rejected."""

from __future__ import annotations

import pytest

from rocketpy.errors import (
    LocalProtocolError,
    MessageInvalid,
    MessageTooLarge,
    RemoteProtocolError,
    TopicInvalid,
)
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.protocol.message.record import encode_record
from rocketpy_broker.store.log.batch_records import batch_records

HOST = b"\x7f\x00\x00\x01\x00\x00\x12\x34"
HOST_V6 = bytes(range(20))
SHARED = ("topic", "queue_id", "queue_offset", "position", "sys_flag", "born_timestamp", "born_host",
          "store_timestamp", "store_host", "reconsume_times", "size_max")  # fmt: skip
VALUES = (b"Topic", 1, 42, 1000, 0, 5, HOST, 6, HOST, 7, 4 << 20)


def records(data: bytes, **changes: object) -> tuple[bytes, list[int]]:
    """The records of a batch, with the shared values unless changed."""
    values = {**dict(zip(SHARED, VALUES, strict=True)), **changes}
    return batch_records(data, *[values[name] for name in SHARED])  # type: ignore[arg-type]


@pytest.mark.parametrize("sys_flag", [0, 1, 0x10, 0x20, 0x30])
def test_records_of_a_batch_equal_those_written_one_by_one(sys_flag: int) -> None:
    """The messages of a batch would be stored with other bytes than messages sent singly."""
    messages = [(0, b"", b"KEYS\x01k\x02"), (-7, b"one", b""), (1 << 30, b"x" * 300, b"p" * 300)]
    hosts = [HOST_V6 if sys_flag & bit else HOST for bit in (0x10, 0x20)]
    written, positions = b"", []
    for number, (flag, body, text) in enumerate(messages):
        positions.append(1000 + len(written))
        written += encode_record(
            b"Topic",
            1,
            flag,
            42 + number,
            positions[-1],
            sys_flag,
            5,
            hosts[0],
            6,
            hosts[1],
            7,
            0,
            body,
            text,
        )
    changes = {"sys_flag": sys_flag, "born_host": hosts[0], "store_host": hosts[1]}
    data = encode_batch(messages)
    assert records(data, **changes) == (written, positions)
    assert records(data, **changes, size_max=len(written)) == (written, positions)
    with pytest.raises(
        MessageTooLarge, match=f"record of {len(written)} bytes; the limit is {len(written) - 1}"
    ):
        records(data, **changes, size_max=len(written) - 1)


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"topic": b"t" * 128}, TopicInvalid, "128 bytes; the limit is 127"),
        ({"store_host": HOST_V6}, LocalProtocolError, "store host of 20 bytes, sysFlag 0x0 requires 8"),
        ({"sys_flag": 0x10}, LocalProtocolError, "born host of 8 bytes, sysFlag 0x10 requires 20"),
        ({"queue_id": 1 << 31}, LocalProtocolError, "does not fit"),
        ({"reconsume_times": 1 << 31}, LocalProtocolError, "does not fit"),
        ({"born_timestamp": 1 << 63}, LocalProtocolError, "does not fit"),
    ],
)
def test_values_outside_the_format_are_rejected(
    changes: dict[str, object], error: type[Exception], reason: str
) -> None:
    """A host that is cut, or a length that wraps, would make the log unreadable after the batch."""
    data = encode_batch([(0, b"x", b""), (0, b"y", b"")])
    assert len(records(data)[1]) == 2
    with pytest.raises(error, match=reason):
        records(data, **changes)


@pytest.mark.parametrize("place", [0, 1])
def test_properties_that_cannot_be_stored_are_rejected(place: int) -> None:
    """Recovery would take such a message for a torn one, and cut it and all after it."""
    texts = [b"KEYS\x01k\x02"] * 2
    texts[place] = b"KEYS\x01a\0b\x02"
    with pytest.raises(MessageInvalid, match=r"U\+0000"):
        records(encode_batch([(0, b"x", text) for text in texts]))
    element = encode_batch([(0, b"x", b"p" * 32767)])
    longer = (int.from_bytes(element[:4], "big") + 1).to_bytes(4, "big") + element[4:21] + b"\x80\0"
    with pytest.raises(MessageTooLarge, match="32768 bytes; the limit is 32767"):
        records(longer + b"p" * 32768)


def test_a_malformed_body_is_rejected() -> None:
    """A broker would store messages that no producer has sent."""
    data = encode_batch([(0, b"x", b"")] * 3)
    for end in range(1, len(data)):
        if end % (len(data) // 3):
            with pytest.raises(RemoteProtocolError, match="batch element"):
                records(data[:end])
    assert records(b"") == (b"", [])
