"""Spans, metrics and message traces of push consumers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from rocketpy import (
    ConsumeFrom,
    ConsumeResult,
    Message,
    MessageExt,
    MessageModel,
    MessageTraceConfig,
    ProcessEvent,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
)
from rocketpy.message import TRACE_TOPIC
from rocketpy.protocol.message.trace import Consumed, ConsumeOutcome, Consuming, TraceRecord, decode
from rocketpy_broker.embedded import EmbeddedCluster
from tests.background import kill
from tests.mqproducer.place import eventually
from tests.otel.recorder import Recorder, attributes, span_id
from tests.waiting import until


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """One name server, one broker."""
    async with EmbeddedCluster() as running:
        yield running


async def consume(
    cluster: EmbeddedCluster,
    recorder: Recorder,
    handler: Callable[[MessageExt], Any] | None = None,
    *,
    batch_handler: Callable[[Sequence[MessageExt]], Any] | None = None,
    config: PushConfig | None = None,
    bodies: Sequence[bytes] = (b"x",),
    spans: int = 1,
    **settings: Any,
) -> None:
    """Send messages to one queue, and have a traced push consumer handle them, until there are the spans."""
    telemetry = recorder.telemetry(**settings)
    async with Producer("senders", cluster.namesrv_address, telemetry=telemetry) as producer:
        await producer.create_topic("T", 1)
        for body in bodies:
            await producer.send(Message("T", body, tags="paid"))
        consumer = PushConsumer(
            "billing", cluster.namesrv_address, handler, batch_handler=batch_handler, config=config,
            telemetry=telemetry,
        )  # fmt: skip
        consumer.subscribe("T")
        async with consumer:
            await until(lambda: len(recorder.spans("process T")) >= spans)


async def test_handling_is_not_part_of_the_trace_that_started_the_consumer(cluster: EmbeddedCluster) -> None:
    """All work of a consumer would be in the trace of the service's start, which would never end."""
    recorder = Recorder()

    async def handle(_: MessageExt) -> None: ...

    with recorder.tracers.get_tracer("service").start_as_current_span("startup"):
        await consume(cluster, recorder, handle)
    assert recorder.span("receive T").parent is None
    assert recorder.span("process T").parent is None


async def test_a_handler_is_a_span_linked_to_the_sender(cluster: EmbeddedCluster) -> None:
    """A consumer's work could not be followed back to the message's sender."""
    recorder = Recorder()
    seen: list[trace.Span] = []

    async def handle(_: MessageExt) -> None:
        seen.append(trace.get_current_span())

    await consume(cluster, recorder, handle)
    send, receive, process = (recorder.span(f"{name} T") for name in ("send", "receive", "process"))
    assert seen[0].get_span_context() == process.context
    assert process.kind is SpanKind.CONSUMER
    assert [link.context.span_id for link in process.links] == [span_id(send)]
    assert [link.context.span_id for link in receive.links] == [span_id(send)]
    found = attributes(process)
    assert found.pop("messaging.client.id")
    assert found == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "T",
        "messaging.destination.partition.id": f"{cluster.brokers[0].config.name}/0",
        "messaging.consumer.group.name": "billing",
        "messaging.message.id": attributes(send)["messaging.message.id"],
        "messaging.message.body.size": 1,
        "messaging.rocketmq.namespace": "",
        "messaging.rocketmq.consumption_model": "clustering",
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "paid",
    }
    ((point, count),) = recorder.points("messaging.process.duration")
    assert (point["messaging.consumer.group.name"], count) == ("billing", 1)
    ((point, count),) = recorder.points("messaging.client.consumed.messages")
    assert (point["messaging.consumer.group.name"], count) == ("billing", 1)


def on_a_thread(message: MessageExt) -> None:
    """A plain function."""
    trace.get_current_span().set_attribute("seen", message.body.decode())


async def in_the_loop(message: MessageExt) -> None:
    """A coroutine function."""
    await asyncio.sleep(0)
    trace.get_current_span().set_attribute("seen", message.body.decode())


def makes_a_coroutine(message: MessageExt) -> Awaitable[None]:
    """A plain function that returns an awaitable."""
    trace.get_current_span().set_attribute("seen", message.body.decode())
    return in_the_loop(message)


@pytest.mark.parametrize("handler", [on_a_thread, in_the_loop, makes_a_coroutine])
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_every_kind_of_handler_has_its_own_span(
    cluster: EmbeddedCluster,
    caplog: pytest.LogCaptureFixture,
    handler: Callable[[MessageExt], Any],
    orderly: bool,
) -> None:
    """The work of a handler would be in another message's span, or in none."""
    recorder = Recorder()
    bodies = [b"%d" % number for number in range(20)]
    config = PushConfig(orderly=orderly, concurrency=4)
    await consume(cluster, recorder, handler, config=config, bodies=bodies, spans=20)
    sent = {span_id(span): number for number, span in enumerate(recorder.spans("send T"))}
    spans = recorder.spans("process T")
    assert len(spans) == 20
    for span in spans:
        assert attributes(span)["seen"] == str(sent[span.links[0].context.span_id])
        assert span.parent is None
    assert "detach" not in caplog.text


async def test_failures_of_handlers_show(cluster: EmbeddedCluster) -> None:
    """A handler that always fails would look like one that works."""
    recorder = Recorder()

    async def handle(message: MessageExt) -> ConsumeResult:
        if message.body == b"raise":
            raise ValueError("oops")
        return ConsumeResult.LATER

    await consume(cluster, recorder, handle, bodies=[b"raise", b"later"], spans=2)
    errors = {str(attributes(span)["error.type"]): span for span in recorder.spans("process T")}
    assert set(errors) == {"ValueError", "FAILED"}
    assert {span.status.status_code for span in errors.values()} == {StatusCode.ERROR}
    assert [event.name for event in errors["ValueError"].events] == ["exception"]
    counted = {point["error.type"] for point, _ in recorder.points("messaging.process.duration")}
    assert counted == set(errors)


async def test_batches_and_children(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Batches would be traced as single messages; users who want one trace would get several."""
    recorder = Recorder()
    done: list[int] = []
    config = PushConfig(
        batch_size=8,
        model=MessageModel.BROADCASTING,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        offset_directory=tmp_path,
    )

    def handle(messages: Sequence[MessageExt]) -> None:
        done.append(len(messages))

    await consume(cluster, recorder, batch_handler=handle, config=config, bodies=[b"1", b"2"])
    (span,) = recorder.spans("process T")
    assert done == [2]
    assert attributes(span)["messaging.batch.message_count"] == 2
    assert attributes(span)["messaging.rocketmq.consumption_model"] == "broadcasting"
    assert len(span.links) == 2

    child = Recorder()
    async with EmbeddedCluster() as other:
        await consume(other, child, in_the_loop, process_as_child=True)
    parent = child.span("process T").parent
    assert parent is not None
    assert parent.span_id == span_id(child.span("send T"))


async def test_consumed_messages_are_reported(cluster: EmbeddedCluster) -> None:
    """RocketMQ's trace queries would show which client sent a message, but not which one handled it."""
    config = PushConfig(message_trace=MessageTraceConfig())

    def handle(message: MessageExt) -> ConsumeResult:
        return ConsumeResult.SUCCESS if message.body == b"good" else ConsumeResult.LATER

    async with Producer("senders", cluster.namesrv_address) as producer:
        await producer.create_topic(TRACE_TOPIC, 1)
        good = await producer.send(Message("T", b"good", keys="k"))
        bad = await producer.send(Message("T", b"bad"))
        consumer = PushConsumer("billing", cluster.namesrv_address, handle, config=config)
        consumer.subscribe("T")
        async with consumer, PullConsumer("r", cluster.namesrv_address) as reader:

            async def reported() -> list[TraceRecord] | None:
                found = [
                    record
                    for queue in await reader.fetch_queues(TRACE_TOPIC)
                    for message in (await reader.pull(queue, 0)).messages
                    for record in decode(message.body.decode())
                ]
                return found if len(found) >= 4 else None

            records = await eventually(reported, 20)
    before = {record.message_id: record for record in records if isinstance(record, Consuming)}
    after = {record.message_id: record for record in records if isinstance(record, Consumed)}
    assert set(before) == set(after) == {good.message_id, bad.message_id}
    assert before[good.message_id].group == "billing"
    for message_id, record in after.items():
        assert record.request_id == before[message_id].request_id
    assert (after[good.message_id].outcome, after[good.message_id].keys) == (ConsumeOutcome.SUCCESS, "k")
    assert (after[bad.message_id].outcome, after[bad.message_id].success) == (ConsumeOutcome.FAILED, False)


async def test_a_handler_that_takes_too_long_has_its_own_result(cluster: EmbeddedCluster) -> None:
    """RocketMQ's trace queries would show a message as handled that was sent back after a timeout."""
    recorder = Recorder()
    config = PushConfig(consume_timeout_ms=5, message_trace=MessageTraceConfig())

    async def dawdle(_: MessageExt) -> None:
        await asyncio.sleep(0.02)

    async with (
        Producer("admins", cluster.namesrv_address) as producer,
        PullConsumer("r", cluster.namesrv_address) as reader,
    ):
        await producer.create_topic(TRACE_TOPIC, 1)
        await consume(cluster, recorder, dawdle, config=config)

        async def reported() -> list[Consumed] | None:
            found = [
                record
                for queue in await reader.fetch_queues(TRACE_TOPIC)
                for message in (await reader.pull(queue, 0)).messages
                for record in decode(message.body.decode())
            ]
            return [record for record in found if isinstance(record, Consumed)] or None

        consumed = (await eventually(reported, 20))[0]
    # Like 4.6.0: the report has the timeout, and the handler's result next to it.
    assert (consumed.outcome, consumed.success) == (ConsumeOutcome.TIME_OUT, True)
    span = recorder.spans("process T")[0]
    assert (attributes(span)["error.type"], span.status.status_code) == ("TIME_OUT", StatusCode.ERROR)


async def test_a_listener_that_fails_costs_no_message(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in telemetry would send messages back forever."""
    handled: list[bytes] = []

    class Breaks:
        def process_started(self, event: ProcessEvent) -> None:
            raise ZeroDivisionError

        def process_ended(
            self, event: ProcessEvent, outcome: ConsumeOutcome, error: BaseException | None
        ) -> None:
            raise ZeroDivisionError

    async with Producer("senders", cluster.namesrv_address) as producer:
        await producer.send(Message("T", b"x"))
    consumer = PushConsumer(
        "billing", cluster.namesrv_address, lambda message: handled.append(message.body), listeners=[Breaks()]
    )
    consumer.subscribe("T")
    async with consumer:
        await until(lambda: handled)
    assert handled == [b"x"]
    assert "a process listener failed" in caplog.text


async def test_a_bug_that_ends_background_work_is_counted(cluster: EmbeddedCluster) -> None:
    """An alert could not distinguish a consumer that has lost its heartbeats from one without messages."""
    recorder = Recorder()
    consumer = PushConsumer("g", cluster.namesrv_address, lambda _: None, telemetry=recorder.telemetry())
    consumer.subscribe("T")
    async with (
        Producer("p", cluster.namesrv_address, telemetry=recorder.telemetry()) as producer,
        consumer,
    ):
        await kill("commit of offsets", consumer.member.tasks)
        await kill("heartbeat", consumer.member.client.tasks)
        member = consumer.member
        await until(lambda: member.tasks.failure and member.client.tasks.failure and not producer.health().ok)
    failed = {
        (found["rocketpy.client"], found["error.type"]): count
        for found, count in recorder.points("rocketpy.client.failures")
    }
    assert failed == {("consumer g", "Bug"): 2, ("producer p", "Bug"): 1}
