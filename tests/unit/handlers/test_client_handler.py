"""ClientHandler: heartbeats, members that are notified, connections, and queue locks."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpy.protocol.bodies import (
    CheckClientRequestBody,
    ConsumerConnection,
    GetConsumerListByGroupResponseBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    ProducerConnection,
    SubscriptionData,
    SubscriptionGroupConfig,
    UnlockBatchRequestBody,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetProducerConnectionListRequestHeader,
    UnregisterClientRequestHeader,
)
from rocketpy.protocol.message.sysflag import TopicSysFlag
from rocketpy.protocol.remoting.command import FLAG_ONEWAY, Command
from rocketpy_broker.config.model import ConsumeConfig, TopicsConfig
from rocketpy_broker.services.metadata.clients import EXPIRED_MS
from tests.unit.handlers.broker_parts import BrokerParts, PartsClient, heartbeat, served
from tests.waiting import until

QUEUE = MessageQueue("T", "b", 0)
CHANGED = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


async def members(client: PartsClient) -> list[str]:
    """Return the client ids of group g; an empty list if it is not online."""
    header = GetConsumerListByGroupRequestHeader(consumer_group="g")
    response = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    if response.code:
        assert response.remark == "no consumer for this group, g"
        return []
    return GetConsumerListByGroupResponseBody.decode(response.body).consumer_id_list


async def test_members_are_notified_when_one_joins_or_leaves(tmp_path: Path) -> None:
    """QUIRKS 41. Queues of a member that has left would wait for the next periodic rebalance."""
    async with served(BrokerParts(tmp_path), clients=2) as (first, second):
        assert (await first.beat("c1")).code == ResponseCode.SUCCESS
        await until(lambda: first.notified == [CHANGED])
        assert (await second.beat("c2")).code == ResponseCode.SUCCESS
        await until(lambda: len(first.notified) == 2 and len(second.notified) == 1)
        assert (await second.beat("c2")).code == ResponseCode.SUCCESS
        assert await members(first) == ["c1", "c2"]
        assert len(first.notified) == 2  # the second heartbeat has changed nothing
        second.channel.close()
        await until(lambda: len(first.notified) == 3)
        assert await members(first) == ["c1"]


@pytest.mark.parametrize("of_group", [False, True])
async def test_notifications_can_be_switched_off(tmp_path: Path, of_group: bool) -> None:
    """notifyConsumerIdsChangedEnable, of broker and group: large groups would rebalance too often."""
    parts = BrokerParts(tmp_path, consume=ConsumeConfig(notify_ids_changed=of_group))
    async with served(parts) as (client,):
        settings = SubscriptionGroupConfig(group_name="g", notify_consumer_ids_changed_enable=not of_group)
        await parts.groups.update(settings)
        await client.beat()
        assert await members(client) == ["c1"]
        assert client.notified == []


async def test_a_client_that_unregisters_or_is_silent_leaves_its_groups(tmp_path: Path) -> None:
    """QUIRKS 10. The queues of a client that is gone would stay assigned to it."""
    parts = BrokerParts(tmp_path)
    async with served(parts) as (client,):
        header = UnregisterClientRequestHeader(client_id="c1", consumer_group="g", producer_group="p")
        await client.beat()
        for _ in range(2):  # clients send it for each of their groups
            response = await client.call(RequestCode.UNREGISTER_CLIENT, header)
            assert response.code == ResponseCode.SUCCESS
        assert await members(client) == []
        await client.beat()
        parts.now_ms = EXPIRED_MS
        parts.client_handler.drop_inactive()
        assert await members(client) == ["c1"]
        parts.now_ms = EXPIRED_MS + 1
        parts.client_handler.drop_inactive()
        assert await members(client) == []


async def test_a_heartbeat_of_too_many_new_groups_is_rejected(tmp_path: Path) -> None:
    """One heartbeat could fill the table of groups, and create as many retry topics."""
    parts = BrokerParts(tmp_path, consume=ConsumeConfig(new_groups_max=2))
    async with served(parts) as (client,):
        response = await client.beat(groups=("a", "b", "c"))
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert "names 3 consumer groups" in (response.remark or "")
        assert (await client.beat(groups=("a", "b"))).code == ResponseCode.SUCCESS
        assert (tmp_path / "topics.json").exists()  # the response waits for the retry topics


async def test_a_heartbeat_creates_the_retry_topic(tmp_path: Path) -> None:
    """QUIRKS 13. A consumer could not pull the messages that it returned."""
    parts = BrokerParts(tmp_path)
    async with served(parts) as (client,):
        await client.beat(unit_mode=True)
        topic = parts.topics.get("%RETRY%g")
        assert topic is not None
        assert (topic.read_queue_nums, topic.topic_sys_flag) == (1, TopicSysFlag.UNIT_SUB)
        command = Command.request(RequestCode.HEART_BEAT, body=heartbeat(groups=("h",)))
        command.flag |= FLAG_ONEWAY
        client.channel.oneway(command)
        await until(lambda: parts.topics.get("%RETRY%h"))


async def test_a_group_without_room_for_a_retry_topic_is_registered(tmp_path: Path) -> None:
    """maxTopics: a consumer whose retry topic cannot be created would not consume at all."""
    parts = BrokerParts(tmp_path, topics=TopicsConfig(topics_max=1))
    parts.add_topics(*(f"T{number}" for number in range(20)))
    async with served(parts) as (client,):
        assert (await client.beat()).code == ResponseCode.SUCCESS
        assert await members(client) == ["c1"]
        assert parts.topics.get("%RETRY%g") is None


async def test_a_group_that_may_not_be_created_gets_no_retry_topic(tmp_path: Path) -> None:
    """autoCreateSubscriptionGroup=false: a typing error would create a topic."""
    parts = BrokerParts(tmp_path, consume=ConsumeConfig(auto_create_group=False))
    async with served(parts) as (client,):
        assert (await client.beat()).code == ResponseCode.SUCCESS
        assert parts.topics.get("%RETRY%g") is None


async def test_a_client_id_in_use_by_another_owner_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The replies of one process would go to another with the same client id, without a report."""
    parts = BrokerParts(tmp_path)
    owners = iter(["one", "two"])
    parts.client_handler.owner = lambda _: next(owners)
    async with served(parts, clients=2) as (first, second):
        await first.beat("same")
        assert not [record for record in caplog.records if "another owner" in record.getMessage()]
        await second.beat("same")
    (record,) = (record for record in caplog.records if "another owner" in record.getMessage())
    assert "client id same of memory://" in record.getMessage()


async def test_subscriptions_are_limited_by_the_memory_of_the_connection(tmp_path: Path) -> None:
    """maxConnectionBytes: one client could fill the memory of the broker with subscriptions."""
    parts = BrokerParts(tmp_path)
    parts.clients._add_memory = lambda _, size: size < 5000
    wanted = tuple(SubscriptionData(topic=f"T{number}", sub_string="*") for number in range(9))
    async with served(parts) as (client,):
        response = await client.beat(subscriptions=wanted)
        assert (response.code, "maxConnectionBytes" in (response.remark or "")) == (
            ResponseCode.SYSTEM_BUSY,
            True,
        )
        assert await members(client) == []


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("a BETWEEN 1 AND 5", "SQL92", ResponseCode.SUCCESS),
        ("a BETWEEN 1", "SQL92", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("anything", "TAG", ResponseCode.SUCCESS),
    ],
)
async def test_a_filter_is_checked_at_the_start_of_a_consumer(
    tmp_path: Path, text: str, kind: str, code: int
) -> None:
    """A consumer with an invalid expression would start, and get no message."""
    parts = BrokerParts(tmp_path, consume=ConsumeConfig(property_filter=True))
    wanted = SubscriptionData(topic="T", sub_string=text, expression_type=kind)
    body = CheckClientRequestBody(client_id="c1", group="g", subscription_data=wanted).encode()
    async with served(parts) as (client,):
        assert (await client.call(RequestCode.CHECK_CLIENT_CONFIG, body=body)).code == code
    off = BrokerParts(tmp_path / "off")
    async with served(off) as (client,):
        response = await client.call(RequestCode.CHECK_CLIENT_CONFIG, body=body)
        assert response.code == (ResponseCode.SUCCESS if kind == "TAG" else ResponseCode.SYSTEM_ERROR)


async def test_connections_are_listed(tmp_path: Path) -> None:
    """The tools consumerConnection and producerConnection would show no client."""
    async with served(BrokerParts(tmp_path)) as (client,):
        consumers = GetConsumerConnectionListRequestHeader(consumer_group="g")
        producers = GetProducerConnectionListRequestHeader(producer_group="p")
        response = await client.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumers)
        assert response.code == ResponseCode.CONSUMER_NOT_ONLINE
        response = await client.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, producers)
        assert (response.code, response.remark) == (1, "the producer group[p] not exist")
        await client.beat(subscriptions=(SubscriptionData(topic="T", sub_string="a"),))
        await client.produce("p1", "p")
        response = await client.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumers)
        found = ConsumerConnection.decode(response.body)
        assert [one.client_id for one in found.connection_set] == ["c1"]
        assert found.connection_set[0].client_addr.startswith("memory://")
        assert (found.message_model, found.subscription_table["T"].sub_string) == ("CLUSTERING", "a")
        response = await client.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, producers)
        assert [one.client_id for one in ProducerConnection.decode(response.body).connection_set] == ["p1"]


async def test_a_queue_is_locked_for_one_client(tmp_path: Path) -> None:
    """Two clients that consume in order would consume one queue at the same time."""
    async with served(BrokerParts(tmp_path)) as (client,):
        for client_id, queues in (("c1", [QUEUE]), ("c2", []), ("c1", [QUEUE])):
            body = LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=[QUEUE])
            response = await client.call(RequestCode.LOCK_BATCH_MQ, body=body.encode())
            assert LockBatchResponseBody.decode(response.body).lock_ok_mq_set == queues
        unlock = UnlockBatchRequestBody(consumer_group="g", client_id="c1", mq_set=[QUEUE])
        await client.call(RequestCode.UNLOCK_BATCH_MQ, body=unlock.encode())
        body = LockBatchRequestBody(consumer_group="g", client_id="c2", mq_set=[QUEUE])
        response = await client.call(RequestCode.LOCK_BATCH_MQ, body=body.encode())
        assert LockBatchResponseBody.decode(response.body).lock_ok_mq_set == [QUEUE]
