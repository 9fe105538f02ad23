"""AdminHandler: topics, groups and settings, for operators and slaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocketpy.protocol.bodies import (
    DelayOffsetSerializeWrapper,
    KVTable,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
)
from rocketpy_broker.config.file import load_broker_config
from rocketpy_broker.services.delay.topic_rewrite import HALF_TOPIC
from tests.unit.handlers.broker_parts import BrokerParts, served
from tests.unit.store.helpers import put


def new_topic(name: str, **settings: Any) -> CreateTopicRequestHeader:
    """Return a request for a topic of three queues."""
    defaults: dict[str, Any] = {
        "default_topic": "TBW102", "read_queue_nums": 3, "write_queue_nums": 3, "perm": 6,
        "topic_filter_type": "SINGLE_TAG",
    }  # fmt: skip
    return CreateTopicRequestHeader(topic=name, **{**defaults, **settings})


async def test_a_topic_is_created_changed_and_deleted(tmp_path: Path) -> None:
    """QUIRKS 13. A topic would not be found after a response that says it exists."""
    parts = BrokerParts(tmp_path)
    one = GetTopicConfigRequestHeader(topic="T")
    async with served(parts) as (client,):
        response = await client.call(RequestCode.GET_TOPIC_CONFIG, one)
        assert response.code == ResponseCode.TOPIC_NOT_EXIST
        for queues in (3, 5):
            header = new_topic("T", read_queue_nums=queues, order=True)
            response = await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            assert response.code == ResponseCode.SUCCESS
            found = TopicConfig.decode((await client.call(RequestCode.GET_TOPIC_CONFIG, one)).body)
            assert (found.read_queue_nums, found.write_queue_nums, found.order) == (queues, 3, True)
        all_topics = await client.call(RequestCode.GET_ALL_TOPIC_CONFIG)
        assert "T" in TopicConfigSerializeWrapper.decode(all_topics.body).topic_config_table
        delete = DeleteTopicRequestHeader(topic="T")
        response = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, delete)
        assert (response.code, parts.topics.get("T")) == (ResponseCode.SUCCESS, None)
        assert parts.registrations == 3


async def test_an_existing_topic_stays_if_the_client_says_so(tmp_path: Path) -> None:
    """A topic that was created a moment ago would lose queues with messages."""
    parts = BrokerParts(tmp_path)
    async with served(parts) as (client,):
        for queues, code in ((3, ResponseCode.SUCCESS), (1, ResponseCode.TOPIC_EXIST_ALREADY)):
            header = new_topic("T", write_queue_nums=queues, only_if_missing=True)
            assert (await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == code
            found = parts.topics.get("T")
            assert found is not None
            assert found.write_queue_nums == 3
        await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("T", write_queue_nums=1))
        found = parts.topics.get("T")
        assert found is not None
        assert found.write_queue_nums == 1


@pytest.mark.parametrize(
    ("name", "settings", "remark"),
    [
        ("DefaultCluster", {}, "conflict with system reserved words"),
        ("no topic", {}, "no topic"),
        ("T", {"read_queue_nums": -1}, "-1 queues"),
        ("T", {"write_queue_nums": 5000}, "5000 queues"),
    ],
)
async def test_an_invalid_topic_is_not_created(
    tmp_path: Path, name: str, settings: dict[str, Any], remark: str
) -> None:
    """A topic with an invalid name, or too many queues, would fill the disk or could not be registered."""
    parts = BrokerParts(tmp_path)
    names = set(parts.topics.names)
    async with served(parts) as (client,):
        response = await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic(name, **settings))
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert remark in (response.remark or "")
        assert set(parts.topics.names) == names


async def test_a_system_topic_is_not_deleted(tmp_path: Path) -> None:
    """TBW102 could be deleted, and then no send could create a topic."""
    parts = BrokerParts(tmp_path)
    async with served(parts) as (client,):
        response = await client.call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        assert "TBW102" in (TopicList.decode(response.body).topic_list or ())
        header = DeleteTopicRequestHeader(topic="TBW102")
        response = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, header)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert parts.topics.get("TBW102") is not None


async def test_a_deleted_topic_takes_its_queues_with_it(tmp_path: Path) -> None:
    """A new topic of the same name would show the messages of the old one."""
    parts = BrokerParts(tmp_path)
    parts.add_topics("T", "Kept")
    async with served(parts) as (client,):
        for topic in ("T", "Kept", HALF_TOPIC):
            put(parts.store, 0, topic=topic)
        header = DeleteTopicRequestHeader(topic="T")
        response = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, header)
        assert response.code == ResponseCode.SUCCESS
        assert parts.store.queues.queues.keys() == {("Kept", 0), (HALF_TOPIC, 0)}
        assert not (parts.store.config.consume_queue_directory / "T" / "0").exists()


async def test_unused_and_expired_queues_are_deleted_on_request(tmp_path: Path) -> None:
    """cleanUnusedTopic, cleanExpiredCQ: queues without a topic or a message would stay on the disk."""
    parts = BrokerParts(tmp_path)
    parts.add_topics("T")
    async with served(parts) as (client,):
        put(parts.store, 0, topic="Unused")
        put(parts.store, 1)
        assert (await client.call(RequestCode.CLEAN_UNUSED_TOPIC)).code == ResponseCode.SUCCESS
        assert parts.store.queues.queues.keys() == {("T", 0)}
        assert (await client.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == ResponseCode.SUCCESS
        assert parts.store.queues.queues.keys() == {("T", 0)}


async def test_a_queue_without_messages_is_not_an_expired_one(tmp_path: Path) -> None:
    """It would be numbered from 0 again after a restart, below the offsets of consumer groups."""
    parts = BrokerParts(tmp_path)
    parts.add_topics("T")
    async with served(parts) as (client,):
        parts.store.queues.get_or_add("T", 0).begin_at(7)
        assert (await client.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == ResponseCode.SUCCESS
        assert parts.store.max_offset_in_queue("T", 0) == 7


async def test_a_group_is_created_changed_and_deleted(tmp_path: Path) -> None:
    """updateSubGroup, deleteSubGroup: an operator's settings of a group would be lost."""
    parts = BrokerParts(tmp_path)
    one = GetSubscriptionGroupConfigRequestHeader(group="g")
    async with served(parts) as (client,):
        response = await client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, one)
        assert response.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        body = SubscriptionGroupConfig(group_name="g", retry_max_times=3).encode()
        response = await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        assert response.code == ResponseCode.SUCCESS
        response = await client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, one)
        assert SubscriptionGroupConfig.decode(response.body).retry_max_times == 3
        response = await client.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        assert "g" in SubscriptionGroupWrapper.decode(response.body).subscription_group_table
        for _ in range(2):  # a missing group is not an error
            header = DeleteSubscriptionGroupRequestHeader(group_name="g")
            response = await client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
            assert response.code == ResponseCode.SUCCESS
        assert parts.groups.get("g") is None


async def test_operators_and_slaves_read_the_state_of_the_broker(tmp_path: Path) -> None:
    """QUIRKS 56. A slave without the delay offsets would deliver delayed messages again."""
    async with served(BrokerParts(tmp_path)) as (client,):
        response = await client.call(RequestCode.GET_ALL_DELAY_OFFSET)
        assert DelayOffsetSerializeWrapper.decode(response.body).offset_table == {1: 7}
        response = await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert KVTable.decode(response.body).table == {"key": "value"}
        response = await client.call(RequestCode.GET_BROKER_CONFIG)
        assert b"brokerName=broker-a\n" in response.body
        assert "version" in response.ext_fields()


async def test_settings_are_changed_in_the_file_and_at_once(tmp_path: Path) -> None:
    """updateBrokerConfig: a change would be lost at the next start, or not be registered at name servers."""
    file = tmp_path / "broker.conf"
    file.write_text("remoteConfigUpdateEnable=true\n")
    parts = BrokerParts(tmp_path / "store", updatable_file=file)
    changes: list[dict[str, TopicConfig]] = []
    parts.topics.on_change = lambda changed: changes.append(dict(changed))
    async with served(parts) as (client,):
        update = RequestCode.UPDATE_BROKER_CONFIG
        response = await client.call(update, body=b"longPollingEnable=false\nbrokerPermission=4\n")
        assert (response.code, response.remark) == (ResponseCode.SUCCESS, None)
        assert (parts.config.consume.long_polling, parts.config.permission) == (False, 4)
        assert (changes, parts.registrations) == ([{}], 1)
        assert "brokerPermission=4" in file.read_text()
        response = await client.call(update, body=b"traceOn=false\n")
        assert "applies at the next start" in (response.remark or "")
        assert parts.registrations == 1
        for text in (b"storePathRootDir=/x", b"brokerPermission=99"):
            response = await client.call(update, body=text)
            assert response.code == ResponseCode.NO_PERMISSION
        assert (parts.config.permission, "storePathRootDir" in file.read_text()) == (4, False)


async def test_settings_whose_limits_depend_on_each_other_change_together(tmp_path: Path) -> None:
    """The first of two valid settings would be rejected because of the old value of the second."""
    file = tmp_path / "broker.conf"
    file.write_text("remoteConfigUpdateEnable=true\n")
    async with served(BrokerParts(tmp_path / "store", updatable_file=file)) as (client,):
        body = b"haSendHeartbeatInterval=30000\nhaHousekeepingInterval=60000\n"
        response = await client.call(RequestCode.UPDATE_BROKER_CONFIG, body=body)
        assert response.code == ResponseCode.SUCCESS
        response = await client.call(
            RequestCode.UPDATE_BROKER_CONFIG, body=b"haSendHeartbeatInterval=60000\n"
        )
        assert response.code == ResponseCode.NO_PERMISSION
    assert "haHousekeepingInterval=60000" in file.read_text()


async def test_a_change_must_be_valid_with_earlier_ones_for_the_next_start(tmp_path: Path) -> None:
    """The broker would not start with its file: the running settings do not show what that contains."""
    file = tmp_path / "broker.conf"
    file.write_text("remoteConfigUpdateEnable=true\n")
    async with served(BrokerParts(tmp_path / "store", updatable_file=file)) as (client,):
        for setting, code in (
            ("haHousekeepingInterval=60000", ResponseCode.SUCCESS),
            ("haSendHeartbeatInterval=30000", ResponseCode.SUCCESS),
            ("haHousekeepingInterval=20000", ResponseCode.NO_PERMISSION),
            ("haTransferBatchSize=65536", ResponseCode.SUCCESS),
        ):
            response = await client.call(RequestCode.UPDATE_BROKER_CONFIG, body=f"{setting}\n".encode())
            assert response.code == code
    ha = load_broker_config(file).ha
    assert (ha.silence_ms, ha.heartbeat_ms) == (60_000, 30_000)


async def test_settings_stay_as_they_are_without_permission(tmp_path: Path) -> None:
    """CVE-2023-33246. Each client that reaches the port could change the broker."""
    async with served(BrokerParts(tmp_path)) as (client,):
        response = await client.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"longPollingEnable=false\n")
        assert (response.code, response.remark) == (
            ResponseCode.NO_PERMISSION,
            "remoteConfigUpdateEnable is not true in this server's own file",
        )
