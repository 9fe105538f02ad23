"""Attributes of topics and requests of RocketMQ 5: its broker and ours, also at one store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rocketpy.protocol.bodies import (
    CreateTopicListRequestBody,
    QueryAssignmentRequestBody,
    RequestMode,
    SetMessageRequestModeRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
)
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import (
    GetTopicConfigRequestHeader,
    Header,
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicsByConsumerRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from tests.integration.raw_client import RawClient, new_topic
from tests.interop.java_peer import JavaPeer
from tests.interop.processes import BrokerProcess, JavaBroker, NameServerProcess, OurBroker

pytestmark = pytest.mark.interop

CONF = {"brokerName": "newer", "mappedFileSizeCommitLog": 1 << 20}
Answer = tuple[int, Any]


def update(topic: str, attributes: str) -> tuple[int, Header | None, bytes]:
    """A request that creates or changes a topic."""
    return RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic(topic, 4, attributes), b""


def requests() -> list[tuple[int, Header | None, bytes]]:
    """Requests whose codes and bodies must be the same."""
    topics = [TopicConfig(topic_name="Listed", attributes={"+message.type": "FIFO"})]
    groups = [SubscriptionGroupConfig(group_name="listed", retry_max_times=3)]

    def forbid(*, readable: bool | None) -> tuple[int, Header | None, bytes]:
        header = UpdateGroupForbiddenRequestHeader(group="listed", topic="Typed", readable=readable)
        return RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header, b""

    subscription = QuerySubscriptionByConsumerRequestHeader(group="listed", topic="Typed")
    return [
        update("Typed", "+message.type=NORMAL"),
        update("Typed", "+message.type=DELAY,+reserve.time=-1"),
        update("Typed", "-reserve.time"),
        update("Typed", "+message.type=BLUE"),
        update("Typed", "+message.type=MIXED"),
        update("Typed", "-message.size"),
        update("Typed", "message.type=FIFO"),
        update("New", "-message.type"),
        (
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            None,
            CreateTopicListRequestBody(topic_config_list=topics).encode(),
        ),
        (
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            None,
            SubscriptionGroupList(group_config_list=groups).encode(),
        ),
        (RequestCode.QUERY_TOPICS_BY_CONSUMER, QueryTopicsByConsumerRequestHeader(group="listed"), b""),
        (RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, subscription, b""),
        forbid(readable=None),
        forbid(readable=False),
        forbid(readable=None),
        set_mode("Typed", RequestMode.POP),
        set_mode("Nowhere", RequestMode.POP),
        set_mode("%RETRY%listed", RequestMode.POP),
        (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, None, b""),
        query_assignment("Typed"),
        query_assignment("Nowhere"),
    ]


def set_mode(topic: str, mode: RequestMode) -> tuple[int, Header | None, bytes]:
    """The request of mqadmin setConsumeMode."""
    body = SetMessageRequestModeRequestBody(
        topic=topic, consumer_group="listed", mode=mode, pop_share_queue_num=2
    )
    return RequestCode.SET_MESSAGE_REQUEST_MODE, None, body.encode()


def query_assignment(topic: str) -> tuple[int, Header | None, bytes]:
    """The request of a consumer with clientRebalance=false."""
    body = QueryAssignmentRequestBody(
        topic=topic, consumer_group="listed", client_id="c", strategy_name="AVG", message_model="CLUSTERING"
    )
    return RequestCode.QUERY_ASSIGNMENT, None, body.encode()


def ask(broker: BrokerProcess, *asked: tuple[int, Header | None, bytes]) -> list[Answer]:
    """Return the codes and bodies of the responses."""

    async def run() -> list[Answer]:
        async with await RawClient.open(broker.address) as client:
            found = [await client.call(*each) for each in asked]
        return [(response.code, _content(response.body)) for response in found]

    return asyncio.run(run())


def _content(body: bytes) -> Any:
    content = json.loads(body) if body else None
    if isinstance(content, dict):
        content.pop("brokerAddr", None)
        content.pop("dataVersion", None)
    return content


def attributes(broker: BrokerProcess, topic: str) -> Any:
    """The attributes of a topic, as a tool sees them."""
    header = GetTopicConfigRequestHeader(topic=topic)
    ((_, found),) = ask(broker, (RequestCode.GET_TOPIC_CONFIG, header, b""))
    return found.get("attributes") or {}


def test_our_broker_responds_as_javas(peer: JavaPeer, namesrv: NameServerProcess, tmp_path: Path) -> None:
    """A tool of RocketMQ 5 would show other results, or fail, with our broker."""
    java = JavaBroker(peer.of_version("5.3.3"), tmp_path, namesrv.address, name="java", conf=CONF)
    ours = OurBroker(tmp_path, namesrv.address, name="ours", conf=CONF)
    found = []
    for broker in (java, ours):
        with broker:
            found.append(
                (ask(broker, *requests()), attributes(broker, "Typed"), attributes(broker, "Listed"))
            )
    assert found[1] == found[0]


def test_attributes_go_to_java_and_back(peer: JavaPeer, namesrv: NameServerProcess, tmp_path: Path) -> None:
    """A change of the broker's make would remove the types of topics, or allow what was forbidden."""
    store = tmp_path / "store"
    forbidden = UpdateGroupForbiddenRequestHeader(group="listed", topic="Typed")
    is_readable = (RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, forbidden, b"")
    with OurBroker(tmp_path, namesrv.address, name="ours", store=store, conf=CONF) as broker:
        ask(broker, *requests())
        broker.stop()
    java = JavaBroker(
        peer.of_version("5.3.3"), tmp_path, namesrv.address, name="java", store=store, conf=CONF
    )
    with java:
        assert attributes(java, "Typed") == {"message.type": "DELAY"}
        ((_, found),) = ask(java, is_readable)
        assert found["readable"] is False
        modes = (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, None, b"")
        ((_, found),) = ask(java, modes)
        assert found["messageRequestModeMap"]["Typed"]["listed"]["mode"] == "POP"
        ask(
            java,
            set_mode("Typed", RequestMode.PULL),
            update("Typed", "+message.type=FIFO"),
            update("Javas", "+queue.type=BatchCQ"),
        )
        java.stop()
    with OurBroker(tmp_path, namesrv.address, name="ours", store=store, conf=CONF) as broker:
        assert attributes(broker, "Typed") == {"message.type": "FIFO"}
        assert attributes(broker, "Javas") == {"queue.type": "BatchCQ"}
        ((_, found),) = ask(broker, modes)
        assert found["messageRequestModeMap"]["Typed"]["listed"]["mode"] == "PULL"
        ((_, found),) = ask(broker, is_readable)
        assert found["readable"] is False
