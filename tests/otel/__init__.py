"""Spans, metrics and message context with the real OpenTelemetry SDK."""
