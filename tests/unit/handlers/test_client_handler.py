"""ClientHandler: heartbeats, members that are notified, connections, and queue locks."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from rocketpy.protocol.bodies import (
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    BrokerFeature,
    GetConsumerListByGroupRequestHeader,
    HeartbeatResponseHeader,
    UnregisterClientRequestHeader,
)
from rocketpy.protocol.message.sysflag import TopicSysFlag
from rocketpy.protocol.remoting.command import FLAG_ONEWAY, Command
from rocketpy.transport import Channel
from rocketpy_broker.config.model import ConsumeConfig, TopicsConfig
from rocketpy_broker.services.metadata.clients import EXPIRED_MS
from tests.turns import Turns
from tests.unit.handlers.broker_parts import BrokerParts, PartsClient, broker, heartbeat, served
from tests.waiting import until


async def members(client: PartsClient) -> list[str]:
    """Return the client ids of group g; an empty list if it is not online."""
    header = GetConsumerListByGroupRequestHeader(consumer_group="g")
    response = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    if response.code:
        assert response.remark == "no consumer for this group, g"
        return []
    return GetConsumerListByGroupResponseBody.decode(response.body).consumer_id_list


@pytest.mark.parametrize("of_group", [False, True])
async def test_notifications_can_be_switched_off(tmp_path: Path, of_group: bool) -> None:
    """notifyConsumerIdsChangedEnable, of broker and group: large groups would rebalance too often."""
    async with broker(tmp_path, consume=ConsumeConfig(notify_ids_changed=of_group)) as (parts, client):
        settings = SubscriptionGroupConfig(group_name="g", notify_consumer_ids_changed_enable=not of_group)
        await parts.groups.update(settings)
        await client.beat()
        assert await members(client) == ["c1"]
        assert client.notified == []


async def test_a_client_that_unregisters_or_is_silent_leaves_its_groups(tmp_path: Path) -> None:
    """QUIRKS 10. The queues of a client that is gone would stay assigned to it."""
    async with broker(tmp_path) as (parts, client):
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


async def test_a_heartbeat_creates_the_retry_topic(tmp_path: Path) -> None:
    """QUIRKS 13. A consumer could not pull the messages that it returned."""
    async with broker(tmp_path) as (parts, client):
        await client.beat(unit_mode=True)
        topic = parts.topics.get("%RETRY%g")
        assert topic is not None
        assert (topic.read_queue_nums, topic.topic_sys_flag) == (1, TopicSysFlag.UNIT_SUB)
        command = Command.request(RequestCode.HEART_BEAT, body=heartbeat(groups=("h",)))
        command.flag |= FLAG_ONEWAY
        client.channel.oneway(command)
        await until(lambda: parts.topics.get("%RETRY%h"))


@pytest.mark.parametrize(
    "features",
    [(), (BrokerFeature.DEAD_LETTER_REASONS,), (BrokerFeature.TIMER, BrokerFeature.DEAD_LETTER_REASONS)],
)
async def test_a_heartbeat_tells_the_features(tmp_path: Path, features: tuple[BrokerFeature, ...]) -> None:
    """The version is 4.6.0's: clients would use no feature that it lacks."""
    async with broker(tmp_path) as (parts, client):
        parts.client_handler.features = features
        for groups in ((), ("g",)):  # also to a producer
            response = await client.call(RequestCode.HEART_BEAT, body=heartbeat(groups=groups))
            assert response.header_as(HeartbeatResponseHeader).feature_set == set(features)
            assert bool(response.ext_fields()) == bool(features)


def test_unknown_features_are_skipped() -> None:
    """An older client could not use a newer broker."""
    header = HeartbeatResponseHeader(features="timer,later-invention,")
    assert header.feature_set == {BrokerFeature.TIMER, "later-invention"}


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
    async with broker(tmp_path, consume=ConsumeConfig(auto_create_group=False)) as (parts, client):
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


async def test_group_names_have_a_limit(tmp_path: Path) -> None:
    """3,000 producer groups with names of 30 KB took 93 MB, and as much in each response of /metrics."""
    parts = BrokerParts(tmp_path)
    async with served(parts) as (client,):
        for producer, consumer, code in (("x" * 255, "g" * 255, 0), ("x" * 256, "g", 1), ("x", "g" * 256, 1)):
            body = HeartbeatData(
                client_id="me",
                producer_data_set=[ProducerData(group_name=producer)],
                consumer_data_set=[ConsumerData(group_name=consumer)],
            ).encode()
            response = await client.call(RequestCode.HEART_BEAT, body=body)
            assert (response.code, "the limit is 255" in (response.remark or "")) == (code, bool(code))
        assert parts.clients.producer_groups == ["x" * 255]


async def test_one_owner_may_not_create_all_groups(tmp_path: Path) -> None:
    """Heartbeats of one account used up the retry topics of a broker, so other groups had no retries."""
    parts = BrokerParts(tmp_path, consume=ConsumeConfig(groups_max=12))
    owner = "mine"
    parts.client_handler.owner = lambda _: owner

    async def codes(client: PartsClient, *groups: str) -> int:
        data = [ConsumerData(group_name=name) for name in groups]
        body = HeartbeatData(client_id="me", consumer_data_set=data).encode()
        response = await client.call(RequestCode.HEART_BEAT, body=body)
        assert (response.code == 1) == ("maxConsumerGroups" in (response.remark or "")), response.remark
        return response.code

    async with served(parts) as (client,):
        assert await codes(client, "a", "b") == 0
        assert await codes(client, "a", "b", "c") == 0
        assert await codes(client, "a", "b", "c", "d") == 1
        assert await codes(client, "a", "b", "c") == 0
        owner = "another"
        assert await codes(client, "d") == 0
        owner = "mine"
        await parts.groups.delete("a")
        assert await codes(client, "e") == 0
        assert await codes(client, "f") == 1
        owner = ""  # of a host on the allow list
        assert await codes(client, "f", "g", "h", "i") == 0


async def test_notifications_of_many_members_leave_time_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each heartbeat that changed the topics of a group with 8,000 members stopped the broker for 0.1 s."""
    parts = BrokerParts(tmp_path)
    readings = itertools.count()
    parts.slices.now_ms = lambda: next(readings) / 5
    async with served(parts, clients=60) as clients:
        for number, client in enumerate(clients):
            await client.beat(client_id=f"{number}")
        oneway = Turns(Channel.oneway)
        monkeypatch.setattr(Channel, "oneway", lambda *args: oneway(*args))  # noqa: PLW0108 - a method
        for topic in ("T", "U", "V"):
            await clients[0].beat(client_id="0", subscriptions=(SubscriptionData(topic=topic),))
        await until(lambda: not parts.client_handler._is_notifying)
        oneway.stop()
        assert oneway.total >= 60
        assert oneway.longest <= 12
