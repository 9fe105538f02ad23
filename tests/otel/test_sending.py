"""Spans and metrics of producers, with rocketpy's broker and with scripted ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import rocketpy.sync
from rocketpy import (
    ClientConfig,
    ConsumerConfig,
    LocalTransactionState,
    Message,
    Producer,
    ProducerConfig,
    PullConsumer,
    RetryConfig,
    create_reply_message,
)
from rocketpy.errors import BrokerError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.message import properties
from rocketpy.telemetry import continued
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.sdk_peers import Names, Peer, refuses, silent, stored
from tests.otel.recorder import Recorder, attributes, parent_id, span_id, traceparent


@pytest.fixture
def recorder() -> Recorder:
    """A recorder for one test."""
    return Recorder()


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """One name server, one broker."""
    async with EmbeddedCluster() as running:
        yield running


async def stored_properties(cluster: EmbeddedCluster, topic: str) -> list[dict[str, str]]:
    """The properties of every message of a topic."""
    async with PullConsumer("readers", cluster.namesrv_address, telemetry=False) as consumer:
        return [
            message.properties
            for queue in await consumer.fetch_queues(topic)
            for message in (await consumer.pull(queue, 0)).messages
        ]


class Broken(TraceContextTextMapPropagator):
    """A propagator whose `inject` raises."""

    def inject(self, *_: object, **__: object) -> None:
        raise RuntimeError("broken")


@pytest.mark.parametrize("create", [False, True])
async def test_a_propagator_that_raises_costs_no_span(
    cluster: EmbeddedCluster, recorder: Recorder, create: bool
) -> None:
    """The spans of sends would never end, and so not be exported."""
    telemetry = recorder.telemetry(propagator=Broken(), batch_create_spans=create)
    async with Producer("orders", cluster.namesrv_address, telemetry=telemetry) as producer:
        await producer.send(Message("T", b"single"))
        await producer.send_batch([Message("T", b"1"), Message("T", b"2")])
    assert [span.status.status_code for span in recorder.spans("send T")] == [StatusCode.UNSET] * 2
    assert len(recorder.spans("create T")) == (2 if create else 0)
    ((_, count),) = recorder.points("messaging.client.sent.messages")
    assert count == 3
    assert len(await stored_properties(cluster, "T")) == 3


async def test_a_send_is_one_span_with_every_attribute(cluster: EmbeddedCluster, recorder: Recorder) -> None:
    """Dashboards built on the conventions would miss the attributes that they filter by."""
    host, port = cluster.brokers[0].address.host, cluster.brokers[0].address.port
    async with Producer("senders", cluster.namesrv_address, telemetry=recorder.telemetry()) as producer:
        client_id = producer.health().client_id
        result = await producer.send(Message("T", b"hello", tags="paid", keys=["a", "b"]))
    span = recorder.span("send T")
    assert (span.kind, span.status.status_code, span.parent) == (SpanKind.PRODUCER, StatusCode.UNSET, None)
    assert attributes(span) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "T",
        "messaging.destination.partition.id": f"{result.queue.broker_name}/{result.queue.queue_id}",
        "messaging.client.id": client_id,
        "messaging.message.id": result.message_id,
        "messaging.message.body.size": 5,
        "messaging.rocketmq.namespace": "",
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ["a", "b"],
        "server.address": host,
        "server.port": port,
        "network.peer.address": host,
        "network.peer.port": port,
    }
    (found,) = await stored_properties(cluster, "T")
    assert found["traceparent"] == traceparent(span)


async def test_a_send_belongs_to_the_callers_trace(cluster: EmbeddedCluster, recorder: Recorder) -> None:
    """A message could not be followed back to the request that caused it; nor in blocking code."""
    tracer = recorder.tracers.get_tracer("test")
    async with Producer("senders", cluster.namesrv_address, telemetry=recorder.telemetry()) as producer:
        with tracer.start_as_current_span("request"):
            await asyncio.gather(*[producer.send(Message("T", b"x")) for _ in range(10)])

    def blocking() -> None:
        with (
            rocketpy.sync.Producer(
                "blocking", cluster.namesrv_address, telemetry=recorder.telemetry()
            ) as sender,
            tracer.start_as_current_span("blocking request"),
        ):
            sender.send(Message("B", b"x"))
            sender.send_async(Message("B", b"x")).result(10)

    await asyncio.to_thread(blocking)
    parent = recorder.span("request")
    spans = recorder.spans("send T")
    assert len(spans) == 10
    assert {parent_id(span) for span in spans} == {span_id(parent)}
    blocked = recorder.span("blocking request")
    assert [parent_id(span) for span in recorder.spans("send B")] == [span_id(blocked)] * 2
    found = await stored_properties(cluster, "T")
    assert sorted(one["traceparent"] for one in found) == sorted(traceparent(span) for span in spans)


async def test_a_context_in_the_environment_is_continued(
    cluster: EmbeddedCluster, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages sent by the tasks of a job would be in separate traces."""
    telemetry = recorder.telemetry()
    monkeypatch.setattr("rocketpy.telemetry.plugin._load_installed", lambda: telemetry)
    job = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}

    def task() -> None:
        with rocketpy.sync.Producer("tasks", cluster.namesrv_address) as sender, continued(job):
            sender.send_async(Message("T", b"x")).result(10)

    await asyncio.to_thread(task)
    span = recorder.span("send T")
    assert f"{parent_id(span):016x}" == "b7ad6b7169203331"
    monkeypatch.setattr("rocketpy.telemetry.plugin._load_installed", lambda: None)
    with continued(job):
        assert not trace.get_current_span().get_span_context().is_valid


async def test_a_batch_creates_a_span_a_message(cluster: EmbeddedCluster, recorder: Recorder) -> None:
    """Consumers of single messages of a batch would all seem to have one cause."""
    async with Producer("senders", cluster.namesrv_address, telemetry=recorder.telemetry()) as producer:
        await producer.send_batch([Message("T", b"%d" % number, tags=f"t{number}") for number in range(3)])
    creates, send = recorder.spans("create T"), recorder.span("send T")
    assert [attributes(span)["messaging.rocketmq.message.tag"] for span in creates] == ["t0", "t1", "t2"]
    assert {attributes(span)["messaging.operation.type"] for span in creates} == {"create"}
    assert {span.kind for span in creates} == {SpanKind.PRODUCER}
    assert send.kind is SpanKind.CLIENT
    assert attributes(send)["messaging.batch.message_count"] == 3
    assert [link.context.span_id for link in send.links] == [span_id(span) for span in creates]
    found = await stored_properties(cluster, "T")
    assert [one["traceparent"] for one in found] == [traceparent(span) for span in creates]


async def test_spans_of_single_messages_in_a_batch_can_be_disabled(
    cluster: EmbeddedCluster, recorder: Recorder
) -> None:
    """Large batches would pay for spans that are not used."""
    telemetry = recorder.telemetry(batch_create_spans=False)
    async with Producer("senders", cluster.namesrv_address, telemetry=telemetry) as producer:
        await producer.send_batch([Message("T", b"1"), Message("T", b"2")])
    (span,) = recorder.spans()
    assert (span.name, span.kind) == ("send T", SpanKind.PRODUCER)
    found = await stored_properties(cluster, "T")
    assert {one["traceparent"] for one in found} == {traceparent(span)}


async def test_every_kind_of_send_is_traced(cluster: EmbeddedCluster, recorder: Recorder) -> None:
    """Transactions, requests, replies and oneway sends would be missing in traces."""
    telemetry = recorder.telemetry()
    async with (
        Producer("senders", cluster.namesrv_address, telemetry=telemetry) as producer,
        PullConsumer(
            "repliers", cluster.namesrv_address, config=ConsumerConfig(suspend=True), telemetry=False
        ) as consumer,
    ):
        await producer.send_in_transaction(
            Message("Half", b"half"),
            local_transaction=lambda _: LocalTransactionState.COMMIT,
            check=lambda _: LocalTransactionState.UNKNOWN,
        )
        await producer.send(Message("Delayed", b"later", delay_level=3))
        producer.send_oneway(Message("Oneway", b"gone"))
        await producer.create_topic("Ask", 1)
        asking = asyncio.create_task(producer.request(Message("Ask", b"?"), timeout_ms=10_000))
        (queue,) = await consumer.fetch_queues("Ask")
        found = (await consumer.pull(queue, 0)).messages
        await producer.send(create_reply_message(found[0], b"!"))
        assert (await asking).body == b"!"
    spans = {span.name: attributes(span) for span in recorder.spans("send ")}
    kinds = {name: found["messaging.rocketmq.message.type"] for name, found in spans.items()}
    reply = f"send {cluster.brokers[0].config.cluster_name}_REPLY_TOPIC"
    assert kinds == {
        "send Half": "transaction",
        "send Delayed": "delay",
        "send Oneway": "normal",
        "send Ask": "normal",
        reply: "normal",
    }
    assert spans["send Delayed"]["messaging.rocketmq.message.delay_time_level"] == 3
    assert found[0].properties["traceparent"] == traceparent(recorder.span("send Ask"))


async def test_retries_are_events_and_failures_have_their_reason(recorder: Recorder) -> None:
    """A slow send would not show that it was tried three times, nor a failed one its reason."""
    config = ProducerConfig(retry=RetryConfig(pause_ms=1))
    async with Peer(refuses(ResponseCode.SYSTEM_ERROR)) as bad, Peer() as good, Names() as names:
        port = int(bad.address.rpartition(":")[2])
        names.routes |= {"T": {"a": bad.address}, "U": {"a": bad.address, "b": good.address}}
        async with Producer("g", names.address, config=config, telemetry=recorder.telemetry()) as producer:
            with pytest.raises(BrokerError):
                await producer.send(Message("T", b"x"))
            for _ in range(4):
                await producer.send(Message("U", b"x"))
            bad.script = silent
            sending = asyncio.create_task(producer.send(Message("T", b"cancelled"), timeout_ms=60))
            await bad.until(lambda: bad.sends[-1].body == b"cancelled")
            sending.cancel()
    failed, cancelled = recorder.spans("send T")
    assert failed.status.status_code is StatusCode.ERROR
    assert attributes(failed)["error.type"] == "SYSTEM_ERROR"
    assert attributes(failed)["rocketpy.outcome"] == "UNKNOWN"
    assert attributes(failed)["server.port"] == port
    assert [event.name for event in failed.events] == ["retry"] * 3
    assert dict(failed.events[0].attributes or {})["error.type"] == "SYSTEM_ERROR"
    assert failed.start_time is not None
    assert failed.end_time is not None
    assert all(failed.start_time <= event.timestamp <= failed.end_time for event in failed.events)
    assert attributes(cancelled)["error.type"] == "CancelledError"
    retried = [span for span in recorder.spans("send U") if span.events]
    assert retried
    partitions = {
        str(dict(event.attributes or {})["messaging.destination.partition.id"]).split("/")[0]
        for event in retried[0].events
    }
    assert partitions == {"a"}
    assert str(attributes(retried[0])["messaging.destination.partition.id"]).startswith("b/")


async def test_less_than_send_ok_shows(recorder: Recorder) -> None:
    """A trace would not show that a message was stored, but not flushed."""
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        broker.script = lambda _channel, request: stored(request, code=ResponseCode.FLUSH_DISK_TIMEOUT)
        async with Producer("g", names.address, telemetry=recorder.telemetry()) as producer:
            await producer.send(Message("T", b"x"))
    span = recorder.span("send T")
    assert attributes(span)["rocketpy.send_status"] == "FLUSH_DISK_TIMEOUT"
    assert span.status.status_code is StatusCode.UNSET
    ((point, count),) = recorder.points("messaging.client.sent.messages")
    assert (point["rocketpy.send_status"], count) == ("FLUSH_DISK_TIMEOUT", 1)


async def test_any_propagator_and_the_users_own_context(cluster: EmbeddedCluster, recorder: Recorder) -> None:
    """Baggage would be lost, or a context that the application set itself be overwritten."""
    propagator = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    telemetry = recorder.telemetry(propagator=propagator)
    async with Producer("senders", cluster.namesrv_address, telemetry=telemetry) as producer:
        token = context.attach(baggage.set_baggage("tenant", "blue"))
        try:
            await producer.send(Message("Carried", b"x"))
        finally:
            context.detach(token)
        await producer.send(Message("Own", b"x", properties={"traceparent": own}))
        await producer.send_batch(
            [Message("OwnBatch", b"x", properties={"traceparent": own}), Message("OwnBatch", b"y")]
        )
    (carried,) = await stored_properties(cluster, "Carried")
    assert carried["baggage"] == "tenant=blue"
    assert carried["traceparent"] == traceparent(recorder.span("send Carried"))
    (kept,) = await stored_properties(cluster, "Own")
    assert kept["traceparent"] == own
    assert [f"{link.context.span_id:016x}" for link in recorder.span("send Own").links] == [
        "b7ad6b7169203331"
    ]
    batch = [one["traceparent"] for one in await stored_properties(cluster, "OwnBatch")]
    created = recorder.span("create OwnBatch")
    assert batch == [own, traceparent(created)]
    assert len(recorder.span("send OwnBatch").links) == 2


@pytest.mark.parametrize(
    "key", ["suppress_instrumentation", context._SUPPRESS_INSTRUMENTATION_KEY], ids=["older", "of the SDK"]
)
async def test_suppressed_sends_are_not_traced(
    cluster: EmbeddedCluster, recorder: Recorder, key: str
) -> None:
    """An exporter that sends with this client would trace its own sends, forever."""
    async with Producer("senders", cluster.namesrv_address, telemetry=recorder.telemetry()) as producer:
        token = context.attach(context.set_value(key, True))
        try:
            await producer.send(Message("T", b"x"))
        finally:
            context.detach(token)
    assert recorder.spans() == []
    assert "traceparent" not in (await stored_properties(cluster, "T"))[0]


async def test_namespaces_are_distinguished(cluster: EmbeddedCluster, recorder: Recorder) -> None:
    """Spans of two tenants could not be distinguished, or topics have their namespace twice."""
    client = ClientConfig(namespace="blue")
    async with Producer(
        "senders", cluster.namesrv_address, client=client, telemetry=recorder.telemetry()
    ) as producer:
        await producer.send(Message("T", b"x"))
    assert attributes(recorder.span("send T"))["messaging.rocketmq.namespace"] == "blue"


async def test_metrics_of_sends(recorder: Recorder) -> None:
    """Rates, errors and latencies of producers would be missing or counted twice."""
    config = ProducerConfig(retry=RetryConfig(times=0))
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, config=config, telemetry=recorder.telemetry()) as producer:
            await producer.send(Message("T", b"x"))
            await producer.send_batch([Message("T", b"1"), Message("T", b"2")])
            broker.script = refuses(ResponseCode.NO_PERMISSION)
            with pytest.raises(BrokerError):
                await producer.send(Message("T", b"x"))
        host, _, port = broker.address.rpartition(":")
    base = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "T",
        "server.address": host,
        "server.port": int(port),
    }
    failed = {**base, "error.type": "NO_PERMISSION"}
    assert recorder.points("messaging.client.sent.messages") == [(base, 3), (failed, 1)]
    assert recorder.points("messaging.client.operation.duration") == [(base, 2), (failed, 1)]


async def test_unsampled_traces_stay_unsampled(cluster: EmbeddedCluster, recorder: Recorder) -> None:
    """A consumer would sample a trace whose beginning was dropped."""
    dropped = trace.NonRecordingSpan(
        trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(0))
    )
    async with Producer("senders", cluster.namesrv_address, telemetry=recorder.telemetry()) as producer:
        with trace.use_span(dropped):
            await producer.send(Message("T", b"x"))
    assert recorder.spans() == []
    (found,) = await stored_properties(cluster, "T")
    assert found["traceparent"].startswith(f"00-{1:032x}-")
    assert found["traceparent"].endswith("-00")


async def test_the_oneway_path_carries_context(recorder: Recorder) -> None:
    """A oneway message would arrive without its trace."""
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, telemetry=recorder.telemetry()) as producer:
            producer.send_oneway(Message("T", b"x"))
            await broker.until(lambda: len(broker.sends) == 1)
        sent = properties.decode(broker.sends[0].ext_fields()["i"])
    assert sent["traceparent"] == traceparent(recorder.span("send T"))
