"""From the bytes of a pull response to messages."""

from __future__ import annotations

import zlib

import pytest

from rocketpy.decoding import decode_message, decode_messages
from rocketpy.errors import RecordCorrupt, RemoteProtocolError
from rocketpy.message import MessageQueue
from rocketpy.protocol.checksum import body_checksum
from rocketpy.protocol.record import encode_record, host_bytes
from tests import golden_data

QUEUE = MessageQueue("T", "broker-a", 0)
HOST = host_bytes("127.0.0.1", 10911)


def record(body: bytes, properties: str = "", sys_flag: int = 0) -> bytes:
    """A stored record."""
    return encode_record(
        b"T", 0, 0, 5, 1000, sys_flag, 1, HOST, 2, HOST, 0, 0, body, properties.encode()
    )  # fmt: skip


def test_a_recorded_pull() -> None:
    """Nothing that the real broker stored could be read."""
    step = "pull SQL92 q1 color='red'"
    pair = next(item for item in golden_data.essential() if item["name"].endswith(f"JSON/{step}"))
    frame = bytes.fromhex(pair["responseHex"])
    queue = MessageQueue("GoldenTopic", "broker-a", 1)
    (message,) = decode_messages(frame[8 + int.from_bytes(frame[5:8], "big") :], queue, 1 << 24, verify=True)
    assert message.body == "props body 中文".encode()
    assert message.properties["color"] == "red"
    assert message.keys == ("Key1", "Key2")
    assert (message.flag, message.queue) == (5, queue)


def test_every_message_of_a_run_tells_the_same() -> None:
    """All but the first message of a pull would tell other times, hosts or offsets than are stored."""
    one = record(b"first", "TAGS\x01a\x02") + record(b"another", "TAGS\x01long\x02") + record(b"first", "")
    messages = decode_messages(one, QUEUE, 1 << 24, verify=True)
    assert [(message.body, message.tags) for message in messages] == [
        (b"first", "a"),
        (b"another", "long"),
        (b"first", None),
    ]
    for message in messages:
        assert (message.topic, message.queue, message.queue_id) == ("T", QUEUE, 0)
        assert (message.queue_offset, message.physical_offset) == (5, 1000)
        assert (message.born_timestamp, message.store_timestamp) == (1, 2)
        assert message.born_host == message.store_host == ("127.0.0.1", 10911)
        assert message.with_reconsume_times(3).reconsume_times == 3
        assert message.with_topic("other").queue == MessageQueue("other", "broker-a", 0)
        assert message.offset_message_id == "7F00000100002A9F00000000000003E8"


def test_compressed_bodies_are_inflated() -> None:
    """Consumers would get zlib bytes instead of the message."""
    body = bytes(range(256)) * 40
    (message,) = decode_messages(record(zlib.compress(body), sys_flag=1), QUEUE, 1 << 24, verify=True)
    assert message.body == body
    assert message.sys_flag == 1


def test_a_body_that_inflates_without_end_is_refused() -> None:
    """One message could fill the memory of every consumer of its topic."""
    bomb = record(zlib.compress(bytes(1 << 24)), sys_flag=1)
    with pytest.raises(RemoteProtocolError, match="offset 5"):
        decode_messages(bomb, QUEUE, 1 << 24, verify=True)
    with pytest.raises(RemoteProtocolError, match="1000 allowed"):
        decode_messages(record(zlib.compress(b"ab" * 600), sys_flag=1), QUEUE, 1000, verify=True)


def test_a_damaged_body_is_never_handed_out() -> None:
    """Damage on a disk or a wire would reach the application as a message."""
    data = bytearray(record(b"good body"))
    data[90] ^= 1
    with pytest.raises(RecordCorrupt, match="crc"):
        decode_messages(bytes(data), QUEUE, 1 << 24, verify=True)
    assert decode_messages(bytes(data), QUEUE, 1 << 24, verify=False)[0].body != b"good body"


def test_the_end_to_end_checksum_is_verified() -> None:
    """A body that a broker has changed, CRC and all, would go unnoticed."""
    good = record(b"body", f"BODY_CHECKSUM\x01{body_checksum('crc-32c', b'body')}\x02")
    assert decode_messages(good, QUEUE, 1 << 24, verify=True)[0].body == b"body"
    bad = record(b"bodY", f"BODY_CHECKSUM\x01{body_checksum('crc-32c', b'body')}\x02")
    with pytest.raises(RecordCorrupt, match="does not match its producer"):
        decode_messages(bad, QUEUE, 1 << 24, verify=True)
    newer = record(b"body", "BODY_CHECKSUM\x01md-6:1234\x02")
    assert decode_messages(newer, QUEUE, 1 << 24, verify=True)[0].body == b"body"


def test_a_single_record_knows_its_queue() -> None:
    """A message that was looked up by its id could not be replied to or read on from."""
    message = decode_message(record(b"x"), "broker-b", 1 << 24, verify=True)
    assert message.queue == MessageQueue("T", "broker-b", 0)
