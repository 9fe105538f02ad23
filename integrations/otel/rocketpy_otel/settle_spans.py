"""Spans of settled messages: the end of a transaction, or a message returned for redelivery."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode

from rocketpy.hooks import SettleEvent
from rocketpy.message import MessageExt
from rocketpy_otel import names
from rocketpy_otel.attributes import Attributes, error_type, operation, peer_attributes, queue_attributes
from rocketpy_otel.tracing import Tracing, is_suppressed


class SettleSpans:
    """A `SettleListener` that creates a CLIENT span per event, linked to the context of its message.

    as_child: whether the span of a returned message continues its sender's trace. The response to a
    broker's transaction check always does: it has no other cause.
    """

    def __init__(self, tracing: Tracing, *, as_child: bool) -> None:
        self._tracing = tracing
        self._as_child = as_child

    def settled(self, event: SettleEvent) -> None:
        """Create the span, with the start and end times of the event."""
        if is_suppressed():
            return
        topic = event.message.topic
        error = event.error
        failed_with = None if error is None else error_type(error)
        seconds = (event.ended_ns - event.started_ns) / 1e9
        self._tracing.instruments.settled(
            event.operation, topic, event.address, _group(event), seconds, failed_with
        )
        span = self._tracing.tracer.start_span(
            f"{event.operation} {topic}",
            context=self._parent(event),
            kind=SpanKind.CLIENT,
            start_time=event.started_ns,
            attributes=self._attributes(event),
            links=self._tracing.contexts.links([event.carrier]),
        )
        if span.is_recording():
            if event.first_error is not None:
                span.add_event(names.EVENT_RETRY, {names.ERROR_TYPE: error_type(event.first_error)})
            if failed_with is not None:
                span.set_attribute(names.ERROR_TYPE, failed_with)
                span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end(event.ended_ns)

    def _attributes(self, event: SettleEvent) -> Attributes:
        message = event.message
        attributes: Attributes = {
            **operation(event.operation, "settle", message.topic),
            **queue_attributes(event.queue),
            **peer_attributes(event.address),
            names.CLIENT_ID: event.client_id,
            names.NAMESPACE: self._tracing.namespace,
        }
        message_id = message.message_id if isinstance(message, MessageExt) else message.transaction_id
        if message_id:
            attributes[names.MESSAGE_ID] = message_id
        group = _group(event)
        if group is not None:
            attributes[names.CONSUMER_GROUP] = group
        if event.delay_level > 0:
            attributes[names.DELAY_LEVEL] = event.delay_level
        if event.state is not None:
            attributes[names.TRANSACTION_STATE] = event.state
            attributes[names.TRANSACTION_ASKED] = event.asked
        return attributes

    def _parent(self, event: SettleEvent) -> Context | None:
        """Return the message's context if it is the parent; None for the current context."""
        if not (event.asked or (self._as_child and event.operation == "nack")):
            return None
        return self._tracing.contexts.parent(event.carrier)


def _group(event: SettleEvent) -> str | None:
    """Return the consumer group; the conventions have no attribute for producer groups."""
    return event.group if event.operation == "nack" else None
