"""Queues that a broker assigns to consumers of RocketMQ 5, and the mode in which groups request messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from rocketpy.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    MessageRequestModeSerializeWrapper,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    RequestMode,
    SetMessageRequestModeRequestBody,
    SubscriptionData,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import DeleteSubscriptionGroupRequestHeader, DeleteTopicRequestHeader
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker import EmbeddedCluster
from rocketpy_broker.services.metadata.request_modes import RequestModeTable
from tests.integration.raw_client import RawClient, new_topic, serving
from tests.integration.small import SMALL
from tests.waiting import LIMIT_S

Assigned = list[tuple[str, int, str]]
"""Broker name, queue id and mode of each assigned queue, sorted."""


async def join(stack: AsyncExitStack, address: str, client_id: str, group: str = "g") -> RawClient:
    """Open a connection of a member of a group."""
    client = await stack.enter_async_context(await RawClient.open(address))
    consumer = ConsumerData(
        group_name=group,
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        subscription_data_set=[SubscriptionData(topic="T", sub_string="*")],
    )
    beat = HeartbeatData(client_id=client_id, consumer_data_set=[consumer])
    assert (await client.call(RequestCode.HEART_BEAT, body=beat.encode())).code == ResponseCode.SUCCESS
    return client


async def query(client: RawClient, client_id: str, **fields: Any) -> Assigned | None:
    """Request the queues of a member; None if the broker leaves them as they are."""
    fields = {
        "topic": "T",
        "consumer_group": "g",
        "strategy_name": "AVG",
        "message_model": "CLUSTERING",
    } | fields
    body = QueryAssignmentRequestBody(client_id=client_id, **fields).encode()
    response = await client.call(RequestCode.QUERY_ASSIGNMENT, body=body)
    assert response.code == ResponseCode.SUCCESS, response.remark
    assigned = QueryAssignmentResponseBody.decode(response.body).message_queue_assignments
    if assigned is None:
        return None
    return sorted(
        (one.message_queue.broker_name, one.message_queue.queue_id, one.mode)
        for one in assigned
        if one.message_queue is not None
    )


async def set_mode(client: RawClient, mode: RequestMode | str, shares: int = 0, **names: str) -> int:
    """Set the mode of a group, as mqadmin setConsumeMode does; return the code of the response."""
    body = {"topic": "T", "consumerGroup": "g", "mode": mode, "popShareQueueNum": shares} | names
    response = await client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(body).encode())
    return response.code


def saved_modes(root: Path) -> Any:
    """The entries of the file below a store."""
    (path,) = root.rglob("messageRequestMode.json")
    return json.loads(path.read_text())["messageRequestModeMap"]


def pulled(*queue_ids: int) -> Assigned:
    """Assigned queues in pull mode."""
    return [("broker-a", queue_id, "PULL") for queue_id in queue_ids]


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Closes connections at the end."""
    async with AsyncExitStack() as opened:
        yield opened


@pytest.fixture
async def members(cluster: EmbeddedCluster, raw: RawClient, stack: AsyncExitStack) -> Sequence[RawClient]:
    """Three members c0 to c2 of group g, with topic T of 8 queues."""
    await raw.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("T", 8))
    address = str(cluster.brokers[0].address)
    return [await join(stack, address, f"c{number}") for number in range(3)]


async def test_members_get_the_queues_of_their_strategy(members: Sequence[RawClient]) -> None:
    """Members with clientRebalance=false would read queues twice, or leave some to nobody."""
    shares = [await query(client, f"c{number}") for number, client in enumerate(members)]
    assert shares == [pulled(0, 1, 2), pulled(3, 4, 5), pulled(6, 7)]
    circle = await query(members[1], "c1", strategy_name="AVG_BY_CIRCLE")
    assert circle == pulled(1, 4, 7)
    hashed = [
        await query(client, f"c{n}", strategy_name="CONSISTENT_HASH") for n, client in enumerate(members)
    ]
    assert sorted(queue for share in hashed for queue in share or []) == pulled(*range(8))
    assert await query(members[0], "c0", message_model="BROADCASTING") == pulled(*range(8))
    assert await query(members[0], "stranger") == []


async def test_members_keep_their_queues_if_the_broker_knows_nothing(members: Sequence[RawClient]) -> None:
    """A member would drop its queues because of a topic or group that is not known yet."""
    assert await query(members[0], "c0", topic="Absent") is None
    assert await query(members[0], "c0", consumer_group="offline") is None


async def test_an_unknown_strategy_is_rejected(members: Sequence[RawClient]) -> None:
    """A consumer with its own strategy would wait for messages forever, without an error."""
    body = QueryAssignmentRequestBody(topic="T", consumer_group="g", client_id="c0", strategy_name="MINE")
    response = await members[0].call(RequestCode.QUERY_ASSIGNMENT, body=body.encode())
    assert response.code == ResponseCode.INVALID_PARAMETER
    assert "strategy MINE; it has AVG, AVG_BY_CIRCLE, CONSISTENT_HASH" in (response.remark or "")


async def test_pop_mode_shares_queues(members: Sequence[RawClient], raw: RawClient) -> None:
    """A group in POP mode would pull, or its members would not share queues as operators have set."""
    everything = [("broker-a", -1, "POP")]
    assert await set_mode(raw, "POP") == ResponseCode.SUCCESS
    assert [await query(client, f"c{n}") for n, client in enumerate(members)] == [everything] * 3
    assert await set_mode(raw, "POP", 2) == ResponseCode.SUCCESS
    assert (
        await query(members[0], "c0") == everything
    )  # each of the other members is one of the two that follow
    assert await set_mode(raw, "POP", 1) == ResponseCode.SUCCESS
    assert await query(members[0], "c0") == [("broker-a", n, "POP") for n in range(6)]
    assert await query(members[2], "c2") == [("broker-a", n, "POP") for n in (0, 1, 2, 6, 7)]
    assert await query(members[0], "c0", consumer_group="g", topic="%RETRY%g") == [("broker-a", 0, "PULL")]
    assert await set_mode(raw, "PULL") == ResponseCode.SUCCESS
    assert await query(members[0], "c0") == pulled(0, 1, 2)


async def test_each_member_gets_a_queue_if_there_are_more_members_than_queues(
    cluster: EmbeddedCluster, raw: RawClient, stack: AsyncExitStack
) -> None:
    """The last members of a large group in POP mode would be idle."""
    await raw.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("T", 2))
    address = str(cluster.brokers[0].address)
    members = [await join(stack, address, f"c{number}") for number in range(5)]
    assert await set_mode(raw, "POP", 1) == ResponseCode.SUCCESS
    shares = [await query(client, f"c{number}") for number, client in enumerate(members)]
    assert shares == [[("broker-a", number % 2, "POP")] for number in range(5)]


@pytest.mark.usefixtures("members")
async def test_wrong_modes_are_rejected(raw: RawClient) -> None:
    """An operator's typing error would be accepted, and have no effect."""
    assert await set_mode(raw, "PUSH") == ResponseCode.SYSTEM_ERROR
    assert await set_mode(raw, "POP", topic="Absent") == ResponseCode.TOPIC_NOT_EXIST
    assert await set_mode(raw, "POP", topic="%RETRY%g") == ResponseCode.NO_PERMISSION
    assert await set_mode(raw, "POP", consumerGroup="no group") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_modes_survive_a_restart_until_topic_or_group_is_deleted(tmp_path: Path) -> None:
    """Consumers would pull after a restart, or pop from a new topic with the name of a deleted one."""
    async with serving(tmp_path, settings=SMALL) as (_, client):
        for topic in ("T", "U"):
            await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic(topic, 8))
            for group in ("g", "h"):
                assert await set_mode(client, "POP", 3, topic=topic, consumerGroup=group) == 0
    saved = saved_modes(tmp_path)
    assert saved["T"]["g"] == {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 3, "topic": "T"}
    async with serving(tmp_path, settings=SMALL) as (cluster, client):
        modes = cluster.brokers[0].consumers.modes
        found = modes.find("T", "g")
        assert found == SetMessageRequestModeRequestBody(
            topic="T", consumer_group="g", mode=RequestMode.POP, pop_share_queue_num=3
        )
        await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T"))
        deleted = DeleteSubscriptionGroupRequestHeader(group_name="h")
        await client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, deleted)
        assert [modes.find(topic, group) is not None for topic in "TU" for group in "gh"] == [
            False, False, True, False,
        ]  # fmt: skip


async def test_a_file_of_rocketmq_is_read(tmp_path: Path) -> None:
    """QUIRKS 78: a store of RocketMQ 5 would lose the modes of its groups."""
    tasks = Tasks("the test")
    entry = '{"consumerGroup":"g","mode":"POP","popShareQueueNum":0,"topic":"T"}'
    text = '{"messageRequestModeMap":{"T":{"g":' + entry + "}}}"
    (tmp_path / "messageRequestMode.json").write_text(text)
    modes = RequestModeTable(tmp_path / "messageRequestMode.json", tasks)
    modes.load()
    found = modes.find("T", "g")
    assert found == SetMessageRequestModeRequestBody(topic="T", consumer_group="g", mode=RequestMode.POP)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [(-1, "POP")]),
        ({"defaultPopShareQueueNum": "1"}, [(n, "POP") for n in range(6)]),
        ({"serverLoadBalancerEnable": "false"}, [(n, "POP") for n in range(8)]),
    ],
)
async def test_settings_choose_the_default_mode(
    settings: dict[str, str], expected: list[tuple[int, str]], tmp_path: Path, stack: AsyncExitStack
) -> None:
    """The settings of RocketMQ 5 would have no effect."""
    settings = {**SMALL, "defaultMessageRequestMode": "POP"} | settings
    async with EmbeddedCluster(tmp_path, settings=settings) as cluster:
        address = str(cluster.brokers[0].address)
        members = [await join(stack, address, f"c{number}") for number in range(3)]
        await members[0].call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("T", 8))
        assert await query(members[0], "c0") == [("broker-a", *one) for one in expected]


async def test_queues_of_other_brokers_are_assigned(tmp_path: Path, stack: AsyncExitStack) -> None:
    """A member would never read the queues of other brokers, or miss new ones."""
    settings = {**SMALL, "loadBalancePollNameServerInterval": "50"}
    async with EmbeddedCluster(tmp_path, brokers=2, settings=settings) as cluster:
        for broker in cluster.brokers:
            async with await RawClient.open(broker.address) as raw:
                await raw.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("T", 2))
        client = await join(stack, str(cluster.brokers[0].address), "c0")
        both = [(name, n, "PULL") for name in ("broker-a", "broker-b") for n in range(2)]
        assert await query(client, "c0") == both
        async with await RawClient.open(cluster.brokers[1].address) as raw:
            await raw.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("T", 3))

        found = None
        async with asyncio.timeout(LIMIT_S):
            while found != [*both, ("broker-b", 2, "PULL")]:
                found = await query(client, "c0")


@pytest.mark.usefixtures("members")
async def test_the_table_of_modes_for_slaves_is_as_javas(raw: RawClient) -> None:
    """A slave of RocketMQ could not copy the modes."""
    await set_mode(raw, "POP", 1)
    response = await raw.call(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    table = MessageRequestModeSerializeWrapper.decode(response.body).message_request_mode_map
    assert table["T"]["g"].mode is RequestMode.POP
