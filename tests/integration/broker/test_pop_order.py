"""Pops in order: a queue gives no more messages until those of the last pop are acknowledged or visible."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rocketpy.protocol.bodies import ConsumeStats, MessageQueue
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    DeleteTopicRequestHeader,
    GetConsumeStatsRequestHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PopMessageResponseHeader,
    ResetOffsetRequestHeader,
)
from rocketpy.protocol.message.receipt import ORDER_REVIVE_QUEUE, parse_order_counts
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.metrics.collecting import collect
from tests.integration.broker.pop_workers import Workers, bodies, send
from tests.integration.broker.test_pop import Popped, ack, arrive, batch_ack, change, pop_response, popped
from tests.integration.raw_client import RawClient, new_topic, serving
from tests.integration.small import SMALL
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("patient_pops")


async def take(client: RawClient, **fields: Any) -> list[Popped]:
    """Pop messages of queue 0 in order."""
    response = await pop_response(client, **{"count": 2, "order": True, "queue_id": 0} | fields)
    assert response.code in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT), response.remark
    return popped(response, "T")


async def counts(client: RawClient, **fields: Any) -> dict[int | None, int]:
    """Pop, and return how often the messages were delivered before, by offset."""
    response = await pop_response(client, count=2, order=True, queue_id=0, **fields)
    header = response.header_as(PopMessageResponseHeader)
    return {key[2]: count for key, count in parse_order_counts(header.order_count_info).items()}


def texts(messages: list[Popped]) -> list[str]:
    """Their bodies."""
    return [message.body for message in messages]


async def test_a_queue_waits_for_all_acknowledgements(workers: Workers) -> None:
    """A group would handle a message before the one in front of it."""
    client = await workers.connect()
    for number in range(4):
        await send(client, f"{number}")
    first = await take(client)
    assert texts(first) == ["0", "1"]
    assert {message.receipt.revive_queue for message in first} == {ORDER_REVIVE_QUEUE}
    assert await take(client) == []
    assert (await ack(client, first[1])).code == ResponseCode.SUCCESS
    assert await take(client) == []
    assert (await ack(client, first[0])).code == ResponseCode.SUCCESS
    assert texts(await take(client)) == ["2", "3"]
    assert (await ack(client, first[0])).code == ResponseCode.NO_MESSAGE


async def test_messages_come_again_in_order(workers: Workers) -> None:
    """A message whose worker has gone would be skipped, or come after later ones."""
    client = await workers.connect()
    for number in range(3):
        await send(client, f"{number}")
    assert await counts(client, invisible_ms=1) == {None: 0}
    await until_free(workers)
    assert await counts(client, invisible_ms=1) == {0: 1, 1: 1, None: 1}
    await until_free(workers)
    messages = await take(client)
    assert texts(messages) == ["0", "1"]
    await ack(client, messages[0])
    offsets = workers.broker.consumers.offsets
    assert offsets.get("g", "T", 0) == 1


async def until_free(workers: Workers) -> None:
    """Wait until queue 0 is free."""
    await until(lambda: not workers.broker.consumers.order.free_ms("T", "g", 0))


async def test_an_attempt_gets_its_messages_again(workers: Workers) -> None:
    """A consumer whose response was lost would wait for its own messages."""
    client = await workers.connect()
    for number in range(3):
        await send(client, f"{number}")
    assert texts(await take(client, attempt_id="a")) == ["0", "1"]
    assert texts(await take(client, attempt_id="a")) == ["0", "1"]
    assert await take(client, attempt_id="b") == []


async def test_a_waiting_pop_is_served_when_the_queue_is_free(workers: Workers) -> None:
    """Workers would wait until new messages arrive, though earlier ones are there."""
    client = await workers.connect()
    for number in range(3):
        await send(client, f"{number}")
    (first,) = await take(client, count=1)
    _, waiting = await workers.wait(order=True, queue_id=0)
    await ack(client, first)
    assert await bodies(waiting) == [["1"]]


async def test_a_waiting_pop_is_served_when_the_time_of_the_last_one_is_over(workers: Workers) -> None:
    """Workers would wait until new messages arrive, though those of a worker that has gone are visible."""
    client = await workers.connect()
    await send(client, "0")
    assert texts(await take(client, invisible_ms=300)) == ["0"]
    _, waiting = await workers.wait(order=True)
    assert await bodies(waiting) == [["0"]]


async def test_an_invisible_time_is_changed(workers: Workers) -> None:
    """A long job would come again, or a released one only after its first time."""
    client = await workers.connect()
    for number in range(2):
        await send(client, f"{number}")
    messages = await take(client)
    assert (await change(client, messages[1], 0)).code == ResponseCode.SUCCESS
    assert await take(client) == []
    assert (await change(client, messages[0], 0)).code == ResponseCode.SUCCESS
    again = await take(client, poll_time=60_000)  # a pop in the same millisecond waits for the next one
    assert texts(again) == ["0", "1"]
    assert (await change(client, messages[0], 0)).code == ResponseCode.NO_MESSAGE
    assert (await ack(client, messages[0])).code == ResponseCode.NO_MESSAGE


async def test_a_batch_of_acknowledgements_frees_the_queue(workers: Workers) -> None:
    """The queue of a consumer that acknowledges together would be blocked for the invisible time."""
    client = await workers.connect()
    for number in range(3):
        await send(client, f"{number}")
    messages = await take(client)
    assert (await batch_ack(client, messages)).code == ResponseCode.SUCCESS
    assert texts(await take(client)) == ["2"]


async def test_a_reset_frees_the_queue(workers: Workers) -> None:
    """After a reset, workers would get nothing until the time of the messages before is over."""
    client = await workers.connect()
    for number in range(4):
        await send(client, f"{number}")
    old = await take(client)
    _, waiting = await workers.wait(order=True, queue_id=0)
    assert (await reset(client, queue_id=0, offset=0)).code == ResponseCode.SUCCESS
    assert await bodies(waiting) == [["0"]]
    assert (await ack(client, old[0])).code == ResponseCode.NO_MESSAGE
    assert await take(client) == []
    assert (await reset(client, queue_id=0, offset=0)).code == ResponseCode.SUCCESS
    assert texts(await take(client)) == ["0", "1"]


async def test_a_group_that_pops_is_reset_without_its_members(workers: Workers) -> None:
    """An operator could not reset a group of workers, which know no offsets."""
    client = await workers.connect()
    for number in range(4):
        await send(client, f"{number}", queue_id=number)
    await arrive(client, 4)  # one pop reads for some milliseconds only
    _, waiting = await workers.wait()
    assert (await reset(client, timestamp=0)).code == ResponseCode.SUCCESS
    assert len((await bodies(waiting))[0]) == 1
    await arrive(client, 3)


@pytest.mark.parametrize("order", [False, True])
async def test_messages_in_flight_are_counted(workers: Workers, order: bool) -> None:
    """Operators could not see that workers have messages which they do not acknowledge."""
    broker = workers.broker
    client = await workers.connect()
    for number in range(3):
        await send(client, f"{number}")
    messages = popped(await pop_response(client, count=2, order=order, queue_id=0), "T")

    async def in_flight() -> int:
        header = GetConsumeStatsRequestHeader(consumer_group="g", topic="T")
        response = await client.call(RequestCode.GET_CONSUME_STATS, header)
        found = ConsumeStats.decode(response.body).offset_table[MessageQueue("T", broker.config.name, 0)]
        return (found.pull_offset or found.consumer_offset) - found.consumer_offset

    def metric(name: str) -> list[float]:
        assert broker.metrics is not None
        found = collect(broker.metrics._sources)
        return [value for one in found if one.metric.name == f"rocketmq_{name}" for _, value in one.values]

    assert await in_flight() == 2
    assert metric("consumer_inflight_messages") == [2]
    assert (await ack(client, messages[0])).code == ResponseCode.SUCCESS
    assert await in_flight() == 1
    _, waiting = await workers.wait(order=True, queue_id=1)
    assert metric("pops_held") == [1]
    assert (await change(client, messages[1], 0)).code == ResponseCode.SUCCESS
    await until(lambda: not metric("consumer_inflight_messages"))
    assert await in_flight() == 0
    if not order:
        await until(lambda: metric("pop_revived_messages_total") == [1])
    waiting.cancel()


async def reset(client: RawClient, timestamp: int = -1, **fields: Any) -> Command:
    """Reset the offsets of the group, as mqadmin resetOffsetByTime does."""
    header = ResetOffsetRequestHeader(topic="T", group="g", timestamp=timestamp, is_force=True, **fields)
    return await client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)


async def test_a_notification_waits_for_the_queue(workers: Workers) -> None:
    """RocketMQ's proxy would ask in a loop for messages that are blocked."""
    client, other = await workers.connect(), await workers.connect()
    for number in range(2):
        await send(client, f"{number}")
    (first,) = await take(client, count=1)
    header = NotificationRequestHeader(
        consumer_group="g", topic="T", queue_id=0, poll_time=60_000, born_time=0, order=True
    )
    waiting = asyncio.create_task(other.call(RequestCode.NOTIFICATION, header))
    await until(lambda: len(workers.holds) == 1)
    await ack(client, first)
    assert (await waiting).header_as(NotificationResponseHeader).has_msg


@pytest.mark.parametrize("deletes", [False, True])
async def test_the_order_survives_a_restart(tmp_path: Path, deletes: bool) -> None:
    """After a restart, a group would get the next messages while earlier ones are in flight."""
    async with serving(tmp_path, settings=SMALL) as (_, client):
        await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("T", 1))
        for number in range(3):
            await send(client, f"{number}")
        messages = await take(client)
        assert (await ack(client, messages[0])).code == ResponseCode.SUCCESS
        if deletes:
            await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T"))
            await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("T", 1))
            await send(client, "new")
    async with serving(tmp_path, settings=SMALL) as (cluster, client):
        pops = cluster.brokers[0].delivery.pop
        await until(lambda: pops.is_ready)
        if deletes:
            assert texts(await take(client)) == ["new"]
            return
        assert await take(client) == []
        assert (await ack(client, messages[1])).code == ResponseCode.SUCCESS
        assert texts(await take(client)) == ["2"]
