"""The keyword arguments of a producer and of its sends, for wrappers that hand them on (PEP 692)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from rocketpy.client.routing.selectors import QueueSelector
from rocketpy.config import ClientConfig, ProducerConfig
from rocketpy.hooks import SendCheck, SendListener
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.telemetry.plugin import TelemetryChoice


class ProducerOptions(TypedDict, total=False):
    """See `rocketpy.Producer`."""

    config: ProducerConfig | None
    client: ClientConfig | None
    listeners: Iterable[SendListener]
    checks: Iterable[SendCheck]
    telemetry: TelemetryChoice


class Where(TypedDict, total=False):
    """Which queue a message goes to. See `rocketpy.Producer.send`."""

    queue: MessageQueue | None
    selector: QueueSelector | None
    arg: object


class SendOptions(Where, total=False):
    """See `rocketpy.Producer.send`."""

    timeout_ms: int | None


class RequestOptions(Where, total=False):
    """See `rocketpy.Producer.request`."""

    timeout_ms: int
