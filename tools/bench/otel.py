"""`python -m tools.bench.otel`: the cost of telemetry for a sending client, in CPU time per message.

Rounds of all kinds alternate, and the median over the rounds is reported, so that other work on the machine
affects all kinds equally. The peer responds from memory in the same process, with the same cost in each kind.

    off        telemetry=False
    api        opentelemetry-api without an SDK: at most 3 % above off
    sdk        SDK, batch span processor and metric reader: a send with one span and two metrics
    bare       off, plus the same span and metrics recorded directly around each send; the cost of sdk over
               off may be at most 1.3 times that of bare
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from opentelemetry.metrics import MeterProvider
from opentelemetry.propagate import get_global_textmap
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, TracerProvider, set_span_in_context

from rocketpy import Message, Producer, ProducerConfig
from rocketpy_otel import OpenTelemetry, names
from rocketpy_otel.attributes import (
    message_attributes,
    operation,
    peer_attributes,
    queue_attributes,
    server_attributes,
)
from tests.integration.sdk_peers import Names, Peer

CONCURRENCY = 64
ROUNDS = 21
MESSAGES = 4000
API_LIMIT = 1.03
SDK_LIMIT = 1.3

Send = Callable[[], Awaitable[None]]


class Nowhere(SpanExporter):
    """Drops spans: the cost of exporting belongs to the exporter."""

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def providers() -> tuple[SdkTracerProvider, SdkMeterProvider]:
    """Providers of the OpenTelemetry SDK, with a queue for all spans of a round."""
    tracers = SdkTracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(Nowhere(), max_queue_size=MESSAGES * 2))
    return tracers, SdkMeterProvider([InMemoryMetricReader()])


def by_hand(
    producer: Producer, address: str, tracers: TracerProvider, meters: MeterProvider, message: Message
) -> Send:
    """A send with the span and the metrics of the listener, and nothing else."""
    tracer, meter = tracers.get_tracer("bench"), meters.get_meter("bench")
    boundaries = list(names.DURATION_BOUNDARIES)
    duration = meter.create_histogram(
        names.OPERATION_DURATION, "s", explicit_bucket_boundaries_advisory=boundaries
    )
    sent = meter.create_counter(names.SENT_MESSAGES)
    propagator = get_global_textmap()
    start = {
        **operation("send", "send", "T"),
        names.CLIENT_ID: "x",
        names.NAMESPACE: "",
        **message_attributes(message),
    }
    metric_attributes = {**operation("send", "send", "T"), **server_attributes(address)}

    async def send() -> None:
        span = tracer.start_span("send T", kind=SpanKind.PRODUCER, attributes=start)
        carrier: dict[str, str] = {}
        propagator.inject(carrier, context=set_span_in_context(span))
        begin = time.perf_counter()
        result = await producer.send(message)
        end = {
            **queue_attributes(result.queue),
            **peer_attributes(address),
            names.MESSAGE_ID: result.message_id,
        }
        span.set_attributes(end)
        span.end()
        duration.record(time.perf_counter() - begin, metric_attributes)
        sent.add(1, metric_attributes)

    return send


async def round_of(send: Send, flush: Callable[[], object]) -> float:
    """CPU time per message in µs, with CONCURRENCY callers.

    flush: completes background work, so that it counts in this round and not in the next one.
    """

    async def caller() -> None:
        for _ in range(MESSAGES // CONCURRENCY):
            await send()

    begin = time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(caller())
    flush()
    return (time.process_time() - begin) / MESSAGES * 1e6


async def measure(*, batching: bool) -> bool:
    """Measure and print; return whether the results are within the limits."""
    message = Message("T", b"x" * 128)
    config = ProducerConfig(batching=batching)
    async with Peer() as broker, Names() as namesrv:
        namesrv.routes["T"] = {"a": broker.address}
        tracers, meters = providers()
        by_hand_tracers, by_hand_meters = providers()
        flushes = {"sdk": tracers.force_flush, "bare": by_hand_tracers.force_flush}
        choices: dict[str, OpenTelemetry | bool] = {
            "off": False,
            "api": OpenTelemetry(),
            "sdk": OpenTelemetry(tracer_provider=tracers, meter_provider=meters),
            "bare": False,
        }
        sends: dict[str, Send] = {}
        producers = []
        for kind, choice in choices.items():
            producer = Producer(f"g_{kind}", namesrv.address, config=config, telemetry=choice)
            await producer.start()
            producers.append(producer)
            sends[kind] = _plain(producer, message)
        sends["bare"] = by_hand(producers[-1], broker.address, by_hand_tracers, by_hand_meters, message)
        times: dict[str, list[float]] = {kind: [] for kind in sends}
        for number in range(ROUNDS + 1):
            for kind in random.sample(sorted(sends), len(sends)):
                taken = await round_of(sends[kind], flushes.get(kind, lambda: None))
                broker.seen.clear()
                if number:  # the first one warms up
                    times[kind].append(taken)
        for producer in producers:
            await producer.close()
    return _report(times, batching=batching)


def _plain(producer: Producer, message: Message) -> Send:
    async def send() -> None:
        await producer.send(message)

    return send


def _report(times: dict[str, list[float]], *, batching: bool) -> bool:
    middle = {kind: statistics.median(taken) for kind, taken in times.items()}
    # The median of the ratios of each round, in which the load of the machine was about the same.
    api = statistics.median(api / off for api, off in zip(times["api"], times["off"], strict=True))
    sdk = statistics.median(
        (sdk - off) / (bare - off)
        for sdk, bare, off in zip(times["sdk"], times["bare"], times["off"], strict=True)
    )
    total = statistics.median(sdk / bare for sdk, bare in zip(times["sdk"], times["bare"], strict=True))
    print(f"batching {'on' if batching else 'off'}, {CONCURRENCY} in flight, µs of CPU a message:", end=" ")
    print(", ".join(f"{kind} {taken:.1f}" for kind, taken in middle.items()))
    print(f"  api / off             {api:.3f}  (limit {API_LIMIT})")
    print(f"  (sdk - off) / (bare - off)  {sdk:.2f}  (limit {SDK_LIMIT}); sdk / bare {total:.2f}")
    return api <= API_LIMIT and sdk <= SDK_LIMIT


def main() -> int:
    """Measure with and without batching; return 1 if a limit was exceeded."""
    held = [asyncio.run(measure(batching=batching)) for batching in (False, True)]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
