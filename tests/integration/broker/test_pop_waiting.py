"""Pops that wait for messages: who gets a new message, when they time out, and what others notice of them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    INIT_AT_MIN,
    DeleteTopicRequestHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rocketpy.protocol.message.record import decode_all
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy_broker.store.files.disk import system_clock
from tests.integration.broker.pop_workers import WAIT_MS, Workers, bodies, send
from tests.integration.broker.test_deferred import send_header
from tests.integration.broker.test_pop import ack, change, pop, pop_request, pop_response, popped
from tests.integration.broker.test_pop_order import reset
from tests.integration.raw_client import RawClient, new_topic, serving
from tests.integration.small import SMALL
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.usefixtures("patient_pops")


async def test_a_held_pop_gets_the_next_message(workers: Workers) -> None:
    """A worker would wait until its pop times out, though there is work."""
    _, everywhere = await workers.wait()
    client = await workers.connect()
    await send(client, "one")
    assert await bodies(everywhere) == [["one"]]
    _, queue = await workers.wait(queue_id=2)
    await send(client, "elsewhere", queue_id=1)
    await send(client, "here", queue_id=2)
    assert await bodies(queue) == [["here"]]
    assert len(workers.holds) == 0


async def test_messages_go_to_the_workers_in_the_order_in_which_they_came(workers: Workers) -> None:
    """One worker would get all messages while others wait."""
    waiting = [(await workers.wait(held=number + 1))[1] for number in range(4)]
    client = await workers.connect()
    for number in range(4):
        await send(client, f"{number}", queue_id=number)
        await waiting[number]
    assert await bodies(*waiting) == [["0"], ["1"], ["2"], ["3"]]


async def test_several_messages_wake_several_workers(workers: Workers) -> None:
    """Messages of one batch would wait until further messages arrive."""
    waiting = [(await workers.wait(held=number + 1))[1] for number in range(3)]
    client = await workers.connect()
    requests = [
        Command.request(RequestCode.SEND_MESSAGE_V2, send_header("", queue_id=0), b"%d" % number)
        for number in range(3)
    ]
    client.writer.write(b"".join(map(encode_command, requests)))
    assert sorted(body for found in await bodies(*waiting) for body in found) == ["0", "1", "2"]


@pytest.mark.parametrize("fields", [{"exp": "red", "exp_type": "TAG"}, {"exp": "a > 1", "exp_type": "SQL92"}])
async def test_a_filter_leaves_messages_out(workers: Workers, fields: dict[str, Any]) -> None:
    """A pop that waits for a tag would return without messages, or never."""
    client, waiting = await workers.wait(**fields)
    sender = await workers.connect()
    for _ in range(5):
        await send(sender, "blue", TAGS="blue", a="1")
    await send(sender, "red", TAGS="red", a="2")
    assert await bodies(waiting) == [["red"]]
    assert await pop(client) == []


async def test_workers_with_another_filter_are_woken_too(workers: Workers) -> None:
    """A pop would keep those of other filters waiting, since messages are not for it."""
    _, blue = await workers.wait(exp="blue", exp_type="TAG")
    _, other = await workers.wait(held=2, consumer_group="h", exp="red", exp_type="TAG")
    client = await workers.connect()
    await send(client, "red", TAGS="red")
    (found,) = popped(await other, "T", "h")
    assert found.body == "red"
    await send(client, "blue", TAGS="blue")
    assert await bodies(blue) == [["blue"]]


async def test_a_message_that_is_visible_again_wakes_a_worker(workers: Workers) -> None:
    """A job whose worker has gone would wait for the next new job."""
    client = await workers.connect()
    await send(client, "job")
    (message,) = await pop(client)
    _, waiting = await workers.wait()
    assert (await change(client, message, 1)).code == ResponseCode.SUCCESS
    (again,) = popped(await waiting, "T")
    assert (again.body, again.record.reconsume_times) == ("job", 1)
    assert (await ack(client, again)).code == ResponseCode.SUCCESS


async def test_messages_of_a_deleted_topic_are_not_in_flight(workers: Workers) -> None:
    """They would count as in flight, up to three days long, also those of a new topic of this name."""
    client = await workers.connect()
    for number in range(4):
        await send(client, f"{number}", queue_id=number)
    await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("Other", 1))
    assert len(await pop(client)) == 4
    points = workers.broker.delivery.pop.points.in_flight
    assert sum(points.counts.values()) == 4
    header = DeleteTopicRequestHeader(topic="T")
    assert (await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, header)).code == ResponseCode.SUCCESS
    assert not points.points
    assert not workers.broker.delivery.pop.points.has_popped("T", "g")
    assert not points.counts
    await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("T", 4))
    await send(client, "new")
    (message,) = await pop(client)
    await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="Other"))
    assert sum(points.counts.values()) == 1
    assert (await ack(client, message)).code == ResponseCode.SUCCESS


async def test_pops_of_one_millisecond_have_receipts_of_their_own(workers: Workers) -> None:
    """After a reset, one acknowledgement would end two deliveries, and the other never."""
    handler = workers.broker.delivery._polling
    assert handler is not None
    now_ms = system_clock()
    handler.pops.clock = lambda: now_ms
    client = await workers.connect()
    for number in range(2):
        await send(client, f"{number}", queue_id=number)
    found = []
    for _ in range(2):
        both = await pop(client)
        found += both if len(both) == 2 else [*both, *(await pop(client))]
        assert (await reset(client, timestamp=0)).code == ResponseCode.SUCCESS
    assert sorted(message.body for message in found) == ["0", "0", "1", "1"]
    assert len({(message.body, message.receipt.pop_time) for message in found}) == 4
    points = workers.broker.delivery.pop.points.in_flight
    assert sum(points.counts.values()) == 4
    for message in found:
        assert (await ack(client, message)).code == ResponseCode.SUCCESS
    assert not points.points
    assert not points.counts
    assert all(points.first_of(queue_id) is None for queue_id in range(8))


async def test_a_pop_times_out(workers: Workers) -> None:
    """A consumer would wait until its request times out, and report an error."""
    client = await workers.connect()
    response = await pop_response(client, poll_time=50)
    assert response.code == ResponseCode.POLLING_TIMEOUT
    assert popped(response, "T") == []
    assert (await pop_response(client, poll_time=0)).code == ResponseCode.POLLING_TIMEOUT
    assert len(workers.holds) == 0
    assert not workers.holds.queues
    assert not workers.broker._driver.polled_topics


async def test_the_number_of_held_pops_is_limited(workers: Workers) -> None:
    """Waiting workers would fill the memory."""
    waiting = []
    pops = workers.broker.config.pop
    object.__setattr__(pops, "held_per_queue_max", 2)
    waiting += [(await workers.wait(held=number + 1))[1] for number in range(2)]
    client = await workers.connect()
    assert (await pop_response(client, poll_time=WAIT_MS)).code == ResponseCode.POLLING_FULL
    waiting.append((await workers.wait(held=3, queue_id=1))[1])
    object.__setattr__(pops, "held_max", 3)
    response = await pop_response(client, poll_time=WAIT_MS, consumer_group="h")
    assert response.code == ResponseCode.POLLING_FULL
    for task in waiting:
        task.cancel()


async def test_held_pops_do_not_stop_the_requests_behind_them(tmp_path: Path) -> None:
    """A connection with many waiting workers would not be read until one of their pops has timed out."""
    async with serving(tmp_path, settings=SMALL | {"maxRequestsInFlight": "10"}) as (cluster, client):
        await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("T", 4))
        workers = Workers(cluster.brokers[0], AsyncExitStack())
        client.writer.write(b"".join(encode_command(pop_request(poll_time=WAIT_MS)) for _ in range(20)))
        await until(lambda: len(workers.holds) == 20)
        assert await asyncio.wait_for(pop(client, topic="T", consumer_group="h"), LIMIT_S) == []


async def test_pops_of_closed_connections_are_dropped(workers: Workers) -> None:
    """A message would go to a worker that has gone, and be hidden from the others for its time."""
    client, waiting = await workers.wait()
    waiting.cancel()
    client.writer.close()
    await until(lambda: not len(workers.holds))
    other = await workers.connect()
    await send(other, "one")
    assert [message.body for message in await pop(other)] == ["one"]


async def test_many_messages_reach_waiting_workers_once(workers: Workers) -> None:
    """A worker would miss a message that arrives while it is served, or two would get the same."""
    count = 200
    seen: list[str] = []

    async def work() -> None:
        client = await workers.connect()
        while len(seen) < count:
            response = await pop_response(client, poll_time=1000, count=2)
            if response.code == ResponseCode.SUCCESS:
                for message in popped(response, "T"):
                    seen.append(message.body)
                    assert (await ack(client, message)).code == ResponseCode.SUCCESS

    tasks = [asyncio.create_task(work()) for _ in range(8)]
    client = await workers.connect()
    for number in range(count):
        await send(client, f"{number}", queue_id=number % 4)
    await asyncio.gather(*tasks)
    assert sorted(seen, key=int) == [f"{number}" for number in range(count)]


def notification(**fields: Any) -> NotificationRequestHeader:
    """A request to be notified of messages of topic T."""
    values: dict[str, Any] = {
        "consumer_group": "g", "topic": "T", "queue_id": -1, "poll_time": WAIT_MS, "born_time": 0,
    }  # fmt: skip
    return NotificationRequestHeader(**values | fields)


async def test_a_notification_waits_for_messages_without_taking_them(workers: Workers) -> None:
    """RocketMQ's proxy would not learn of new messages, or messages would be hidden without a consumer."""
    client = await workers.connect()
    waiting = asyncio.create_task(client.call(RequestCode.NOTIFICATION, notification()))
    await until(lambda: len(workers.holds) == 1)
    sender = await workers.connect()
    await send(sender, "one")
    response = await waiting
    assert response.code == ResponseCode.SUCCESS
    assert response.header_as(NotificationResponseHeader).has_msg
    again = await client.call(RequestCode.NOTIFICATION, notification())
    assert again.header_as(NotificationResponseHeader).has_msg
    assert [message.body for message in await pop(sender)] == ["one"]
    late = await client.call(RequestCode.NOTIFICATION, notification(poll_time=50))
    assert late.header_as(NotificationResponseHeader) == NotificationResponseHeader(has_msg=False)
    object.__setattr__(workers.broker.config.pop, "held_max", 0)
    full = await client.call(RequestCode.NOTIFICATION, notification())
    assert full.header_as(NotificationResponseHeader).polling_full


async def test_held_pops_are_counted(workers: Workers) -> None:
    """Operators could not see how many workers wait."""

    async def count(queue_id: int) -> int:
        header = PollingInfoRequestHeader(consumer_group="g", topic="T", queue_id=queue_id)
        response = await client.call(RequestCode.POLLING_INFO, header)
        return response.header_as(PollingInfoResponseHeader).polling_num

    client = await workers.connect()
    assert await count(-1) == 0
    await workers.wait()
    await workers.wait(held=2)
    await workers.wait(held=3, queue_id=1)
    assert (await count(-1), await count(1), await count(0)) == (2, 1, 0)


async def test_a_peek_takes_nothing(workers: Workers) -> None:
    """A look at messages would hide them from workers."""
    client = await workers.connect()

    def header(count: int) -> PeekMessageRequestHeader:
        return PeekMessageRequestHeader(topic="T", queue_id=-1, max_msg_nums=count, consumer_group="g")

    async def peek(count: int) -> tuple[int, list[str], int]:
        response = await client.call(RequestCode.PEEK_MESSAGE, header(count))
        found = sorted(record.body.decode() for record in decode_all(response.body))
        return response.code, found, response.header_as(PopMessageResponseHeader).rest_num

    assert await peek(32) == (ResponseCode.PULL_NOT_FOUND, [], 0)
    for number in range(3):
        await send(client, f"{number}", queue_id=number)
    assert await peek(32) == (ResponseCode.SUCCESS, ["0", "1", "2"], 3)
    code, found, rest = await peek(2)
    assert (code, len(found), rest) == (ResponseCode.SUCCESS, 2, 3)
    assert len(await pop(client)) == 3
    assert await peek(32) == (ResponseCode.PULL_NOT_FOUND, [], 0)
    refused = await client.call(RequestCode.PEEK_MESSAGE, header(0))
    assert refused.code == ResponseCode.INVALID_PARAMETER


async def test_thousands_of_waiting_workers_do_not_delay_others(workers: Workers) -> None:
    """One message, or the end of their wait, would block the broker until all of them are handled."""
    clients, each = [await workers.connect() for _ in range(5)], 1000
    for client in clients:
        header = PopMessageRequestHeader(
            consumer_group="g", topic="T", queue_id=-1, max_msg_nums=1, invisible_time=WAIT_MS,
            poll_time=8000, born_time=0, init_mode=INIT_AT_MIN,
        )  # fmt: skip
        pops = [Command.request(RequestCode.POP_MESSAGE, header) for _ in range(each)]
        client.writer.write(b"".join(map(encode_command, pops)))
    await until(lambda: len(workers.holds) == 5 * each)
    other = await workers.connect()
    await send(other, "one")
    first = await asyncio.wait_for(clients[0].next(), 60)
    assert [message.body for message in popped(first, "T")] == ["one"]
    assert len(workers.holds) == 5 * each - 1
    served = 0

    async def wait(client: RawClient, count: int) -> None:
        codes = [(await client.next()).code for _ in range(count)]
        assert codes == [ResponseCode.POLLING_TIMEOUT] * count

    waiting = [asyncio.create_task(wait(client, each - (client is clients[0]))) for client in clients]
    while not all(task.done() for task in waiting):
        await pop(other, poll_time=0)
        if 0 < len(workers.holds) < 5 * each - 1:
            served += 1
    await asyncio.gather(*waiting)
    assert served >= 3
