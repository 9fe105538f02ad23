"""What sends, pulls and health checks return.

Source: RocketMQ SendResult, SendStatus, PullResult, PullStatus.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from rocketpy.errors import Outcome
from rocketpy.message.message import Message, MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.runtime.pickling import set_fields

__all__ = ["Health", "PullResult", "PullStatus", "SendResult", "SendStatus", "Unfinished"]


class SendStatus(Enum):
    """How far the broker got. Each means stored; only SEND_OK keeps the whole promise."""

    SEND_OK = "SEND_OK"
    """Stored, and flushed and replicated as the broker is configured to."""
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Stored, but not flushed in time by a broker with synchronous flush."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """Stored, but no slave had it in time, with a synchronous master."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """Stored, but there is no slave that keeps up, with a synchronous master."""


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """A broker's answer to one message.

    message_id: the unique id its producer made; consumers see the same. offset_message_id: the
    broker's own id. queue_offset: its place in the queue (for a delayed or half message see QUIRKS 20).
    transaction_id: of a transactional message. region: what the broker calls its region. trace_on:
    whether the broker wants this message traced.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region: str = "DefaultRegion"
    trace_on: bool = True


class Unfinished(NamedTuple):
    """A message that `close` could not wait for. outcome: whether a broker may have it."""

    message: Message
    outcome: Outcome


class PullStatus(Enum):
    """What a pull found."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    """The offset is the queue's end."""
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    """There are messages, but none that the filter lets through; go on from next_offset."""
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"
    """The offset is outside the queue; next_offset is the broker's suggestion."""


class PullResult(msgspec.Struct, frozen=True):
    """A broker's answer to one pull.

    next_offset: where to pull next. min_offset, max_offset: of the queue, at that time; max_offset
    is the offset the next message will get. suggested_broker_id: 0 master, else the slave
    that the broker would rather see asked.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[MessageExt]
    suggested_broker_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How a client is doing.

    ok: whether it can do its work, as far as it knows. problems: a sentence each. namesrv: the name server
    it asks. brokers: address to whether there is a connection now. in_flight, in_flight_bytes: sends
    accepted and not yet answered, and their bodies. rejecting_batches: names of brokers that refused the
    last batch; a producer sends them messages one by one, and probes them with a batch once a minute.
    undecodable: how many messages this consumer could not decode; see `MessageExt.decode_error`.
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

    __setstate__ = set_fields
