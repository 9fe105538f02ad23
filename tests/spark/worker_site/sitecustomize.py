"""What `opentelemetry-instrument` does, done for Spark's Python workers: a provider that exports.

Python imports a module of this name by itself where it starts, if its directory is on PYTHONPATH.
"""

from __future__ import annotations

import os

if "OTEL_EXPORTER_OTLP_ENDPOINT" in os.environ:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import set_tracer_provider

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    set_tracer_provider(provider)
