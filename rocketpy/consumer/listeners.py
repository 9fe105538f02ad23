"""Notifies listeners, telemetry and the message trace of pulls and handler calls."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final

from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import unwrap_queue
from rocketpy.config import ClientConfig
from rocketpy.consumer.config import MessageModel, PushConfig
from rocketpy.consumer.outcomes import ConsumeResult, HandlerResult, Later
from rocketpy.errors import RocketError
from rocketpy.hooks import ProcessEvent, ProcessListener, ReceiveEvent, ReceiveListener, SettleListener
from rocketpy.message.message import MessageExt
from rocketpy.producer.producer import create_trace
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.trace import ConsumeOutcome
from rocketpy.telemetry.listeners import DormantTelemetry, ListenerFanout
from rocketpy.telemetry.message_trace import MessageTrace
from rocketpy.telemetry.plugin import Telemetry, TelemetryChoice, failure_counter, find_telemetry

log: Final = logging.getLogger("rocketpy.consumer")


class ProcessListeners(ListenerFanout[ProcessListener]):
    """Calls handlers, and notifies the listeners of a push consumer when a call begins and ends."""

    __slots__ = ("_broadcasting", "_group", "_timeout_s", "client_id")

    def __init__(self, listeners: Iterable[ProcessListener], group: str, config: PushConfig) -> None:
        super().__init__("process", log, listeners)
        self._group = group
        self._broadcasting = config.model is MessageModel.BROADCASTING
        self._timeout_s = config.consume_timeout_ms / 1000
        self.client_id: str = ""

    def call(
        self,
        handler: Callable[[Sequence[MessageExt]], HandlerResult | Awaitable[HandlerResult]],
        messages: Sequence[MessageExt],
    ) -> HandlerResult | Awaitable[HandlerResult]:
        """Call a handler and notify the listeners; return its result, or an awaitable of it.

        The caller awaits it in the same context: the end sees context variables that the start has set.
        """
        event = ProcessEvent(messages, self._group, self.client_id, broadcasting=self._broadcasting)
        ended = partial(self._ended, event, time.monotonic())
        try:
            self._started(event)
            returned = handler(messages)
        except BaseException as error:  # raised again: listeners see every end
            ended(None, error)
            raise
        if inspect.isawaitable(returned):
            return self._finish(returned, ended)
        ended(returned, None)
        return returned

    async def _finish(
        self,
        returned: Awaitable[HandlerResult],
        ended: Callable[[object, BaseException | None], None],
    ) -> HandlerResult:
        try:
            result = await returned
        except BaseException as error:  # raised again: listeners see every end
            ended(None, error)
            raise
        ended(result, None)
        return result

    def _started(self, event: ProcessEvent) -> None:
        self.notify(lambda listener: listener.process_started(event))

    def _ended(
        self, event: ProcessEvent, started_s: float, returned: object, error: BaseException | None
    ) -> None:
        outcome = ConsumeOutcome.EXCEPTION if error is not None else _outcome_of(returned)
        event.succeeded = outcome is ConsumeOutcome.SUCCESS
        is_valid = outcome in (ConsumeOutcome.SUCCESS, ConsumeOutcome.FAILED)
        if (
            is_valid and time.monotonic() - started_s >= self._timeout_s
        ):  # RocketMQ 4.6: with any result of the handler
            outcome = ConsumeOutcome.TIME_OUT
        self.notify(lambda listener: listener.process_ended(event, outcome, error))


def _outcome_of(returned: object) -> ConsumeOutcome:
    if returned is None or returned is ConsumeResult.SUCCESS:
        return ConsumeOutcome.SUCCESS
    is_valid = isinstance(returned, ConsumeResult | Later)
    return ConsumeOutcome.FAILED if is_valid else ConsumeOutcome.RETURN_NULL


class Observers:
    """The listeners of one group consumer: of its pulls, handler calls and sent-back messages.

    config: the settings of a push consumer; None for a consumer without a handler.
    """

    def __init__(
        self,
        group: str,
        telemetry: TelemetryChoice,
        listeners: Iterable[ProcessListener] = (),
        config: PushConfig | None = None,
    ) -> None:
        self.process: ProcessListeners = ProcessListeners(listeners, group, config or PushConfig())
        self.settle: ListenerFanout[SettleListener] = ListenerFanout("settle", logging.getLogger("rocketpy"))
        self.receive: ListenerFanout[ReceiveListener] = ListenerFanout("receive", log)
        self._group = group
        self._choice = telemetry
        self._telemetry = DormantTelemetry(None, self._attach)
        self._trace_config = config.message_trace if config is not None else None
        self._trace: MessageTrace | None = None
        self._client: ClientInstance | None = None
        self.on_failure: Callable[[RocketError], None] = failure_counter(None, "")
        """Counts failures of background tasks."""

    async def start(self, client: ClientInstance, config: ClientConfig, *, wait: bool) -> None:
        """Begin to notify listeners. config: the settings of the client. wait: see `Producer.start`.

        Raises ConfigInvalid, TransportError.
        """
        telemetry = find_telemetry(self._choice)
        self._client = client
        self.on_failure = failure_counter(telemetry, f"consumer {self._group}")
        client.tasks.on_failure.append(self.on_failure)
        if self._trace_config is not None:
            trace = create_trace(self._trace_config, config)
            await trace.start(wait=wait)
            self._trace = trace
            self.process.add(trace)
        self.process.client_id = client.client_id
        self._telemetry = DormantTelemetry(telemetry, self._attach)
        self._telemetry.check()

    def _attach(self, telemetry: Telemetry) -> None:
        namespace = self._client.config.namespace if self._client is not None else ""
        self.receive.add(telemetry.receive_listener(namespace))
        self.process.add(telemetry.process_listener(namespace))
        self.settle.add(telemetry.settle_listener(namespace))

    def problems(self, limit_ms: float) -> list[str]:
        """Return whether reports of the message trace have been lost for `limit_ms`."""
        return self._trace.jobs.problems(limit_ms, limit_ms) if self._trace is not None else []

    async def close(self) -> None:
        """Stop counting failures, and send the last reports of the message trace."""
        if self._client is not None:
            self._client.tasks.on_failure.remove(self.on_failure)
            self._client = None
        if self._trace is not None:
            await self._trace.close()

    def on_pull(self, queue: MessageQueue, started_ns: int, end: Sequence[MessageExt] | RocketError) -> None:
        """Notify listeners of a pull that has ended. queue: with its namespace. started_ns: since 1970."""
        self._telemetry.check_if_due()
        client = self._client
        if client is None or not self.receive.all:
            return
        address = client.routes.cached_address(queue.topic, queue.broker_name)
        shown = unwrap_queue(client.config.namespace, queue)
        event = ReceiveEvent(shown, self._group, client.client_id, started_ns, time.time_ns(), address, end)
        self.receive.notify(lambda listener: listener.received(event))
