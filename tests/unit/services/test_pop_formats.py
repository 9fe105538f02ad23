"""Check points and acknowledgements in the bytes of RocketMQ 5.3.3, and bytes that are not such records."""

from __future__ import annotations

import json
from typing import Final

import pytest

from rocketpy.errors import RemoteProtocolError
from rocketpy.protocol.bodies import BatchAckMessageRequestBody
from rocketpy_broker.services.pop.formats import (
    ACK_TAG,
    BATCH_ACK_TAG,
    Acknowledgement,
    CheckPoint,
    PointKey,
    normal_topic,
)
from tests.golden_data import GOLDEN

RECORDED: Final[dict[str, str]] = json.loads((GOLDEN / "pop" / "bodies.json").read_text("utf-8"))
KEY: Final = PointKey("topic", "group", 2, 41, 1_700_000_000_123)


def check_point() -> CheckPoint:
    """The recorded check point."""
    return CheckPoint(KEY, 60_000, [0, 1, 3], 0, "broker-a")


def test_the_bytes_are_those_of_rocketmq() -> None:
    """QUIRKS 76: Java would skip records, or lose the messages of a check point."""
    assert check_point().encode().decode() == RECORDED["checkPoint"]
    assert Acknowledgement(KEY, [42], "broker-a").encode() == (ACK_TAG, RECORDED["ack"].encode())
    several = Acknowledgement(KEY, [41, 44], "broker-a").encode()
    assert several == (BATCH_ACK_TAG, RECORDED["batchAck"].encode())


def test_recorded_bodies_are_read() -> None:
    """Messages in flight in a store of RocketMQ would be lost."""
    point = CheckPoint.decode(RECORDED["triedCheckPoint"].encode(), 7)
    assert (point.key, point.invisible_ms, point.diffs) == (KEY, 60_000, [0, 1, 3])
    assert (point.done, point.left(), point.tries, point.revive_queue) == (0b101, [42], "2", 7)
    assert CheckPoint.decode(point.encode(), 7).encode() == point.encode()
    for name, tag, offsets in (
        ("ack", ACK_TAG, [42]),
        ("batchAck", BATCH_ACK_TAG, [41, 44]),
        ("batchAckWithoutBroker", BATCH_ACK_TAG, [41, 44]),
    ):
        ack = Acknowledgement.decode(tag, RECORDED[name].encode())
        assert (ack.key, ack.offsets) == (KEY, offsets)
    (batch,) = BatchAckMessageRequestBody.decode(RECORDED["batchAckRequest"].encode()).acks
    assert list(batch.offsets()) == [41, 50]


def test_all_bits_of_a_full_check_point() -> None:
    """The last of 32 messages is the sign of Java's int: a copy would have lost its acknowledgement."""
    point = CheckPoint(KEY, 1, range(32), 0, "b")
    point.done = 1 << 31 | 1
    assert json.loads(point.encode())["bm"] == -(2**31) + 1
    assert CheckPoint.decode(point.encode(), 0).done == point.done
    assert not point.is_done
    point.done = (1 << 32) - 1
    assert point.is_done
    assert CheckPoint.decode(point.encode(), 0).is_done


def test_early_forms_are_read() -> None:
    """RocketMQ 5.0 wrote long names, and no offsets of messages in a row."""
    names = {"ao": "ackOffset", "so": "startOffset", "c": "consumerGroup", "t": "topic", "q": "queueId"}
    fields = json.loads(RECORDED["ack"])
    early = {names.get(name, name): value for name, value in fields.items()}
    early["popTime"] = early.pop("pt")
    assert Acknowledgement.decode(ACK_TAG, json.dumps(early).encode()).key == KEY
    fields = json.loads(RECORDED["checkPoint"])
    del fields["d"], fields["bn"]
    assert CheckPoint.decode(json.dumps(fields).encode(), 0).diffs == [0, 1, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"so": None}, {"so": "1"}, {"so": 2**63}, {"q": 1.5}, {"q": True}, {"t": ""}, {"c": 7}, {"pt": []},
        {"d": [0, 0]}, {"d": [-1]}, {"d": list(range(33))}, {"d": "0"}, {"d": [0.5]},
        {"d": [], "n": 2**62}, {"d": [], "n": -1},
    ],
)  # fmt: skip
def test_what_is_no_check_point_is_rejected(change: dict[str, object]) -> None:
    """A damaged record must be skipped instead of stopping all others."""
    body = json.dumps(json.loads(RECORDED["checkPoint"]) | change).encode()
    with pytest.raises(RemoteProtocolError, match="check point"):
        CheckPoint.decode(body, 0)


@pytest.mark.parametrize("body", [b"", b"7-12", b"[]", b"\xff", b"null", b"{"])
def test_what_is_no_object_is_rejected(body: bytes) -> None:
    """RocketMQ 5.0 wrote `queue-offset` to cancel a check point."""
    with pytest.raises(RemoteProtocolError, match="no check point"):
        CheckPoint.decode(body, 0)


def test_names_of_retry_topics() -> None:
    """A group with an underscore would revive into the topic of another one."""
    assert normal_topic("%RETRY%a_b_t_1", "a_b") == "t_1"
    assert normal_topic("%RETRY%a_b+t_1", "a_b") == "t_1"
    assert normal_topic("t_1", "a_b") == "t_1"
    assert normal_topic("%RETRY%a_b", "a_b") == "%RETRY%a_b"
