"""Spans of pulls and of processing: each linked to the contexts that its messages carry."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from rocketpy.hooks import ReceiveEvent
from rocketpy.message import MessageExt
from rocketpy_otel import names
from rocketpy_otel.describing import error_type, message_attributes, operation, peer, queue_attributes
from rocketpy_otel.instruments import Instruments
from rocketpy_otel.sending import creation_links, is_suppressed

__all__ = ["Processing", "ReceiveSpans"]

_LINKS_MAX = 128
"""What an SDK keeps of a span's links, by default."""


class ReceiveSpans:
    """A `ReceiveListener`: a CLIENT span for each pull that found messages, or failed."""

    def __init__(
        self, tracer: Tracer, instruments: Instruments, propagator: TextMapPropagator, namespace: str
    ) -> None:
        self._tracer = tracer
        self._instruments = instruments
        self._propagator = propagator
        self._fields = frozenset(propagator.fields)
        self._namespace = namespace

    def received(self, event: ReceiveEvent) -> None:
        """Make the span; it began when the pull did. A pull that found nothing has none."""
        if is_suppressed():
            return
        error = event.end if isinstance(event.end, BaseException) else None
        messages = [] if isinstance(event.end, BaseException) else event.end.messages
        failure = None if error is None else error_type(error)
        seconds = (event.ended_ns - event.started_ns) / 1e9
        topic = event.queue.topic
        self._instruments.received(topic, event.address, event.group, len(messages), seconds, failure)
        if not messages and error is None:
            return
        span = self._tracer.start_span(
            f"receive {topic}",
            kind=SpanKind.CLIENT,
            start_time=event.started_ns,
            attributes={
                **operation("receive", "receive", topic),
                **queue_attributes(event.queue),
                **peer(event.address)[1],
                names.CLIENT_ID: event.client_id,
                names.CONSUMER_GROUP: event.group,
                names.NAMESPACE: self._namespace,
                **({names.BATCH_COUNT: len(messages)} if messages else {}),
            },
            links=creation_links(self._propagator, self._fields, messages[:_LINKS_MAX]),
        )
        if error is not None and span.is_recording():
            span.set_attribute(names.ERROR_TYPE, failure or "")
            span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end(event.ended_ns)


class Processing:
    """Makes the CONSUMER spans of an application's own work on messages."""

    def __init__(self, tracer: Tracer, instruments: Instruments, propagator: TextMapPropagator) -> None:
        self._tracer = tracer
        self._instruments = instruments
        self._propagator = propagator
        self._fields = frozenset(propagator.fields)

    @contextmanager
    def span(
        self,
        messages: Sequence[MessageExt],
        *,
        group: str | None,
        namespace: str,
        consumption_model: str | None,
        as_child: bool,
    ) -> Iterator[Span]:
        """Current while entered; failed when what is inside raises. See `OpenTelemetry.process`."""
        topic = messages[0].topic
        attributes = operation("process", "process", topic)
        attributes |= queue_attributes(messages[0].queue)
        attributes[names.NAMESPACE] = namespace
        if group is not None:
            attributes[names.CONSUMER_GROUP] = group
        if consumption_model is not None:
            attributes[names.CONSUMPTION_MODEL] = consumption_model
        if len(messages) == 1:
            attributes |= message_attributes(messages[0])
            attributes[names.MESSAGE_ID] = messages[0].message_id
        else:
            attributes[names.BATCH_COUNT] = len(messages)
        context, links = self._origin(messages, as_child=as_child and len(messages) == 1)
        started = time.perf_counter()
        failure: str | None = None
        with self._tracer.start_as_current_span(
            f"process {topic}",
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        ) as span:
            try:
                yield span
            except BaseException as error:
                failure = error_type(error)
                span.set_attribute(names.ERROR_TYPE, failure)
                raise
            finally:
                self._instruments.processed(topic, group, time.perf_counter() - started, failure)

    def _origin(self, messages: Sequence[MessageExt], *, as_child: bool) -> tuple[Context | None, list[Link]]:
        """The parent, None for the current span, and the links."""
        links = creation_links(self._propagator, self._fields, messages[:_LINKS_MAX])
        if not as_child or self._fields.isdisjoint(messages[0].properties):
            return None, links
        context = self._propagator.extract(messages[0].properties)
        has_parent = trace.get_current_span(context).get_span_context().is_valid
        return (context, links) if has_parent else (None, links)
