"""Message traces: the reports of clients about messages, in the body of messages of a trace topic.

A body has records with U+0001 between fields and U+0002 after each record:

    Pub        time, region, group, topic, id, tags, keys, broker, body bytes, ms, kind, broker's id, success
    SubBefore  time, region, group, request id, id, retries, keys
    SubAfter   request id, id, ms, success, keys, outcome

An absent value is the word ``null``. The keys of a trace message are the ids and keys of its records, so that
a query by key finds the reports about a message.

Source: RocketMQ 4.6 TraceDataEncoder, SendMessageTraceHookImpl, ConsumeMessageTraceHookImpl (QUIRKS 40).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Final

import msgspec

from rocketpy.errors import RemoteProtocolError

_FIELD: Final = "\x01"
_RECORD: Final = "\x02"
_NULL: Final = "null"


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


class Sent(msgspec.Struct, frozen=True):
    """A broker has responded to a send (``Pub``). timestamp: of its start, in ms since 1970. store_host: the
    address of the broker. body_bytes: before compression. cost_ms: until the response. success: SEND_OK.
    """

    timestamp: int
    region: str | None
    group: str
    topic: str
    message_id: str
    tags: str | None
    keys: str | None
    store_host: str | None
    body_bytes: int
    cost_ms: int
    kind: MessageKind
    offset_message_id: str | None
    success: bool = True


class Consuming(msgspec.Struct, frozen=True):
    """A handler will get a message (``SubBefore``). request_id: the same as in its `Consumed`."""

    timestamp: int
    region: str | None
    group: str
    request_id: str
    message_id: str
    retry_times: int
    keys: str | None


class Consumed(msgspec.Struct, frozen=True):
    """A handler has finished a message (``SubAfter``). cost_ms: its time, divided by the messages of the
    call.
    """

    request_id: str
    message_id: str
    cost_ms: int
    success: bool
    keys: str | None
    outcome: ConsumeOutcome


TraceRecord = Sent | Consuming | Consumed

_NAMES: Final[dict[type[TraceRecord], str]] = {Sent: "Pub", Consuming: "SubBefore", Consumed: "SubAfter"}


def encode(records: Iterable[TraceRecord]) -> str:
    """Encode the body of a trace message."""
    return "".join([_encode(record) for record in records])


def _encode(record: TraceRecord) -> str:
    fields = [_NAMES[type(record)]]
    for value in msgspec.structs.astuple(record):
        if value is None:
            fields.append(_NULL)
        elif isinstance(value, bool):
            fields.append("true" if value else "false")
        else:
            fields.append(value if isinstance(value, str) else str(int(value)))
    return _FIELD.join(fields) + _RECORD


def decode(text: str) -> list[TraceRecord]:
    """Decode the body of a trace message; records of types that 4.6.0 does not know are skipped.

    Raises RemoteProtocolError for a record with missing fields or invalid numbers.
    """
    records: list[TraceRecord] = []
    for line in text.split(_RECORD):
        fields = line.split(_FIELD)
        reader = _READERS.get(fields[0])
        if reader is None:
            continue
        try:
            records.append(reader(fields))
        except (ValueError, IndexError) as error:
            raise RemoteProtocolError(f"trace record {line!r} cannot be read: {error}") from error
    return records


def _text(field: str) -> str | None:
    return None if field == _NULL else field


def _read_sent(fields: list[str]) -> Sent:
    # Clients before 4.5 leave out the broker's id.
    broker_id = _text(fields[12]) if len(fields) > 13 else None
    return Sent(
        int(fields[1]),
        _text(fields[2]),
        fields[3],
        fields[4],
        fields[5],
        _text(fields[6]),
        _text(fields[7]),
        _text(fields[8]),
        int(fields[9]),
        int(fields[10]),
        MessageKind(int(fields[11])),
        broker_id,
        fields[13 if len(fields) > 13 else 12] == "true",
    )


def _read_consuming(fields: list[str]) -> Consuming:
    return Consuming(
        int(fields[1]),
        _text(fields[2]),
        fields[3],
        fields[4],
        fields[5],
        int(fields[6]),
        _text(fields[7]),
    )


def _read_consumed(fields: list[str]) -> Consumed:
    outcome = ConsumeOutcome(int(fields[6])) if len(fields) > 6 else ConsumeOutcome.SUCCESS
    return Consumed(fields[1], fields[2], int(fields[3]), fields[4] == "true", _text(fields[5]), outcome)


_READERS: Final[dict[str, Callable[[list[str]], TraceRecord]]] = {
    "Pub": _read_sent,
    "SubBefore": _read_consuming,
    "SubAfter": _read_consumed,
}
