"""The cases of `PushConsumer` that docs/reference/mqconsumer.md names. Each takes a `place`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rocketpy import (
    AdminClient,
    AllocateByCircle,
    AllocateByConfig,
    AllocateByConsistentHash,
    ClientConfig,
    ConsumeFrom,
    ConsumerConfig,
    ConsumeResult,
    Later,
    LitePullConfig,
    LitePullConsumer,
    MessageExt,
    MessageModel,
    MessageQueue,
    PullConsumer,
    PushConsumer,
    Sql,
)
from rocketpy.errors import BrokerError, ClientClosed, ConfigInvalid, RocketError
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.message.sysflag import MessageSysFlag
from tests.mqconsumer.group import (
    Requests,
    Seen,
    filled,
    group,
    held,
    numbered,
    polled,
    polling,
    pushing,
    queues_of,
    send,
    until,
)
from tests.mqproducer.place import Place, eventually, message

# -- life and handlers --------------------------------------------------------------------------


async def test_start_and_shutdown(place: Place) -> None:
    """Messages in progress at the end would be handled twice, or those sent meanwhile not at all."""
    name = group("life")
    topic = await filled(place, "life", b"slow")
    began, ended = asyncio.Event(), asyncio.Event()

    async def handle(_: MessageExt) -> None:
        began.set()
        await asyncio.sleep(0.2)
        ended.set()

    with pytest.raises(ClientClosed, match="not started"):
        PushConsumer(name, place.namesrv, handle).pause()
    async with pushing(place, topic, handle, name=name) as running:
        await began.wait()
        assert await running.close()
        assert ended.is_set()
        with pytest.raises(ClientClosed):
            running.pause()
    await send(place, topic, b"later")
    seen = Seen()
    async with pushing(place, topic, seen, name=name):
        await seen.until(b"later")
    assert seen.bodies == [b"later"]


async def test_handlers(place: Place) -> None:
    """A kind of handler would not be called, or with more or other messages than there are."""
    bodies = numbered("handled", 5)
    topic = await filled(place, "handlers", *bodies)
    by_async, on_threads, in_loop = Seen(), [], []
    by_batch: list[list[bytes]] = []

    async def handle_batch(found: Sequence[MessageExt]) -> ConsumeResult:
        by_batch.append([one.body for one in found])
        return ConsumeResult.SUCCESS

    def on_thread(one: MessageExt) -> None:
        on_threads.append((one.body, threading.current_thread() is threading.main_thread()))

    async with (
        pushing(place, topic, by_async),
        pushing(place, topic, on_thread),
        pushing(place, topic, lambda one: in_loop.append(one.body), threads=False),
        pushing(place, topic, batch_handler=handle_batch, batch_size=3),
    ):
        await until(lambda: len(by_async.bodies) == len(on_threads) == len(in_loop) == 5)
        await until(lambda: sum(map(len, by_batch)) == 5)
    assert Counter(by_async.bodies) == Counter(in_loop) == Counter(bodies)
    assert Counter(on_threads) == Counter((body, False) for body in bodies)
    assert [body for batch in by_batch for body in batch] == bodies
    assert max(map(len, by_batch)) <= 3
    with pytest.raises(ConfigInvalid, match="exactly one of handler and batch_handler"):
        PushConsumer("mqc_none", place.namesrv)


async def test_orderly(place: Place) -> None:
    """A later message of a queue would overtake a failed one, or the queue not pause as requested."""
    bodies = numbered("step", 4)
    topic = await filled(place, "orderly", *bodies)
    times: list[float] = []

    def says(one: MessageExt) -> Later | ConsumeResult | None:
        if one.body != bodies[1]:
            return None
        times.append(time.monotonic())
        return Later(suspend_ms=300) if len(times) == 1 else ConsumeResult.LATER if len(times) == 2 else None

    seen = Seen(says)
    async with pushing(place, topic, seen, orderly=True, suspend_ms=200):
        await seen.until(*bodies)
    assert seen.bodies == [bodies[0], *[bodies[1]] * 3, *bodies[2:]]
    assert (times[1] - times[0], times[2] - times[1]) >= (0.3, 0.2)
    assert [one.reconsume_times for one in seen.messages] == [0, 0, 1, 2, 0, 0]


async def test_delay_level(place: Place) -> None:
    """A message would be retried too early, altered, or never."""
    topic = await filled(place, "level", b"again", tags="t", keys="k")
    times: list[float] = []

    def says(_: MessageExt) -> Later | None:
        times.append(time.monotonic())
        return Later(delay_level=len(times)) if len(times) < 3 else None

    seen = Seen(says)
    async with pushing(place, topic, seen, "t"):
        await until(lambda: len(times) == 3)
    assert times[1] - times[0] >= 1
    assert times[2] - times[1] >= 2
    assert [(one.topic, one.tags, one.keys, one.reconsume_times) for one in seen.messages] == [
        (topic, "t", ("k",), number) for number in range(3)
    ]


async def test_ack_index(place: Place) -> None:
    """Handled messages of a batch would be delivered with the rest of it."""
    bodies = numbered("batch", 4)
    topic = await filled(place, "ack", *bodies)
    calls: list[list[bytes]] = []

    async def handle(found: Sequence[MessageExt]) -> Later | None:
        calls.append([one.body for one in found])
        return Later(done=2) if len(calls) == 1 else None

    async with pushing(place, topic, batch_handler=handle, batch_size=4, pull_batch_size=4):
        await until(lambda: sum(map(len, calls)) == 6)
    assert calls[0] == bodies
    assert sorted(body for call in calls[1:] for body in call) == bodies[2:]


async def test_dead_letters(place: Place) -> None:
    """A message that no handler can process would be retried forever, or be lost."""
    name = group("dead")
    topic = await filled(place, "dead", b"bad", b"worse", b"good")

    def says(one: MessageExt) -> ConsumeResult | Later | None:
        if one.body == b"worse":
            return Later(delay_level=-1)
        return ConsumeResult.LATER if one.body == b"bad" else None

    seen = Seen(says)
    async with (
        pushing(place, topic, seen, name=name, max_reconsume_times=1),
        AdminClient(place.namesrv) as admin,
    ):
        (queue, *_) = await admin.fetch_publish_message_queues(topic)
        dead = MessageQueue(f"%DLQ%{name}", queue.broker_name, 0)

        async def two_dead() -> bool | None:
            with contextlib.suppress(RocketError):  # the topic is not there yet
                return await admin.max_offset(dead) == 2 or None
            return None

        await eventually(two_dead, 60)
        assert Counter(seen.bodies) == {b"bad": 2, b"worse": 1, b"good": 1}
        letters = (await admin.dead_letters.fetch(name)).messages
        assert {letter.body for letter in letters} == {b"bad", b"worse"}
        seen.result_of = None  # the handler works again
        for letter in letters:
            await admin.dead_letters.resend(letter)
        await until(lambda: len(seen.bodies) == 6)
    again = seen.messages[4:]
    assert {(one.topic, one.body, one.reconsume_times) for one in again} == {
        (topic, b"bad", 0),
        (topic, b"worse", 0),
    }
    assert {one.message_id for one in again} == {letter.message_id for letter in letters}


async def test_consume_timeout(place: Place) -> None:
    """A hanging handler would keep its message from all other members."""
    topic = await filled(place, "hang", b"hangs")
    end = asyncio.Event()
    times: list[int] = []

    async def handle(one: MessageExt) -> None:
        times.append(one.reconsume_times)
        if one.reconsume_times == 0:
            await end.wait()

    async with pushing(place, topic, handle, consume_timeout_ms=200):
        await until(lambda: times == [0, 1])
        end.set()


async def test_compressed_bodies(place: Place) -> None:
    """A handler would get zlib's bytes, or one message could fill the memory of its process."""
    bodies = [b"%d" % number * 10_000 for number in range(3)]
    topic = await filled(place, "zip", *bodies, queues=1)
    seen = Seen()
    lite, pull = polling(place), PullConsumer(group("zip"), place.namesrv)
    lite.subscribe(topic)
    async with pushing(place, topic, seen), lite, pull:
        await seen.until(*bodies)
        assert await polled(lite, *bodies) == Counter(bodies)
        (queue,) = await pull.fetch_queues(topic)
        found = (await pull.pull(queue, 0)).messages
    assert [one.body for one in found] == seen.bodies == bodies
    assert all(one.sys_flag & MessageSysFlag.COMPRESSED for one in seen.messages + found)
    async with (
        PullConsumer(group("zip"), place.namesrv, config=ConsumerConfig(max_body_bytes=9999)) as small,
        LitePullConsumer(group("zip"), place.namesrv, config=LitePullConfig(max_body_bytes=9999)) as member,
    ):
        (first, *_) = (await small.pull(queue, 0)).messages
        looked_up = [await one.view_message(first.offset_message_id) for one in (small, member)]
        looked_up += [await one.view_message(first.message_id, topic) for one in (small, member)]
    assert all("9999 allowed" in str(one.decode_error) for one in (first, *looked_up))
    assert zlib.decompress(first.body) == bodies[0]


# -- subscriptions ------------------------------------------------------------------------------


async def test_subscribe(place: Place) -> None:
    """A group would get messages that its filter drops, or miss others."""
    topic = await filled(place, "tags")
    for number, tag in enumerate(("red", "green", "blue", "red")):
        await send(place, topic, b"%d" % number, tags=tag, properties={"n": str(number)})
    by_tag, by_sql, all_of_it = Seen(), Seen(), Seen()
    async with (
        pushing(place, topic, by_tag, "red || blue"),
        pushing(place, topic, by_sql, Sql("n BETWEEN 1 AND 2")),
        pushing(place, topic, all_of_it),
    ):
        await by_tag.until(b"0", b"2", b"3")
        await by_sql.until(b"1", b"2")
        await all_of_it.until(b"0", b"1", b"2", b"3")
    assert (len(by_tag.bodies), len(by_sql.bodies)) == (3, 2)
    with pytest.raises(BrokerError):
        async with pushing(place, topic, Seen(), Sql("n BETWEEN")):
            pass


async def test_unsubscribe(place: Place) -> None:
    """An application that unsubscribed from a topic would still get it, or its group would not change."""
    topic, other = await filled(place, "wanted", b"1"), await filled(place, "other", b"2")
    seen = Seen()
    async with pushing(place, topic, seen) as consumer:
        await seen.until(b"1")
        consumer.unsubscribe(topic)
        consumer.subscribe(other)
        await seen.until(b"2")
        await until(lambda: not queues_of(consumer, topic))
        await send(place, topic, b"unwanted")
        await send(place, other, b"3")
        await seen.until(b"3")
    assert seen.bodies == [b"1", b"2", b"3"]


async def test_pause_and_resume(place: Place) -> None:
    """A paused consumer would continue, or never resume."""
    topic = await filled(place, "pause", b"before")
    seen = Seen()
    pulls = Requests(RequestCode.PULL_MESSAGE)
    async with pushing(
        place, topic, seen, suspend_timeout_ms=100, client={"rpc_hooks": (pulls,)}
    ) as consumer:
        await seen.until(b"before")
        consumer.pause()
        await until(lambda: consumer.member.client.connections.all() and _idle(consumer))
        count = len(pulls.seen)
        await send(place, topic, b"meanwhile")
        assert len(pulls.seen) == count
        consumer.resume()
        await seen.until(b"meanwhile")


def _idle(consumer: PushConsumer) -> bool:
    """Return whether no pull request is in flight."""
    links = consumer.member.client.connections.all()
    return all(link.channel is None or link.channel.in_flight == 0 for link in links)


# -- questions ----------------------------------------------------------------------------------


async def test_questions(place: Place) -> None:
    """Queries of an application about queues and messages would get no result."""
    bodies = numbered("asked", 3)
    topic = await filled(place, "asked", *bodies, queues=2, keys="key")
    async with (
        pushing(place, topic, Seen()) as pushed,
        LitePullConsumer(group("asks"), place.namesrv) as lite,
        PullConsumer(group("asks"), place.namesrv) as pull,
        AdminClient(place.namesrv) as admin,
    ):
        queues = await lite.fetch_queues(topic)
        assert queues == await pull.fetch_queues(topic) == await pushed.fetch_queues(topic)
        assert [queue.queue_id for queue in queues] == [0, 1]
        queue = queues[0]
        first = (await pull.pull(queue, 0)).messages[0]
        for client in (pushed, lite, pull, admin):
            assert (await client.min_offset(queue), await client.max_offset(queue)) == (0, 3)
            assert await client.max_offset(queue, of_master=True) == 3
            assert await client.earliest_message_store_time(queue) == first.store_timestamp
            assert await client.search_offset(queue, first.store_timestamp - 60_000) == 0
            assert await client.search_offset(queue, first.store_timestamp + 3_600_000) >= 2
            assert (await client.view_message(first.offset_message_id)).body == bodies[0]
            assert (await client.view_message(first.message_id, topic)).body == bodies[0]
            found = await client.query_message(topic, "key", 8)
            assert sorted(one.body for one in found.messages) == bodies


async def test_seek(place: Place) -> None:
    """Messages that an operator resets would not be delivered."""
    bodies = numbered("again", 4)
    topic = await filled(place, "seek", *bodies)
    seen = Seen()
    async with pushing(place, topic, seen) as consumer:
        await seen.until(*bodies)
        queue = queues_of(consumer, topic)[0]
        await consumer.seek(queue, 2)
        await until(lambda: len(seen.bodies) == 6)
    assert seen.bodies[4:] == bodies[2:]


# -- settings -----------------------------------------------------------------------------------


async def test_message_model(place: Place, tmp_path: Path) -> None:
    """Members of a group that broadcasts would share, or start over at each start."""
    name = group("cast")
    topic = await filled(place, "cast", b"1")
    both: dict[str, Any] = {"name": name, "model": MessageModel.BROADCASTING, "offset_directory": tmp_path}
    one, two, again = Seen(), Seen(), Seen()
    async with (
        pushing(place, topic, one, client={"instance_name": "one"}, **both),
        pushing(place, topic, two, client={"instance_name": "two"}, **both),
    ):
        await one.until(b"1")
        await two.until(b"1")
    await send(place, topic, b"2")
    async with pushing(place, topic, again, client={"instance_name": "one"}, **both):
        await again.until(b"2")
    assert (one.bodies, two.bodies, again.bodies) == ([b"1"], [b"1"], [b"2"])


@pytest.mark.parametrize("begins", list(ConsumeFrom))
async def test_consume_from(place: Place, begins: ConsumeFrom) -> None:
    """QUIRKS 33: a new group would miss messages that RocketMQ's client gives to it."""
    topic = await filled(place, "from", b"old")
    seen = Seen()
    async with pushing(place, topic, seen, consume_from=begins, consume_timestamp_ms=4_000_000_000_000):
        await seen.until(b"old")
        await send(place, topic, b"new")
        await seen.until(b"new")


async def test_allocation(place: Place) -> None:
    """Two members would take the same queue, or no member would take it."""
    topic = await filled(place, "shares", queues=4)
    async with AdminClient(place.namesrv) as admin:
        queues = list(await admin.fetch_publish_message_queues(topic))
    name = group("fixed")
    async with (
        pushing(place, topic, Seen(), name=name, allocation=AllocateByConfig(queues[:1])) as one,
        pushing(place, topic, Seen(), name=name, allocation=AllocateByConfig(queues[1:])) as two,
    ):
        await until(lambda: queues_of(one, topic) == queues[:1] and queues_of(two, topic) == queues[1:])
    for strategy in (None, AllocateByCircle(), AllocateByConsistentHash(50)):
        name = group("shared")
        config: dict[str, Any] = {} if strategy is None else {"allocation": strategy}
        async with (
            pushing(place, topic, Seen(), name=name, **config) as one,
            pushing(place, topic, Seen(), name=name, **config) as two,
        ):
            await until(lambda: sorted(queues_of(one, topic) + queues_of(two, topic)) == queues)
            if not isinstance(strategy, AllocateByConsistentHash):
                await until(lambda: len(queues_of(one, topic)) == len(queues_of(two, topic)) == 2)


async def test_concurrency(place: Place) -> None:
    """More handlers than an application allows would run at the same time, or fewer."""
    topic = await filled(place, "width", *numbered("w", 9))
    go = asyncio.Event()
    running = most = ended = 0

    async def handle(_: MessageExt) -> None:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        await go.wait()
        running -= 1
        ended += 1

    async with pushing(place, topic, handle, concurrency=3):
        await until(lambda: running == 3)
        go.set()
        await until(lambda: ended == 9)
    assert most == 3


async def test_queue_limits(place: Place) -> None:
    """A stuck handler would let a whole queue into memory."""
    for limit, expected in (
        ({"queue_messages_max": 10}, 16),  # full with the second pull of eight
        ({"queue_bytes_max": 1000}, 16),
        ({"span_max": 18}, 24),
    ):
        topic = await filled(place, "limits", *(b"x" * 100 for _ in range(60)))
        assert await _most_held(place, topic, pull_batch_size=8, **limit) == [expected, 0, 0, 0]


async def test_topic_limits(place: Place) -> None:
    """Many queues that are each below their limit would be too much together."""
    topic = place.topic("together")
    async with place.producer() as producer:
        for queue in await place.made(producer, topic):
            await producer.send_batch([message(topic, b"x" * 100) for _ in range(30)], queue=queue)
    # The retry topic's queue has its part, too: a fifth of the limit for each.
    assert await _most_held(place, topic, pull_batch_size=4, topic_messages_max=40) == [12] * 4
    assert await _most_held(place, topic, pull_batch_size=4, topic_bytes_max=4000) == [12] * 4


async def _most_held(place: Place, topic: str, **config: Any) -> list[int]:
    """How much of each queue is held, by count, once pulls of all that have messages wait."""
    go = asyncio.Event()

    async def handle(_: MessageExt) -> None:
        await go.wait()

    async with pushing(place, topic, handle, **config) as consumer:
        # A pull of a queue without messages is held by the broker; the others go on until they have to wait.
        await until(lambda: any(info.cached_msg_count for info in held(consumer, topic)))
        await until(lambda: _all_wait(consumer, topic))
        found = [info.cached_msg_count for info in held(consumer, topic)]
        go.set()
        await until(lambda: not any(info.cached_msg_count for info in held(consumer, topic)))
    return found


def _all_wait(consumer: PushConsumer, topic: str) -> bool:
    limits = consumer.member.context.limits()
    pullers = [one for queue, one in consumer.member.pullers.items() if queue.topic == topic]
    return len(pullers) == 4 and all(
        one.process_queue.is_full(limits) or not one.process_queue.count for one in pullers
    )


async def test_pulls(place: Place) -> None:
    """Brokers would get pulls for more messages, or without the filter, than the application configured."""
    topic = await filled(place, "pulls", *numbered("pulled", 6), queues=1, tags="t")
    pulls = Requests(RequestCode.PULL_MESSAGE)
    seen = Seen()
    client = {"rpc_hooks": (pulls,)}
    settings: dict[str, Any] = {
        "pull_batch_size": 2,
        "pull_interval_ms": 100,
        "post_subscription": True,
        "client": client,
    }
    started = time.monotonic()
    async with pushing(place, topic, seen, "t || u", **settings):
        await seen.until(*numbered("pulled", 6))
        assert time.monotonic() - started >= 0.2
    fields = [one.ext_fields() for one in pulls.seen if one.ext_fields()["topic"] == topic]
    assert {(one["maxMsgNums"], one["subscription"]) for one in fields} == {("2", "t || u")}
    assert [one["queueOffset"] for one in fields][:3] == ["0", "2", "4"]


async def test_heartbeats(place: Place) -> None:
    """Brokers and operators would get a wrong group in heartbeats."""
    topic = await filled(place, "beats", b"1")
    beats = Requests(RequestCode.HEART_BEAT)
    name, seen = group("beats"), Seen()
    client = {"rpc_hooks": (beats,), "heartbeat_ms": 50, "instance_name": "beating"}
    async with pushing(place, topic, seen, "a || b", name=name, unit_mode=True, client=client) as consumer:
        await until(lambda: len(beats.seen) > 2)
        client_id = consumer.member.client.client_id
    heartbeat = json.loads(beats.seen[-1].body)
    (data,) = heartbeat["consumerDataSet"]
    assert heartbeat["clientID"] == client_id
    assert client_id.endswith("@beating")
    assert (data["groupName"], data["unitMode"], data["consumeType"]) == (name, True, "CONSUME_PASSIVELY")
    tags = {one["topic"]: sorted(one["tagsSet"]) for one in data["subscriptionDataSet"]}
    assert tags == {topic: ["a", "b"], f"%RETRY%{name}": []}


async def test_persist_interval(place: Place) -> None:
    """Another member would begin far behind where a killed one was."""
    name, seen = group("persist"), Seen()
    topic = await filled(place, "persist", *numbered("p", 4))
    commits = Requests(RequestCode.UPDATE_CONSUMER_OFFSET)
    settings: dict[str, Any] = {"persist_interval_ms": 50, "client": {"rpc_hooks": (commits,)}}
    async with pushing(place, topic, seen, name=name, **settings):
        await seen.until(*numbered("p", 4))
        stored = [one.ext_fields() for one in commits.seen]
        await until(lambda: any(one.ext_fields()["commitOffset"] == "4" for one in commits.seen))
    assert all(one["consumerGroup"] == name for one in stored)


async def test_namespace(place: Place) -> None:
    """Tenants that share a broker would get each other's messages."""
    topic = place.topic("tenants")
    for tenant in ("one", "two"):
        async with place.producer(client=_tenant(tenant)) as producer:
            await place.made(producer, topic)
            await producer.send(message(topic, tenant.encode()))
    one, two = Seen(), Seen()
    name = group("tenants")
    async with (
        pushing(place, topic, one, name=name, client={"namespace": "one"}),
        pushing(place, topic, two, name=name, client={"namespace": "two"}),
    ):
        await one.until(b"one")
        await two.until(b"two")
    assert [found.topic for found in one.messages + two.messages] == [topic, topic]


def _tenant(namespace: str) -> ClientConfig:
    return ClientConfig(namespace=namespace, instance_name=group("tenant"))
