"""AdminHandler: topics, groups and settings, for operators and slaves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import CreateTopicRequestHeader, DeleteTopicRequestHeader
from rocketpy_broker.config.file import load_broker_config
from tests.unit.handlers.broker_parts import BrokerParts, broker, served
from tests.unit.store.helpers import put


def new_topic(name: str, **settings: Any) -> CreateTopicRequestHeader:
    """Return a request for a topic of three queues."""
    defaults: dict[str, Any] = {
        "default_topic": "TBW102", "read_queue_nums": 3, "write_queue_nums": 3, "perm": 6,
        "topic_filter_type": "SINGLE_TAG",
    }  # fmt: skip
    return CreateTopicRequestHeader(topic=name, **{**defaults, **settings})


async def test_an_existing_topic_stays_if_the_client_says_so(tmp_path: Path) -> None:
    """A topic that was created a moment ago would lose queues with messages."""
    async with broker(tmp_path) as (parts, client):
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


async def test_unused_and_expired_queues_are_deleted_on_request(tmp_path: Path) -> None:
    """cleanUnusedTopic, cleanExpiredCQ: queues without a topic or a message would stay on the disk."""
    async with broker(tmp_path, "T") as (parts, client):
        put(parts.store, 0, topic="Unused")
        put(parts.store, 1)
        assert (await client.call(RequestCode.CLEAN_UNUSED_TOPIC)).code == ResponseCode.SUCCESS
        assert parts.store.queues.queues.keys() == {("T", 0)}
        assert (await client.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == ResponseCode.SUCCESS
        assert parts.store.queues.queues.keys() == {("T", 0)}


async def test_a_queue_without_messages_is_not_an_expired_one(tmp_path: Path) -> None:
    """It would be numbered from 0 again after a restart, below the offsets of consumer groups."""
    async with broker(tmp_path, "T") as (parts, client):
        parts.store.queues.get_or_add("T", 0).begin_at(7)
        assert (await client.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == ResponseCode.SUCCESS
        assert parts.store.max_offset_in_queue("T", 0) == 7


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


async def test_deletions_at_the_same_time_search_the_queues_together(tmp_path: Path) -> None:
    """Each of 5,000 deletions took 25 ms to look at 20,000 queues."""
    names = [f"T{number}" for number in range(20)]
    parts = BrokerParts(tmp_path)
    parts.add_topics(*names)
    for name in names:
        put(parts.store, 0, topic=name)
    async with served(parts) as (client,):
        code, headers = (
            RequestCode.DELETE_TOPIC_IN_BROKER,
            [DeleteTopicRequestHeader(topic=name) for name in names],
        )
        responses = await asyncio.gather(*(client.call(code, header) for header in headers))
        assert {response.code for response in responses} == {ResponseCode.SUCCESS}
        assert not parts.store.queues.queues
        assert parts.drops < 10
