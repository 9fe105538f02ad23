"""Results of sends, pulls and health checks.

Source: RocketMQ SendResult, SendStatus, PullResult, PullStatus.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import msgspec

from rocketpy.errors import Outcome
from rocketpy.message.message import Message, MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.runtime.pickling import get_fields, set_fields

__all__ = ["Health", "PullResult", "PullStatus", "QueueState", "SendResult", "SendStatus", "Unfinished"]


class SendStatus(Enum):
    """How far the broker got. Every status means stored; only SEND_OK is as durable as configured."""

    SEND_OK = "SEND_OK"
    """Stored, and flushed and replicated as the broker is configured to."""
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Stored, but not flushed in time by a broker with synchronous flush."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """Stored, but no slave of a synchronous master copied it in time."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """Stored, but the synchronous master has no slave that keeps up."""


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The response of a broker for one message.

    Attributes:
        status: How far the broker got.
        message_id: The unique id from the producer, which consumers see too.
        offset_message_id: The broker's id of the message.
        queue: The queue of the message.
        queue_offset: The offset in the queue; for a delayed or half message see QUIRKS 20.
        transaction_id: The id of a transactional message.
        region: The region name of the broker.
        trace_on: Whether the broker wants a trace of the message.
        attempts: The number of attempts. After more than one, the message may be stored several times.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region: str = "DefaultRegion"
    trace_on: bool = True
    attempts: int = 1


class Unfinished(NamedTuple):
    """A message that was still in flight at the end of `close`.

    Attributes:
        message: The message.
        outcome: Whether it may be stored.
    """

    message: Message
    outcome: Outcome


class PullStatus(Enum):
    """The result of a pull."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    """The offset is the queue's end."""
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    """There are messages, but none passes the filter; continue at `PullResult.next_offset`."""
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"
    """The offset is outside the queue; `PullResult.next_offset` is the broker's suggestion."""


class PullResult(msgspec.Struct, frozen=True):
    """The response of a broker to one pull.

    Attributes:
        status: Whether there were messages.
        next_offset: The offset of the next pull.
        min_offset: The lowest offset of the queue at that time.
        max_offset: The offset that the next new message will get.
        messages: The messages.
        suggested_broker_id: The id of the broker to pull from next: 0 for the master, else a slave.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[MessageExt]
    suggested_broker_id: int = 0


class QueueState(Enum):
    """What a consumer does with an assigned queue."""

    READING = "reading"
    """It is read: a request succeeded within `ClientConfig.stalled_after_ms`. An empty one counts, too."""
    STALLED = "stalled"
    """It should be read, but is not; `Health.problems` has the reason."""
    PAUSED = "paused"
    """The application has paused it."""
    FULL = "full"
    """Pulls wait until handlers, or polls, have processed messages."""
    REVOKED = "revoked"
    """It goes to another member, once handlers have ended and its offset is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of a client.

    Attributes:
        ok: Whether there are no known problems.
        problems: The problems, a sentence each.
        client_id: The id of the client.
        namesrv: The address of the current name server.
        brokers: Whether there is a connection to each known broker, by address.
        in_flight: The number of messages in flight.
        in_flight_bytes: The bytes of their bodies.
        rejecting_batches: Names of brokers that rejected the last batch. A producer sends them messages one
            by one, and probes them with a batch once a minute.
        undecodable: The number of messages that this consumer could not decode (`MessageExt.decode_error`).
        queues: The state of each queue that is assigned to this consumer; for a push consumer also of the
            retry topic's.
        less_durable: The number of messages of this producer that brokers stored with another status than
            SEND_OK.
    """

    ok: bool
    problems: tuple[str, ...]
    client_id: str
    namesrv: str
    brokers: dict[str, bool]
    in_flight: int = 0
    in_flight_bytes: int = 0
    rejecting_batches: tuple[str, ...] = ()
    undecodable: int = 0
    queues: dict[MessageQueue, QueueState] = field(default_factory=dict)
    less_durable: int = 0

    __getstate__ = get_fields
    __setstate__ = set_fields
