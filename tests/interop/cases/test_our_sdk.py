"""rocketpy's clients with RocketMQ's servers and mixed pairs, beside RocketMQ's client."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Literal

import pytest

import rocketpy.sync
from rocketpy import (
    ClientConfig,
    CompressionConfig,
    Message,
    MessageExt,
    MessageQueue,
    Outcome,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullStatus,
    SendStatus,
)
from rocketpy.errors import BrokerError, MessageInvalid
from rocketpy.protocol.codes import ResponseCode
from tests.interop import probe
from tests.interop.cluster import Cluster
from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer
from tests.interop.sides import ALL_VERSIONS, OUR_SDK, Side, serve

pytestmark = pytest.mark.interop

PROPERTIES = {"a": "1", "unicode": "地球 🚀 ümlaut", "long": "x" * 1000}


@pytest.fixture(scope="module", params=[*OUR_SDK, *ALL_VERSIONS], ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One running pair of servers for each pairing."""
    side: Side = request.param
    with serve(side, peer, tmp_path_factory.mktemp("our-sdk")) as running:
        yield running


def producer(servers: Cluster, **settings: Any) -> Producer:
    """A producer for these servers, which may be slow to send their first responses."""
    settings.setdefault("config", ProducerConfig(send_timeout_ms=15_000))
    return Producer("interop_ours", servers.namesrv.address, **settings)


def consumer(servers: Cluster) -> PullConsumer:
    """A consumer for these servers."""
    return PullConsumer("interop_ours_readers", servers.namesrv.address)


async def test_both_readers_get_unchanged_messages(servers: Cluster) -> None:
    """Messages of rocketpy's producer would be altered, for consumers of both makes."""
    topic = servers.topic("sdk")
    sent = [
        Message(
            topic, b"body %d \xff\x00" % n, tags="T", keys=(f"k{n}", "all"), flag=n, properties=PROPERTIES
        )
        for n in range(50)
    ]
    async with producer(servers) as sender, consumer(servers) as reader:
        results = [await sender.send(message) for message in sent]
        await known(servers, topic, 50)
        assert {result.status for result in results} == {SendStatus.SEND_OK}
        ours = {one.message_id: one for one in await read_all(reader, topic)}
    theirs = {one["msgId"]: one for one in await asyncio.to_thread(servers.pull_all, topic)}
    assert set(ours) == set(theirs) == {result.message_id for result in results}
    for message, result in zip(sent, results, strict=True):
        expect_ours(message, ours[result.message_id])
        expect_theirs(message, theirs[result.message_id])


async def test_timer_messages_go_only_to_brokers_that_have_them(servers: Cluster) -> None:
    """Consumers would get them at once: those of a batch, or at brokers of 4.x."""
    topic = servers.topic("timers")
    timer = Message(topic, b"later", delay=timedelta(seconds=2))
    async with producer(servers) as sender, consumer(servers) as reader:
        await sender.send(Message(topic, b"now"))
        refusal = None
        try:
            await sender.send(Message(topic, b"never", delay=timedelta(days=4)))
        except (MessageInvalid, BrokerError) as error:
            refusal = error
        if isinstance(refusal, MessageInvalid):
            assert "has no timers, and no delay level for delay 4 days, 0:00:00: " in str(refusal)
            assert "; the nearest is 18 (2h);" in str(refusal)
            with pytest.raises(MessageInvalid, match="has no timers, and no delay level for delay 0:00:02: "):
                await sender.send(timer)
            return
        assert isinstance(refusal, BrokerError)
        assert (refusal.code, refusal.outcome) == (ResponseCode.MESSAGE_ILLEGAL, Outcome.NOT_SENT)
        assert re.search("259200|3 days", str(refusal))  # the limit, timerMaxDelaySec
        sent_ms = time.time_ns() // 1_000_000
        await asyncio.gather(*(sender.send_nowait(timer) for _ in range(20)))
        java = {
            "how": "sync",
            "topic": topic,
            "body": b"java".hex(),
            "properties": {"TIMER_DELAY_MS": "2000"},
        }
        await asyncio.to_thread(servers.produce, java)
        await known(servers, topic, 22)
        found = await read_all(reader, topic)
        (theirs,) = [message for message in found if message.body == b"java"]
        assert theirs.deliver_at is not None
        assert theirs.deliver_at.timestamp() * 1000 == pytest.approx(theirs.born_timestamp + 2000, abs=1)
        later = [message for message in found if message.body == b"later"]
        assert len(later) == 20
        assert min(message.store_timestamp for message in later) >= sent_ms + 900  # it delivers by the second
        assert len(await asyncio.to_thread(servers.pull_all, topic)) == 22


async def test_both_readers_get_unchanged_messages_of_automatic_batches(servers: Cluster) -> None:
    """A broker would misread rocketpy's batches, or callers get each other's results."""
    topic = servers.topic("gathered")
    async with producer(servers) as sender, consumer(servers) as reader:
        await create(servers, sender, topic)
        sent = [
            Message(
                topic, b"body %d \xff\x00" % n, tags="T", keys=(f"k{n}", "all"), flag=n, properties=PROPERTIES
            )
            for n in range(300)
        ]
        results = await asyncio.gather(*[sender.send(message, timeout_ms=15_000) for message in sent])
        for message, result in list(zip(sent, results, strict=True))[::29]:
            found = await reader.view_message(result.offset_message_id)
            assert (found.body, found.queue_offset) == (message.body, result.queue_offset)
            assert (found.queue.queue_id, found.message_id) == (result.queue.queue_id, result.message_id)
        await known(servers, topic, 301)
        ours = {one.message_id: one for one in await read_all(reader, topic)}
    theirs = {one["msgId"]: one for one in await asyncio.to_thread(servers.pull_all, topic)}
    for message, result in zip(sent, results, strict=True):
        expect_ours(message, ours[result.message_id])
        expect_theirs(message, theirs[result.message_id])


async def test_sends_in_flight_keep_their_order(servers: Cluster) -> None:
    """Many sends at once to one queue would be stored in another order, lost or doubled."""
    topic = servers.topic("flight")
    async with producer(servers) as sender, consumer(servers) as reader:
        queue = await create(servers, sender, topic)
        first = await reader.max_offset(queue)
        messages = [Message(topic, b"%d" % n) for n in range(3000)]
        futures = [sender.send_nowait(one, queue=queue, timeout_ms=15_000) for one in messages]
        results = await asyncio.gather(*futures)
        offsets = [result.queue_offset for result in results]
        # Brokers of 4.9 and later handle the requests of one connection on several threads.
        in_order = servers.version == DEFAULT_VERSION
        assert (offsets if in_order else sorted(offsets)) == list(range(first, first + 3000))
        await known(servers, topic, 3001)
        bodies = {first + place: one.body for place, one in enumerate(await read_queue(reader, queue, first))}
        assert bodies == {offset: b"%d" % n for n, offset in enumerate(offsets)}


async def test_oneway_sends_arrive(servers: Cluster) -> None:
    """Messages sent without waiting for a response would vanish."""
    topic = servers.topic("oneway")
    async with producer(servers) as sender:
        await create(servers, sender, topic)
        for n in range(100):
            sender.send_oneway(Message(topic, b"%d" % n))
        await asyncio.to_thread(wait_for_count, servers, topic, 101)


async def test_batches_reach_both_readers(servers: Cluster) -> None:
    """A batch's messages would be lost, or their results would name other messages."""
    topic = servers.topic("batch")
    sent = [Message(topic, b"part %d" % n, keys=f"b{n}", properties=PROPERTIES) for n in range(100)]
    async with producer(servers) as sender, consumer(servers) as reader:
        results = await sender.send_batch(sent)
        await known(servers, topic, 100)
        ours = await read_all(reader, topic)
        assert [one.message_id for one in ours] == [result.message_id for result in results]
        assert [one.queue_offset for one in ours] == [result.queue_offset for result in results]
        for result, message in list(zip(results, sent, strict=True))[::33]:
            expect_ours(message, await reader.view_message(result.offset_message_id))
    for message, one in zip(sent, await asyncio.to_thread(servers.pull_all, topic), strict=True):
        expect_theirs(message, one)


async def test_long_bodies_are_inflated_by_both_readers(servers: Cluster) -> None:
    """Java's consumer could not read bodies that rocketpy's producer compresses, or the reverse."""
    topic = servers.topic("deflated")
    bodies = [b"abcdefgh" * 1000, b"".join(b"%d " % n for n in range(100_000)), b"y" * 4097]
    java = [{"how": "sync", "topic": topic, "body": (b"java" + body).hex()} for body in bodies]
    async with producer(servers) as sender, consumer(servers) as reader:
        for body in bodies:
            await sender.send(Message(topic, body))
        await known(servers, topic, 3)
        await asyncio.to_thread(servers.produce, *java)
        await known(servers, topic, 6)
        wanted = {*bodies, *(b"java" + body for body in bodies)}
        assert {one.body for one in await read_all(reader, topic)} == wanted
    theirs = await asyncio.to_thread(servers.pull_all, topic)
    assert {bytes.fromhex(one["body"]) for one in theirs} == wanted
    assert all(one["sysFlag"] & 1 for one in theirs)


async def test_a_body_of_zeros_from_java(servers: Cluster) -> None:
    """A body that a Java producer compresses to a thousandth of its size could not be read."""
    topic = servers.topic("zeros")
    await asyncio.to_thread(servers.produce, {"how": "sync", "topic": topic, "body": bytes(100_000).hex()})
    await known(servers, topic)
    async with consumer(servers) as reader:
        assert [one.body for one in await read_all(reader, topic)] == [bytes(100_000)]


async def test_messages_of_a_java_producer(servers: Cluster) -> None:
    """Messages of Java's producer, single or in batches, would reach rocketpy's consumer altered."""
    topic = servers.topic("theirs")
    steps = [java_step(topic, n) for n in range(20)]
    parts = [java_step(topic, 100 + n) for n in range(20)]
    batch = {"how": "batch", "messages": parts}
    results = await asyncio.to_thread(servers.produce, *steps, batch)
    await known(servers, topic, 40)
    ids = [result["msgId"] for result in results[:20]] + results[20]["msgId"].split(",")
    async with consumer(servers) as reader:
        found = {one.message_id: one for one in await read_all(reader, topic)}
    assert set(found) == set(ids)
    for message_id, step in zip(ids, [*steps, *parts], strict=True):
        one = found[message_id]
        assert (one.body.hex(), one.tags, " ".join(one.keys)) == (step["body"], step["tags"], step["keys"])
        assert one.properties.items() >= PROPERTIES.items()


async def test_offsets_and_times(servers: Cluster) -> None:
    """A consumer would get wrong bounds of a queue, a wrong offset for a time, or an outdated commit."""
    topic = servers.topic("offsets")
    async with producer(servers) as sender, consumer(servers) as reader:
        queue = await create(servers, sender, topic)
        start = await reader.max_offset(queue)
        results = [await sender.send(Message(topic, b"%d" % n), queue=queue) for n in range(10)]
        await known(servers, topic, 11)
        assert (await reader.min_offset(queue), await reader.max_offset(queue)) == (0, start + 10)
        last = await reader.view_message(results[-1].offset_message_id)
        at_end = await reader.search_offset(queue, last.store_timestamp + 1000)
        assert at_end in (start + 9, start + 10)  # the last message with 4.x, the end of the queue otherwise
        await sender.send_batch([Message(topic, b"batch %d" % n) for n in range(51)], queue=queue)
        await known(servers, topic, 62)
        batch = (await reader.pull(queue, start + 10)).messages
        assert len({one.store_timestamp for one in batch}) == 1
        assert await reader.search_offset(queue, batch[0].store_timestamp) <= start + 10
        assert await reader.search_offset(queue, 0) == 0
        assert await reader.committed(queue) in (None, 0)
        await reader.commit(queue, start + 3)
        assert await reader.committed(queue) == start + 3


async def test_pulls_at_the_edges_of_a_queue(servers: Cluster) -> None:
    """A consumer at the end of a queue, or beyond it, would misread the broker's response."""
    topic = servers.topic("edges")
    async with producer(servers) as sender, consumer(servers) as reader:
        queue = await create(servers, sender, topic)
        end = await reader.max_offset(queue)
        statuses = [(await reader.pull(queue, offset)).status for offset in (0, end, end + 100)]
        assert statuses == [PullStatus.FOUND, PullStatus.NO_NEW_MSG, PullStatus.OFFSET_ILLEGAL]


async def test_new_topic_has_four_queues(servers: Cluster) -> None:
    """The first send to a new topic would fail, or the topic would get another number of queues than 4."""
    topic = servers.topic("new")
    async with producer(servers) as sender, consumer(servers) as reader:
        # One by one, since concurrent sends would share a batch, and so a queue.
        results = [await sender.send(Message(topic, b"%d" % n)) for n in range(40)]
        assert {result.queue.queue_id for result in results} == {0, 1, 2, 3}
        await known(servers, topic, 40)
        assert len(await sender.fetch_publish_message_queues(topic)) == 4
        listed = await reader.fetch_topics()
        assert topic in listed
        assert {servers.broker.name, "InteropCluster", "TBW102", "SELF_TEST_TOPIC"}.isdisjoint(listed)


async def test_rejections_report_that_nothing_was_stored(servers: Cluster) -> None:
    """A user could not distinguish a rejected message from one that may be stored."""
    topic = servers.topic("refused")
    async with producer(servers) as sender:
        queue = await create(servers, sender, topic)
        nowhere = MessageQueue(topic=topic, broker_name=queue.broker_name, queue_id=99)
        with pytest.raises(BrokerError) as refused:
            await sender.send(Message(topic, b"to a queue that is not there"), queue=nowhere)
        assert refused.value.outcome is not Outcome.STORED
    whole = ProducerConfig(compression=CompressionConfig(above_bytes=1 << 30), max_message_bytes=5 << 20)
    async with producer(servers, config=whole) as sender:
        # 4.6.0 counts the record, which is longer than its body; 4.9.7 and later count the body.
        more = 0 if servers.version == DEFAULT_VERSION else 1
        with pytest.raises(BrokerError) as too_long:
            await sender.send(Message(topic, bytes(4 * 1024 * 1024 + more)))
        assert (too_long.value.code, too_long.value.outcome) == (13, Outcome.NOT_SENT)
    assert await asyncio.to_thread(probe.message_count, servers.namesrv.address, topic) == 1


@pytest.mark.parametrize("codec", ["rocketmq", "msgpack"])
async def test_other_header_codecs(servers: Cluster, codec: Literal["rocketmq", "msgpack"]) -> None:
    """A client set to another header codec would not be understood; MessagePack must never reach Java."""
    topic = servers.topic(f"codec_{codec}")
    client = ClientConfig(namesrv=servers.namesrv.address, codec=codec)
    async with Producer("interop_codec", client=client) as sender, PullConsumer("r", client=client) as reader:
        for n in range(20):
            await sender.send(Message(topic, b"%d" % n, properties=PROPERTIES))
        await known(servers, topic, 20)
        assert len(await read_all(reader, topic)) == 20


async def test_end_to_end_checksum(servers: Cluster) -> None:
    """Messages with rocketpy's checksum property would be rejected or unreadable elsewhere."""
    topic = servers.topic("checksum")
    async with (
        producer(servers, config=ProducerConfig(body_checksum="crc-32c")) as sender,
        consumer(servers) as reader,
    ):
        for n in range(5):
            await sender.send(Message(topic, b"checked %d" % n))
        await known(servers, topic, 5)
        assert len(await read_all(reader, topic)) == 5
    assert len(await asyncio.to_thread(servers.pull_all, topic)) == 5


def test_blocking_producer(servers: Cluster) -> None:
    """Programs without an event loop could not send, or their callbacks would not be called."""
    topic = servers.topic("blocking")
    with rocketpy.sync.Producer("interop_blocking", servers.namesrv.address) as sender:
        assert sender.send(Message(topic, b"one")).status is SendStatus.SEND_OK
        assert len(sender.send_batch([Message(topic, b"%d" % n) for n in range(10)])) == 10
        future = sender.send_async(Message(topic, b"async"))
        assert future.result(10).status is SendStatus.SEND_OK
        sender.send_oneway(Message(topic, b"oneway"))
        wait_for_count(servers, topic, 13)


async def create(servers: Cluster, sender: Producer, topic: str) -> MessageQueue:
    """Create the topic with a first message; return the message's queue."""
    result = await sender.send(Message(topic, b"creates the topic"))
    await known(servers, topic)
    return result.queue


async def known(servers: Cluster, topic: str, count: int = 1) -> None:
    """Wait until this many messages can be read: Java brokers register and dispatch after the response."""
    await asyncio.to_thread(wait_for_count, servers, topic, count)


async def read_all(reader: PullConsumer, topic: str) -> list[MessageExt]:
    """Every message of every queue."""
    return [one for queue in await reader.fetch_queues(topic) for one in await read_queue(reader, queue)]


async def read_queue(reader: PullConsumer, queue: MessageQueue, offset: int = 0) -> list[MessageExt]:
    """Every message of one queue from an offset on."""
    found: list[MessageExt] = []
    end = await reader.max_offset(queue)
    while offset < end:
        result = await reader.pull(queue, offset)
        assert result.next_offset > offset, result
        found += result.messages
        offset = result.next_offset
    return found


def wait_for_count(servers: Cluster, topic: str, count: int) -> None:
    """Wait until this many messages are in the topic."""
    address = servers.namesrv.address
    probe.wait_until(lambda: probe.message_count(address, topic) == count, f"{count} messages in {topic}")


def java_step(topic: str, number: int) -> dict[str, Any]:
    """A send step for Java's producer."""
    body = f"from Java {number} 世".encode().hex()
    return {
        "how": "sync",
        "topic": topic,
        "body": body,
        "tags": "J",
        "keys": f"j{number} all",
        "properties": PROPERTIES,
    }


def expect_ours(message: Message, one: MessageExt) -> None:
    """Check a message that rocketpy's consumer received."""
    assert (one.topic, one.body, one.tags, one.keys, one.flag) == (
        message.topic,
        message.body,
        message.tags,
        message.keys,
        message.flag,
    )
    assert one.properties.items() >= message.properties.items()


def expect_theirs(message: Message, one: dict[str, Any]) -> None:
    """Check a message that Java's consumer received."""
    assert (bytes.fromhex(one["body"]), one.get("tags"), one["flag"]) == (
        message.body,
        message.tags,
        message.flag,
    )
    assert one["keys"] == " ".join(message.keys)
    assert one["properties"].items() >= message.properties.items()
