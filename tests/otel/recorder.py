"""The real OpenTelemetry SDK, with spans and metrics kept in memory."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rocketpy_otel import OpenTelemetry
from tests.waiting import LIMIT_S
from tools.import_map import ROOT

Attributes = dict[str, Any]


@dataclass
class Recorder:
    """Separate providers instead of the global ones, so that tests of one process are independent."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)

    def __post_init__(self) -> None:
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])

    def telemetry(self, **settings: Any) -> OpenTelemetry:
        """Return a telemetry that reports to this recorder."""
        return OpenTelemetry(tracer_provider=self.tracers, meter_provider=self.meters, **settings)

    def spans(self, prefix: str = "") -> list[ReadableSpan]:
        """The spans that have ended, in the order of their ends."""
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(prefix)]

    def span(self, name: str) -> ReadableSpan:
        """Return the only finished span whose name is `name`."""
        (found,) = [span for span in self.spans() if span.name == name]
        return found

    def points(self, name: str) -> list[tuple[Attributes, Any]]:
        """The points of a metric: attributes, and the value or the count of a histogram."""
        data = self.reader.get_metrics_data()
        return [
            (dict(point.attributes or {}), getattr(point, "count", None) or getattr(point, "value", None))
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


def attributes(span: ReadableSpan) -> Attributes:
    """Return the attributes of a span, with sequences as lists."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in (span.attributes or {}).items()
    }


def span_id(span: ReadableSpan) -> int:
    """Return the id of a span."""
    assert span.context is not None
    return int(span.context.span_id)


def parent_id(span: ReadableSpan) -> int | None:
    """Return the id of a span's parent; None for a root span."""
    return span.parent.span_id if span.parent is not None else None


def traceparent(span: ReadableSpan) -> str:
    """Return the context of a span as the header traceparent has it."""
    context = span.context
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def run_alone(program: str) -> None:
    """Run a program in its own process, where it may set the global providers; it must succeed."""
    paths = [str(ROOT), str(ROOT / "integrations/otel")]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import sys; sys.path[:0] = {paths!r}\n{program}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
