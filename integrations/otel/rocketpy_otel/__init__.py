"""OpenTelemetry for rocketpy: spans, metrics and context propagation in messages.

Needs ``opentelemetry-api`` (extra ``otel``); the application chooses the SDK and its exporters. If both are
installed, producers and consumers use it automatically (`rocketpy.telemetry`).
"""

from rocketpy_otel.telemetry import OpenTelemetry

__all__ = ["OpenTelemetry"]
