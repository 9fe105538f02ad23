"""Spans and metrics of consumers, with links to the producers' spans."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from rocketpy import (
    ConsumeFrom,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    ReceiveEvent,
)
from rocketpy.errors import BrokerError
from rocketpy.protocol.codes import ResponseCode
from rocketpy_broker.embedded import EmbeddedCluster
from rocketpy_otel.attributes import message_attributes
from tests.integration.sdk_peers import Names, Peer
from tests.mqconsumer.undecodable import mixed
from tests.mqproducer.place import Place
from tests.otel.recorder import Recorder, attributes, span_id
from tests.waiting import LIMIT_S


@pytest.fixture
def recorder() -> Recorder:
    """A recorder for one test."""
    return Recorder()


async def exchange(cluster: EmbeddedCluster, recorder: Recorder, *messages: Message) -> list[MessageExt]:
    """Send messages of one topic to one queue, and pull them by one pull, both traced."""
    telemetry = recorder.telemetry()
    async with (
        Producer("senders", cluster.namesrv_address, telemetry=telemetry) as producer,
        PullConsumer("readers", cluster.namesrv_address, telemetry=telemetry) as consumer,
    ):
        await producer.create_topic("T", 1)
        (queue,) = await consumer.fetch_queues("T")
        for message in messages:
            await producer.send(message)
        found = (await consumer.pull(queue, 0)).messages
        assert (await consumer.pull(queue, len(messages))).messages == []
    return found


async def test_messages_that_cannot_be_decoded_are_counted_apart(recorder: Recorder) -> None:
    """An alert on damaged messages would have no metric."""
    async with EmbeddedCluster() as cluster:
        place = Place(cluster.namesrv_address)
        topic = await mixed(place, "undecodable")
        async with PullConsumer("readers", place.namesrv, telemetry=recorder.telemetry()) as consumer:
            (queue,) = await consumer.fetch_queues(topic)
            assert len((await consumer.pull(queue, 0)).messages) == 9
    points = recorder.points("messaging.client.consumed.messages")
    assert {point.get("error.type"): value for point, value in points} == {
        None: 6,
        "RemoteProtocolError": 2,
        "InflatesTooFar": 1,
    }


async def test_a_pull_is_linked_to_the_sends_of_its_messages(recorder: Recorder) -> None:
    """Users could not navigate from a consumer's trace to the producers' traces."""
    async with EmbeddedCluster() as cluster:
        await exchange(cluster, recorder, Message("T", b"1"), Message("T", b"22"))
        broker = cluster.brokers[0]
    span = recorder.span("receive T")
    assert (span.kind, span.status.status_code) == (SpanKind.CLIENT, StatusCode.UNSET)
    found = attributes(span)
    assert found.pop("messaging.client.id")
    assert found == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
        "messaging.destination.name": "T",
        "messaging.destination.partition.id": f"{broker.config.name}/0",
        "messaging.consumer.group.name": "readers",
        "messaging.rocketmq.namespace": "",
        "messaging.batch.message_count": 2,
        "server.address": "127.0.0.1",
        "server.port": found["server.port"],
        "network.peer.address": "127.0.0.1",
        "network.peer.port": found["server.port"],
    }
    assert [link.context.span_id for link in span.links] == [
        span_id(sent) for sent in recorder.spans("send T")
    ]
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time < span.end_time
    consumed = recorder.points("messaging.client.consumed.messages")
    assert [(point["messaging.consumer.group.name"], value) for point, value in consumed] == [("readers", 2)]
    received = [
        value
        for point, value in recorder.points("messaging.client.operation.duration")
        if point["messaging.operation.type"] == "receive"
    ]
    assert received == [2]  # an empty pull is counted, too, although it has no span


async def test_prefetched_messages_are_linked_too(recorder: Recorder) -> None:
    """Programs that poll prefetched messages would have no spans."""
    telemetry = recorder.telemetry()
    async with EmbeddedCluster() as cluster:
        async with Producer("senders", cluster.namesrv_address, telemetry=telemetry) as producer:
            await producer.create_topic("T", 1)
            await producer.send(Message("T", b"x", tags="paid"))
        broker = cluster.brokers[0]
        name, port = broker.config.name, broker.address.port
        config = LitePullConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer = LitePullConsumer("pollers", cluster.namesrv_address, config=config, telemetry=telemetry)
        consumer.subscribe("T")
        async with consumer:
            async for message in consumer:
                with telemetry.process(message, group="pollers", consumption_model="clustering"):
                    break
    send, receive, process = (recorder.span(f"{operation} T") for operation in ("send", "receive", "process"))
    assert [link.context.span_id for link in receive.links] == [span_id(send)]
    assert [link.context.span_id for link in process.links] == [span_id(send)]
    found = attributes(receive)
    assert "@" in found.pop("messaging.client.id")
    assert found == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
        "messaging.destination.name": "T",
        "messaging.destination.partition.id": f"{name}/0",
        "messaging.consumer.group.name": "pollers",
        "messaging.rocketmq.namespace": "",
        "messaging.batch.message_count": 1,
        "server.address": "127.0.0.1",
        "server.port": port,
        "network.peer.address": "127.0.0.1",
        "network.peer.port": port,
    }
    ((point, count),) = recorder.points("messaging.client.consumed.messages")
    assert (point["messaging.consumer.group.name"], count) == ("pollers", 1)


async def test_a_pull_that_fails_shows(recorder: Recorder) -> None:
    """A consumer whose pulls are rejected would look like an idle one."""
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        broker.script = lambda _channel, request: request.reply(ResponseCode.NO_PERMISSION, remark="no")
        async with PullConsumer("readers", names.address, telemetry=recorder.telemetry()) as consumer:
            queue = (await consumer.fetch_queues("T"))[0]
            with pytest.raises(BrokerError):
                await consumer.pull(queue, 0)
    span = recorder.span("receive T")
    assert (span.status.status_code, attributes(span)["error.type"]) == (StatusCode.ERROR, "NO_PERMISSION")
    ((point, count),) = recorder.points("messaging.client.operation.duration")
    assert (point["error.type"], count) == ("NO_PERMISSION", 1)


def test_an_empty_list_of_messages_has_no_span(recorder: Recorder) -> None:
    """An empty pull would end the application's loop with an IndexError."""
    with recorder.tracers.get_tracer("app").start_as_current_span("poll") as poll:
        with recorder.telemetry().process([], group="billing") as span:
            assert not span.is_recording()
            assert trace.get_current_span() is poll
        with pytest.raises(ValueError, match="oops"), recorder.telemetry().process([]):
            raise ValueError("oops")
    assert [span.name for span in recorder.spans()] == ["poll"]
    assert recorder.points("messaging.process.duration") == []


def test_the_delivery_time() -> None:
    """A span would not show when its message is to be delivered."""
    name = "messaging.rocketmq.message.delivery_timestamp"
    at = datetime(2100, 6, 1, 7, tzinfo=UTC)
    found = message_attributes(Message("T", b"x", deliver_at=at))
    assert (found[name], found["messaging.rocketmq.message.type"]) == (4115516400000, "delay")
    before_ms = time.time_ns() // 1_000_000
    shown = message_attributes(Message("T", b"x", delay=timedelta(hours=1)))[name]
    assert isinstance(shown, int)
    assert before_ms <= shown - 3_600_000 <= time.time_ns() // 1_000_000
    assert name not in message_attributes(Message("T", b"x", delay_level=1))


@pytest.mark.parametrize(
    ("text", "shown"), [("1700000000000", [1700000000000]), ("9" * 5000, []), ("-1", [])]
)
def test_an_invalid_delivery_time_is_left_out(text: str, shown: list[int]) -> None:
    """Any sender could make its consumers' handlers fail, and exporters drop their spans."""
    found = message_attributes(Message("T", b"x", properties={"TIMER_DELIVER_MS": text}))
    assert [value for value in found.values() if isinstance(value, int)] == [1, *shown]


async def test_processing_is_a_span_of_its_own(recorder: Recorder) -> None:
    """The spans of an application that handles a message would have no parent."""
    telemetry = recorder.telemetry()
    async with EmbeddedCluster() as cluster:
        one, two = await exchange(
            cluster, recorder, Message("T", b"1", tags="paid", keys="k"), Message("T", b"2")
        )
    with telemetry.process(one, group="billing", consumption_model="clustering") as span:
        assert trace.get_current_span() is span
    with pytest.raises(ValueError, match="oops"), telemetry.process([one, two]):
        raise ValueError("oops")
    with telemetry.process(two, as_child=True):
        pass
    sent = recorder.spans("send T")
    single, batch, child = recorder.spans("process T")
    assert (single.kind, single.parent) == (SpanKind.CONSUMER, None)
    assert [link.context.span_id for link in single.links] == [span_id(sent[0])]
    assert attributes(single) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "T",
        "messaging.destination.partition.id": f"{one.queue.broker_name}/0",
        "messaging.consumer.group.name": "billing",
        "messaging.message.id": one.message_id,
        "messaging.message.body.size": 1,
        "messaging.rocketmq.namespace": "",
        "messaging.rocketmq.consumption_model": "clustering",
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ["k"],
    }
    assert (batch.status.status_code, attributes(batch)["error.type"]) == (StatusCode.ERROR, "ValueError")
    assert attributes(batch)["messaging.batch.message_count"] == 2
    assert len(batch.links) == 2
    assert child.parent is not None
    assert child.parent.span_id == span_id(sent[1])
    points = recorder.points("messaging.process.duration")
    assert sorted((point.get("error.type", ""), count) for point, count in points) == [
        ("", 1), ("", 1), ("ValueError", 1),
    ]  # fmt: skip


async def test_a_message_without_context_has_no_link(recorder: Recorder) -> None:
    """A link without a span would be shown as broken."""
    telemetry = recorder.telemetry()
    async with EmbeddedCluster() as cluster:
        async with Producer("senders", cluster.namesrv_address, telemetry=False) as producer:
            result = await producer.send(Message("T", b"x"))
            await producer.send(Message("T", b"x", properties={"traceparent": "no such thing"}))
        async with PullConsumer("readers", cluster.namesrv_address, telemetry=telemetry) as consumer:
            found = [
                message
                for queue in await consumer.fetch_queues("T")
                for message in (await consumer.pull(queue, 0)).messages
            ]
    assert result.message_id in {message.message_id for message in found}
    for message in found:
        with telemetry.process(message, as_child=True):
            pass
    assert {(len(span.links), span.parent) for span in recorder.spans()} == {(0, None)}


async def test_a_listener_that_fails_costs_no_message(caplog: pytest.LogCaptureFixture) -> None:
    """A bug in telemetry would lose pulled messages."""

    class Breaks:
        def received(self, event: ReceiveEvent) -> None:
            raise ZeroDivisionError

    async with EmbeddedCluster() as cluster:
        async with Producer("senders", cluster.namesrv_address) as producer:
            queue = (await producer.send(Message("T", b"x"))).queue
        async with (
            asyncio.timeout(LIMIT_S),
            PullConsumer("readers", cluster.namesrv_address, listeners=[Breaks()]) as consumer,
        ):
            assert len((await consumer.pull(queue, 0)).messages) == 1
    assert "a receive listener failed" in caplog.text
