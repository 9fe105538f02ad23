"""Every kind of send in one trace, with its consumer; the expected spans are the same with both brokers.

checkout   a span of the application, the parent of the others
  send     single, delayed, oneway, repeated, transactional (and its end), a request
  create   two messages of a batch, whose send is linked to them
    process    by a push consumer that continues the trace; for the request it sends the reply
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rocketpy import (
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
    RetryConfig,
    create_reply_message,
)
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from tests.integration.sdk_peers import Names, Peer, stored
from tests.mqproducer.place import eventually
from tests.otel.collector import Collector, Service, Span, collecting

CONVENTIONS = frozenset(
    {
        "messaging.system", "messaging.operation.name", "messaging.operation.type",
        "messaging.destination.name", "messaging.destination.partition.id", "messaging.message.id",
        "messaging.message.body.size", "messaging.batch.message_count", "messaging.client.id",
        "messaging.consumer.group.name", "messaging.rocketmq.namespace",
        "messaging.rocketmq.consumption_model", "messaging.rocketmq.message.tag",
        "messaging.rocketmq.message.keys", "messaging.rocketmq.message.type",
        "messaging.rocketmq.message.group", "messaging.rocketmq.message.delay_time_level",
        "server.address", "server.port", "network.peer.address", "network.peer.port", "error.type",
    }
)  # fmt: skip
"""The attributes of these spans that OpenTelemetry's messaging conventions define."""
OURS = frozenset({"rocketpy.transaction.state", "rocketpy.transaction.asked"})


async def tell_kinds(namesrv: str, stem: str) -> Collector:
    """Send, and consume the messages; return what the collector got."""
    topic, asked = f"{stem}_K", f"{stem}_Ask"
    async with collecting() as collector:
        shop = Service("shop", collector)
        telemetry = shop.telemetry(process_as_child=True)
        handled: list[bytes] = []
        producer = Producer("shop", namesrv, telemetry=telemetry)

        async def handle(message: MessageExt) -> None:
            if message.topic == asked:
                await producer.send(create_reply_message(message, b"yes"), timeout_ms=10_000)
            handled.append(message.body)

        consumer = PushConsumer(
            f"{stem}_kinds", namesrv, handle, config=PushConfig(concurrency=1), telemetry=telemetry
        )
        async with producer:
            for name in (topic, asked):
                await producer.create_topic(name, 1)
                consumer.subscribe(name)
            async with consumer:

                async def is_ready() -> bool | None:
                    return {queue.topic for queue in consumer.assignment} >= {topic, asked} or None

                await eventually(is_ready, 30)
                with shop.tracers.get_tracer("shop").start_as_current_span("checkout"):
                    await _send_all(producer, topic, asked)
                    await _send_repeated(shop.telemetry(), f"{stem}_Again")

                async def is_done() -> bool | None:
                    return len(handled) >= 6 or None

                await eventually(is_done, 60)
        await shop.export()
        assert sorted(handled) == [b"first", b"gone", b"half", b"really?", b"second", b"single"]
        return collector


async def _send_all(producer: Producer, topic: str, asked: str) -> None:
    properties = {"__SHARDINGKEY": "customer 7"}
    await producer.send(
        Message(topic, b"single", tags="paid", keys=["k1", "k2"], properties=properties), timeout_ms=10_000
    )
    await producer.send_batch(
        [Message(topic, b"first"), Message(topic, b"second", tags="b")], timeout_ms=10_000
    )
    await producer.send(
        Message(topic, b"later", delay_level=18, keys="delayed"),
        timeout_ms=10_000,
    )
    producer.send_oneway(Message(topic, b"gone", tags="oneway"))
    await producer.send_in_transaction(
        Message(topic, b"half", tags="half"),
        local_transaction=lambda _: LocalTransactionState.COMMIT,
        check=lambda _: LocalTransactionState.UNKNOWN,
        timeout_ms=10_000,
    )
    reply = await producer.request(Message(asked, b"really?"), timeout_ms=30_000)
    assert reply.body == b"yes"


async def _send_repeated(telemetry: Any, topic: str) -> None:
    """A send whose first attempt a broker rejects."""

    def refuse_once(_channel: Channel, request: Command) -> Command:
        if len(peer.sends) == 1 and request is peer.sends[0]:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark="not now")
        return stored(request)

    config = ProducerConfig(retry=RetryConfig(pause_ms=1))
    async with Peer(refuse_once) as peer, Names() as names:
        names.queues = 1
        names.routes[topic] = {"elsewhere": peer.address}
        async with Producer("shop", names.address, config=config, telemetry=telemetry) as producer:
            await producer.send(Message(topic, b"again"), timeout_ms=10_000)


def expect_kinds(collector: Collector, stem: str, broker: str, cluster: str) -> None:
    """Check each span: parent, kind, links, events and attributes. broker, cluster: their names."""
    topic, asked, again = f"{stem}_K", f"{stem}_Ask", f"{stem}_Again"
    group = f"{stem}_kinds"
    checkout = collector.span("checkout")
    assert {span.trace_id for span in collector.spans if not span.name.startswith("receive ")} == {
        checkout.trace_id
    }
    internal, client, producing, consuming = 1, 3, 4, 5
    assert checkout.kind == internal
    names = {name for span in collector.spans for name in span.attributes}
    names |= {name for span in collector.spans for _, attributes in span.events for name in attributes}
    assert names == CONVENTIONS | OURS
    sends = collector.named(f"send {topic}")
    single, batch, delayed, oneway, half = sends
    assert [span.parent_id for span in sends] == [checkout.span_id] * 5
    assert [span.kind for span in sends] == [producing, client, producing, producing, producing]
    first, second = collector.named(f"create {topic}")
    assert [first.parent_id, second.parent_id] == [checkout.span_id] * 2
    assert {first.kind, second.kind} == {producing}
    assert batch.links == [first.span_id, second.span_id]
    end = collector.span(f"end_transaction {topic}")
    assert (end.kind, end.parent_id, end.links) == (client, checkout.span_id, [half.span_id])
    request, repeated = collector.span(f"send {asked}"), collector.span(f"send {again}")
    assert {request.parent_id, repeated.parent_id} == {checkout.span_id}
    processed = {span.parent_id: span for span in collector.named(f"process {topic}")}
    causes = [single, first, second, oneway, half]
    assert set(processed) == {span.span_id for span in causes}
    handled = collector.span(f"process {asked}")
    reply = collector.span(f"send {cluster}_REPLY_TOPIC")
    assert (handled.parent_id, reply.parent_id) == (request.span_id, handled.span_id)
    assert {span.kind for span in (*processed.values(), handled)} == {consuming}
    assert [processed[cause.span_id].links for cause in causes] == [[cause.span_id] for cause in causes]

    received = collector.named(f"receive {topic}") + collector.named(f"receive {asked}")
    links = sorted(link for span in received for link in span.links)
    assert links == sorted(cause.span_id for cause in [*causes, request])
    assert sum(span.attributes["messaging.batch.message_count"] for span in received) == 6

    peer = _peer(single)
    sent = {"messaging.destination.partition.id": f"{broker}/0", **peer}
    normal = {"messaging.rocketmq.message.type": "normal"}
    size = "messaging.message.body.size"
    tag, keys = "messaging.rocketmq.message.tag", "messaging.rocketmq.message.keys"
    grouped = {
        "messaging.rocketmq.message.type": "fifo",
        "messaging.rocketmq.message.group": "customer 7",
        tag: "paid",
        keys: ["k1", "k2"],
        size: 6,
    }
    transactional = {"messaging.rocketmq.message.type": "transaction", tag: "half", size: 4}
    _has(single, "send", topic, {**sent, **grouped}, ids=1)
    _has(first, "create", topic, {**normal, size: 5})
    _has(second, "create", topic, {**normal, size: 6, tag: "b"})
    _has(batch, "send", topic, {**sent, "messaging.batch.message_count": 2})
    late = {
        "messaging.rocketmq.message.type": "delay",
        "messaging.rocketmq.message.delay_time_level": 18,
        keys: ["delayed"],
        size: 5,
    }
    _has(delayed, "send", topic, {**sent, **late}, ids=1)
    _has(oneway, "send", topic, {**sent, **normal, tag: "oneway", size: 4})
    _has(half, "send", topic, {**sent, **transactional}, ids=1)
    ended = {"rocketpy.transaction.state": "COMMIT", "rocketpy.transaction.asked": False}
    _has(end, "end_transaction", topic, {**sent, **ended}, kind="settle", ids=1)
    assert end.attributes["messaging.message.id"] == half.attributes["messaging.message.id"]
    _has(request, "send", asked, {**sent, **normal, size: 7}, ids=1)
    _has(reply, "send", f"{cluster}_REPLY_TOPIC", {**sent, **normal, size: 3}, ids=1)
    elsewhere = {"messaging.destination.partition.id": "elsewhere/0", **_peer(repeated)}
    _has(repeated, "send", again, {**elsewhere, **normal, size: 5}, ids=1)
    failed = {"messaging.destination.partition.id": "elsewhere/0", "error.type": "SYSTEM_ERROR"}
    assert repeated.events == [("retry", failed)], repeated.events
    assert [span.name for span in collector.spans if span.failed] == []
    member = {
        "messaging.consumer.group.name": group,
        "messaging.rocketmq.consumption_model": "clustering",
        "messaging.destination.partition.id": f"{broker}/0",
    }
    expected: Sequence[dict[str, Any]] = (
        grouped,
        {**normal, size: 5},
        {**normal, size: 6, tag: "b"},
        {**normal, tag: "oneway", size: 4},
        transactional,
    )
    for cause, attributes in zip(causes, expected, strict=True):
        span = processed[cause.span_id]
        _has(span, "process", topic, {**member, **attributes}, ids=1)
        known = cause.attributes.get("messaging.message.id", span.attributes["messaging.message.id"])
        assert span.attributes["messaging.message.id"] == known
    _has(handled, "process", asked, {**member, **normal, size: 7}, ids=1)
    for span in received:
        got = {
            **sent,
            "messaging.consumer.group.name": group,
            "messaging.batch.message_count": len(span.links),
        }
        _has(span, "receive", span.name.removeprefix("receive "), got)
        assert span.kind == client


def _peer(span: Span) -> dict[str, Any]:
    """Check that the span's server is on this machine; return its attributes."""
    port = span.attributes["server.port"]
    assert port > 0
    return {
        "server.address": "127.0.0.1",
        "server.port": port,
        "network.peer.address": "127.0.0.1",
        "network.peer.port": port,
    }


def _has(
    span: Span, operation: str, topic: str, more: dict[str, Any], *, kind: str | None = None, ids: int = 0
) -> None:
    """Check that a span has exactly these attributes, the client id and, for one message, its id."""
    found = dict(span.attributes)
    assert "@" in found.pop("messaging.client.id")
    if ids:
        assert len(found.pop("messaging.message.id")) == 32
    assert found == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind or operation,
        "messaging.destination.name": topic,
        "messaging.rocketmq.namespace": "",
        **more,
    }, span.name
