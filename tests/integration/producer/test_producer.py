"""Producer and pull consumer with this project's servers, over sockets and in memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from typing import Literal

import pytest

from rocketpy import (
    BatchConfig,
    ClientConfig,
    CompressionConfig,
    Message,
    MessageColumns,
    MessageExt,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullStatus,
    RetryConfig,
    SendResult,
    SendStatus,
    Sql,
    new_unique_id,
)
from rocketpy.consumer.fetch.consumer_api import PullResponse
from rocketpy.errors import BrokerError, ClientClosed, MessageInvalid, MessageTooLarge, RouteNotFound
from rocketpy.hooks import SendEvent
from rocketpy.message.encoded import EncodedBatch
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.protocol.message.record import decode_all
from rocketpy_broker.embedded import EmbeddedCluster


@pytest.fixture(params=["tcp", "memory"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedCluster]:
    """One name server, one broker."""
    transport: Literal["tcp", "memory"] = request.param
    async with EmbeddedCluster(transport=transport) as running:
        yield running


@pytest.fixture
async def producer(cluster: EmbeddedCluster) -> AsyncIterator[Producer]:
    """A producer of that cluster."""
    async with Producer("senders", cluster.namesrv_address) as started:
        yield started


@pytest.fixture
async def consumer(cluster: EmbeddedCluster) -> AsyncIterator[PullConsumer]:
    """A consumer of that cluster."""
    async with PullConsumer("readers", cluster.namesrv_address) as started:
        yield started


async def read_back(consumer: PullConsumer, results: list[SendResult]) -> list[MessageExt]:
    """The messages at the queue offsets of these results."""
    found = []
    for result in results:
        pulled = await consumer.pull(result.queue, result.queue_offset, 1)
        assert pulled.status is PullStatus.FOUND
        found.append(pulled.messages[0])
    return found


async def test_all_fields_of_a_message_are_received(producer: Producer, consumer: PullConsumer) -> None:
    """A message would arrive without its tag, keys, flag or properties."""
    sent = Message(
        "Coffee", "schwarz ☕".encode(), tags="hot", keys=["42", "é"], flag=-7, properties={"n": 'q"\\\n☕'}
    )
    result = await producer.send(sent)
    assert result.status is SendStatus.SEND_OK
    (message,) = await read_back(consumer, [result])
    assert (message.topic, message.body, message.tags, message.keys) == (
        "Coffee",
        sent.body,
        "hot",
        ("42", "é"),
    )
    assert (message.flag, message.properties["n"]) == (-7, 'q"\\\n☕')
    assert message.message_id == result.message_id
    assert message.offset_message_id == result.offset_message_id
    assert message.queue == result.queue
    assert await consumer.max_offset(result.queue) == result.queue_offset + 1
    assert await consumer.min_offset(result.queue) == 0


async def test_a_resent_message_keeps_its_unique_id(producer: Producer, consumer: PullConsumer) -> None:
    """Consumers that check the unique id would handle a message twice that was resent after an error."""
    mine = new_unique_id()
    message, other = Message("Again", b"x", unique_id=mine, tags="t"), Message("Again", b"y")
    results = [
        await producer.send(message),
        await producer.send(message, queue=MessageQueue("Again", "broker-a", 1)),
    ]
    gathered = await asyncio.gather(*[producer.send(each) for each in (other, message, other, message)])
    batch = await producer.send_batch([other, message])
    assert {result.message_id for result in [*results, gathered[1], gathered[3], batch[1]]} == {mine}
    others = {gathered[0].message_id, gathered[2].message_id, batch[0].message_id}
    assert len(others) == 3
    assert mine not in others
    for result, stored in zip(
        [*results, *gathered, *batch], await read_back(consumer, [*results, *gathered, *batch]), strict=True
    ):
        assert stored.message_id == result.message_id
    too_long = {"p": "x" * (32_768 - len(f"UNIQ_KEY_{'0' * 56}_WAIT_false_p__"))}
    with pytest.raises(MessageTooLarge, match="32768 bytes"):
        await producer.send(Message("Again", b"x", unique_id="0" * 56, properties=too_long))


async def test_a_new_topic_gets_four_queues_that_take_turns(
    producer: Producer, consumer: PullConsumer
) -> None:
    """All messages of a new topic would go to one queue."""
    results = [await producer.send(Message("Fresh", b"x")) for _ in range(8)]
    assert sorted(result.queue.queue_id for result in results) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(await consumer.fetch_queues("Fresh")) == 4
    assert await producer.fetch_publish_message_queues("Fresh") == await consumer.fetch_queues("Fresh")


@pytest.mark.parametrize(("batching", "queues"), [(True, 2), (False, 4)])
async def test_order_holds_from_the_very_first_message(
    cluster: EmbeddedCluster, batching: bool, queues: int
) -> None:
    """Messages that waited for the route or the connection would arrive after later ones."""
    async with Producer(
        "senders", cluster.namesrv_address, config=ProducerConfig(batching=batching)
    ) as producer:
        sends = [producer.send_nowait(Message("Early", b"%d" % number)) for number in range(40)]
        results = await asyncio.gather(*sends)
    by_queue: dict[int, list[int]] = {}
    for result in results:
        by_queue.setdefault(result.queue.queue_id, []).append(result.queue_offset)
    assert [offsets == sorted(offsets) for offsets in by_queue.values()] == [True] * queues


async def test_large_bodies_are_sent_compressed(producer: Producer, consumer: PullConsumer) -> None:
    """Large messages would need ten times the space, or be received as zlib bytes."""
    bodies = [os.urandom(600) * 10, os.urandom(2000) * 50, os.urandom(5000), b"x" * 4096]
    results = [await producer.send(Message("Large", body)) for body in bodies]
    results.append(await producer.send(Message("Large", bodies[1]), queue=results[0].queue))
    found = await read_back(consumer, results)
    assert [message.body for message in found] == [*bodies, bodies[1]]
    assert [message.sys_flag & 1 for message in found] == [1, 1, 0, 0, 1]
    assert found[1].store_size < 4000


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("form", [list, MessageColumns])
@pytest.mark.parametrize(
    ("bodies", "compressed"),
    [
        ([os.urandom(600) * 10, os.urandom(2000) * 50, b"x" * 5000], [1, 1, 1]),
        ([b"short", os.urandom(600) * 10, os.urandom(5000), b"x" * 5000, b"end"], [0, 0, 0, 0, 0]),
        ([os.urandom(600_000), b"x" * 500_000], [0, 1]),
    ],
    ids=["long", "mixed", "several requests anyway"],
)
async def test_long_bodies_of_a_batch_are_compressed(
    producer: Producer,
    consumer: PullConsumer,
    form: type[list[Message] | MessageColumns],
    given: bool,
    bodies: list[bytes],
    compressed: list[int],
) -> None:
    """Uncompressed long messages would take more disk, or a mixed batch be split into many requests."""
    messages: Sequence[Message] = MessageColumns("LongBatch", bodies)
    if form is list:
        messages = list(messages)
    queue = (await producer.send(Message("LongBatch", b"first"))).queue if given else None
    results = await producer.send_batch(messages, queue=queue)
    found = await read_back(consumer, results)
    assert [message.body for message in found] == bodies
    assert [message.sys_flag & 1 for message in found] == compressed
    first = results[0].queue_offset
    assert [result.queue_offset for result in results] == [*range(first, first + len(bodies))]
    assert [message.message_id for message in found] == [result.message_id for result in results]


class AddsShop:
    """A listener that adds a property to each message."""

    def started(self, event: SendEvent) -> None:
        """Add it."""
        for extra in event.extra_properties:
            extra["shop"] = "north"

    def completed(self, event: SendEvent, results: Sequence[SendResult]) -> None:
        """Do nothing."""

    def failed(self, event: SendEvent, error: BaseException) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("config", "listener"),
    [
        (ProducerConfig(), None),
        (ProducerConfig(batch=BatchConfig(max_bytes=20_000)), None),
        (ProducerConfig(compression=CompressionConfig(above_bytes=200)), None),
        (ProducerConfig(body_checksum="crc-32c"), None),
        (ProducerConfig(), AddsShop()),
    ],
    ids=["as it is", "split", "compressed", "checksums", "listener"],
)
async def test_an_encoded_batch_is_sent_in_any_producer(
    cluster: EmbeddedCluster, consumer: PullConsumer, config: ProducerConfig, listener: AddsShop | None
) -> None:
    """Rows of Spark would lose a property, or a retry of them have other ids."""
    bodies, ids = [b"%03d" % number * 100 for number in range(200)], [new_unique_id() for _ in range(200)]
    texts = [
        f"UNIQ_KEY\x01{unique_id}\x02TAGS\x01a\x02KEYS\x01k{number} all\x02row\x01{number}\x02".encode()
        for number, unique_id in enumerate(ids)
    ]
    batch = EncodedBatch("Encoded", encode_batch(zip(range(200), bodies, texts, strict=True)), ids, 300)
    listeners = () if listener is None else (listener,)
    async with Producer("batchers", cluster.namesrv_address, config=config, listeners=listeners) as producer:
        results = await producer.send_encoded(batch)
    assert [result.queue_offset for result in results] == list(range(200))
    assert [result.message_id for result in results] == ids
    found = await read_back(consumer, list(results))
    assert [(message.body, message.flag, message.message_id) for message in found] == [
        *zip(bodies, range(200), ids, strict=True)
    ]
    assert [(message.tags, message.keys) for message in found] == [
        ("a", (f"k{n}", "all")) for n in range(200)
    ]
    assert [message.properties["row"] for message in found] == [str(number) for number in range(200)]
    assert {message.properties.get("shop") for message in found} == {None if listener is None else "north"}
    assert [result.offset_message_id for result in results] == [
        message.offset_message_id for message in found
    ]


@pytest.mark.parametrize("form", [list, MessageColumns])
async def test_a_long_batch_is_split_and_stays_in_one_queue(
    cluster: EmbeddedCluster, consumer: PullConsumer, form: type[list[Message] | MessageColumns]
) -> None:
    """A list above the broker's limit would be refused as a whole."""
    config = ProducerConfig(batch=BatchConfig(max_bytes=20_000))
    async with Producer("batchers", cluster.namesrv_address, config=config) as producer:
        bodies = [b"%03d" % number * 100 for number in range(200)]
        messages: Sequence[Message] = [Message("Batch", body, tags="t") for body in bodies]
        if form is MessageColumns:
            messages = MessageColumns("Batch", bodies, tags=["t"] * 200)
        results = await producer.send_batch(messages)
    assert len({result.queue for result in results}) == 1
    assert [result.queue_offset for result in results] == list(range(200))
    found = await read_back(consumer, [results[0], results[60], results[199]])
    assert [message.body for message in found] == [bodies[0], bodies[60], bodies[199]]
    assert {message.tags for message in found} == {"t"}
    assert [message.message_id for message in found] == [
        results[number].message_id for number in (0, 60, 199)
    ]


async def test_checksums_travel_with_the_message(cluster: EmbeddedCluster, consumer: PullConsumer) -> None:
    """The end-to-end checksum would be missing."""
    config = ProducerConfig(body_checksum="crc-32c")
    async with Producer("checked", cluster.namesrv_address, config=config) as producer:
        results = [await producer.send(Message("Sums", b"body" * 2000))]
        results += await producer.send_batch([Message("Sums", b"a"), Message("Sums", b"b")])
        results += await producer.send_batch(MessageColumns("Sums", [b"c", b"d" * 5000]))
    for message in await read_back(consumer, results):
        assert message.properties["BODY_CHECKSUM"].startswith("crc-32c:")


@pytest.mark.parametrize("codec", ["rocketmq", "msgpack"])
async def test_other_header_codecs(cluster: EmbeddedCluster, codec: Literal["rocketmq", "msgpack"]) -> None:
    """The setting would be accepted and do nothing, or break every send."""
    client = ClientConfig(codec=codec)
    async with (
        Producer("binary", cluster.namesrv_address, client=client) as producer,
        PullConsumer("readers", cluster.namesrv_address, client=client) as consumer,
    ):
        results = [await producer.send(Message("Codecs", b"%d" % number, tags="ü")) for number in range(3)]
        results += await producer.send_batch([Message("Codecs", b"3"), Message("Codecs", b"4")])
        producer.send_oneway(Message("Codecs", b"x"))
        found = await read_back(consumer, results)
    assert [message.body for message in found] == [b"0", b"1", b"2", b"3", b"4"]
    assert found[0].tags == "ü"


async def test_statuses_of_pulls(producer: Producer, consumer: PullConsumer) -> None:
    """A reader could not distinguish the end of a queue from an offset that was deleted."""
    result = await producer.send(Message("Pulls", b"x"))
    at_end = await consumer.pull(result.queue, 1)
    assert (at_end.status, at_end.messages, at_end.next_offset) == (PullStatus.NO_NEW_MSG, [], 1)
    beyond = await consumer.pull(result.queue, 1000)
    assert (beyond.status, beyond.max_offset) == (PullStatus.OFFSET_ILLEGAL, 1)
    assert await consumer.search_offset(result.queue, 0) == 0
    with pytest.raises(MessageInvalid, match="offset -1"):
        await consumer.pull(result.queue, -1)
    with pytest.raises(BrokerError, match="broker-a responded with code"):
        await consumer.pull(type(result.queue)("Pulls", "broker-a", 99), 0)


async def test_a_message_is_found_by_its_broker_id() -> None:
    """A support engineer could not query the message that a log names."""
    async with (
        EmbeddedCluster() as cluster,
        Producer("senders", cluster.namesrv_address) as producer,
        PullConsumer("readers", cluster.namesrv_address) as consumer,
    ):
        result = await producer.send(Message("Views", b"find me"))
        found = await consumer.view_message(result.offset_message_id)
        assert (found.body, found.queue, found.queue_offset) == (
            b"find me",
            result.queue,
            result.queue_offset,
        )
        with pytest.raises(BrokerError):
            await consumer.view_message(result.offset_message_id[:16] + f"{1 << 20:016X}")


async def test_sends_avoid_a_dead_broker() -> None:
    """While one of two brokers is offline, half of all sends would fail."""
    config = ProducerConfig(retry=RetryConfig(pause_ms=1))
    async with (
        EmbeddedCluster(brokers=2) as cluster,
        Producer("senders", cluster.namesrv_address, config=config) as producer,
    ):
        for _ in range(4):
            await producer.send(Message("Failover", b"x"))
        await cluster.brokers[0].close()
        results = [await producer.send(Message("Failover", b"x")) for _ in range(16)]
        assert {result.queue.broker_name for result in results} == {"broker-b"}


async def test_a_topic_without_a_broker() -> None:
    """The user would wait for the timeout, and then get the error of a lost response."""
    async with (
        EmbeddedCluster(transport="memory", settings={"autoCreateTopicEnable": "false"}) as cluster,
        Producer("senders", cluster.namesrv_address) as producer,
        PullConsumer("readers", cluster.namesrv_address) as consumer,
    ):
        with pytest.raises(RouteNotFound, match="no broker has topic Nowhere"):
            await producer.send(Message("Nowhere", b"x"))
        with pytest.raises(RouteNotFound):
            await consumer.fetch_queues("Nowhere")


async def test_use_before_start_and_after_close(cluster: EmbeddedCluster) -> None:
    """The caller would get an AttributeError from inside the client."""
    producer = Producer("senders", cluster.namesrv_address)
    consumer = PullConsumer("readers", cluster.namesrv_address)
    with pytest.raises(ClientClosed, match="not started"):
        await producer.send(Message("T", b"x"))
    with pytest.raises(ClientClosed, match="not started"):
        producer.send_oneway(Message("T", b"x"))
    with pytest.raises(ClientClosed, match="not started"):
        await consumer.fetch_queues("T")
    assert await producer.close() == []
    await producer.start()
    await consumer.start()
    assert await producer.close() == []
    assert await producer.close() == []
    await consumer.close()
    with pytest.raises(ClientClosed, match="closed"):
        await producer.send(Message("T", b"x"))
    with pytest.raises(ClientClosed, match="closed"):
        await consumer.fetch_queues("T")


async def test_a_pull_is_filtered_by_the_broker(producer: Producer, consumer: PullConsumer) -> None:
    """A consumer of one tag would get all messages, or those of a tag with the same hash."""
    queue = MessageQueue("Chosen", (await producer.send(Message("Chosen", b"first"))).queue.broker_name, 0)
    tags = ["Aa", "BB", "Aa", "c", *["BB"] * 40]
    await producer.send_batch([Message("Chosen", tag.encode(), tags=tag) for tag in tags], queue=queue)
    start = await consumer.max_offset(queue) - len(tags)
    found = await consumer.pull(queue, start, expression="Aa || c")
    assert [message.tags for message in found.messages] == ["Aa", "Aa", "c"]
    nothing = await consumer.pull(queue, start, expression="d")
    assert (nothing.status, nothing.messages) == (PullStatus.NO_MATCHED_MSG, [])
    assert nothing.next_offset == start + len(tags)


async def test_records_are_pulled_as_bytes(producer: Producer, consumer: PullConsumer) -> None:
    """A reader of many records would create an object for each, or wait for each pull before the next."""
    queue = (await producer.send(Message("Records", b"first"))).queue
    await producer.send_batch([Message("Records", b"%d" % n) for n in range(40)], queue=queue)
    unknown = MessageQueue("Records", queue.broker_name, 99)
    for _ in range(2):  # first without an open connection, then with one
        two, rest, beyond = await consumer.pull_records(queue, [(0, 2), (2, 100), (41, 1)])
        assert isinstance(two, PullResponse)
        assert [record.body for record in decode_all(two.body)] == [b"first", b"0"]
        assert isinstance(rest, PullResponse)
        assert rest.header.next_begin_offset == 2 + len(decode_all(rest.body)) > 3
        assert isinstance(beyond, PullResponse)
        assert (beyond.status, beyond.body) == (PullStatus.NO_NEW_MSG, b"")
        (refused,) = await consumer.pull_records(unknown, [(0, 1)])
        assert isinstance(refused, BrokerError)
    assert await consumer.pull_records(queue, []) == []


async def test_a_broker_checks_a_filter_expression(producer: Producer, consumer: PullConsumer) -> None:
    """A mistake in an expression would be reported only by the first pull, in another process."""
    await producer.send(Message("Filters", b"x"))
    await consumer.check_filter("Filters", "a || b")
    with pytest.raises(BrokerError, match="SQL92"):
        await consumer.check_filter("Filters", Sql("n > 5"))


async def test_a_delay_level_that_brokers_lack_is_refused(cluster: EmbeddedCluster) -> None:
    """A level that was meant as seconds would hide the message for hours."""
    message = Message("T", b"x", delay_level=99)
    async with Producer("p", cluster.namesrv_address) as sending:
        for send in (sending.send, sending.send_nowait):
            with pytest.raises(MessageInvalid, match="delay level 99 is above 18"):
                await send(message)
        with pytest.raises(MessageInvalid, match="delay level 99 is above 18"):
            sending.send_oneway(message)
        with pytest.raises(MessageInvalid, match="delay level 99 is above 18"):
            await sending.request(message)
        await sending.send(Message("T", b"x", delay_level=18))
    config = ProducerConfig(max_delay_level=99)
    async with Producer("p", cluster.namesrv_address, config=config) as sending:
        await sending.send(message)
    levels = cluster.brokers[0].delivery.delay.waiting()
    assert sum(levels.values()) == 2
