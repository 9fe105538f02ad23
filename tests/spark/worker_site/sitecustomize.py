"""Sets up a trace provider in Spark's Python workers, like `opentelemetry-instrument`.

Python imports a module of this name at its start, if the module's directory is on PYTHONPATH.
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
