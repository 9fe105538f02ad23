"""Messages: which are rejected before they are sent, and with which error text."""

from __future__ import annotations

import copy
import os
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from rocketpy.errors import GroupInvalid, MessageInvalid, Outcome, TopicInvalid
from rocketpy.message import (
    RESERVED_PROPERTIES,
    Message,
    MessageExt,
    MessageQueue,
    check_group,
    new_unique_id,
)
from rocketpy.message.columns import MessageColumns
from rocketpy.protocol.message.record import Record, decode_all
from tests import golden_data
from tests.unique_ids import unique_id_time_ms


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("", "letters, digits"),
        (" ", "letters, digits"),
        ("a b", "letters, digits"),
        ("a/b", "letters, digits"),
        ("thé", "letters, digits"),
        ("T\n", "letters, digits"),
        ("../x", "letters, digits"),
        (None, "letters, digits"),
        ("x" * 128, "128 characters; 127 are allowed"),
        ("TBW102", "template"),
    ],
)
def test_bad_topics_are_rejected(topic: Any, words: str) -> None:
    """A typing error would come back from a broker as an unclear code, or create a wrong topic."""
    with pytest.raises(TopicInvalid, match=words) as caught:
        Message(topic, b"x")
    assert caught.value.outcome is Outcome.NOT_SENT


@pytest.mark.parametrize("topic", ["T", "%RETRY%group", "a-b_c|9", "x" * 127])
def test_good_topics_pass(topic: str) -> None:
    """A topic that RocketMQ takes could not be used."""
    assert Message(topic, b"x").topic == topic


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"body": b""}, "empty body"),
        ({"body": "text"}, "needs .encode"),
        ({"body": None}, "must be bytes"),
        ({"tags": " "}, "tags is"),
        ({"tags": "a\x01b"}, "U\\+0001"),
        ({"tags": "\ud800"}, "Unicode"),
        ({"keys": ["a b"]}, "contains a space"),
        ({"keys": [""]}, "a key is ''"),
        ({"keys": ["a\x02"]}, "U\\+0002"),
        ({"keys": [7]}, "a key is 7"),
        ({"delay_level": -1}, "delay_level is -1"),
        ({"flag": 2**31}, "flag is 2147483648"),
        ({"tags": "a||b"}, "one tag"),
        ({"tags": " a"}, "spaces at its ends"),
        ({"tags": "a "}, "spaces at its ends"),
        ({"tags": ["a"]}, "tags is \\['a'\\]"),
        ({"properties": {"KEYS": "x"}}, "'KEYS' is reserved"),
        ({"properties": {"UNIQ_KEY": "x"}}, "reserved"),
        ({"properties": {"a": ""}}, "property 'a' is ''"),
        ({"properties": {"": "a"}}, "property's name"),
        ({"properties": {"a": "b\x02c"}}, "U\\+0002"),
        ({"properties": {"a": 1}}, "property 'a' is 1"),
    ],
)
def test_bad_messages_are_rejected(wrong: dict[str, Any], words: str) -> None:
    """The mistake would be found by a consumer, or not at all."""
    arguments: dict[str, Any] = {"body": b"x"} | wrong
    with pytest.raises(MessageInvalid, match=words):
        Message("T", **arguments)


def test_values_of_a_message() -> None:
    """A property would arrive with another value than the application set."""
    message = Message("T", bytearray(b"x"), tags="t", keys="a b", properties={"n": "1"}, flag=-1)
    assert (message.body, message.tags, message.keys, message.flag) == (b"x", "t", ("a", "b"), -1)
    assert message == Message("T", b"x", tags="t", keys=["a", "b"], properties={"n": "1"}, flag=-1)
    assert message != Message("T", b"x", tags="t", keys=["a", "b"], properties={"n": "2"}, flag=-1)
    assert hash(message) == hash(Message("T", b"x", tags="t", keys=["a", "b"]))
    assert "1 bytes" in repr(message)
    assert Message("T", b"x", tags="").tags is None


def test_ids_become_properties() -> None:
    """A buyer or instance id would not reach the consumer, or could smuggle in other properties."""
    message = Message("T", b"x", buyer_id="b7", instance_id="NS", transaction_id="tx", properties={"a": "1"})
    assert dict(message.properties) == {"a": "1", "BUYER_ID": "b7", "INSTANCE_ID": "NS"}
    assert (message.buyer_id, message.instance_id, message.transaction_id) == ("b7", "NS", "tx")
    assert (Message("T", b"x").buyer_id, Message("T", b"x").transaction_id) == (None, None)
    with pytest.raises(MessageInvalid, match="BUYER_ID"):
        Message("T", b"x", buyer_id="a\x01b")


def test_a_copy_with_reserved_properties() -> None:
    """A half message would lose a part of the message it was made from, or change it."""
    message = Message("T", b"x", tags="t", keys="k", flag=3, properties={"a": "1"}, wait_store=False)
    half = Message.with_reserved(message, {"TRAN_MSG": "true"}, transaction_id="tx")
    assert dict(half.properties) == {"a": "1", "TRAN_MSG": "true"}
    assert (half.topic, half.body, half.tags, half.keys, half.flag, half.wait_store) == (
        "T",
        b"x",
        "t",
        ("k",),
        3,
        False,
    )
    assert (half.transaction_id, dict(message.properties)) == ("tx", {"a": "1"})
    with pytest.raises(MessageInvalid, match="U\\+0001"):
        Message.with_reserved(message, {"PGROUP": "a\x02b"})


def test_properties_are_kept_apart_from_the_callers_map() -> None:
    """Changing the map after the call would change, or break, a message on its way."""
    mine = {"a": "1"}
    message = Message("T", b"x", properties=mine)
    mine["KEYS"] = "x"
    assert dict(message.properties) == {"a": "1"}


def test_names_that_rocketmq_reserves_are_rejected() -> None:
    """A user's property would overwrite one that the broker needs."""
    assert {"TAGS", "WAIT", "DELAY", "REAL_TOPIC", "TRAN_MSG", "UNIQ_KEY"} <= RESERVED_PROPERTIES
    assert "\x02" not in RESERVED_PROPERTIES
    assert {"POP_CK", "TIMER_OUT_MS", "INNER_NUM", "__CRC32#", "BORN_TIMESTAMP"} <= RESERVED_PROPERTIES
    assert not {"__SHARDINGKEY", "TIMER_DELAY_SEC"} & RESERVED_PROPERTIES
    with pytest.raises(MessageInvalid, match="'POP_CK' is reserved"):
        MessageColumns("T", [b"x"], properties={"POP_CK": ["1"]})


@pytest.mark.parametrize("group", ["", "a b", "g" * 256, None])
def test_bad_groups_are_rejected(group: Any) -> None:
    """A broker would reject every heartbeat, and the consumer would not notice."""
    with pytest.raises(GroupInvalid):
        check_group(group)


def golden_record() -> Record:
    """The first message that the recorded consumer pulled."""
    step = "pull FOUND q0 offset 0 max 32 sub *"
    pair = next(item for item in golden_data.essential() if step in item["name"] and "/JSON/" in item["name"])
    frame = bytes.fromhex(pair["responseHex"])
    return decode_all(frame[8 + int.from_bytes(frame[5:8], "big") :])[0]


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("", True),
        ("NO_WAIT\x01false\x02", True),
        ("WAIT\x01TRUE\x02", True),
        ("WAIT\x01False", False),
        ("WAIT\x01no\x02", False),
    ],
)
def test_a_received_message_shows_whether_its_producer_waited(text: str, *, waits: bool) -> None:
    """The result would differ from Java's Message.isWaitStoreMsgOK."""
    record = msgspec.structs.replace(golden_record(), properties=text.encode())
    assert MessageExt(record, MessageQueue("T", "a", 0), b"x").wait_store is waits


@pytest.mark.parametrize("text", ["9" * 5000, "-1", "", "x", "1.5"])
def test_an_invalid_delay_level_reads_as_0(text: str) -> None:
    """One message could make consumers fail: Python parses no number of 5,000 digits."""
    record = msgspec.structs.replace(golden_record(), properties=f"DELAY\x01{text}\x02".encode())
    assert MessageExt(record, MessageQueue("T", "a", 0), b"x").delay_level == 0


def test_a_message_of_the_real_broker_is_read() -> None:
    """A message from a Java producer would lose its tags, its keys or its queue."""
    record = golden_record()
    message = MessageExt(record, MessageQueue("GoldenTopic", "broker-a", 0), record.body)
    assert (message.topic, message.tags, message.keys) == ("GoldenTopic", "TagA", ("Key1",))
    assert message.message_id == "C000020200004E0E2F2A6900121D0000"
    assert message.offset_message_id == "7F00000100004E2A0000000000000000"
    assert message.store_host == ("127.0.0.1", 20010)
    assert message.born_host == ("127.0.0.1", 0xB6A0)
    assert (message.queue_offset, message.physical_offset, message.delay_level) == (0, 0, 0)
    assert message.born_timestamp <= message.store_timestamp
    assert message.store_size == 208
    assert (message.flag, message.sys_flag, message.reconsume_times) == (0, 0, 0)
    assert message.prepared_transaction_offset == 0
    assert "offset=0" in repr(message)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keys": 42}, "keys is 42"),
        ({"delay_level": "3"}, "delay_level is '3'"),
        ({"delay_level": -1}, "^delay_level is -1; it must be a whole number from 0 to 2147483647$"),
        ({"delay_level": 1 << 31}, "it must be a whole number from 0 to 2147483647$"),
        ({"delay_level": True}, "delay_level is True"),
        ({"flag": 1 << 40}, f"^flag is {1 << 40}; it must be a whole number from -2147483648 to 2147483647$"),
        ({"flag": None}, "flag is None"),
        ({"flag": 1.5}, "flag is 1.5"),
        ({"properties": ["a"]}, "properties is a list"),
        ({"wait_store": "no"}, "wait_store is 'no'"),
        ({"unique_id": ""}, "unique_id is ''; it must have 32 or 56 hexadecimal digits"),
        ({"unique_id": "0" * 31 + "g"}, "unique_id is"),
        ({"unique_id": "0" * 40}, "unique_id is"),
        ({"unique_id": 7}, "unique_id is 7"),
    ],
    ids=str,
)
def test_values_of_a_wrong_kind(options: dict[str, Any], said: str) -> None:
    """The caller would get a TypeError of Python, or an error for other messages that are sent later."""
    with pytest.raises(MessageInvalid, match=said):
        Message("T", b"x", **options)


def test_a_topic_of_another_type_is_rejected() -> None:
    """The error would be that a list cannot be hashed."""
    with pytest.raises(TopicInvalid, match="topic"):
        Message(["T"], b"x")  # type: ignore[arg-type]


def pickled(value: Any) -> Any:
    """The value as another process gets it."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled])
def test_messages_can_be_copied_and_pickled(again: Callable[[Any], Any]) -> None:
    """A process pool that makes messages could not return them."""
    message = Message(
        "T",
        b"x",
        tags="a",
        keys="k l",
        delay_level=3,
        flag=-1,
        unique_id=new_unique_id(),
        properties={"p": "q"},
    )
    other = again(message)
    assert other == message
    assert hash(other) == hash(message)
    with pytest.raises(TypeError):
        other.properties["p"] = "r"
    assert again(Message("T", b"x")) == Message("T", b"x")
    assert list(again(MessageColumns("T", [b"x", b"y"]))) == [Message("T", b"x"), Message("T", b"y")]


def test_a_pickle_from_before_messages_had_unique_ids() -> None:
    """Messages that wait in a queue of another process during an upgrade could not be sent."""
    message = Message("T", b"x", tags="a", properties={"p": "q"})
    state = message.__getstate__()
    del state["unique_id"]
    older = Message.__new__(Message)
    older.__setstate__(state)
    assert older == message


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_new_unique_ids_differ_among_threads_and_after_a_fork() -> None:
    """Two messages with one id would be taken for copies of each other."""
    with ThreadPoolExecutor(4) as threads:
        ids = [
            name
            for names in threads.map(lambda _: [new_unique_id() for _ in range(500)], range(8))
            for name in names
        ]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, new_unique_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    ids += [os.read(reader, 100).decode(), new_unique_id()]
    os.close(reader)
    os.close(writer)
    assert len(set(ids)) == 4002
    now_ms = time.time_ns() // 1_000_000
    assert all(now_ms - 60_000 < unique_id_time_ms(name, now_ms) <= now_ms for name in ids)
