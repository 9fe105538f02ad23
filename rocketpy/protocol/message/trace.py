"""Message traces: the reports of clients about messages, in the body of messages of a trace topic.

A body has records with U+0001 between fields and U+0002 after each record:

    Pub        time, region, group, topic, id, tags, keys, broker, body bytes, ms, kind, broker's id, success
    SubBefore  time, region, group, request id, id, retries, keys
    SubAfter   request id, id, ms, success, keys, outcome

An absent value is the word ``null``. The keys of a trace message are the ids and keys of its records. So a
query by key finds the reports about a message.

Source: RocketMQ 4.6 TraceDataEncoder, SendMessageTraceHookImpl, ConsumeMessageTraceHookImpl (QUIRKS 40).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import msgspec

from rocketpy.errors import RemoteProtocolError

_FIELD: Final = "\x01"
_RECORD: Final = "\x02"
_NULL: Final = "null"
_PUB_FIELDS_4_4: Final = 13
"""Clients before 4.5 leave out the broker's id, the last field but one."""


class MessageKind(IntEnum):
    """The kind of a sent message. Source: RocketMQ MessageType."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3


class ConsumeOutcome(IntEnum):
    """The result of a handler. Source: RocketMQ ConsumeReturnType."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class Sent(msgspec.Struct, frozen=True, array_like=True, tag="Pub"):
    """A broker has responded to a send (``Pub``)."""

    timestamp: int
    """When the send began, in ms since 1970."""
    region: str | None
    group: str
    topic: str
    message_id: str
    tags: str | None
    keys: str | None
    store_host: str | None
    """The address of the broker."""
    body_bytes: int
    """Before compression."""
    cost_ms: int
    """Time until the response."""
    kind: MessageKind
    offset_message_id: str | None
    success: bool = True
    """Whether the status is SEND_OK."""


class Consuming(msgspec.Struct, frozen=True, array_like=True, tag="SubBefore"):
    """A handler will get a message (``SubBefore``)."""

    timestamp: int
    """In ms since 1970."""
    region: str | None
    group: str
    request_id: str
    """The same as in the `Consumed` of this call."""
    message_id: str
    retry_times: int
    keys: str | None


class Consumed(msgspec.Struct, frozen=True, array_like=True, tag="SubAfter"):
    """A handler has finished a message (``SubAfter``)."""

    request_id: str
    message_id: str
    cost_ms: int
    """The time of the call, divided by the number of its messages."""
    success: bool
    keys: str | None
    outcome: ConsumeOutcome = ConsumeOutcome.SUCCESS


TraceRecord = Sent | Consuming | Consumed

_TYPES: Final = frozenset({"Pub", "SubBefore", "SubAfter"})


def encode(records: Iterable[TraceRecord]) -> str:
    """Encode the body of a trace message."""
    return "".join([_FIELD.join(map(_text, msgspec.to_builtins(record))) + _RECORD for record in records])


def _text(value: str | int | None) -> str:
    if value is None:
        return _NULL
    return str(value).lower() if isinstance(value, bool) else str(value)


def decode(text: str) -> list[TraceRecord]:
    """Decode the body of a trace message; records of types that 4.6.0 does not know are skipped.

    Raises RemoteProtocolError for a record with missing fields or invalid numbers.
    """
    records: list[TraceRecord] = []
    for line in text.split(_RECORD):
        fields = [None if field == _NULL else field for field in line.split(_FIELD)]
        if fields[0] not in _TYPES:
            continue
        if fields[0] == "Pub" and len(fields) == _PUB_FIELDS_4_4:
            fields.insert(-1, None)
        try:
            records.append(msgspec.convert(fields, TraceRecord, strict=False))
        except msgspec.ValidationError as error:
            raise RemoteProtocolError(f"trace record {line!r} cannot be read: {error}") from error
    return records
