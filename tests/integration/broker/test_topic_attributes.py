"""Attributes of topics, as clients and tools of RocketMQ 5 set and read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocketpy import AdminClient, Message, Producer
from rocketpy.errors import ConfigInvalid, RemoteProtocolError
from rocketpy.protocol.bodies import (
    CreateTopicListRequestBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import GetTopicConfigRequestHeader
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker import EmbeddedCluster
from tests.integration.cli.commands import run
from tests.integration.raw_client import RawClient, new_topic
from tests.integration.sdk_groups import SETTINGS
from tests.integration.sdk_peers import Names, Peer
from tests.waiting import until


def file_of(directory: Path) -> Path:
    """The file with the topics of the broker."""
    (path,) = directory.rglob("topics.json")
    return path


async def test_attributes_are_kept_and_shown(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """A proxy or client of RocketMQ 5 would not know which messages a topic is for."""
    async with AdminClient(cluster.namesrv_address) as admin:
        await admin.topics.create("Typed", attributes={"message.type": "FIFO"})
        await admin.topics.alter("Typed", read_queues=8)  # what it does not change is kept
        (settings,) = (await admin.topics.describe("Typed")).brokers.values()
        assert (settings.read_queues, settings.attributes) == (8, {"message.type": "FIFO"})
        table = json.loads(file_of(tmp_path).read_text("utf-8"))["topicConfigTable"]
        assert table["Typed"]["attributes"] == {"message.type": "FIFO"}
        assert not any("attributes" in topic for name, topic in table.items() if name != "Typed")
        done = await run("topic", "describe", "Typed", "-n", cluster.namesrv_address)
        assert "message.type=FIFO" in done.out
        changed = {"message.type": "DELAY", "reserve.time": "-1"}
        await admin.topics.alter("Typed", attributes=changed)
        await admin.topics.alter("Typed", attributes={"reserve.time": None})
        (settings,) = (await admin.topics.describe("Typed")).brokers.values()
        assert settings.attributes == {"message.type": "DELAY"}
        with pytest.raises(ConfigInvalid, match="names and values have letters"):
            await admin.topics.alter("Typed", attributes={"message.type": "DELAY,+queue.type=BatchCQ"})


async def test_the_command_sets_attributes(cluster: EmbeddedCluster) -> None:
    """Operators would need mqadmin of RocketMQ 5."""
    given = ("--yes", "-n", cluster.namesrv_address)
    done = await run("topic", "create", "Typed", "--attribute", "message.type=NORMAL", *given)
    assert done.status == 0, done.err
    done = await run("topic", "alter", "Typed", "--attribute", "message.type=", *given)
    assert done.status == 0, done.err
    done = await run("--json", "topic", "describe", "Typed", "-n", cluster.namesrv_address)
    assert json.loads(done.out)["brokers"][0]["attributes"] == {}


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ("message.type=FIFO", r"write \+name=value to set"),
        ("+message.type", "or -name to remove it"),
        ("+message.type=FIFO,+message.type=DELAY", "is given twice"),
        ("+message.type=FIFO,-message.type", "set and removed in one request"),
        ("+message.type=BLUE", "'BLUE'; this broker supports: UNSPECIFIED, NORMAL"),
        ("+color=blue", r"cannot have the attribute '\+color'; known are message.type"),
        ("-message.type", "has no attribute message.type to remove"),
        ("+queue.type=BatchCQ", "supports: SimpleCQ"),
        ("+cleanup.policy=COMPACTION", "supports: DELETE"),
        ("+reserve.time=long", "'long'; this broker supports: -1, a number of ms"),
    ],
)
async def test_what_a_broker_does_not_do_is_rejected(raw: RawClient, attributes: str, says: str) -> None:
    """A topic would be created with another meaning than its owner believes."""
    response = await raw.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("Typed", 4, attributes))
    assert response.code == ResponseCode.SYSTEM_ERROR
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(response.remark)
    found = await raw.call(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic="Typed"))
    assert found.code == ResponseCode.TOPIC_NOT_EXIST


async def test_what_cannot_change_later_is_rejected(raw: RawClient) -> None:
    """The files of a topic would not have the format that its attribute names."""
    for attributes, code in (
        ("+cleanup.policy=DELETE", ResponseCode.SUCCESS),
        (None, ResponseCode.SUCCESS),
        ("-cleanup.policy", ResponseCode.SYSTEM_ERROR),
        ("+queue.type=SimpleCQ", ResponseCode.SYSTEM_ERROR),
    ):
        response = await raw.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("Typed", 4, attributes))
        assert response.code == code, attributes


async def test_mixed_topics_need_a_setting(tmp_path: Path) -> None:
    """RocketMQ 5.3 rejects them by default, with another code than other errors."""
    for enabled, code in (("false", ResponseCode.INVALID_PARAMETER), ("true", ResponseCode.SUCCESS)):
        settings = {**SETTINGS, "enableMixedMessageType": enabled}
        async with (
            EmbeddedCluster(tmp_path / enabled, settings=settings) as cluster,
            await RawClient.open(cluster.brokers[0].address) as raw,
        ):
            header = new_topic("Typed", 4, "+message.type=MIXED")
            response = await raw.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            assert response.code == code


async def test_a_list_of_topics_is_created(cluster: EmbeddedCluster, raw: RawClient) -> None:
    """Mqadmin updateTopicList of RocketMQ 5.3 would fail."""

    async def create(*topics: TopicConfig) -> tuple[int, str | None]:
        body = CreateTopicListRequestBody(topic_config_list=list(topics)).encode()
        response = await raw.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body)
        return response.code, response.remark

    one, two = (
        TopicConfig(topic_name="One"),
        TopicConfig(topic_name="Two", attributes={"+message.type": "FIFO"}),
    )
    assert await create(one, two) == (ResponseCode.SUCCESS, None)
    three = TopicConfig(topic_name="Three")
    assert await create(one, three) == (ResponseCode.SUCCESS, None)  # One stays as it is
    wrong = TopicConfig(topic_name="not a name")
    code, remark = await create(TopicConfig(topic_name="Four"), wrong)
    assert code == ResponseCode.SYSTEM_ERROR
    assert "only letters" in str(remark)
    topics = cluster.brokers[0].topics
    assert [name for name in ("One", "Two", "Three", "Four") if topics.get(name)] == ["One", "Two", "Three"]
    async with AdminClient(cluster.namesrv_address) as admin:
        (settings,) = (await admin.topics.describe("Two")).brokers.values()
        assert settings.attributes == {"message.type": "FIFO"}


async def test_brokers_do_not_check_the_type_of_messages(cluster: EmbeddedCluster) -> None:
    """In RocketMQ 5.3.3 only proxies check it; clients without a proxy could not send."""
    async with (
        AdminClient(cluster.namesrv_address) as admin,
        Producer("g", cluster.namesrv_address) as producer,
    ):
        await admin.topics.create("Typed", attributes={"message.type": "FIFO"})
        await producer.send(Message("Typed", b"x", delay_level=1))


async def test_a_broker_that_ignores_attributes_is_named() -> None:
    """A user of RocketMQ 4 would believe that a topic has a type."""

    def without(_: Channel, request: Command) -> Command:
        table = {"Typed": TopicConfig(topic_name="Typed")}
        has_body = request.code == RequestCode.GET_ALL_TOPIC_CONFIG
        body = TopicConfigSerializeWrapper(topic_config_table=table).encode() if has_body else b""
        return request.reply(body=body)

    async with Peer(without) as peer, Names() as names:
        names.routes["Typed"] = {"a": peer.address}
        async with AdminClient(names.address) as admin:
            with pytest.raises(ConfigInvalid, match="a ignored the attributes of topic Typed"):
                await admin.topics.alter("Typed", attributes={"message.type": "FIFO"})


async def test_files_keep_attributes_of_other_versions(tmp_path: Path) -> None:
    """A broker that takes over a store of RocketMQ 5 would lose what it does not know itself."""
    kept = {"queue.type": "BatchCQ", "message.type": "NORMAL"}
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster:
        await cluster.brokers[0].topics.update(TopicConfig(topic_name="Old"))
    path = file_of(tmp_path)
    file = json.loads(path.read_text("utf-8"))
    file["topicConfigTable"]["Old"]["attributes"] = kept
    path.write_text(json.dumps(file))
    async with (
        EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster,
        AdminClient(cluster.namesrv_address) as admin,
    ):
        await admin.topics.alter("Old", read_queues=20)
    file = json.loads(path.read_text("utf-8"))["topicConfigTable"]["Old"]
    assert (file["readQueueNums"], file["attributes"]) == (20, kept)


def test_compressed_registrations_of_newer_brokers_are_read() -> None:
    """A broker of RocketMQ 5 with compressedRegister=true could not register at our name server."""
    read = TopicConfig.from_text('Typed 4 4 6 SINGLE_TAG {"message.type":"FIFO"}')
    assert read.attributes == {"message.type": "FIFO"}
    assert TopicConfig.from_text("Plain 4 4 6 SINGLE_TAG {}").attributes == {}
    assert read.to_text() == "Typed 4 4 6 SINGLE_TAG"
    with pytest.raises(RemoteProtocolError):
        TopicConfig.from_text("Typed 4 4 6 SINGLE_TAG {")


async def test_a_slave_has_the_attributes(tmp_path: Path) -> None:
    """A slave that becomes the master would have lost them."""
    async with EmbeddedCluster(tmp_path / "pair", slaves=1, settings=SETTINGS) as pair:
        async with AdminClient(pair.namesrv_address) as admin:
            await admin.topics.create("Typed", attributes={"message.type": "FIFO"})

        def copied() -> bool:
            found = [broker.topics.get("Typed") for broker in pair.brokers]
            return all(topic is not None and topic.attributes for topic in found)

        await until(copied)
