"""A stand-in for an OpenTelemetry collector: takes OTLP over HTTP and decodes its protobuf."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from rocketpy_otel import OpenTelemetry


@dataclass(frozen=True)
class Span:
    """A decoded span. Ids are hex. links: span ids. events: names and attributes. failed: status is ERROR."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    links: list[str]
    events: list[tuple[str, dict[str, Any]]]
    failed: bool


@dataclass
class Collector:
    """The received telemetry. metrics: the names."""

    spans: list[Span] = field(default_factory=list)
    metrics: set[str] = field(default_factory=set)
    url: str = ""

    def named(self, name: str) -> list[Span]:
        """The spans of a name."""
        return [span for span in self.spans if span.name == name]

    def span(self, name: str) -> Span:
        """The only span of a name."""
        (found,) = self.named(name)
        return found

    def take(self, path: str, body: bytes) -> None:
        """Decode one export."""
        if path == "/v1/metrics":
            metrics = ExportMetricsServiceRequest.FromString(body)
            self.metrics |= {
                metric.name
                for resource in metrics.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            }
            return
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _attributes(resource.resource)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_span(service, span) for span in scope.spans]


def _span(service: str, span: Any) -> Span:
    return Span(
        service,
        span.name,
        span.kind,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        _attributes(span),
        [link.span_id.hex() for link in span.links],
        [(event.name, _attributes(event)) for event in span.events],
        span.status.code == Status.STATUS_CODE_ERROR,
    )


def _attributes(holder: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in holder.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A running collector; clients export to its `url`."""
    collector = Collector()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _head(reader):
            lines = head.decode().split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
            }
            body = await reader.readexactly(int(headers["content-length"]))
            if headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(lines[0].split()[1], body)
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Type: application/x-protobuf\r\n\r\n"
            )
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    collector.url = "http://{}:{}".format(*server.sockets[0].getsockname()[:2])
    async with server:
        yield collector


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


class Service:
    """The OpenTelemetry SDK of one service, with batch processor and OTLP exporters."""

    def __init__(self, name: str, collector: Collector) -> None:
        resource = Resource.create({"service.name": name})
        self.tracers = TracerProvider(resource=resource)
        self.tracers.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{collector.url}/v1/traces"))
        )
        exporter = OTLPMetricExporter(endpoint=f"{collector.url}/v1/metrics")
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
        self.meters = MeterProvider([reader], resource=resource)

    def telemetry(self, **settings: Any) -> OpenTelemetry:
        """Return the telemetry of one of the service's clients."""
        return OpenTelemetry(tracer_provider=self.tracers, meter_provider=self.meters, **settings)

    async def export(self) -> None:
        """Export all spans and metrics, and shut the providers down."""
        await asyncio.to_thread(self.tracers.shutdown)
        await asyncio.to_thread(self.meters.shutdown)
