"""Telling listeners of pulls and of handlers, so that none of them can harm one."""

from __future__ import annotations

import contextvars
import inspect
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from rocketpy.consumer.outcomes import ConsumeResult, HandlerResult, Later
from rocketpy.hooks import ProcessEvent, ProcessListener, ReceiveListener, SettleListener
from rocketpy.message.message import MessageExt
from rocketpy.protocol.message.trace import ConsumeOutcome
from rocketpy.telemetry.listeners import DormantTelemetry, ListenerFanout
from rocketpy.telemetry.plugin import Telemetry

log = logging.getLogger("rocketpy.consumer")


class ReceiveListeners(ListenerFanout[ReceiveListener]):
    """The listeners of the pulls of one consumer."""

    def __init__(self, listeners: Iterable[ReceiveListener]) -> None:
        super().__init__("receive", log, listeners)
        self._telemetry = DormantTelemetry(None, lambda _: None)

    def set_telemetry(self, telemetry: Telemetry | None, namespace: str) -> None:
        """Add the listener of telemetry as soon as it is active."""
        self._telemetry = DormantTelemetry(
            telemetry, lambda active: self.add(active.receive_listener(namespace))
        )
        self._telemetry.check()

    def attach_telemetry(self) -> None:
        """Add the listener of telemetry if it has become active."""
        self._telemetry.check()


class ProcessListeners(ListenerFanout[ProcessListener]):
    """The listeners of the handler calls of one push consumer.

    receivers: listeners of its pulls. settle_listeners: of messages that it
    sends back. timeout_ms: a handler that takes so long has timed out.
    """

    def __init__(
        self,
        listeners: Iterable[ProcessListener],
        group: str,
        *,
        broadcasting: bool,
        timeout_ms: float = math.inf,
    ) -> None:
        super().__init__("process", log, listeners)
        self.receivers: ListenerFanout[ReceiveListener] = ListenerFanout("receive", log)
        self.settle_listeners: ListenerFanout[SettleListener] = ListenerFanout(
            "settle", logging.getLogger("rocketpy")
        )
        self._timeout_s = timeout_ms / 1000
        self._group = group
        self._broadcasting = broadcasting
        self._client_id = ""
        self._telemetry = DormantTelemetry(None, lambda _: None)

    def set_telemetry(self, telemetry: Telemetry | None, namespace: str, client_id: str) -> None:
        """Add the listeners of telemetry as soon as it is active."""

        def attach(active: Telemetry) -> None:
            self.receivers.add(active.receive_listener(namespace))
            self.add(active.process_listener(namespace))
            self.settle_listeners.add(active.settle_listener(namespace))

        self._client_id = client_id
        self._telemetry = DormantTelemetry(telemetry, attach)
        self._telemetry.check()

    def attach_telemetry(self) -> None:
        """Add the listeners of telemetry if it has become active."""
        self._telemetry.check()

    def call(
        self,
        handler: Callable[[Sequence[MessageExt]], HandlerResult | Awaitable[HandlerResult]],
        messages: Sequence[MessageExt],
        *,
        is_async: bool,
    ) -> HandlerResult | Awaitable[HandlerResult]:
        """Call a handler, or make what is awaited to do so, and tell of it."""
        event = ProcessEvent(messages, self._group, self._client_id, broadcasting=self._broadcasting)
        if is_async:
            return self._call_async(handler, event)
        started_s = time.monotonic()
        # In a context of its own, so that the end finds what the start has set even from another task.
        context = contextvars.copy_context()
        try:
            context.run(self._started, event)
            returned = context.run(handler, messages)
        except BaseException as error:
            context.run(self._ended, event, started_s, None, error)
            raise
        if inspect.isawaitable(returned):
            return self._finish(returned, event, started_s, context)
        context.run(self._ended, event, started_s, returned, None)
        return returned

    async def _call_async(
        self, handler: Callable[[Sequence[MessageExt]], Any], event: ProcessEvent
    ) -> HandlerResult:
        started_s = time.monotonic()
        self._started(event)
        try:
            returned: HandlerResult = await handler(event.messages)
        except BaseException as error:
            self._ended(event, started_s, None, error)
            raise
        self._ended(event, started_s, returned, None)
        return returned

    async def _finish(
        self,
        awaited: Awaitable[HandlerResult],
        event: ProcessEvent,
        started_s: float,
        context: contextvars.Context,
    ) -> HandlerResult:
        try:
            returned = await awaited
        except BaseException as error:
            context.run(self._ended, event, started_s, None, error)
            raise
        context.run(self._ended, event, started_s, returned, None)
        return returned

    def _started(self, event: ProcessEvent) -> None:
        self.notify(lambda listener: listener.process_started(event))

    def _ended(
        self, event: ProcessEvent, started_s: float, returned: object, error: BaseException | None
    ) -> None:
        outcome = ConsumeOutcome.EXCEPTION if error is not None else _outcome_of(returned)
        event.succeeded = outcome is ConsumeOutcome.SUCCESS
        has_said = outcome in (ConsumeOutcome.SUCCESS, ConsumeOutcome.FAILED)
        if has_said and time.monotonic() - started_s >= self._timeout_s:  # as in 4.6.0, whatever it said
            outcome = ConsumeOutcome.TIME_OUT
        self.notify(lambda listener: listener.process_ended(event, outcome, error))


def _outcome_of(returned: object) -> ConsumeOutcome:
    if returned is None or returned is ConsumeResult.SUCCESS:
        return ConsumeOutcome.SUCCESS
    return (
        ConsumeOutcome.FAILED if isinstance(returned, ConsumeResult | Later) else ConsumeOutcome.RETURN_NULL
    )
