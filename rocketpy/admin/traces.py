"""Traces: groups the trace reports of clients by message. No I/O.

Source: RocketMQ 4.6 TraceView and TraceDataEncoder.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rocketpy.errors import RemoteProtocolError
from rocketpy.message.message import MessageExt
from rocketpy.protocol.message.properties import split_keys
from rocketpy.protocol.message.trace import (
    Consumed,
    ConsumeOutcome,
    Consuming,
    Sent,
    TraceRecord,
    decode,
)


class TracedSend(NamedTuple):
    """A send that a broker has responded to."""

    report: Sent
    """The report of the producer: group, time, duration, broker and result."""
    client: str
    """The address of the producer's host."""


class TracedDelivery(NamedTuple):
    """One call of a consumer's handler."""

    group: str | None
    """The consumer group; None when the report of the start is missing."""
    client: str
    """The address of the consumer's host."""
    started_ms: int | None
    """When it began, in ms since 1970; None when the report of the start is missing."""
    attempt: int | None
    """1 for the first delivery; None when the report of the start is missing."""
    duration_ms: int | None
    """How long it took; None while there is no report of its end."""
    success: bool | None
    """Whether the message was handled; None while there is no report of its end."""
    outcome: ConsumeOutcome | None
    """The handler's result; None while there is no report of its end."""


class TracedMessage(NamedTuple):
    """What clients have reported about a message."""

    message_id: str
    """Its unique id."""
    sends: tuple[TracedSend, ...]
    """Its sends, oldest first; several if a producer sent it again."""
    deliveries: tuple[TracedDelivery, ...]
    """The calls of handlers, oldest first."""


class Traces(NamedTuple):
    """The reports about the messages with one unique id or key."""

    messages: tuple[TracedMessage, ...]
    """The messages, oldest first."""
    unreadable: int
    """The number of trace messages that cannot be read."""


def collect_traces(messages: Iterable[MessageExt], key: str) -> Traces:
    """Return the reports about the messages with a unique id or key.

    Args:
        messages: Trace messages; they may contain reports about other messages, too.
        key: The unique id, or one of the keys, of the wanted messages.
    """
    sends: dict[str, list[TracedSend]] = {}
    begun: dict[tuple[str, str], tuple[Consuming, str]] = {}
    ended: dict[tuple[str, str], tuple[Consumed, str]] = {}
    unreadable = 0
    for message in messages:
        client = message.born_host[0]
        try:
            records = decode(message.body.decode())
        except (RemoteProtocolError, UnicodeDecodeError):
            unreadable += 1
            continue
        for record in records:
            if not _is_about(record, key):
                continue
            if isinstance(record, Sent):
                sends.setdefault(record.message_id, []).append(TracedSend(record, client))
            elif isinstance(record, Consuming):
                begun[record.message_id, record.request_id] = (record, client)
            else:
                ended[record.message_id, record.request_id] = (record, client)
    deliveries: dict[str, list[TracedDelivery]] = {}
    for delivery_key in begun.keys() | ended.keys():
        message_id, _ = delivery_key
        delivery = _delivery(begun.get(delivery_key), ended.get(delivery_key))
        deliveries.setdefault(message_id, []).append(delivery)
    found = [
        TracedMessage(
            message_id,
            tuple(sorted(sends.get(message_id, ()), key=lambda send: send.report.timestamp)),
            tuple(sorted(deliveries.get(message_id, ()), key=_start)),
        )
        for message_id in sends.keys() | deliveries.keys()
    ]
    return Traces(tuple(sorted(found, key=_first_ms)), unreadable)


def _is_about(record: TraceRecord, key: str) -> bool:
    return record.message_id == key or key in split_keys(record.keys)


def _delivery(begun: tuple[Consuming, str] | None, ended: tuple[Consumed, str] | None) -> TracedDelivery:
    start, end = begun and begun[0], ended and ended[0]
    return TracedDelivery(
        group=start.group if start else None,
        client=(begun or ended or ("", ""))[1],
        started_ms=start.timestamp if start else None,
        attempt=start.retry_times + 1 if start else None,
        duration_ms=end.cost_ms if end else None,
        success=end.success if end else None,
        outcome=end.outcome if end else None,
    )


def _start(call: TracedDelivery) -> tuple[int, int]:
    return call.started_ms or 0, call.attempt or 0


def _first_ms(message: TracedMessage) -> tuple[int, str]:
    times = [
        *(send.report.timestamp for send in message.sends),
        *(call.started_ms or 0 for call in message.deliveries),
    ]
    return min(times), message.message_id
