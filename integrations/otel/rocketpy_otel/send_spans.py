"""Spans of sends.

A single message has a PRODUCER span. A batch has a CLIENT span, linked to a PRODUCER span for each message;
without `batch_create_spans`, it has one PRODUCER span. A send span ends with the broker's response, so its
duration includes retries.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from rocketpy.errors import NotDurable
from rocketpy.hooks import FailedAttempt, SendEvent
from rocketpy.message import Message, MessageQueue
from rocketpy.results import SendResult, SendStatus
from rocketpy_otel import names
from rocketpy_otel.attributes import (
    Attributes,
    error_type,
    message_attributes,
    operation,
    outcome_attributes,
    peer_attributes,
    queue_attributes,
)
from rocketpy_otel.tracing import Tracing, is_suppressed


class _Started(NamedTuple):
    """A send that has not ended."""

    span: Span
    started_s: float
    """Its start, by `time.perf_counter`."""


class SendSpans:
    """A `SendListener` that creates spans and injects their context into the messages."""

    def __init__(self, tracing: Tracing, *, batch_create_spans: bool) -> None:
        self._tracing = tracing
        self._batch_create_spans = batch_create_spans

    def started(self, event: SendEvent) -> None:
        """Start the span, and inject its context into the messages."""
        if is_suppressed():
            return
        messages = event.messages
        single = len(messages) == 1
        attributes = operation("send", "send", messages[0].topic)
        attributes[names.CLIENT_ID] = event.client_id
        attributes[names.NAMESPACE] = self._tracing.namespace
        if single:
            attributes.update(message_attributes(messages[0]))
        else:
            attributes[names.BATCH_COUNT] = len(messages)
        created = not single and self._batch_create_spans
        contexts = self._tracing.contexts
        # Contexts that the application set in messages are kept.
        bare = [
            (message, extra)
            for message, extra in zip(messages, event.extra_properties, strict=True)
            if not contexts.present_in(message.properties)
        ]
        creators = [self._create(event, message) for message, _ in bare] if created else []
        links = contexts.links(message.properties for message in messages)
        span = self._tracing.tracer.start_span(
            f"send {messages[0].topic}",
            kind=SpanKind.CLIENT if created else SpanKind.PRODUCER,
            attributes=attributes,
            links=links + [Link(creator.get_span_context()) for creator in creators],
        )
        event.state[self] = _Started(span, time.perf_counter())
        # Last, since a propagator may raise: the span is still ended.
        for (_, extra), creator in zip(bare, creators if created else [span] * len(bare), strict=True):
            contexts.inject(extra, trace.set_span_in_context(creator))

    def completed(self, event: SendEvent, results: Sequence[SendResult]) -> None:
        """End the span of a successful send; one-way sends succeed when written."""
        started: _Started | None = event.state.get(self)
        if started is None:
            return
        queue = results[0].queue if results else event.queue
        address = event.address(queue) if queue is not None else None
        if started.span.is_recording():
            if queue is not None:
                started.span.set_attributes({**queue_attributes(queue), **peer_attributes(address)})
            started.span.set_attributes(_result_attributes(results))
            _add_retry_events(started.span, event.failures)
        started.span.end()
        self._measure(event, address, started, None, _status(results))

    def failed(self, event: SendEvent, error: BaseException) -> None:
        """End the span of a failed send."""
        started: _Started | None = event.state.get(self)
        if started is None:
            return
        queue = event.failures[-1].queue if event.failures else event.queue
        address = event.address(queue) if queue is not None else None
        if started.span.is_recording():
            attributes = outcome_attributes(error)
            if queue is not None:
                attributes |= {**queue_attributes(queue), **peer_attributes(address)}
            started.span.set_attributes(attributes)
            started.span.set_status(Status(StatusCode.ERROR, str(error)))
            _add_retry_events(started.span, event.failures)
        started.span.end()
        status = _status(error.results) if isinstance(error, NotDurable) else None
        self._measure(event, address, started, error_type(error), status)

    # -- helpers ------------------------------------------------------------------------------

    def _create(self, event: SendEvent, message: Message) -> Span:
        """Create and end the span of one message of a batch."""
        span = self._tracing.tracer.start_span(
            f"create {message.topic}",
            kind=SpanKind.PRODUCER,
            attributes={
                **operation("create", "create", message.topic),
                names.CLIENT_ID: event.client_id,
                names.NAMESPACE: self._tracing.namespace,
                **message_attributes(message),
            },
        )
        span.end()
        return span

    def _measure(
        self, event: SendEvent, address: str | None, started: _Started, error: str | None, status: str | None
    ) -> None:
        seconds = time.perf_counter() - started.started_s
        messages = event.messages
        self._tracing.instruments.sent(messages[0].topic, address, len(messages), seconds, error, status)


def _result_attributes(results: Sequence[SendResult]) -> Attributes:
    attributes: Attributes = {}
    if len(results) == 1:
        attributes[names.MESSAGE_ID] = results[0].message_id
    if (status := _status(results)) is not None:
        attributes[names.SEND_STATUS] = status
    return attributes


def _status(results: Sequence[SendResult]) -> str | None:
    """Return the status of stored messages; None for SEND_OK."""
    return next((result.status.name for result in results if result.status is not SendStatus.SEND_OK), None)


def _add_retry_events(span: Span, failures: Sequence[FailedAttempt]) -> None:
    for failure in failures:
        span.add_event(names.EVENT_RETRY, _failure_attributes(failure.queue, failure.end), failure.time_ns)


def _failure_attributes(queue: MessageQueue, end: BaseException | Sequence[SendResult]) -> Attributes:
    attributes = queue_attributes(queue)
    if isinstance(end, BaseException):
        attributes[names.ERROR_TYPE] = error_type(end)
    else:
        attributes[names.SEND_STATUS] = end[0].status.name
    return attributes
