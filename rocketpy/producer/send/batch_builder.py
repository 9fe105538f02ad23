"""Sends of several callers that travel as one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rocketpy.hooks import SendEvent
from rocketpy.message.message import Message
from rocketpy.producer.send.pending import BatchRequest, SingleSend
from rocketpy.producer.send.publish_info import TopicPublishInfo
from rocketpy.producer.send.request_template import encoded_properties
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.results import SendResult


class CancelledMessages(NamedTuple):
    """What callers who have gone leave behind: messages, their bodies' bytes, and what listeners follow."""

    messages: int
    size: int
    events: list[SendEvent]


class BatchBuilder:
    """What is being gathered: one entry a message in `messages`, `futures`, `tails` and, with listeners,
    `events`.

    given: the queue that the callers chose. tails: the properties of each message behind the two that all
    have. has_ids: whether a message has a unique id of its own. wait: their wait_store. timeout_ms: of the
    one with the longest. size: the bodies' bytes. wire_bytes: what the stored records will take, about.
    (A class with slots, since a Struct's fields take three times as long to write.)
    """

    __slots__ = (
        "events",
        "futures",
        "given",
        "has_ids",
        "messages",
        "publish_info",
        "size",
        "tails",
        "timeout_ms",
        "wait",
        "wire_bytes",
    )

    def __init__(
        self, publish_info: TopicPublishInfo, given: MessageQueue | None, timeout_ms: int, *, wait: bool
    ) -> None:
        self.publish_info = publish_info
        self.given = given
        self.timeout_ms = timeout_ms
        self.wait = wait
        self.messages: list[Message] = []
        self.futures: list[asyncio.Future[SendResult]] = []
        self.tails: list[str] = []
        self.events: list[SendEvent] = []
        self.has_ids = False
        self.size = 0
        self.wire_bytes = 0


class ProducerBatch(BatchRequest[SendResult]):
    """As many sends as were gathered; each caller gets a result of its own.

    tails, wait: as in `BatchBuilder`.
    """

    messages: list[Message]
    message_ids: list[str]
    futures: list[asyncio.Future[SendResult]]
    tails: list[str]
    wait: bool

    @property
    def waiting(self) -> Sequence[asyncio.Future[SendResult]]:
        """A future each."""
        return self.futures

    def encoded(self) -> bytes:
        """Made for each attempt, and not kept."""
        properties = encoded_properties(self.message_ids, self.tails, wait_store=self.wait)
        return encode_batch(
            [
                (message.flag, message.body, text)
                for message, text in zip(self.messages, properties, strict=True)
            ]
        )

    def resolve(self, results: Sequence[SendResult]) -> None:
        """A result for each."""
        for future, result in zip(self.futures, results, strict=True):
            if not future.done():
                future.set_result(result)

    def ends(
        self, end: Exception | Sequence[SendResult]
    ) -> Iterable[tuple[SendEvent, BaseException | Sequence[SendResult]]]:
        """Each ended by itself."""
        for number, event in enumerate(self.events):
            if self.futures[number].cancelled():
                yield event, asyncio.CancelledError()
            else:
                yield event, end if isinstance(end, Exception) else end[number : number + 1]

    def drop_cancelled(self) -> CancelledMessages | None:
        """Part with the messages whose callers have gone; None when all are there."""
        if True not in [future.done() for future in self.futures]:
            return None
        kept = [number for number, future in enumerate(self.futures) if not future.done()]
        gone = sorted(set(range(len(self.futures))) - set(kept))
        drop_cancelled = CancelledMessages(
            len(gone),
            sum([len(self.messages[number].body) for number in gone]),
            [self.events[number] for number in gone if self.events],
        )
        self.messages = [self.messages[number] for number in kept]
        self.futures = [self.futures[number] for number in kept]
        self.tails = [self.tails[number] for number in kept]
        self.message_ids = [self.message_ids[number] for number in kept]
        self.events = [self.events[number] for number in kept if self.events]
        self.count -= drop_cancelled.messages
        self.size -= drop_cancelled.size
        return drop_cancelled

    def parts(self) -> Iterable[SingleSend]:
        """Each message as a send of its own, with the same id and what is left of the time."""
        events: Sequence[SendEvent | None] = self.events or [None] * len(self.messages)
        for message, message_id, tail, future, event in zip(
            self.messages, self.message_ids, self.tails, self.futures, events, strict=True
        ):
            yield self._part(message, message_id, tail, future, event)

    def _part(
        self,
        message: Message,
        message_id: str,
        tail: str,
        future: asyncio.Future[SendResult],
        event: SendEvent | None,
    ) -> SingleSend:
        return SingleSend(
            message,
            message_id,
            future,
            message.body,
            tail,
            owner=self.owner,
            publish_info=self.publish_info,
            size=len(message.body),
            given=self.given,
            born_ms=self.born_ms,
            accepted_ms=self.accepted_ms,
            deadline_ms=self.deadline_ms,
            events=(event,) if event is not None else (),
            attempts=self.attempts,
        )
