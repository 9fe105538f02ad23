"""OpenTelemetry for rocketpy: spans, metrics and context that travels in messages.

Needs ``opentelemetry-api`` (extra ``otel``); the SDK and its exporters are the application's choice. With
both installed, producers and consumers use it by themselves (`rocketpy.telemetry`).
"""

from rocketpy_otel.telemetry import OpenTelemetry

__all__ = ["OpenTelemetry"]
