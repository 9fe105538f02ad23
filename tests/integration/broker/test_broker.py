"""Brokers over real sockets: sends, pulls, queries, restarts, and name servers that start and stop."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpy.errors import StoreLocked
from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies import HeartbeatData, TopicConfig, TopicConfigSerializeWrapper, TopicRouteData
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    CreateTopicRequestHeader,
    GetMaxOffsetRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicConfigRequestHeader,
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from rocketpy.protocol.message import properties
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.protocol.message.message_id import decode_message_id
from rocketpy.protocol.message.record import Record, decode_all, host_text
from rocketpy.protocol.remoting.command import FLAG_ONEWAY, Command, decode_command, encode_command
from rocketpy.protocol.remoting.frame import CODEC_MSGPACK, CODEC_ROCKETMQ, FrameDecoder
from rocketpy.transport import Address
from rocketpy_broker import Broker, EmbeddedCluster, NameServer, NamesrvConfig, load_broker_config
from rocketpy_broker.config.model import ListenConfig
from rocketpy_broker.store.files.batch_saver import ChangePending
from tests.integration.raw_client import RawClient, serving
from tests.integration.small import SMALL
from tests.waiting import LIMIT_S, until


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """A name server and one broker."""
    async with EmbeddedCluster(settings=SMALL) as running:
        yield running


@pytest.fixture
async def client(cluster: EmbeddedCluster) -> AsyncIterator[RawClient]:
    """A connection to the broker."""
    async with await RawClient.open(cluster.brokers[0].address) as raw:
        yield raw


def send_header(
    topic: str = "T", queue_id: int = 0, text: str = "", **changes: object
) -> SendMessageRequestHeaderV2:
    settings: dict[str, object] = {
        "producer_group": "g", "topic": topic, "default_topic": "TBW102", "default_topic_queue_nums": 4,
        "queue_id": queue_id, "sys_flag": 0, "born_timestamp": 1, "flag": 0, "properties": text,
    }  # fmt: skip
    return SendMessageRequestHeaderV2(**{**settings, **changes})  # type: ignore[arg-type] # from a dict


async def send(client: RawClient, body: bytes, **header: object) -> Command:
    return await client.call(RequestCode.SEND_MESSAGE_V2, send_header(**header), body)  # type: ignore[arg-type] # from a dict


async def pull(
    client: RawClient, offset: int = 0, topic: str = "T", queue_id: int = 0, sub: str = "*"
) -> Command:
    header = PullMessageRequestHeader(
        consumer_group="c", topic=topic, queue_id=queue_id, queue_offset=offset, max_msg_nums=32, sys_flag=4,
        commit_offset=0, suspend_timeout_millis=0, sub_version=0, subscription=sub,
    )  # fmt: skip
    return await client.call(RequestCode.PULL_MESSAGE, header)


async def records(client: RawClient, **where: object) -> list[Record]:
    return decode_all((await pull(client, **where)).body)  # type: ignore[arg-type] # from a dict


async def test_a_message_is_pulled_as_it_was_sent(client: RawClient) -> None:
    """QUIRKS 22: a consumer would get another message than the producer sent."""
    response = await send(client, b"body", text="KEYS\x01k\x02TAGS\x01t\x02", flag=7, born_timestamp=1234)
    assert response.code == 0
    fields = response.ext_fields()
    (record,) = await records(client)
    assert (record.body, record.flag, record.born_timestamp) == (b"body", 7, 1234)
    assert properties.decode(record.properties) == {"KEYS": "k", "TAGS": "t", "CLUSTER": "DefaultCluster"}
    assert record.born_host[:4] == b"\x7f\x00\x00\x01"
    store_host, position = decode_message_id(fields["msgId"])
    assert (store_host, position) == (record.store_host, record.physical_offset)
    assert (fields["queueId"], fields["queueOffset"]) == ("0", "0")


async def test_sends_of_one_buffer_get_responses_in_order(client: RawClient) -> None:
    """A pipelining producer would mix up its results."""
    for index in range(50):
        request = Command.request(RequestCode.SEND_MESSAGE_V2, send_header(queue_id=index % 2), b"%d" % index)
        request.opaque = 1000 + index
        client.writer.write(encode_command(request))
    responses = [await client.next() for _ in range(50)]
    assert [response.opaque for response in responses] == list(range(1000, 1050))
    assert [response.ext_fields()["queueOffset"] for response in responses] == [
        str(i // 2) for i in range(50)
    ]
    assert [record.body for record in await records(client, queue_id=1)] == [
        b"%d" % i for i in range(1, 50, 2)
    ]


async def test_a_batch_is_stored_as_single_messages(client: RawClient) -> None:
    """QUIRKS 18, 22, 23: consumers would see one message where a batch was sent."""
    body = encode_batch([(index, b"b%d" % index, b"KEYS\x01k%d\x02" % index) for index in range(3)])
    header = send_header(batch=True, text="WAIT\x01true\x02")
    response = await client.call(RequestCode.SEND_BATCH_MESSAGE, header, body)
    assert response.code == 0
    assert response.ext_fields()["msgId"].count(",") == 2
    found = await records(client)
    assert [(record.flag, record.body, record.properties) for record in found] == [
        (index, b"b%d" % index, b"KEYS\x01k%d\x02" % index) for index in range(3)
    ]
    for bad in (b"", body[:-1]):
        assert (await client.call(RequestCode.SEND_BATCH_MESSAGE, header, bad)).code == 13


@pytest.mark.parametrize(
    ("text", "shared", "code"),
    [
        (b"SLA_DELAY\x015\x02", "", ResponseCode.SUCCESS),
        (b"DELAY\x010\x02", "DELAY\x010\x02", ResponseCode.SUCCESS),
        (b"DELAY\x013\x02DELAY\x010\x02", "", ResponseCode.SUCCESS),
        (b"a\x01DELAY\x013\x02", "MY_DELAY\x013\x02", ResponseCode.SUCCESS),
        (b"DELAY\x01-1\x02", "", ResponseCode.SUCCESS),
        (b"NO_DELAY\x010\x02DELAY\x013\x02", "", ResponseCode.MESSAGE_ILLEGAL),
        (b"DELAY\x01soon\x02", "", ResponseCode.MESSAGE_ILLEGAL),
        (b"", "DELAY\x013\x02", ResponseCode.MESSAGE_ILLEGAL),
    ],
)
async def test_a_batch_is_rejected_for_a_delay_only(
    client: RawClient, text: bytes, shared: str, code: int
) -> None:
    """A user's property whose name ends in DELAY, or a delay of 0, would make every batch with it fail.

    Source: CommitLog.putMessages of RocketMQ 4.6.0, which checks the DELAY of the request. rocketpy also
    checks each message's DELAY, which RocketMQ ignores.
    """
    body = encode_batch([(0, b"first", b""), (0, b"DELAY\x013\x02", text)])
    header = send_header(batch=True, text=shared)
    response = await client.call(RequestCode.SEND_BATCH_MESSAGE, header, body)
    assert response.code == code
    if code == ResponseCode.SUCCESS:
        assert [record.properties for record in await records(client)] == [b"", text]


async def test_property_names_may_end_in_a_reserved_name(client: RawClient) -> None:
    """A user's property such as MY_CLUSTER or SLA_DELAY would delay a message, or remove other properties."""
    text = "SLA_DELAY\x015\x02NO_TRAN_MSG\x01true\x02MY_CLUSTER\x01c\x02empty\x01\x02MY_TAGS\x01t\x02"
    assert (await send(client, b"x", text=text)).code == 0
    (record,) = await records(client)
    assert record.properties == f"{text}CLUSTER\x01DefaultCluster\x02".encode()
    assert (await send(client, b"y", text="CLUSTER\x01mine\x02a\x01b\x02")).code == 0
    assert (await records(client, offset=1))[0].properties == b"a\x01b\x02CLUSTER\x01DefaultCluster\x02"
    assert not await records(client, sub="t")


async def test_a_oneway_send_is_stored_without_a_response(client: RawClient) -> None:
    """A response without a waiting request would be taken for that of another request."""
    request = Command.request(RequestCode.SEND_MESSAGE_V2, send_header(), b"oneway")
    request.flag = FLAG_ONEWAY
    client.writer.write(encode_command(request))
    await client.writer.drain()
    async with asyncio.timeout(LIMIT_S):
        while (await client.call(30, GetMaxOffsetRequestHeader(topic="T", queue_id=0))).ext_fields() != {
            "offset": "1"
        }:
            pass
    assert [record.body for record in await records(client)] == [b"oneway"]


@pytest.mark.parametrize("codec", [CODEC_ROCKETMQ, CODEC_MSGPACK])
async def test_a_client_gets_responses_in_its_codec(client: RawClient, codec: int) -> None:
    """With -Drocketmq.serialize.type=ROCKETMQ, one connection would use two codecs."""
    header = send_header(text="WAIT\x01true\x02")  # a request with an empty value is always JSON
    request = Command.request(RequestCode.SEND_MESSAGE_V2, header, b"body")
    response = await client.call_frame(encode_command(request, codec))
    assert (response.code, response.codec) == (0, codec)
    assert response.ext_fields()["queueOffset"] == "0"


async def test_sends_with_unabbreviated_headers_work(client: RawClient) -> None:
    """Clients with sendSmartMsg=false could not send."""
    header = SendMessageRequestHeader(
        producer_group="g", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=-1,
        sys_flag=0, born_timestamp=1, flag=0,
    )  # fmt: skip
    response = await client.call(RequestCode.SEND_MESSAGE, header, b"body")
    assert response.code == 0
    assert (
        0 <= int(response.ext_fields()["queueId"]) < 4
    )  # a negative queue id leaves the choice to the broker


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ({"queue_id": 99}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "TBW102"}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "a/b"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"topic": "x" * 128}, ResponseCode.MESSAGE_ILLEGAL),
        ({"topic": "New", "default_topic": "nothing"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"text": "DELAY\x01soon\x02"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"text": "TRAN_MSG\x01no\x02", "sys_flag": 4}, ResponseCode.MESSAGE_ILLEGAL),
        ({"text": "big\x01" + "x" * 32_767 + "\x02"}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
async def test_invalid_sends_are_rejected(client: RawClient, header: dict[str, object], code: int) -> None:
    """QUIRKS 18, 24: a producer would believe that a message is stored although it is not."""
    response = await send(client, b"x", **header)
    assert response.code == code
    assert response.remark
    assert response.ext_fields() == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert (await send(client, b"after")).code == 0


async def test_a_client_cannot_pose_as_another_cluster(client: RawClient) -> None:
    """A client could set the property CLUSTER."""
    await send(client, b"x", text="CLUSTER\x01other\x02DELAY\x010\x02a\x011")
    (record,) = await records(client)
    assert properties.decode(record.properties) == {"DELAY": "0", "a": "1", "CLUSTER": "DefaultCluster"}


async def test_each_outcome_of_a_pull_has_its_code(client: RawClient) -> None:
    """QUIRKS 34: a consumer would not know whether to wait, to retry or to move."""
    assert (await pull(client)).code == ResponseCode.TOPIC_NOT_EXIST
    await send(client, b"x", text="TAGS\x01a\x02")
    found = await pull(client)
    assert (found.code, found.remark) == (0, "FOUND")
    assert found.ext_fields() == {
        "suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1",
    }  # fmt: skip
    cases = [
        ({"offset": 1}, 19, "OFFSET_OVERFLOW_ONE"),
        ({"offset": 9}, 21, "OFFSET_OVERFLOW_BADLY"),
        ({"sub": "b || c"}, 20, "NO_MATCHED_MESSAGE"),
        ({"sub": "b || a"}, 0, "FOUND"),
        ({"queue_id": 1}, 19, "NO_MESSAGE_IN_QUEUE"),
        ({"queue_id": 1, "offset": 5}, 21, "NO_MESSAGE_IN_QUEUE"),
    ]
    for where, code, remark in cases:
        response = await pull(client, **where)  # type: ignore[arg-type] # from a dict
        assert (response.code, response.remark) == (code, remark)
    assert (await pull(client, queue_id=4)).code == ResponseCode.SYSTEM_ERROR


async def test_messages_are_found_by_id_key_and_time(client: RawClient) -> None:
    """A message could not be found by id, key or time."""
    await send(client, b"one", text="KEYS\x01k1\x02")
    position = decode_message_id((await send(client, b"two", text="KEYS\x01k2\x02")).ext_fields()["msgId"])[1]
    (record,) = decode_all((await client.call(33, ViewMessageRequestHeader(offset=position))).body)
    assert record.body == b"two"
    assert (await client.call(33, ViewMessageRequestHeader(offset=position + 1))).code == 1
    query = QueryMessageRequestHeader(topic="T", key="k1", max_num=9, begin_timestamp=0, end_timestamp=2**62)
    assert [r.body for r in decode_all((await client.call(12, query)).body)] == [b"one"]
    by_time = SearchOffsetRequestHeader(topic="T", queue_id=0, timestamp=record.store_timestamp + 60_000)
    assert (await client.call(29, by_time)).ext_fields() == {"offset": "2", "boundaryType": "lower"}


async def test_offsets_of_groups_survive_a_restart(tmp_path: Path) -> None:
    """QUIRKS 33: a group would start from the beginning whenever its broker restarts."""
    query = QueryConsumerOffsetRequestHeader(consumer_group="c", topic="T", queue_id=0)
    update = UpdateConsumerOffsetRequestHeader(consumer_group="c", topic="T", queue_id=0, commit_offset=2)
    async with serving(tmp_path, settings=SMALL) as (_, client):
        await send(client, b"x")
        new_group = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, query)
        assert new_group.ext_fields() == {"offset": "0"}
        assert (await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, update)).code == 0
        bad = UpdateConsumerOffsetRequestHeader(consumer_group="../c", topic="T", queue_id=0, commit_offset=2)
        assert (await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, bad)).code == 1
    text = (tmp_path / "config" / "consumerOffset.json").read_bytes()
    assert b"{0:2" in text  # as Java writes it (QUIRKS 8)
    assert fastjson.loads(text)["offsetTable"] == {"T@c": {"0": 2}}
    async with serving(tmp_path, settings=SMALL) as (_, client):
        found = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, query)
        assert found.ext_fields() == {"offset": "2"}


async def test_unknown_and_forbidden_requests_get_responses(client: RawClient) -> None:
    """Unlike 4.6.0 (QUIRKS 6): a client would run into its timeout."""
    assert (await client.call(9999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert (
        await client.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"a=b")
    ).code == ResponseCode.NO_PERMISSION


async def test_a_bad_header_gets_a_response_and_closes_nothing(client: RawClient) -> None:
    """One invalid request would fail all others of its connection."""
    response = await client.call(RequestCode.SEND_MESSAGE_V2)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert (await client.call(RequestCode.HEART_BEAT, body=b"{")).code == ResponseCode.SYSTEM_ERROR
    beat = HeartbeatData(client_id="c@1")
    assert (await client.call(RequestCode.HEART_BEAT, body=beat.encode())).code == 0


async def route(cluster: EmbeddedCluster, topic: str) -> TopicRouteData | None:
    async with await RawClient.open(cluster.namesrv_address) as namesrv:
        response = await namesrv.call(
            RequestCode.GET_ROUTEINTO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic)
        )
    return TopicRouteData.decode(response.body) if response.code == 0 else None


async def has_route(cluster: EmbeddedCluster, topic: str, brokers: int = 1) -> None:
    """Wait until this number of brokers serves a topic."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = await route(cluster, topic)
            if (0 if found is None else len(found.broker_datas)) == brokers:
                return
            await asyncio.sleep(0.02)


async def test_a_created_topic_gets_a_route(cluster: EmbeddedCluster, client: RawClient) -> None:
    """QUIRKS 13: clients would not find a new topic for half a minute, or would lose the others."""
    header = CreateTopicRequestHeader(
        topic="Made", default_topic="TBW102", read_queue_nums=3, write_queue_nums=2, perm=6,
        topic_filter_type="SINGLE_TAG",
    )  # fmt: skip
    assert (await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0
    await has_route(cluster, "Made")
    found = await route(cluster, "Made")
    assert found is not None
    assert (found.queue_datas[0].read_queue_nums, found.queue_datas[0].write_queue_nums) == (3, 2)
    assert await route(cluster, "TBW102") is not None
    table = TopicConfigSerializeWrapper.decode((await client.call(RequestCode.GET_ALL_TOPIC_CONFIG)).body)
    assert table.topic_config_table["Made"].read_queue_nums == 3


async def test_the_settings_of_one_topic_are_returned(client: RawClient) -> None:
    """Clients and tools of RocketMQ 5 request one topic, and would get REQUEST_CODE_NOT_SUPPORTED."""
    await send(client, b"x")
    asked = GetTopicConfigRequestHeader(topic="T")
    response = await client.call(RequestCode.GET_TOPIC_CONFIG, asked)
    assert response.code == 0
    assert TopicConfig.decode(response.body) == TopicConfig(
        topic_name="T", read_queue_nums=4, write_queue_nums=4
    )
    gone = await client.call(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic="None"))
    assert gone.code == ResponseCode.TOPIC_NOT_EXIST
    assert "None" in (gone.remark or "")


async def test_two_brokers_share_a_topic(tmp_path: Path) -> None:
    """A cluster would use only one of its machines."""
    async with EmbeddedCluster(tmp_path, brokers=2, settings=SMALL) as cluster:
        for broker in cluster.brokers:
            async with await RawClient.open(broker.address) as client:
                assert (await send(client, b"x")).code == 0
        await has_route(cluster, "T", brokers=2)
        await cluster.brokers[1].close()
        await has_route(cluster, "T", brokers=1)
    assert (tmp_path / "broker-b" / "commitlog").is_dir()


async def test_messages_and_topics_survive_a_restart(tmp_path: Path) -> None:
    """A stop of the broker would lose acknowledged messages."""
    for start in range(3):
        async with EmbeddedCluster(tmp_path, settings=SMALL) as cluster:
            await has_route(cluster, "T", brokers=1 if start else 0)
            async with await RawClient.open(cluster.brokers[0].address) as client:
                assert (await send(client, b"%d" % start)).ext_fields()["queueOffset"] == str(start)
                assert [record.body for record in await records(client)] == [
                    b"%d" % i for i in range(start + 1)
                ]
    assert not (tmp_path / "abort").exists()


async def test_a_store_has_one_broker(tmp_path: Path) -> None:
    """Two brokers would overwrite each other's files."""
    async with EmbeddedCluster(tmp_path, settings=SMALL):
        second = EmbeddedCluster(tmp_path, settings=SMALL)
        with pytest.raises(StoreLocked):
            await second.start()
        assert second.brokers == []


def name_server(address: str) -> NameServer:
    return NameServer(NamesrvConfig(listen=ListenConfig(address=Address.parse(address))))


async def test_a_restarted_name_server_gets_a_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted name server would know no broker for half a minute."""
    monkeypatch.setattr("rocketpy_broker.services.cluster.registration._RETRY_S", (0.05,))
    first = name_server("127.0.0.1:0")
    await first.start()
    settings = {"listen": "127.0.0.1:0", "namesrvAddr": str(first.address), "storePathRootDir": str(tmp_path)}
    broker = Broker(load_broker_config(overrides=settings | SMALL))
    await broker.start()
    assert broker.health().registered_at == (str(first.address),)
    address = first.address
    await first.close()
    await until(lambda: broker.health().registered_at == ())
    second = name_server(str(address))
    await second.start()
    await until(lambda: second.routes.route("TBW102") is not None)
    await broker.close()
    assert second.routes.route("TBW102") is None
    await second.close()


async def test_a_name_server_that_is_down_does_not_stop_a_broker(tmp_path: Path) -> None:
    """A broker could only start after all its name servers."""
    async with EmbeddedCluster(settings=SMALL) as cluster:
        both = f"127.0.0.1:1;{cluster.namesrv_address}"
        settings = {"listen": "127.0.0.1:0", "namesrvAddr": both, "storePathRootDir": str(tmp_path)}
        broker = Broker(load_broker_config(overrides=settings | SMALL | {"brokerName": "late"}))
        await broker.start()
        assert broker.health().registered_at == (cluster.namesrv_address,)
        await broker.close()


async def test_sync_flush_acknowledges_flushed_messages(tmp_path: Path) -> None:
    """SYNC_FLUSH would promise no more than ASYNC_FLUSH."""
    async with EmbeddedCluster(tmp_path, settings=SMALL | {"flushDiskType": "SYNC_FLUSH"}) as cluster:
        store = cluster.brokers[0].store
        async with await RawClient.open(cluster.brokers[0].address) as client:
            for count in range(1, 4):
                response = await send(client, b"x")
                assert response.code == 0
                assert store.flushed_offset == store.max_physical_offset
                assert len(await records(client)) == count


async def test_a_closing_broker_rejects_sends(cluster: EmbeddedCluster, client: RawClient) -> None:
    """A producer would wait for its timeout; the code is that of QUIRKS 39."""
    broker = cluster.brokers[0]
    broker._endpoint.reject_all("the broker is shutting down")
    response = await send(client, b"x")
    assert (response.code, response.remark) == (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "the broker is shutting down",
    )


async def test_health_shows_the_state_of_the_broker(cluster: EmbeddedCluster, client: RawClient) -> None:
    """An operator could not see why the broker does not work."""
    await send(client, b"x")
    health = cluster.brokers[0].health()
    assert health.is_serving
    assert health.failure is None
    assert health.connections == 1
    assert health.registered_at == (cluster.namesrv_address,)
    host, port = host_text((await records(client))[0].store_host)
    assert Address("tcp", host, port) == cluster.brokers[0].address


async def test_name_servers_know_a_topic_before_the_response_to_its_first_send(
    cluster: EmbeddedCluster,
) -> None:
    """A client that requests the route right after its first send would get none."""
    assert cluster.namesrv is not None
    assert cluster.namesrv._server is not None
    (channel,) = cluster.namesrv._server.channels
    assert channel._transport is not None
    with socket.socket(fileno=os.dup(channel._transport.get_extra_info("socket").fileno())) as received:
        with pytest.raises(ChangePending) as waiting:
            cluster.brokers[0].topics.create_for_send("New", "TBW102", 4)
        first_bytes: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        waiting.value.wait(lambda _: first_bytes.set_result(received.recv(4096, socket.MSG_PEEK)))
        (frame,) = FrameDecoder().feed(await first_bytes)
        assert decode_command(frame).code == RequestCode.REGISTER_BROKER
    async with await RawClient.open(cluster.namesrv.address) as names:
        route = GetRouteInfoRequestHeader(topic="New")
        assert (await names.call(RequestCode.GET_ROUTEINTO_BY_TOPIC, route)).code == 0
