"""Bodies: every JSON body that the real RocketMQ sent is read, and written back the same."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from rocketpy.errors import RemoteProtocolError
from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies import (
    BatchAck,
    BatchAckMessageRequestBody,
    Body,
    BrokerData,
    ConsumeStats,
    DataVersion,
    HeartbeatData,
    MessageQueue,
    OffsetWrapper,
    ProducerData,
    QueueData,
    RegisterBrokerBody,
    SubscriptionData,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
    bit_set,
)
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.message.checksum import crc32
from tests.golden_data import RecordedFrame, frames, scenarios, vectors
from tests.protocol_tables import REQUEST_BODIES, RESPONSE_BODIES

JSON_BODIES = [("remoting", name) for name in scenarios()] + [
    ("ha", name) for name in scenarios("ha") if name.startswith("remoting")
]
SETTINGS = {25, 26, 318, 319}
RECORDS = {11, 12, 33, 39, 309}
MESSAGES = {10, 310, 320, 325, 326}


def body_of(frame: RecordedFrame) -> bytes:
    return frame.data[len(frame.data) - frame.info["bodyLength"] :]


def is_compressed(frame: RecordedFrame) -> bool:
    return (frame.info.get("extFields") or {}).get("compressed") == "true"


def json_bodies(folder: str, scenario: str) -> Iterator[tuple[type[Body], bytes]]:
    """Every body of a recording with the class it should have."""
    for frame in frames(scenario, folder):
        info, response = frame.info, frame.info["kind"] == "response"
        code = info["requestCode"] if response else info["code"]
        body_class = (RESPONSE_BODIES if response else REQUEST_BODIES).get(code)
        if not info["bodyLength"] or is_compressed(frame):
            continue
        if body_class is None:
            assert code in SETTINGS | RECORDS | MESSAGES, f"no class for a body of {code}"
        else:
            yield body_class, body_of(frame)


def without_order(value: Any) -> Any:
    """The value with maps and lists sorted, and without entries whose value is null."""
    if isinstance(value, dict):
        items = [(repr(sorted(k.items()) if isinstance(k, dict) else k), v) for k, v in value.items()]
        return sorted((key, without_order(item)) for key, item in items if item is not None)
    if isinstance(value, list):
        return sorted(map(without_order, value), key=repr)
    return value


@pytest.mark.parametrize(("folder", "scenario"), [*JSON_BODIES, ("dledger", "broker-register")])
def test_recorded_bodies_survive_a_round_trip(folder: str, scenario: str) -> None:
    """QUIRKS 8, 9, 13, 14, 56: a field of a real peer's route or table would be lost or changed."""
    for body_class, data in json_bodies(folder, scenario):
        body = body_class.decode(data)
        again = body.encode()
        assert body_class.decode(again) == body
        assert without_order(fastjson.loads(again)) == without_order(fastjson.loads(data))


def test_every_kind_of_body_was_recorded() -> None:
    """A body without a recording would be untested; the bodies without one are listed here."""
    seen = {cls for folder, name in JSON_BODIES for cls, _ in json_bodies(folder, name)}
    unseen = {cls.__name__ for cls in {*REQUEST_BODIES.values(), *RESPONSE_BODIES.values()} - seen}
    assert unseen == {
        "BatchAckMessageRequestBody",
        "ProducerTableInfo",
        "QueryCorrectionOffsetBody",
        "TopicConfig",
    }


def test_compressed_registration() -> None:
    """QUIRKS 11, 12: a Java broker with compressedRegister would not be found by any client."""
    compressed = [
        frame
        for frame in frames("boot")
        if frame.info["code"] == RequestCode.REGISTER_BROKER and is_compressed(frame)
    ]
    assert compressed
    for frame in compressed:
        data = body_of(frame)
        assert crc32(data) == int(frame.info["extFields"]["bodyCrc32"])
        body = RegisterBrokerBody.decode(data, compressed=True)
        topics = body.topic_config_serialize_wrapper.topic_config_table
        assert topics["broker-b"] == TopicConfig(
            topic_name="broker-b", read_queue_nums=1, write_queue_nums=1, perm=7
        )
        again = body.encode(compressed=True)
        assert RegisterBrokerBody.decode(again, compressed=True) == body
        assert zlib.decompress(again) == zlib.decompress(data)


@pytest.mark.parametrize(
    ("plain", "reason"),
    [
        (b"", "ends at 0, inside a length at 0"),
        (b"\0\0\0", "ends at 3"),
        (b"\x7f\xff\xff\xff", "2147483647 bytes are announced at 4, but 0 follow"),
        (b"\xff\xff\xff\xff", "length -1"),
        (b"\0\0\0\x02{}\x7f\xff\xff\xff", "ends at 10"),
        (b"\0\0\0\x02{}\0\0\0\x01\0\0\0\x05a 1 2", "not a topic configuration"),
        (b"\0\0\0\x02{}\0\0\0\x01\0\0\0\x09a 1 x 6 S", "not a topic configuration"),
        (b"\0\0\0\x02{}\0\0\0\0\0\0\0\x01[", "expected a value"),
    ],
)
def test_a_damaged_compressed_registration_is_rejected(plain: bytes, reason: str) -> None:
    """A name server would allocate by a length that a hostile broker chose."""
    with pytest.raises(RemoteProtocolError, match=reason):
        RegisterBrokerBody.decode(zlib.compress(plain), compressed=True)


def test_names_are_rocketmqs() -> None:
    """QUIRKS 9: a Java client would not find its brokers in a route of rocketpy."""
    route = TopicRouteData(
        queue_datas=[QueueData(broker_name="a", read_queue_nums=4, write_queue_nums=4, perm=6)],
        broker_datas=[BrokerData(cluster="C", broker_name="a", broker_addrs={0: "127.0.0.1:1"})],
    )
    assert msgspec.json.decode(route.encode()) == {
        "queueDatas": [
            {"brokerName": "a", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicSynFlag": 0}
        ],
        "brokerDatas": [{"cluster": "C", "brokerName": "a", "brokerAddrs": {"0": "127.0.0.1:1"}}],
        "filterServerTable": {},
    }
    heartbeat = HeartbeatData(client_id="c", producer_data_set=[ProducerData(group_name="g")])
    assert msgspec.json.decode(heartbeat.encode()) == {
        "clientID": "c", "producerDataSet": [{"groupName": "g"}], "consumerDataSet": [],
    }  # fmt: skip


@pytest.mark.parametrize("vector", [v for v in vectors("subscriptionData") if "json" in v])
def test_subscriptions_are_javas(vector: dict[str, Any]) -> None:
    """A broker would filter by other tags than the consumer subscribed to."""
    data = vector["json"].encode()
    subscription = SubscriptionData.decode(data)
    assert without_order(fastjson.loads(subscription.encode())) == without_order(fastjson.loads(data))


def test_maps_of_queues_are_written_as_java_reads_them() -> None:
    """QUIRKS 8: mqadmin would show no progress of groups."""
    stats = ConsumeStats(
        offset_table={MessageQueue("T", "a", 0): OffsetWrapper(broker_offset=5, consumer_offset=3)}
    )
    assert stats.encode() == (
        b'{"offsetTable":{{"topic":"T","brokerName":"a","queueId":0}:'
        b'{"brokerOffset":5,"consumerOffset":3,"lastTimestamp":0}}}'
    )


def test_defaults_are_written_and_not_shared() -> None:
    """Two tables would share their topics, or a Java peer miss a field it has no default for."""
    first, second = TopicConfigSerializeWrapper(), TopicConfigSerializeWrapper()
    first.topic_config_table["T"] = TopicConfig(topic_name="T")
    first.data_version.counter += 1
    assert (second.topic_config_table, second.data_version) == ({}, DataVersion())
    assert TopicList().encode() == b'{"topicList":[]}'
    assert TopicConfig.decode(b'{"topicName":"T"}') == TopicConfig(topic_name="T")
    assert len(fastjson.loads(TopicConfig(topic_name="T").encode())) == 7


def test_data_versions_move_on() -> None:
    """QUIRKS 14: a name server would not notice that a broker's topics changed."""
    version = DataVersion(timestamp=5, counter=7)
    assert version.next(9) == DataVersion(timestamp=9, counter=8)
    assert version == DataVersion(timestamp=5, counter=7)


def test_a_batch_of_acknowledgements_has_the_form_of_java() -> None:
    """Fastjson's abbreviations, and a BitSet as base64: the broker would acknowledge other messages."""
    offsets = [100, 103, 109]
    ack = BatchAck(
        consumer_group="g",
        topic="T",
        retry="0",
        start_offset=100,
        queue_id=3,
        revive_queue_id=2,
        pop_time=1798761600001,
        invisible_time=60000,
        bit_set=bit_set(offset - 100 for offset in offsets),
    )
    body = BatchAckMessageRequestBody(broker_name="b", acks=[ack])
    assert body.encode() == (
        b'{"brokerName":"b","acks":[{"c":"g","t":"T","r":"0","so":100,"q":3,"rq":2,"pt":1798761600001,'
        b'"it":60000,"b":"CQI="}]}'
    )
    read = BatchAckMessageRequestBody.decode(body.encode())
    assert read == body
    assert list(read.acks[0].offsets()) == offsets
    assert bit_set([]) == b""
