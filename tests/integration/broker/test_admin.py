"""Requests of operators to a broker, over real sockets: progress, connections, requests for clients."""

from collections.abc import AsyncIterator

import pytest

from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies import (
    BrokerStatsData,
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    GetConsumerStatusBody,
    GroupList,
    HeartbeatData,
    KVTable,
    MessageQueue,
    ProducerConnection,
    ProducerData,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
    TopicList,
    TopicStatsTable,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    ConsumeMessageDirectlyResultRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetHeader,
    QueryTopicConsumeByWhoRequestHeader,
    ResetOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from rocketpy.protocol.message.record import decode_all
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy_broker import Broker
from tests.integration.broker.test_consumers import beat, drain, pull, send
from tests.integration.raw_client import RawClient

QUEUE = MessageQueue("T", "broker-a", 0)


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


async def test_topics_and_groups_show_their_progress(client: RawClient) -> None:
    """QUIRKS 8: the tools topicStatus, consumerProgress and brokerConsumeStats would show nothing."""
    response = await client.call(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic="T"))
    assert response.body.startswith(b'{"offsetTable":{{"')
    topic = TopicStatsTable.decode(response.body).offset_table
    assert (topic[QUEUE].min_offset, topic[QUEUE].max_offset, len(topic)) == (0, 3, 4)
    assert topic[QUEUE].last_update_timestamp > 0
    unknown = await client.call(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic="X"))
    assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
    response = await client.call(
        RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(consumer_group="c")
    )
    progress = ConsumeStats.decode(response.body).offset_table[QUEUE]
    assert (progress.broker_offset, progress.consumer_offset) == (3, 2)
    assert 0 < progress.last_timestamp <= topic[QUEUE].last_update_timestamp
    response = await client.call(
        RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerHeader(is_order=False)
    )
    everything = ConsumeStatsList.decode(response.body)
    assert everything.total_diff == 0  # the group does not exist yet, only its offsets
    await pull(client)
    response = await client.call(
        RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerHeader(is_order=False)
    )
    assert ConsumeStatsList.decode(response.body).total_diff == 1


async def test_store_times_and_groups_of_a_topic_are_shown(client: RawClient) -> None:
    """An operator could not see how late a group is."""
    spans = QueryConsumeTimeSpanBody.decode(
        (
            await client.call(
                RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpanRequestHeader(topic="T", group="c")
            )
        ).body
    ).consume_time_span_set
    assert spans[0].message_queue == QUEUE
    assert spans[0].min_time_stamp <= spans[0].consume_time_stamp <= spans[0].max_time_stamp
    assert spans[0].delay_time >= 0
    who = QueryTopicConsumeByWhoRequestHeader(topic="T")
    response = await client.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, who)
    assert GroupList.decode(response.body).group_list == ["c"]


async def test_offsets_are_copied_and_compared(client: RawClient) -> None:
    """The tool cloneGroupOffset would report success and do nothing."""
    clone = CloneGroupOffsetRequestHeader(src_group="c", dest_group="d", topic="T", offline=True)
    assert (await client.call(RequestCode.CLONE_GROUP_OFFSET, clone)).code == 0
    await commit(client, "c", 3)
    header = QueryCorrectionOffsetHeader(compare_group="c", topic="T")
    response = await client.call(RequestCode.QUERY_CORRECTION_OFFSET, header)
    assert QueryCorrectionOffsetBody.decode(response.body).correction_offsets[0] == 2
    header = QueryCorrectionOffsetHeader(compare_group="c", topic="T", filter_groups="d")
    response = await client.call(RequestCode.QUERY_CORRECTION_OFFSET, header)
    assert QueryCorrectionOffsetBody.decode(response.body).correction_offsets[0] == 3


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


async def reset(client: RawClient, *, timestamp: int, force: bool, language: str = "JAVA") -> Command:
    header = ResetOffsetRequestHeader(topic="T", group="c", timestamp=timestamp, is_force=force)
    request = Command.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    request.language = language
    return await client.call_frame(encode_command(request))


async def test_members_of_a_group_reset_their_offsets(client: RawClient, member: RawClient) -> None:
    """The tool resetOffsetByTime would only work while the group is stopped."""
    response = await reset(client, timestamp=0, force=True)
    assert ResetOffsetBody.decode(response.body).offset_table[QUEUE] == 0
    request = await member.next()
    assert (request.code, request.is_oneway) == (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, True)
    assert ResetOffsetBody.decode(request.body).offset_table[QUEUE] == 0
    assert request.ext_fields() == {"topic": "T", "group": "c", "timestamp": "0", "isForce": "false"}
    response = await reset(
        client, timestamp=-1, force=False, language="CPP"
    )  # without force, offsets only move back
    assert ResetOffsetBody.decode(response.body).offset_table[QUEUE] == 2
    for_c = ResetOffsetBodyForC.decode((await member.next()).body).offset_table
    assert (for_c[0].queue_id, for_c[0].offset) == (0, 2)


async def test_a_reset_of_an_offline_group_is_rejected(client: RawClient) -> None:
    """An operator would believe that a reset was done."""
    assert (await reset(client, timestamp=0, force=True)).code == ResponseCode.CONSUMER_NOT_ONLINE


async def ask(client: RawClient, command: Command) -> None:
    """Send a request without waiting for its response."""
    client.writer.write(encode_command(command))


async def test_requests_are_forwarded_to_the_member(client: RawClient, member: RawClient) -> None:
    """The tools consumerStatus and queryMsgById -d would run into their timeouts."""
    info = GetConsumerRunningInfoRequestHeader(consumer_group="c", client_id="c@1", jstack_enable=True)
    await ask(client, Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, info))
    asked = await member.next()
    assert (asked.code, asked.header_as(GetConsumerRunningInfoRequestHeader)) == (307, info)
    member.writer.write(encode_command(asked.reply(remark="so far", body=b'{"properties":{}}')))
    response = await client.next()
    assert (response.code, response.remark, response.body) == (0, "so far", b'{"properties":{}}')

    (record, *_) = decode_all((await pull(client)).body)
    message_id = (await send(client, b"again")).ext_fields()["msgId"]
    directly = ConsumeMessageDirectlyResultRequestHeader(
        consumer_group="c", client_id="c@1", msg_id=message_id
    )
    await ask(client, Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, directly))
    asked = await member.next()
    assert asked.ext_fields()["brokerName"] == "broker-a"
    assert [one.body for one in decode_all(asked.body)] == [b"again"]
    member.writer.write(encode_command(asked.reply(body=b'{"consumeResult":"CR_SUCCESS"}')))
    assert fastjson.loads((await client.next()).body) == {"consumeResult": "CR_SUCCESS"}

    status = GetConsumerStatusRequestHeader(topic="T", group="c", client_addr="")
    await ask(client, Command.request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, status))
    asked = await member.next()
    assert asked.ext_fields() == {"topic": "T", "group": "c"}
    body = GetConsumerStatusBody(message_queue_table={QUEUE: 2}).encode()
    member.writer.write(encode_command(asked.reply(body=body)))
    table = GetConsumerStatusBody.decode((await client.next()).body).consumer_table
    assert table == {"c@1": {QUEUE: 2}}
    assert record.body == b"0"


async def test_a_missing_member_is_reported(client: RawClient) -> None:
    """An operator's tool would wait for a client that does not exist."""
    info = GetConsumerRunningInfoRequestHeader(consumer_group="c", client_id="c@9")
    response = await client.call(RequestCode.GET_CONSUMER_RUNNING_INFO, info)
    assert (response.code, response.remark) == (1, "The Consumer <c> <c@9> not online")


async def test_a_forwarded_request_fails_when_its_member_leaves(client: RawClient, member: RawClient) -> None:
    """The request would end with the timeout of the tool."""
    info = GetConsumerRunningInfoRequestHeader(consumer_group="c", client_id="c@1")
    await ask(client, Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, info))
    await member.next()
    member.writer.close()
    response = await client.next()
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "invoke consumer <c> <c@1>" in (response.remark or "")


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


async def test_entries_of_a_consume_queue_are_shown(client: RawClient) -> None:
    """The tool queryCq would show nothing, as it does on RocketMQ's broker."""
    header = QueryConsumeQueueRequestHeader(topic="T", queue_id=0, index=1, count=5, consumer_group="c")
    body = QueryConsumeQueueResponseBody.decode(
        (await client.call(RequestCode.QUERY_CONSUME_QUEUE, header)).body
    )
    assert (body.min_queue_index, body.max_queue_index, body.filter_data) == (0, 3, "c@T is not online!")
    assert body.queue_data is not None
    assert [entry.tags_code for entry in body.queue_data] == [ord("t")] * 2
    missing = QueryConsumeQueueRequestHeader(topic="T", queue_id=9, index=0, count=5)
    assert (await client.call(RequestCode.QUERY_CONSUME_QUEUE, missing)).code == 1


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
