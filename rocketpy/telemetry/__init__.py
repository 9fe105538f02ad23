"""Plugins that observe clients and brokers, and RocketMQ's message trace."""

from rocketpy.telemetry.plugin import (
    ENTRY_POINT_GROUP,
    BrokerSend,
    Measured,
    Metric,
    Stage,
    Telemetry,
    TelemetryChoice,
    continued,
    failure_counter,
    find_telemetry,
)

__all__ = [
    "ENTRY_POINT_GROUP",
    "BrokerSend",
    "Measured",
    "Metric",
    "Stage",
    "Telemetry",
    "TelemetryChoice",
    "continued",
    "failure_counter",
    "find_telemetry",
]
