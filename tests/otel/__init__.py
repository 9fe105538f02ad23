"""OpenTelemetry with its real SDK: spans, metrics, context in messages."""
