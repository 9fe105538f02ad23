"""Spans of brokers in this process, and their metrics as observable instruments."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, Tracer

from rocketpy import __version__
from rocketpy.protocol.codes import ResponseCode
from rocketpy.telemetry import BrokerSend, Measured, Metric
from rocketpy_otel import names
from rocketpy_otel.attributes import operation
from rocketpy_otel.instruments import SCOPE
from rocketpy_otel.tracing import Contexts

_CACHE_S: Final = 0.5
"""How long collected values are reused, in seconds: a metric reader queries each instrument separately."""

Collect = Callable[[], Sequence[Measured]]


class BrokerInstruments:
    """One instrument per metric, shared by all brokers. Thread-safe."""

    def __init__(self, provider: MeterProvider) -> None:
        self._meter = provider.get_meter(SCOPE, __version__)
        self._brokers: dict[int, Collect] = {}
        self._created: set[str] = set()
        self._lock = threading.Lock()
        self._measured: dict[str, list[Measured]] = {}
        self._collected_s = float("-inf")

    def add(self, collect: Collect) -> Callable[[], None]:
        """Report the metrics of a broker, until the returned function is called."""
        key = id(collect)
        self._brokers[key] = collect
        for measured in collect():
            self._create(measured.metric)

        def stop() -> None:
            self._brokers.pop(key, None)

        return stop

    def _create(self, metric: Metric) -> None:
        if metric.name in self._created:
            return
        self._created.add(metric.name)
        create = (
            self._meter.create_observable_counter
            if metric.kind == "counter"
            else self._meter.create_observable_gauge
        )
        create(metric.name, [partial(self._observe, metric.name)], metric.unit, metric.description)

    def _observe(self, name: str, _options: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            if time.monotonic() - self._collected_s > _CACHE_S:
                self._collect()
            found = self._measured.get(name, [])
        return [
            Observation(value, dict(zip(metric.labels, labels, strict=True)))
            for metric, values in found
            for labels, value in values
        ]

    def _collect(self) -> None:
        self._measured = {}
        for collect in list(self._brokers.values()):
            for measured in collect():
                self._measured.setdefault(measured.metric.name, []).append(measured)
        self._collected_s = time.monotonic()


class BrokerSpans:
    """Creates a SERVER span for each send with a context, and a child span for each stage."""

    def __init__(self, tracer: Tracer, contexts: Contexts) -> None:
        self._tracer = tracer
        self._contexts = contexts

    def sent(self, send: BrokerSend) -> None:
        """Create the spans. The first message's context is the parent; others in a batch are linked."""
        contexts = [
            self._contexts.extract(carrier) for carrier in send.carriers if self._contexts.present_in(carrier)
        ]
        if not contexts:
            return
        attributes = operation("store", "receive", send.topic) | {names.PARTITION: send.partition}
        if len(send.carriers) > 1:
            attributes[names.BATCH_COUNT] = len(send.carriers)
        span = self._tracer.start_span(
            f"store {send.topic}",
            context=contexts[0],
            kind=SpanKind.SERVER,
            attributes=attributes,
            links=[Link(trace.get_current_span(context).get_span_context()) for context in contexts[1:]],
            start_time=send.stages[0].start_ns,
        )
        if span.is_recording():
            parent = trace.set_span_in_context(span, Context())
            for stage in send.stages:
                self._tracer.start_span(stage.name, parent, start_time=stage.start_ns).end(stage.end_ns)
            if send.code:
                name = ResponseCode(send.code).name
                span.set_attribute(names.ERROR_TYPE, name)
                span.set_status(Status(StatusCode.ERROR, name))
        span.end(send.stages[-1].end_ns)
