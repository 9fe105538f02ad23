"""The cases of `LitePullConsumer` that docs/reference/mqconsumer.md names. Each takes a `place`."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    LitePullConfig,
    LitePullConsumer,
    MessageModel,
    MessageQueue,
    Sql,
)
from rocketpy.errors import ClientClosed, ConfigInvalid, UsageError
from rocketpy.protocol.codes import RequestCode
from tests.mqconsumer.group import (
    FIRST,
    Requests,
    filled,
    group,
    held,
    numbered,
    polled,
    polling,
    send,
    until,
)
from tests.mqproducer.place import Place, message


async def test_lite_subscribe(place: Place) -> None:
    """A polling member would get messages of other topics, or of those it has unsubscribed from."""
    topic, other = await filled(place, "polled"), await filled(place, "other", b"other")
    for number, tag in enumerate(("red", "green", "red")):
        await send(place, topic, b"%d" % number, tags=tag, properties={"n": str(number)})
    by_tag, by_sql = polling(place), polling(place)
    by_tag.subscribe(topic, "red")
    by_sql.subscribe(topic, Sql("n > 0"))
    async with by_tag, by_sql:
        assert await polled(by_tag, b"0", b"2") == Counter((b"0", b"2"))
        assert await polled(by_sql, b"1", b"2") == Counter((b"1", b"2"))
        by_tag.unsubscribe(topic)
        by_tag.subscribe(other)
        assert await polled(by_tag, b"other") == Counter((b"other",))


async def test_lite_assign(place: Place) -> None:
    """An application that chooses its queues would be moved by others, or get other queues' messages."""
    topic = await filled(place, "assigned", b"0")
    consumer = polling(place)
    async with AdminClient(place.namesrv) as admin:
        queues = await admin.fetch_publish_message_queues(topic)
    await consumer.assign(queues[:1])
    with pytest.raises(ConfigInvalid, match="assign"):
        consumer.subscribe(topic)
    async with consumer:
        assert consumer.assignment == queues[:1]
        assert await polled(consumer, b"0") == Counter((b"0",))
        await consumer.assign(queues[1:])
        assert consumer.assignment == queues[1:]


async def test_lite_poll(place: Place) -> None:
    """Messages in progress would be lost when an application dies, or a poll would not end."""
    name, bodies = group("hand"), numbered("polled", 4)
    topic = await filled(place, "hand", *bodies, queues=1)
    for turn in range(2):  # what the first start polled last is not done
        consumer = polling(place, name, poll_timeout_ms=50, poll_batch_size=4)
        consumer.subscribe(topic)
        async with consumer:
            assert await polled(consumer, *bodies) == Counter(bodies)
            if turn:
                assert await consumer.poll() == await consumer.poll(10) == []
            with pytest.raises(UsageError, match="max_count is 0"):
                await consumer.poll(max_count=0)
    consumer = polling(place)
    consumer.subscribe(topic)
    found: list[bytes] = []
    async with consumer:
        async for one in consumer:
            found.append(one.body)
            if len(found) == 4:
                await consumer.close()
    assert found == bodies
    with pytest.raises(ClientClosed):
        await consumer.poll()


async def test_lite_seek(place: Place) -> None:
    """An application that keeps its own places would begin elsewhere."""
    bodies = numbered("place", 5)
    topic = await filled(place, "places", *bodies, queues=1)
    consumer = polling(place)
    async with AdminClient(place.namesrv) as admin:
        (queue,) = await admin.fetch_publish_message_queues(topic)
    await consumer.assign([queue])
    async with consumer:
        await polled(consumer, *bodies)
        await consumer.seek(queue, 3)
        assert await polled(consumer, *bodies[3:]) == Counter(bodies[3:])
        await consumer.seek_to_begin(queue)
        assert await polled(consumer, *bodies) == Counter(bodies)
        await consumer.seek_to_end(queue)
        await send(place, topic, b"new")
        assert await polled(consumer, b"new") == Counter((b"new",))
        with pytest.raises(ConfigInvalid, match="0 to 6"):
            await consumer.seek(queue, 7)
        other = MessageQueue(topic, queue.broker_name, 1)
        with pytest.raises(ConfigInvalid, match="is not assigned to"):
            await consumer.seek(other, 0)


async def test_lite_pause(place: Place) -> None:
    """A paused queue would still deliver messages, or block the others."""
    topic = await filled(place, "paused", queues=2)
    consumer = polling(place)
    async with AdminClient(place.namesrv) as admin:
        first, second = await admin.fetch_publish_message_queues(topic)
    await consumer.assign([first, second])
    async with consumer, place.producer() as producer:
        consumer.pause([first])
        for queue in (first, second):
            await producer.send(message(topic, b"%d" % queue.queue_id), queue=queue)
        assert await polled(consumer, b"1") == Counter((b"1",))
        assert await consumer.poll(100) == []
        consumer.resume([first])
        assert await polled(consumer, b"0") == Counter((b"0",))


async def test_lite_commit(place: Place) -> None:
    """An application that commits with its own transaction would find other offsets stored."""
    bodies = numbered("commit", 3)
    topic = await filled(place, "commit", *bodies, queues=1)
    consumer = polling(place, auto_commit=False, persist_interval_ms=10)  # the minimum
    consumer.subscribe(topic)
    async with consumer:
        await polled(consumer, *bodies)
        (queue,) = await consumer.fetch_queues(topic)
        await consumer.poll(100)
        assert await consumer.committed(queue) in (None, 0)
        await consumer.commit()
        assert await consumer.committed(queue) == 3
        await consumer.commit({queue: 1})
        assert await consumer.committed(queue) == 1


async def test_lite_auto_commit(place: Place) -> None:
    """Another member would get messages that were polled and handled long ago."""
    bodies = numbered("auto", 3)
    topic = await filled(place, "auto", *bodies, queues=1)
    consumer = polling(place, persist_interval_ms=20)
    consumer.subscribe(topic)
    async with consumer:
        await polled(consumer, *bodies)
        await consumer.poll(0)
        (queue,) = await consumer.fetch_queues(topic)
        stored: list[int | None] = []
        while stored[-1:] != [3]:
            await consumer.poll(20)
            stored.append(await consumer.committed(queue))


async def test_lite_limits(place: Place) -> None:
    """A slow application would have a whole topic in memory."""
    topic = await filled(place, "slow", *(b"x" * 100 for _ in range(40)), queues=1)
    limits: list[dict[str, Any]] = [
        {"queue_messages_max": 10},
        {"queue_bytes_max": 1000},
        {"topic_messages_max": 10},
    ]
    for limit in limits:
        consumer = polling(place, pull_batch_size=8, **limit)
        consumer.subscribe(topic)
        async with consumer:
            await until(partial(_holds, consumer, topic, 16))
            found = 0
            while found < 40:
                found += len(await consumer.poll())
                assert held(consumer, topic)[0].cached_msg_count <= 16


def _holds(consumer: LitePullConsumer, topic: str, count: int) -> bool:
    return [info.cached_msg_count for info in held(consumer, topic)] == [count]


async def test_lite_queue_changes(place: Place) -> None:
    """An application that assigns queues would not be notified of new ones."""
    topic = await filled(place, "grows", queues=1)
    consumer = LitePullConsumer(
        group("grows"), place.namesrv, client=ClientConfig(route_refresh_ms=50, instance_name=group("grows"))
    )
    news: list[int] = []
    async with consumer, AdminClient(place.namesrv) as admin:
        assert len(await consumer.fetch_queues(topic)) == 1
        consumer.when_queues_change(topic, lambda: news.append(1))
        await admin.topics.alter(topic, read_queues=3, write_queues=3)
        await until(lambda: news)
        assert len(await consumer.fetch_queues(topic)) == 3


async def test_lite_settings(place: Place, tmp_path: Path) -> None:
    """Brokers would get a wrong group in heartbeats, or hold pulls for longer than configured."""
    topic = await filled(place, "set", b"1")
    hooks = Requests(RequestCode.PULL_MESSAGE), Requests(RequestCode.HEART_BEAT)
    name = group("set")
    consumers = [
        LitePullConsumer(
            name,
            place.namesrv,
            config=LitePullConfig(
                consume_from=FIRST,
                model=MessageModel.BROADCASTING,
                offset_directory=tmp_path,
                unit_mode=True,
                suspend_timeout_ms=50,
                pull_timeout_ms=10_000,
            ),
            client=ClientConfig(instance_name=instance, rpc_hooks=hooks),
        )
        for instance in ("one", "two")
    ]
    for consumer in consumers:
        consumer.subscribe(topic)
    async with consumers[0], consumers[1]:
        for consumer in consumers:
            assert await polled(consumer, b"1") == Counter((b"1",))
        pulls, beats = (one.seen for one in hooks)
        await until(lambda: len(pulls) > 20)  # they end soon, since no message arrives
    assert {one.ext_fields()["suspendTimeoutMillis"] for one in pulls} == {"50"}
    (data,) = json.loads(beats[-1].body)["consumerDataSet"]
    assert (data["groupName"], data["messageModel"], data["unitMode"]) == (name, "BROADCASTING", True)
    assert data["consumeType"] == "CONSUME_ACTIVELY"
