"""Requests that tools of RocketMQ 5 send, and 4.6.0 does not know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from rocketpy import AdminClient, Message, MessageQueue, Producer, PullConsumer
from rocketpy.errors import BrokerError
from rocketpy.protocol.bodies import (
    GroupForbidden,
    QuerySubscriptionResponseBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicList,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicsByConsumerRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy_broker import EmbeddedCluster
from rocketpy_broker.security.allowed_callers import BROKER_CALLERS, NAMESRV_CALLERS
from tests.golden_data import newer_request_codes
from tests.integration.raw_client import RawClient
from tests.integration.sdk_groups import SETTINGS, Seen, consuming


async def test_a_list_of_groups_is_created(cluster: EmbeddedCluster, raw: RawClient) -> None:
    """Mqadmin updateSubGroupList of RocketMQ 5.3 would fail."""

    async def create(*groups: SubscriptionGroupConfig) -> int:
        body = SubscriptionGroupList(group_config_list=list(groups)).encode()
        return (await raw.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, body)).code

    one = SubscriptionGroupConfig(group_name="one", retry_max_times=3)
    assert await create(one, SubscriptionGroupConfig(group_name="two")) == ResponseCode.SUCCESS
    wrong = SubscriptionGroupConfig(group_name="not a name")
    assert await create(SubscriptionGroupConfig(group_name="three"), wrong) == ResponseCode.SYSTEM_ERROR
    async with AdminClient(cluster.namesrv_address) as admin:
        found = {group.name: group for group in await admin.groups.list()}
        assert [name for name in ("one", "two", "three") if name in found] == ["one", "two"]
        (settings,) = found["one"].brokers.values()
        assert settings.max_retries == 3


async def test_topics_and_subscription_of_a_group_are_shown(cluster: EmbeddedCluster, raw: RawClient) -> None:
    """QueryTopicsByConsumer and other commands would fail."""
    async with AdminClient(cluster.namesrv_address) as admin:
        await admin.topics.create("T")

    async def ask(group: str) -> tuple[TopicList, QuerySubscriptionResponseBody]:
        topics = await raw.call(
            RequestCode.QUERY_TOPICS_BY_CONSUMER, QueryTopicsByConsumerRequestHeader(group=group)
        )
        header = QuerySubscriptionByConsumerRequestHeader(group=group, topic="T")
        subscription = await raw.call(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, header)
        assert (topics.code, subscription.code) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
        return TopicList.decode(topics.body), QuerySubscriptionResponseBody.decode(subscription.body)

    seen = Seen()
    async with consuming(cluster, seen, group="readers"):
        async with Producer("g", cluster.namesrv_address) as producer:
            await producer.send(Message("T", b"x"))
        await seen.until(1)
        _, shown = await ask("readers")
        assert (shown.group, shown.topic) == ("readers", "T")
        assert shown.subscription_data is not None
        assert shown.subscription_data.sub_string == "*"
    topics, shown = await ask("readers")
    assert {"T"} <= set(topics.topic_list) <= {"T", "%RETRY%readers"}
    assert topics.broker_addr == str(cluster.brokers[0].address)
    assert shown.subscription_data is None
    topics, shown = await ask("nobody")
    assert topics.topic_list == []
    assert shown.subscription_data is None


async def test_a_group_is_forbidden_to_read_a_topic(tmp_path: Path) -> None:
    """An operator could not keep a group from a topic, or only until the next restart."""
    queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)

    async def may(running: EmbeddedCluster, topic: str, *, readable: bool | None = None) -> bool:
        header = UpdateGroupForbiddenRequestHeader(group="readers", topic=topic, readable=readable)
        async with await RawClient.open(running.brokers[0].address) as client:
            response = await client.call(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)
        assert response.code == ResponseCode.SUCCESS
        return GroupForbidden.decode(response.body).readable

    async def pull(running: EmbeddedCluster, group: str = "readers") -> None:
        async with PullConsumer(group, running.namesrv_address) as consumer:
            await consumer.pull(queue, 0, 1)

    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster:
        async with AdminClient(cluster.namesrv_address) as admin:
            await admin.topics.create("T")
        assert await may(cluster, "T")
        assert not await may(cluster, "T", readable=False)
        assert not await may(cluster, "Other", readable=False)
        with pytest.raises(BrokerError, match=r"group\[readers\] is forbidden for topic\[T\]"):
            await pull(cluster)
        await pull(cluster, "others")
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster:
        assert not await may(cluster, "T")
        assert await may(cluster, "T", readable=True)
        assert not await may(cluster, "Other")
        await pull(cluster)
    file = tmp_path / "config" / "subscriptionGroup.json"
    assert json.loads(file.read_text("utf-8"))["forbiddenTable"] == {"readers": {"Other": 4}}
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster:
        assert await may(cluster, "T")
        async with AdminClient(cluster.namesrv_address) as admin:
            await admin.groups.delete("readers")
        assert await may(cluster, "Other")


@pytest.mark.parametrize(("server", "served"), [("broker", BROKER_CALLERS), ("name server", NAMESRV_CALLERS)])
async def test_other_requests_are_rejected_immediately(
    cluster: EmbeddedCluster, server: str, served: Mapping[int, object]
) -> None:
    """A client or tool of RocketMQ 5.5 would wait for the timeout of each request that is not supported."""
    codes = sorted({*newer_request_codes().values()} - {*served})
    requests = [Command(code, opaque=number) for number, code in enumerate(codes)]
    address = cluster.brokers[0].address if server == "broker" else cluster.namesrv_address
    async with await RawClient.open(address) as client:
        client.writer.write(b"".join(map(encode_command, requests)))
        responses = [await client.next() for _ in requests]
    expected = [(request.opaque, ResponseCode.REQUEST_CODE_NOT_SUPPORTED) for request in requests]
    assert [(response.opaque, response.code) for response in responses] == expected
    assert all(
        f"request type {code} not supported" in (response.remark or "")
        for code, response in zip(codes, responses, strict=True)
    )
