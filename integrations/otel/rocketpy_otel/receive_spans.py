"""Spans of pulls and of processing, linked to the contexts of their messages.

The messages of one pull come from many traces, and a span has one parent only. So its span is linked to them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import Token
from typing import NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from rocketpy.hooks import ProcessEvent, ReceiveEvent
from rocketpy.message import MessageExt
from rocketpy.protocol.message.trace import ConsumeOutcome
from rocketpy_otel import names
from rocketpy_otel.attributes import (
    error_type,
    message_attributes,
    operation,
    peer_attributes,
    queue_attributes,
)
from rocketpy_otel.tracing import Tracing, is_suppressed

_LINKS_MAX = 128
"""The SDK's default limit of links per span."""


class _Running(NamedTuple):
    """A span that has not ended."""

    span: Span
    token: Token[Context]
    started_s: float
    """Its start, by `time.perf_counter`."""


class ReceiveSpans:
    """A `ReceiveListener` that creates a CLIENT span for each pull that found messages or failed."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def received(self, event: ReceiveEvent) -> None:
        """Create the span, with the start and end times of the pull; none for an empty pull."""
        if is_suppressed():
            return
        error = event.end if isinstance(event.end, BaseException) else None
        messages = () if isinstance(event.end, BaseException) else event.end
        failure = None if error is None else error_type(error)
        seconds = (event.ended_ns - event.started_ns) / 1e9
        topic = event.queue.topic
        instruments = self._tracing.instruments
        undecodable = Counter(
            error_type(message.decode_error) for message in messages if message.decode_error is not None
        )
        for kind, count in undecodable.items():
            instruments.undecodable(topic, event.address, event.group, count, kind)
        decoded = len(messages) - undecodable.total()
        instruments.received(topic, event.address, event.group, decoded, seconds, failure)
        if not messages and error is None:
            return
        span = self._tracing.tracer.start_span(
            f"receive {topic}",
            kind=SpanKind.CLIENT,
            start_time=event.started_ns,
            attributes={
                **operation("receive", "receive", topic),
                **queue_attributes(event.queue),
                **peer_attributes(event.address),
                names.CLIENT_ID: event.client_id,
                names.CONSUMER_GROUP: event.group,
                names.NAMESPACE: self._tracing.namespace,
                **({names.BATCH_COUNT: len(messages)} if messages else {}),
            },
            links=self._tracing.contexts.links(message.properties for message in messages[:_LINKS_MAX]),
        )
        if error is not None and span.is_recording():
            span.set_attribute(names.ERROR_TYPE, failure or "")
            span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end(event.ended_ns)


class Processing:
    """Creates CONSUMER spans of message processing; the `ProcessListener` of push consumers.

    as_child: whether a single message's span continues the trace of its sender.
    """

    def __init__(self, tracing: Tracing, *, as_child: bool) -> None:
        self._tracing = tracing
        self._as_child = as_child

    def process_started(self, event: ProcessEvent) -> None:
        """Start a span, and make it current for the handler."""
        if is_suppressed():
            return
        span = self._start(
            event.messages,
            event.group,
            "broadcasting" if event.broadcasting else "clustering",
            event.client_id,
            Context(),  # not the span in which the consumer was started
        )
        token = attach(trace.set_span_in_context(span))
        event.state[self] = _Running(span, token, time.perf_counter())

    def process_ended(
        self, event: ProcessEvent, outcome: ConsumeOutcome, error: BaseException | None
    ) -> None:
        """End the span of a handler."""
        running: _Running | None = event.state.get(self)
        if running is None:
            return
        detach(running.token)
        failure = error_type(error) if error is not None else None
        if failure is None and outcome is not ConsumeOutcome.SUCCESS:
            failure = outcome.name
        self._end(running, event.messages[0].topic, event.group, failure, error)

    @contextmanager
    def span(
        self, messages: Sequence[MessageExt], group: str | None, consumption_model: str | None
    ) -> Iterator[Span]:
        """Run the block in a span, which fails if the block raises. See `OpenTelemetry.process`."""
        if not messages:
            yield trace.INVALID_SPAN
            return
        span = self._start(messages, group, consumption_model, None, None)
        token = attach(trace.set_span_in_context(span))
        running = _Running(span, token, time.perf_counter())
        failure: BaseException | None = None
        try:
            yield span
        except BaseException as error:  # recorded in the span, and raised again
            failure = error
            raise
        finally:
            detach(token)
            error_name = error_type(failure) if failure is not None else None
            self._end(running, messages[0].topic, group, error_name, failure)

    def _start(
        self,
        messages: Sequence[MessageExt],
        group: str | None,
        consumption_model: str | None,
        client_id: str | None,
        context: Context | None,
    ) -> Span:
        """Start a span, as a child of the span in `context` if the sender's is not the parent.

        context: None for the current context.
        """
        topic = messages[0].topic
        attributes = operation("process", "process", topic)
        attributes |= queue_attributes(messages[0].queue)
        attributes[names.NAMESPACE] = self._tracing.namespace
        if group is not None:
            attributes[names.CONSUMER_GROUP] = group
        if consumption_model is not None:
            attributes[names.CONSUMPTION_MODEL] = consumption_model
        if client_id is not None:
            attributes[names.CLIENT_ID] = client_id
        if len(messages) == 1:
            attributes |= message_attributes(messages[0])
            attributes[names.MESSAGE_ID] = messages[0].message_id
        else:
            attributes[names.BATCH_COUNT] = len(messages)
        return self._tracing.tracer.start_span(
            f"process {topic}",
            context=self._sender_context(messages) or context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=self._tracing.contexts.links(message.properties for message in messages[:_LINKS_MAX]),
        )

    def _sender_context(self, messages: Sequence[MessageExt]) -> Context | None:
        """Return the context of a single message if it is the parent."""
        if not self._as_child or len(messages) != 1:
            return None
        return self._tracing.contexts.parent(messages[0].properties)

    def _end(
        self,
        running: _Running,
        topic: str,
        group: str | None,
        failure: str | None,
        error: BaseException | None,
    ) -> None:
        span = running.span
        if failure is not None and span.is_recording():
            span.set_attribute(names.ERROR_TYPE, failure)
            span.set_status(Status(StatusCode.ERROR, str(error) if error is not None else None))
            if error is not None:
                span.record_exception(error)
        span.end()
        self._tracing.instruments.processed(topic, group, time.perf_counter() - running.started_s, failure)
