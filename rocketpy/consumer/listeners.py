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
from rocketpy.hooks import ProcessEvent, ProcessListener, ReceiveEvent, ReceiveListener, SettleListener
from rocketpy.message.message import MessageExt
from rocketpy.protocol.message.trace import ConsumeOutcome
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.telemetry.listeners import ListenerFanout
from rocketpy.telemetry.plugin import Telemetry

log = logging.getLogger("rocketpy.consumer")


class ReceiveListeners:
    """The listeners of one consumer. all: those there are now."""

    __slots__ = ("_limited_log", "_namespace", "_telemetry", "all")

    def __init__(self, listeners: Iterable[ReceiveListener]) -> None:
        self.all = tuple(listeners)
        self._limited_log = RateLimitedLog(log)
        self._telemetry: Telemetry | None = None
        self._namespace = ""

    def set_telemetry(self, telemetry: Telemetry | None, namespace: str) -> None:
        """Have telemetry listen as soon as it has somebody to report to."""
        self._telemetry, self._namespace = telemetry, namespace
        self.attach_telemetry()

    def attach_telemetry(self) -> None:
        """See whether telemetry that had nobody to report to has somebody by now."""
        if self._telemetry is not None and self._telemetry.is_active():
            self.all += (self._telemetry.receive_listener(self._namespace),)
            self._telemetry = None

    def received(self, event: ReceiveEvent) -> None:
        """Tell of a pull that has ended."""
        for listener in self.all:
            try:
                listener.received(event)
            except Exception as error:  # noqa: BLE001 - telemetry that fails must not lose messages
                self._limited_log.exception(type(error).__name__, "a receive listener failed")


class ProcessListeners:
    """The listeners of one push consumer: of its pulls, `receivers`, of its handlers, `all`, and of what it
    sends back, `settle_listeners`.

    timeout_ms: a handler that takes so long has timed out.
    """

    __slots__ = (
        "_broadcasting",
        "_client_id",
        "_group",
        "_limited_log",
        "_namespace",
        "_telemetry",
        "_timeout_s",
        "all",
        "receivers",
        "settle_listeners",
    )

    def __init__(
        self,
        listeners: Iterable[ProcessListener],
        group: str,
        *,
        broadcasting: bool,
        timeout_ms: float = math.inf,
    ) -> None:
        self.all = tuple(listeners)
        self.receivers = ReceiveListeners(())
        self.settle_listeners: ListenerFanout[SettleListener] = ListenerFanout(
            "settle", logging.getLogger("rocketpy")
        )
        self._timeout_s = timeout_ms / 1000
        self._limited_log = RateLimitedLog(log)
        self._group = group
        self._broadcasting = broadcasting
        self._client_id = ""
        self._telemetry: Telemetry | None = None
        self._namespace = ""

    def set_telemetry(self, telemetry: Telemetry | None, namespace: str, client_id: str) -> None:
        """Have telemetry listen as soon as it has somebody to report to."""
        self._telemetry, self._namespace, self._client_id = telemetry, namespace, client_id
        self.receivers.set_telemetry(telemetry, namespace)
        self.attach_telemetry()

    def attach_telemetry(self) -> None:
        """See whether telemetry that had nobody to report to has somebody by now."""
        self.receivers.attach_telemetry()
        if self._telemetry is not None and self._telemetry.is_active():
            self.all += (self._telemetry.process_listener(self._namespace),)
            self.settle_listeners.add(self._telemetry.settle_listener(self._namespace))
            self._telemetry = None

    def add(self, listener: ProcessListener) -> None:
        """Tell one more."""
        self.all += (listener,)

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
        for listener in self.all:
            try:
                listener.process_started(event)
            except Exception as broken:  # noqa: BLE001 - as with receive listeners
                self._limited_log.exception(type(broken).__name__, "a process listener failed")

    def _ended(
        self, event: ProcessEvent, started_s: float, returned: object, error: BaseException | None
    ) -> None:
        outcome = ConsumeOutcome.EXCEPTION if error is not None else _outcome_of(returned)
        event.succeeded = outcome is ConsumeOutcome.SUCCESS
        has_said = outcome in (ConsumeOutcome.SUCCESS, ConsumeOutcome.FAILED)
        if has_said and time.monotonic() - started_s >= self._timeout_s:  # as in 4.6.0, whatever it said
            outcome = ConsumeOutcome.TIME_OUT
        for listener in self.all:
            try:
                listener.process_ended(event, outcome, error)
            except Exception as broken:  # noqa: BLE001 - as with receive listeners
                self._limited_log.exception(type(broken).__name__, "a process listener failed")


def _outcome_of(returned: object) -> ConsumeOutcome:
    if returned is None or returned is ConsumeResult.SUCCESS:
        return ConsumeOutcome.SUCCESS
    return (
        ConsumeOutcome.FAILED if isinstance(returned, ConsumeResult | Later) else ConsumeOutcome.RETURN_NULL
    )
