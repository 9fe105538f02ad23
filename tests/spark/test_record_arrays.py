"""The columns of the source must equal the values of the decoder of single messages."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.messages_to_rows import check_schema, source_schema
from pyspark_rocketmq.offsets import QueueName
from pyspark_rocketmq.options import SourceOptions
from pyspark_rocketmq.record_arrays import RecordArrays, read_field, scan
from pyspark_rocketmq.source import Pulled, to_batches
from rocketpy import MessageExt, MessageQueue, PullStatus
from rocketpy.errors import RecordCorrupt, RemoteProtocolError
from rocketpy.message import RESERVED_PROPERTIES
from rocketpy.message.decode import decode_messages
from rocketpy.protocol.message.checksum import PROPERTY_BODY_CHECKSUM, body_checksum
from rocketpy.protocol.message.properties import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT_STORE_MSG_OK,
)
from rocketpy.protocol.message.record import encode_record, host_bytes
from rocketpy.protocol.message.sysflag import MessageSysFlag

pytestmark = pytest.mark.spark

QUEUE = QueueName("T", "a", 3)
COLUMNS = check_schema([tuple(field.split(" ")) for field in source_schema().split(", ")])  # type: ignore[misc] # pairs
MOST = 1 << 24
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(ms: int) -> datetime | None:
    """A datetime; None if Python's calendar does not have it."""
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


EXPECTED: dict[str, Callable[[MessageExt], Any]] = {
    "topic": lambda message: message.queue.topic,
    "brokerName": lambda message: message.queue.broker_name,
    "queueId": lambda message: message.queue.queue_id,
    "queueOffset": lambda message: message.queue_offset,
    "msgId": lambda message: message.message_id,
    "tags": lambda message: message.tags,
    "keys": lambda message: " ".join(message.keys) or None,
    "body": lambda message: message.body,
    "properties": lambda message: [
        pair for pair in message.properties.items() if pair[0] not in RESERVED_PROPERTIES
    ],
    "flag": lambda message: message.flag,
    "sysFlag": lambda message: message.sys_flag,
    "reconsumeTimes": lambda message: message.reconsume_times,
    "bornTimestamp": lambda message: time_of(message.born_timestamp),
    "storeTimestamp": lambda message: time_of(message.store_timestamp),
}

INT32 = st.integers(-(2**31), 2**31 - 1)
TIMES = st.one_of(st.integers(0, 2**42), st.integers(-(2**63), 2**63 - 1))
HOSTS = st.sampled_from([host_bytes("10.0.0.7", 10911), host_bytes("fd00::7", 10911)])
NAMES = st.sampled_from(
    [PROPERTY_UNIQ_KEY, PROPERTY_TAGS, PROPERTY_KEYS, PROPERTY_WAIT_STORE_MSG_OK, "a", "b", "ü", ""]
)
VALUES = st.one_of(st.text(max_size=12), st.sampled_from(["x", "k1 k2", " k", "k1\u00a0k2", ""]))
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=6)
PROPERTIES = st.one_of(
    PAIRS.map(lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()),
    PAIRS.map(lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode()),
    st.lists(st.sampled_from([b"\x01", b"\x02", b"TAGS", b"a", b"\xff", b"\xe2\x82", b" "])).map(b"".join),
)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """One record as a broker may store it."""
    body, sys_flag = draw(st.binary(max_size=40)), draw(st.sampled_from([0, 2, 8]))
    born, store = draw(HOSTS), draw(HOSTS)
    sys_flag |= MessageSysFlag.BORN_HOST_V6 if len(born) > 8 else 0
    sys_flag |= MessageSysFlag.STORE_HOST_V6 if len(store) > 8 else 0
    properties = draw(PROPERTIES)
    if draw(st.booleans()):
        properties = f"{PROPERTY_BODY_CHECKSUM}\x01{body_checksum('crc-32c', body)}\x02".encode() + properties
    if draw(st.booleans()):
        body, sys_flag = zlib.compress(body), sys_flag | MessageSysFlag.COMPRESSED
    return encode_record(
        b"T", QUEUE.queue_id, draw(INT32), draw(st.integers(0, 2**62)),
        draw(st.integers(0, 2**62)), sys_flag, draw(TIMES), born, draw(TIMES), store, draw(INT32),
        draw(st.integers(0, 9)), body, properties,
    )  # fmt: skip


def source(**options: object) -> SourceOptions:
    """The options of a read."""
    return SourceOptions.read({"nameServer": "127.0.0.1:1", "topic": "T", **options}, streaming=False)


def pulled(data: bytes) -> Pulled:
    """The result of a pull with these records."""
    found = scan(data)
    assert found is not None
    offsets = read_field(data, "queue_offset", found).tolist()
    return Pulled(PullStatus.FOUND, 0, data, found.tolist(), offsets)


@given(st.lists(records(), min_size=1, max_size=12), st.integers(0, 12))
def test_every_value_is_that_of_the_decoder(found: list[bytes], cut: int) -> None:
    """A tag, key or property would be in the row of another message, or a body stay compressed."""
    data = [b"".join(found[:cut]), b"".join(found[cut:])]
    batches = list(to_batches([pulled(each) for each in data], QUEUE, COLUMNS, source()))
    decoded = decode_messages(b"".join(data), MessageQueue(*QUEUE), MOST, MOST, verify=True)
    assert not decoded.failed
    for name, expected in EXPECTED.items():
        values = [value for batch in batches for value in batch[name].to_pylist()]
        assert values == [expected(message) for message in decoded.messages]


@given(st.lists(records(), min_size=1, max_size=4), st.data())
def test_records_that_the_decoder_rejects_are_rejected(found: list[bytes], data: st.DataObject) -> None:
    """A damaged record would become a row, or a valid one be reported as lost."""
    damaged = bytearray(b"".join(found))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    scanned = scan(bytes(damaged))
    decoded = decode_messages(bytes(damaged), MessageQueue(*QUEUE), MOST, MOST, verify=True)
    is_whole = decoded.damage is None and not any(
        isinstance(message.decode_error, RecordCorrupt) and "its producer's" not in str(message.decode_error)
        for message in decoded.messages
    )
    try:
        assert scanned is not None
        RecordArrays(bytes(damaged), scanned)
    except (AssertionError, RecordCorrupt):
        assert not is_whole
    else:
        assert is_whole


@pytest.mark.parametrize("checksum", [b"", b"BODY_CHECKSUM\x01crc-32c:0\x02"])
def test_records_without_a_wanted_tag_are_no_rows(checksum: bytes) -> None:
    """A read of one tag would fail at the first pull without it."""
    host = host_bytes("10.0.0.7", 10911)
    data = encode_record(b"T", 3, 0, 0, 0, 0, 1, host, 2, host, 0, 0, b"x", checksum + b"TAGS\x01a\x02")
    assert list(to_batches([pulled(data)], QUEUE, COLUMNS, source(subExpression="b"))) == []


@pytest.mark.parametrize(("topic", "queue_id"), [(b"Other", 3), (b"T", 4)])
def test_records_of_another_queue_are_rejected(topic: bytes, queue_id: int) -> None:
    """A DataFrame would have rows of a topic that nobody asked for."""
    host = host_bytes("10.0.0.7", 10911)
    data = b"".join(
        encode_record(name, id_, 0, offset, 0, 0, 1, host, 2, host, 0, 0, b"x", b"")
        for offset, (name, id_) in enumerate([(b"T", 3), (topic, queue_id)])
    )
    with pytest.raises(RemoteProtocolError, match="with records of topics"):
        list(to_batches([pulled(data)], QUEUE, COLUMNS, source()))
