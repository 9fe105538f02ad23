"""Requests of operators to a broker, over real sockets: progress, connections, requests for clients."""

import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rocketpy.protocol.bodies import (
    BrokerStatsData,
    ConsumerConnection,
    HeartbeatData,
    KVTable,
    ProducerConnection,
    ProducerData,
    TopicConfigSerializeWrapper,
    TopicList,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    DeleteTopicRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    QueryConsumeQueueRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from rocketpy_broker import Broker, load_broker_config
from rocketpy_broker.config.keys import SettingValue
from tests.integration.broker.test_consumers import beat, drain, pull, send
from tests.integration.raw_client import RawClient
from tests.mqproducer.place import eventually


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[RawClient]:
    """The operator's connection; topic T has three messages, of which group c has consumed two."""
    async with await RawClient.open(broker.address) as raw:
        for number in range(3):
            await send(raw, b"%d" % number, "TAGS\x01t\x02")
        await commit(raw, "c", 2)
        yield raw


@pytest.fixture
async def member(broker: Broker) -> AsyncIterator[RawClient]:
    """A member of group c, whose responses the test sends."""
    async with await RawClient.open(broker.address) as raw:
        await beat(raw, "c@1")
        await drain(raw)
        yield raw


async def commit(client: RawClient, group: str, offset: int) -> None:
    for queue_id in range(4):
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic="T", queue_id=queue_id, commit_offset=offset if queue_id == 0 else 0
        )
        assert (await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0


async def test_connections_are_listed(client: RawClient, member: RawClient) -> None:
    """The tools consumerConnection and producerConnection would show no client."""
    header = GetConsumerConnectionListRequestHeader(consumer_group="c")
    response = await client.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
    found = ConsumerConnection.decode(response.body)
    assert [one.client_id for one in found.connection_set] == ["c@1"]
    assert found.connection_set[0].client_addr == "{}:{}".format(*member.writer.get_extra_info("sockname"))
    assert (found.message_model, found.subscription_table["T"].sub_string) == ("CLUSTERING", "*")
    header = GetConsumerConnectionListRequestHeader(consumer_group="nobody")
    response = await client.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
    assert response.code == ResponseCode.CONSUMER_NOT_ONLINE
    producers = GetProducerConnectionListRequestHeader(producer_group="p")
    assert (await client.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, producers)).code == 1
    data = HeartbeatData(client_id="p@1", producer_data_set=[ProducerData(group_name="p")])
    await member.call(RequestCode.HEART_BEAT, body=data.encode())
    response = await client.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, producers)
    assert ProducerConnection.decode(response.body).connection_set[0].client_id == "p@1"


async def test_a_deleted_topic_has_no_queues(broker: Broker, client: RawClient) -> None:
    """The tool deleteTopic would leave the queues, and a later topic of that name would show them."""
    assert (
        await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T"))
    ).code == 0
    assert (await pull(client)).code == ResponseCode.TOPIC_NOT_EXIST
    assert not (broker.store.config.consume_queue_directory / "T" / "0").exists()
    assert (
        await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="TBW102"))
    ).code == ResponseCode.SYSTEM_ERROR
    await send(client, b"new")
    found = broker.store.max_offset_in_queue("T", 0)
    assert (await pull(client, found - 1)).code == 0
    for code in (RequestCode.CLEAN_UNUSED_TOPIC, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE):
        assert (await client.call(code)).code == 0
    assert (await pull(client, found - 1)).code == 0
    response = await client.call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    names = TopicList.decode(response.body).topic_list
    assert "TBW102" in names
    assert "T" not in names


async def test_rates_and_totals_are_shown(client: RawClient) -> None:
    """The tools clusterList, brokerStatus and statsAll would show nothing."""
    await pull(client)
    header = ViewBrokerStatsDataRequestHeader(stats_name="GROUP_GET_NUMS", stats_key="T@c")
    response = await client.call(RequestCode.VIEW_BROKER_STATS_DATA, header)
    assert BrokerStatsData.decode(response.body).stats_minute.sum == 0  # counted from its first sample on
    header = ViewBrokerStatsDataRequestHeader(stats_name="TOPIC_PUT_SIZE", stats_key="T")
    response = await client.call(RequestCode.VIEW_BROKER_STATS_DATA, header)
    assert BrokerStatsData.decode(response.body).stats_minute.sum == 0  # as above
    header = ViewBrokerStatsDataRequestHeader(stats_name="TOPIC_PUT_NUMS", stats_key="none")
    assert (await client.call(RequestCode.VIEW_BROKER_STATS_DATA, header)).code == 1
    table = KVTable.decode((await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("3", "3")
    assert len(table["putTps"].split()) == len(table["getTransferedTps"].split()) == 3
    assert table["getTransferredTps"] == table["getTransferedTps"]  # as tools of 5.x call it
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1
    assert int(table["earliestMessageTimeStamp"]) > 0


async def test_all_producers_are_listed(client: RawClient) -> None:
    """The command producer of mqadmin 4.9 would fail."""
    code = RequestCode.GET_ALL_PRODUCER_INFO
    assert json.loads((await client.call(code)).body) == {"data": {}}
    data = HeartbeatData(client_id="p@1", producer_data_set=[ProducerData(group_name="p")])
    began_ms = int(time.time() * 1000)
    assert (await client.call(RequestCode.HEART_BEAT, body=data.encode())).code == 0
    ((group, (member,)),) = json.loads((await client.call(code)).body)["data"].items()
    assert group == "p"
    assert member["remoteIP"].startswith("/127.0.0.1:")
    assert (member["clientId"], member["language"]) == ("p@1", "PYTHON")
    assert began_ms - 1000 <= member["lastUpdateTimestamp"] <= time.time() * 1000 + 1000


async def test_an_unwritten_queue_of_a_topic_is_empty(client: RawClient) -> None:
    """The command queryCq would call a queue unknown that topicRoute shows."""

    async def query(topic: str, queue_id: int) -> tuple[int, dict[str, Any]]:
        header = QueryConsumeQueueRequestHeader(topic=topic, queue_id=queue_id, index=0, count=2)
        response = await client.call(RequestCode.QUERY_CONSUME_QUEUE, header)
        return response.code, json.loads(response.body) if response.body else {}

    code, body = await query("T", 3)
    assert (code, body["minQueueIndex"], body["maxQueueIndex"]) == (0, 0, 0)
    assert body["queueData"] == []
    assert [(await query(*queue))[0] for queue in (("T", 4), ("T", -1), ("Nowhere", 0))] == [1, 1, 1]
    assert (await query("T", 0))[1]["maxQueueIndex"] == 3


async def test_the_half_topic_exists_before_the_first_transaction(tmp_path: Path) -> None:
    """The command topicList would lack a topic that it shows with RocketMQ's broker."""
    settings: dict[str, SettingValue] = {
        "listenPort": 0, "storePathRootDir": str(tmp_path), "transactionCheckInterval": 50,
    }  # fmt: skip
    broker = Broker(load_broker_config(None, settings))
    await broker.start()
    try:
        async with await RawClient.open(broker.address) as client:

            async def is_listed() -> bool | None:
                body = (await client.call(RequestCode.GET_ALL_TOPIC_CONFIG)).body
                topics = TopicConfigSerializeWrapper.decode(body).topic_config_table
                found = topics.get("RMQ_SYS_TRANS_HALF_TOPIC")
                return None if found is None else (found.read_queue_nums, found.perm) == (1, 6)

            await eventually(is_listed)
    finally:
        await broker.close()


async def test_expired_files_are_deleted_on_request(tmp_path: Path) -> None:
    """The command deleteExpiredCommitLog of mqadmin 4.9 would fail, or free no space."""
    hour = (time.localtime().tm_hour + 12) % 24
    settings: dict[str, SettingValue] = {
        "listenPort": 0, "storePathRootDir": str(tmp_path), "mappedFileSizeCommitLog": 4096,
        "deleteWhen": f"{hour:02}", "diskMaxUsedSpaceRatio": 99, "maxMessageSize": 2048,
    }  # fmt: skip
    broker = Broker(load_broker_config(None, settings))
    await broker.start()
    try:
        async with await RawClient.open(broker.address) as client:
            for _ in range(20):
                await send(client, b"x" * 1024)
            files = sorted((tmp_path / "commitlog").iterdir())
            assert len(files) > 3
            for file in files[:2]:
                os.utime(file, (0, 0))

            async def is_deleted() -> bool | None:
                assert (await client.call(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
                return min((tmp_path / "commitlog").iterdir()) == files[2] or None

            await eventually(is_deleted)  # files above the checkpoint are kept
    finally:
        await broker.close()
