"""One order passes through several services; the expected trace is the same with both brokers.

shop       request -> send A
forwarder  receives A and sends it to B with its properties: a rocketpy push consumer, or a Java program
billing    process B -> send C
archive    pulls C -> process C
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from rocketpy import Message, MessageExt, Producer, PullConsumer, PushConsumer
from rocketpy.errors import RouteNotFound
from tests.mqproducer.place import eventually
from tests.otel.collector import Collector, Service, Span, collecting
from tests.waiting import LIMIT_S

Forward = Callable[[str, str], Awaitable[None]]
"""Forwards one message of a topic, with its properties, to another topic."""


async def run_scenario(namesrv: str, stem: str, forward: Forward | None = None) -> Collector:
    """Run the scenario; return what the collector got. forward: None for a push consumer of rocketpy."""
    a, b, c = f"{stem}_A", f"{stem}_B", f"{stem}_C"
    async with collecting() as collector:
        shop, billing, archive = (Service(name, collector) for name in ("shop", "billing", "archive"))
        async with (
            Producer("shop", namesrv, telemetry=shop.telemetry()) as first,
            Producer("billing", namesrv, telemetry=billing.telemetry()) as second,
            PullConsumer("archive", namesrv, telemetry=archive.telemetry()) as reader,
        ):
            for topic in (a, b, c):
                await first.create_topic(topic, 1)
            billed = asyncio.Event()

            async def bill(message: MessageExt) -> None:
                assert message.body == b"forwarded"
                await second.send(Message(c, b"bill", keys=["k1", "k2"]))
                billed.set()

            biller = PushConsumer(
                f"{stem}_billing", namesrv, bill, telemetry=billing.telemetry(process_as_child=True)
            )
            biller.subscribe(b)
            with shop.tracers.get_tracer("shop").start_as_current_span("request"):
                await first.send(Message(a, b"order", tags="paid"), timeout_ms=10_000)
            async with biller:
                await (forward or _forwarder(namesrv, stem))(a, b)
                async with asyncio.timeout(LIMIT_S):
                    await billed.wait()
            message = await eventually(lambda: _first(reader, c), 30)
            with archive.telemetry(process_as_child=True).process(message, group="archive"):
                pass
        for service in (shop, billing, archive):
            await service.export()
        return collector


async def _first(reader: PullConsumer, topic: str) -> MessageExt | None:
    try:
        (queue,) = await reader.fetch_queues(topic)
    except RouteNotFound:
        return None
    found = (await reader.pull(queue, 0)).messages
    return found[0] if found else None


def _forwarder(namesrv: str, stem: str) -> Forward:
    async def forward(source: str, target: str) -> None:
        done = asyncio.Event()
        async with Producer("forwarder", namesrv, telemetry=False) as onward:

            async def handle(message: MessageExt) -> None:
                carried = {name: value for name, value in message.properties.items() if name == "traceparent"}
                await onward.send(Message(target, b"forwarded", properties=carried))
                done.set()

            consumer = PushConsumer(f"{stem}_forwarder", namesrv, handle, telemetry=False)
            consumer.subscribe(source)
            async with consumer, asyncio.timeout(LIMIT_S):
                await done.wait()

    return forward


def expect_one_trace(collector: Collector, stem: str, broker: str) -> None:
    """Check every span of the scenario: parent, kind and all attributes. broker: its name."""
    a, b, c = f"{stem}_A", f"{stem}_B", f"{stem}_C"
    request, send_a, receive_b, process_b, send_c, receive_c, process_c = (
        collector.span(name)
        for name in ("request", f"send {a}", f"receive {b}", f"process {b}", f"send {c}",
                     f"receive {c}", f"process {c}")
    )  # fmt: skip
    spans = [request, send_a, process_b, send_c, process_c]
    assert {span.trace_id for span in spans} == {request.trace_id}
    assert [span.parent_id for span in spans] == ["", *(span.span_id for span in spans[:-1])]
    assert receive_b.links == [send_a.span_id]
    assert receive_c.links == [send_c.span_id]
    assert process_b.links == [send_a.span_id]
    assert [span.service for span in spans] == ["shop", "shop", "billing", "billing", "archive"]
    internal, client, producer, consumer = 1, 3, 4, 5
    assert [span.kind for span in spans] == [internal, producer, consumer, producer, consumer]
    assert (receive_b.kind, receive_c.kind) == (client, client)

    def common(name: str, topic: str) -> dict[str, Any]:
        return {
            "messaging.system": "rocketmq",
            "messaging.operation.name": name,
            "messaging.operation.type": name,
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": f"{broker}/0",
            "messaging.rocketmq.namespace": "",
        }

    peer = {
        name: send_a.attributes[name]
        for name in ("server.address", "server.port", "network.peer.address", "network.peer.port")
    }
    assert peer["server.address"] == "127.0.0.1"
    expected: list[tuple[Span, dict[str, Any]]] = [
        (
            send_a,
            {
                **common("send", a), **peer,
                "messaging.message.body.size": 5,
                "messaging.rocketmq.message.type": "normal",
                "messaging.rocketmq.message.tag": "paid",
            },
        ),
        (
            receive_b,
            {
                **common("receive", b), **peer,
                "messaging.consumer.group.name": f"{stem}_billing",
                "messaging.batch.message_count": 1,
            },
        ),
        (
            process_b,
            {
                **common("process", b),
                "messaging.consumer.group.name": f"{stem}_billing",
                "messaging.message.body.size": len(b"forwarded"),
                "messaging.rocketmq.consumption_model": "clustering",
                "messaging.rocketmq.message.type": "normal",
            },
        ),
        (
            send_c,
            {
                **common("send", c), **peer,
                "messaging.message.body.size": 4,
                "messaging.rocketmq.message.type": "normal",
                "messaging.rocketmq.message.keys": ["k1", "k2"],
            },
        ),
        (
            process_c,
            {
                **common("process", c),
                "messaging.consumer.group.name": "archive",
                "messaging.message.id": send_c.attributes["messaging.message.id"],
                "messaging.message.body.size": 4,
                "messaging.rocketmq.message.type": "normal",
                "messaging.rocketmq.message.keys": ["k1", "k2"],
            },
        ),
    ]  # fmt: skip
    for span, attributes in expected:
        found = dict(span.attributes)
        if span is not process_c:
            assert "@" in found.pop("messaging.client.id")
        if span in (send_a, process_b, send_c):
            assert len(found.pop("messaging.message.id")) == 32
        assert found == attributes, span.name
    assert {
        "messaging.client.operation.duration",
        "messaging.client.sent.messages",
        "messaging.client.consumed.messages",
        "messaging.process.duration",
    } <= collector.metrics
