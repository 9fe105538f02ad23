"""How the bytes of a pull response become messages."""

from __future__ import annotations

import sys
import zlib

import pytest

from rocketpy.errors import ConfigInvalid, RecordCorrupt, RemoteProtocolError, TornTail
from rocketpy.message import MessageExt, MessageQueue
from rocketpy.message.decode import PulledMessages, decode_message, decode_messages, decode_pull
from rocketpy.protocol.message.checksum import body_checksum
from rocketpy.protocol.message.record import encode_record, host_bytes
from rocketpy.protocol.message.sysflag import MessageSysFlag
from tests import golden_data

QUEUE = MessageQueue("T", "broker-a", 0)
HOST = host_bytes("127.0.0.1", 10911)


def record(body: bytes, properties: str = "", sys_flag: int = 0, offset: int = 5) -> bytes:
    """A stored record."""
    return encode_record(
        b"T", 0, 0, offset, 1000, sys_flag, 1, HOST, 2, HOST, 0, 0, body, properties.encode()
    )  # fmt: skip


def pull(
    *records: bytes, max_body: int = 1 << 24, max_total: int = 1 << 26, verify: bool = True
) -> PulledMessages:
    """A pull from offset 5 that brought these records."""
    return decode_pull(
        b"".join(records),
        QUEUE,
        5,
        5 + len(records),
        max_body_bytes=max_body,
        max_total_bytes=max_total,
        verify=verify,
    )


def damaged(data: bytes, at: int, value: bytes) -> bytes:
    """The bytes, with `value` instead of those from `at` on."""
    return data[:at] + value + data[at + len(value) :]


def bodies(messages: list[MessageExt]) -> list[bytes]:
    return [message.body for message in messages]


def test_a_recorded_pull() -> None:
    """Nothing that the real broker stored could be read."""
    step = "pull SQL92 q1 color='red'"
    pair = next(item for item in golden_data.essential() if item["name"].endswith(f"JSON/{step}"))
    frame = bytes.fromhex(pair["responseHex"])
    queue = MessageQueue("GoldenTopic", "broker-a", 1)
    body = frame[8 + int.from_bytes(frame[5:8], "big") :]
    decoded = decode_messages(body, queue, 1 << 24, 1 << 24, verify=True)
    (message,) = decoded.messages
    assert decoded.failed == 0
    assert message.body == "props body 中文".encode()
    assert message.properties["color"] == "red"
    assert message.keys == ("Key1", "Key2")
    assert (message.flag, message.queue) == (5, queue)


def test_all_messages_of_a_pull_have_the_right_fields() -> None:
    """All but the first message of a pull would have other times, hosts or offsets than are stored."""
    one = record(b"first", "TAGS\x01a\x02") + record(b"another", "TAGS\x01long\x02") + record(b"first", "")
    messages = decode_messages(one, QUEUE, 1 << 24, 1 << 24, verify=True).messages
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
    (message,) = pull(record(zlib.compress(body), sys_flag=1)).messages
    assert message.body == body
    assert message.sys_flag == 1
    assert message.decode_error is None


GOOD = record(b"good", offset=6)
BAD = {
    "not zlib": (record(b"not zlib", sys_flag=1), b"not zlib", "not a zlib stream"),
    "cut short": (record(zlib.compress(b"x" * 99)[:-5], sys_flag=1), None, "ends too early"),
    "a bomb": (record(zlib.compress(bytes(1 << 24)), sys_flag=1), None, "inflate to more than the 4194304"),
    "unknown compression": (record(b"?", sys_flag=0x401), b"?", "unknown compression type"),
    "damaged body": (damaged(record(b"good body"), 90, b"?"), b"go?d body", "crc 0x"),
    "wrong checksum": (record(b"body", "BODY_CHECKSUM\x01crc-32c:1\x02"), b"body", "does not match its"),
    "body length": (damaged(record(b"body"), 84, b"\0\0\0\xff"), b"body\x01T\0\0", "body length 255"),
    "topic": (damaged(record(b"body"), 93, b"\xff"), b"body\x01\xff\0\0", "the topic is not UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_message_leaves_the_others_alone(what: str) -> None:
    """One message that cannot be decoded would hide all others of its pull, and of its queue for good."""
    bad, raw, reason = BAD[what]
    assert len(bad) < 20_000
    tail = [GOOD, record(b"last", offset=7)]
    found = pull(bad, *tail)
    assert (found.undecodable, found.next_offset) == (1, 8)
    first, *others = found.messages
    assert bodies(others) == [b"good", b"last"]
    assert [message.decode_error for message in others] == [None, None]
    assert reason in str(first.decode_error)
    assert raw is None or first.body == raw
    assert (first.queue, first.queue_offset, first.physical_offset) == (QUEUE, 5, 1000)
    assert (first.topic, first.offset_message_id) == ("T", "7F00000100002A9F00000000000003E8")
    for copy in (first.with_topic("t"), first.with_queue(QUEUE), first.with_reconsume_times(2)):
        assert (copy.decode_error, copy.body) == (first.decode_error, first.body)
    last = pull(record(b"good"), damaged(bad, 27, b"\x06"))  # queue offset 6, after a good one
    assert [message.decode_error is None for message in last.messages] == [True, False]
    single = decode_message(bad, "broker-a", 1 << 24, verify=True)
    assert (single.body, str(single.decode_error)) == (first.body, str(first.decode_error))


def test_an_error_does_not_keep_the_response_in_memory() -> None:
    """Each bad message that an application keeps would hold the megabytes that came with it."""
    (message,) = pull(BAD["not zlib"][0]).messages
    assert message.decode_error is not None
    assert message.decode_error.__traceback__ is None
    assert message.decode_error.__cause__ is None
    assert message.decode_error.__context__ is None


@pytest.mark.parametrize(
    "bad",
    [
        damaged(record(b"body", offset=7), 0, b"\x7f"),
        damaged(record(b"body", offset=7), 3, b"\x0a"),
        damaged(record(b"body", offset=7), 3, b"\x5f"),
        damaged(record(b"body", offset=7), 4, b"\0"),
        record(b"body", offset=7)[:50],
        damaged(BAD["not zlib"][0], 20, b"\x7f"),
    ],
    ids=["size beyond the end", "size too small", "size wrong", "magic", "cut", "queue offset"],
)
def test_a_length_that_cannot_be_trusted(bad: bytes) -> None:
    """Bytes from the middle of a message would be taken for messages, or good ones before it be lost."""
    found = pull(record(b"one"), GOOD, bad, record(b"behind", offset=8))
    assert (bodies(found.messages), found.next_offset) == ([b"one", b"good"], 7)
    with pytest.raises(RecordCorrupt):
        pull(bad, record(b"behind", offset=8))


def test_a_response_that_ends_early() -> None:
    """Complete records would be lost together with one that is incomplete."""
    found = pull(record(b"one"), GOOD[:50])
    assert (bodies(found.messages), found.next_offset) == ([b"one"], 6)
    with pytest.raises(TornTail):
        pull(GOOD[:50])


def test_one_response_inflates_to_a_bounded_size() -> None:
    """A response of 1.2 MB would take 1.2 GB of memory."""
    four = record(zlib.compress(bytes(4 << 20)), sys_flag=1)
    data = [damaged(four, 26, number.to_bytes(2, "big")) for number in range(5, 305)]
    found = pull(*data, max_total=17 << 20)
    assert ([len(body) for body in bodies(found.messages)], found.next_offset) == ([4 << 20] * 4, 9)
    assert found.undecodable == 0
    # There is always room for one, or the queue would make no progress.
    assert (len(pull(*data, max_total=-5, max_body=4 << 20).messages)) == 1
    decoded = decode_messages(b"".join(data), QUEUE, 1 << 24, 17 << 20, verify=True)
    assert (len(decoded.messages), decoded.failed) == (300, 296)
    assert "exceed the limit of inflated bytes" in str(decoded.messages[4].decode_error)


def test_a_bad_body_is_distinguished_from_a_truncated_response() -> None:
    """A broken message would look like one that must be pulled again, forever."""
    big = record(zlib.compress(bytes(3 << 20)), sys_flag=1)
    bad = damaged(BAD["not zlib"][0], 27, b"\x06")
    found = pull(big, bad, max_total=(4 << 20), max_body=4 << 20)
    assert (len(found.messages), found.undecodable) == (2, 1)


def test_the_package_of_a_compression_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages compressed by LZ4 would stop a queue on a machine without the package."""
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    found = pull(record(b"?", sys_flag=0x101), GOOD)
    assert isinstance(found.messages[0].decode_error, ConfigInvalid)
    assert bodies(found.messages)[1:] == [b"good"]


def test_checks_can_be_switched_off() -> None:
    """A caller that prefers a damaged body to none could not get it."""
    for name, body in (("damaged body", b"go?d body"), ("wrong checksum", b"body")):
        found = pull(BAD[name][0], verify=False)
        assert (found.undecodable, bodies(found.messages)) == (0, [body])


@pytest.mark.parametrize("offsets", [(4,), (5, 5), (6, 5), (5, 8), (5, 6, 100)])
def test_offsets_that_were_not_requested_are_rejected(offsets: tuple[int, ...]) -> None:
    """A queue's progress would stop, or move back: handled messages are counted by their offsets."""
    with pytest.raises(RemoteProtocolError, match="with messages at"):
        pull(*(record(b"x", offset=offset) for offset in offsets))


def test_the_end_to_end_checksum_is_verified() -> None:
    """A body that a broker has changed, CRC and all, would go unnoticed."""
    good = record(b"body", f"BODY_CHECKSUM\x01{body_checksum('crc-32c', b'body')}\x02")
    bad = record(b"bodY", f"BODY_CHECKSUM\x01{body_checksum('crc-32c', b'body')}\x02", offset=6)
    newer = record(b"body", "BODY_CHECKSUM\x01md-6:1234\x02", offset=7)
    found = pull(good, bad, newer)
    assert [message.decode_error is None for message in found.messages] == [True, False, True]


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize(("topic", "queue_id"), [(b"Other", 0), (b"T", 1)])
@pytest.mark.parametrize("sys_flag", [0, MessageSysFlag.COMPRESSED])
def test_records_of_another_queue_are_rejected(at: int, topic: bytes, queue_id: int, sys_flag: int) -> None:
    """A handler would get messages of another topic, and the offsets of another queue would be committed."""
    found = [record(b"x", offset=5 + index) for index in range(3)]
    body = zlib.compress(b"x") if sys_flag else b"x"
    found[at] = encode_record(
        topic, queue_id, 0, 5 + at, 1000, sys_flag, 1, HOST, 2, HOST, 0, 0, body, b""
    )  # fmt: skip
    with pytest.raises(RemoteProtocolError, match="is in a response about queue 0 of topic 'T'"):
        pull(*found)


def test_queues_of_rocketmq_5_may_have_records_of_others() -> None:
    """Static topics and light queues of RocketMQ 5 could not be read."""
    data = encode_record(b"Other", 3, 0, 5, 1000, 0, 1, HOST, 2, HOST, 0, 0, b"x", b"")
    most = 1 << 24
    for queue, delta in ((MessageQueue("%LMQ%a", "broker-a", 0), None), (QUEUE, 0)):
        found = decode_pull(
            data, queue, 5, 6, offset_delta=delta, max_body_bytes=most, max_total_bytes=most, verify=True
        )
        assert bodies(found.messages) == [b"x"]


def test_a_single_record_knows_its_queue() -> None:
    """A reply to a message found by its id would fail, and so would a read of its queue from there."""
    message = decode_message(record(b"x"), "broker-b", 1 << 24, verify=True)
    assert message.queue == MessageQueue("T", "broker-b", 0)
