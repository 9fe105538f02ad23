"""Who is told of what a member of a group does: listeners, telemetry, message trace."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import unwrap_queue
from rocketpy.config import ClientConfig, MessageTraceConfig
from rocketpy.consumer.listeners import ProcessListeners
from rocketpy.errors import RocketError
from rocketpy.hooks import ProcessListener, ReceiveEvent
from rocketpy.message.message import MessageExt
from rocketpy.producer import Producer
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.telemetry.message_trace import SENDING, TRACE_GROUP, MessageTrace
from rocketpy.telemetry.plugin import TelemetryChoice, failure_counter, find_telemetry

_TELEMETRY_CHECK_NS: Final = 100_000_000
"""How often telemetry without anybody to report to is asked again: OpenTelemetry takes 20 µs to say so."""


class Observers:
    """Those of one consumer; `listeners` is what calls of handlers go through.

    trace: how to report what is handled; None for no reports. timeout_ms: how long a handler may take.
    """

    def __init__(
        self,
        group: str,
        telemetry: TelemetryChoice,
        listeners: Iterable[ProcessListener] = (),
        *,
        broadcasting: bool = False,
        trace: MessageTraceConfig | None = None,
        timeout_ms: float = math.inf,
    ) -> None:
        self.listeners = ProcessListeners(listeners, group, broadcasting=broadcasting, timeout_ms=timeout_ms)
        self._group = group
        self._choice = telemetry
        self._trace_config = trace
        self._trace: MessageTrace | None = None
        self._client: ClientInstance | None = None
        self._telemetry_check_ns = 0
        self.failed = failure_counter(None, "")
        """What counts failures of background work."""

    async def start(self, client: ClientInstance, config: ClientConfig, *, wait: bool) -> None:
        """Tell them from now on. config: with which the client was made. wait: see `Producer.start`.

        Raises ConfigInvalid, TransportError.
        """
        telemetry = find_telemetry(self._choice)
        self._client = client
        self.failed = failure_counter(telemetry, f"consumer {self._group}")
        client.tasks.on_failure.append(self.failed)
        if self._trace_config is not None:
            sender = Producer(
                TRACE_GROUP, config=SENDING, client=replace(config, namespace=""), telemetry=False
            )
            trace = MessageTrace(self._trace_config, sender)
            await trace.start(wait=wait)
            self._trace = trace
            self.listeners.add(trace)
        self.listeners.set_telemetry(telemetry, client.config.namespace, client.client_id)

    async def close(self) -> None:
        """Send the last reports."""
        if self._client is not None:
            self._client.tasks.on_failure.remove(self.failed)
            self._client = None
        if self._trace is not None:
            await self._trace.close()

    def on_pull(self, queue: MessageQueue, started_ns: int, end: Sequence[MessageExt] | RocketError) -> None:
        """A pull of a queue (named as on the wire) has ended. started_ns: ns since 1970."""
        if started_ns >= self._telemetry_check_ns:
            self._telemetry_check_ns = started_ns + _TELEMETRY_CHECK_NS
            self.listeners.attach_telemetry()
        client, receivers = self._client, self.listeners.receivers
        if client is None or not receivers.all:
            return
        address = client.cached_address(queue.topic, queue.broker_name)
        shown = unwrap_queue(client.config.namespace, queue)
        event = ReceiveEvent(shown, self._group, client.client_id, started_ns, time.time_ns(), address, end)
        receivers.notify(lambda listener: listener.received(event))
