"""Results of sends, pulls and health checks.

Source: RocketMQ SendResult, SendStatus, PullResult, PullStatus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count, repeat
from typing import NamedTuple, overload

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
    """The response of a broker for one message."""

    status: SendStatus
    """How far the broker got."""
    message_id: str
    """The unique id from the producer, which consumers see too."""
    offset_message_id: str
    """The broker's id of the message."""
    queue: MessageQueue
    """The queue of the message."""
    queue_offset: int
    """The offset in the queue; for a delayed or half message see QUIRKS 20."""
    transaction_id: str | None = None
    """The id of a transactional message."""
    region: str = "DefaultRegion"
    """The region name of the broker."""
    trace_on: bool = True
    """Whether the broker wants a trace of the message."""
    attempts: int = 1
    """The number of attempts. After more than one, the message may be stored several times."""
    recall_handle: str | None = None
    """For `Producer.recall`: takes a message with `deliver_at` or `delay` back before it is due. None for
    others, and from brokers that cannot do it (before RocketMQ 5.3.2)."""


class BatchResults(Sequence[SendResult]):
    """The results of the messages of one request, which differ only in ids and offsets.

    The results are made on access: a batch of 1,000 messages often needs none of them.
    """

    __slots__ = ("_message_ids", "_offset_ids", "_whole")

    def __init__(self, whole: SendResult, message_ids: Sequence[str]) -> None:
        """whole: the response, whose `offset_message_id` has the ids of all messages, separated by commas.

        message_ids: the unique ids, as many.
        """
        self._whole = whole
        self._message_ids = message_ids
        self._offset_ids: list[str] | None = None

    @property
    def status(self) -> SendStatus:
        """The status of all messages."""
        return self._whole.status

    @property
    def attempts(self) -> int:
        """The number of attempts for all messages."""
        return self._whole.attempts

    def after(self, attempts: int) -> BatchResults:
        """Return the same results with another number of attempts."""
        return BatchResults(msgspec.structs.replace(self._whole, attempts=attempts), self._message_ids)

    def __len__(self) -> int:
        return len(self._message_ids)

    @overload
    def __getitem__(self, index: int) -> SendResult: ...

    @overload
    def __getitem__(self, index: slice) -> list[SendResult]: ...

    def __getitem__(self, index: int | slice) -> SendResult | list[SendResult]:
        if isinstance(index, slice):
            return list(self)[index]
        position = range(len(self))[index]
        if position == 0 and self._offset_ids is None:  # without splitting, since every batch needs this one
            return self._result(0, self._message_ids[0], self._whole.offset_message_id.partition(",")[0])
        return self._result(position, self._message_ids[position], self._split_ids()[position])

    def __iter__(self) -> Iterator[SendResult]:
        whole = self._whole
        return map(
            SendResult,
            repeat(whole.status),
            self._message_ids,
            self._split_ids(),
            repeat(whole.queue),
            count(whole.queue_offset),
            repeat(whole.transaction_id),
            repeat(whole.region),
            repeat(whole.trace_on),
            repeat(whole.attempts),
        )

    def _split_ids(self) -> list[str]:
        if self._offset_ids is None:
            self._offset_ids = self._whole.offset_message_id.split(",")
        return self._offset_ids

    def _result(self, index: int, message_id: str, offset_id: str) -> SendResult:
        whole = self._whole
        return SendResult(
            whole.status,
            message_id,
            offset_id,
            whole.queue,
            whole.queue_offset + index,
            whole.transaction_id,
            whole.region,
            whole.trace_on,
            whole.attempts,
        )


class Unfinished(NamedTuple):
    """A message that was still in flight at the end of `close`."""

    message: Message
    """The message."""
    outcome: Outcome
    """Whether it may be stored."""


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
    """The response of a broker to one pull."""

    status: PullStatus
    """Whether there were messages."""
    next_offset: int
    """The offset of the next pull."""
    min_offset: int
    """The lowest offset of the queue at that time."""
    max_offset: int
    """The offset that the next new message will get."""
    messages: list[MessageExt]
    """The messages."""
    suggested_broker_id: int = 0
    """The id of the broker to pull from next: 0 for the master, else a slave."""


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
    """The state of a client."""

    ok: bool
    """Whether there are no known problems."""
    problems: tuple[str, ...]
    """The problems, a sentence each."""
    client_id: str
    """The id of the client."""
    namesrv: str
    """The address of the current name server."""
    brokers: dict[str, bool]
    """Whether there is a connection to each known broker, by address."""
    in_flight: int = 0
    """The number of messages in flight."""
    in_flight_bytes: int = 0
    """The bytes of their bodies."""
    rejecting_batches: tuple[str, ...] = ()
    """Names of brokers that rejected the last batch. A producer sends them messages one by one, and probes
    them with a batch once a minute."""
    undecodable: int = 0
    """The number of messages that this consumer could not decode (`MessageExt.decode_error`)."""
    queues: dict[MessageQueue, QueueState] = field(default_factory=dict)
    """The state of each queue that is assigned to this consumer; for a push consumer also of the retry
    topic's."""
    less_durable: int = 0
    """The number of messages of this producer that brokers stored with another status than SEND_OK."""

    __getstate__ = get_fields
    __setstate__ = set_fields
