"""A send on its way: what the producer remembers of it, and what a connection tells about it.

Each is the `Waiter` of its own request, so that no future, task or timer stands between a connection and
the caller's future.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from rocketpy.config import RetryConfig
from rocketpy.errors import RocketError
from rocketpy.hooks import SendEvent
from rocketpy.message.message import Message
from rocketpy.producer.send.publish_info import TopicPublishInfo
from rocketpy.producer.send.request_template import SendTemplate, head_text
from rocketpy.producer.send.response import parse_batch_response, parse_response
from rocketpy.producer.send.retry import Attempt, SendRules, copy_of
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.results import SendResult

R = TypeVar("R")


class Owner(Protocol):
    """Whom a send tells how it went."""

    def answered(self, send: PendingSend[Any], results: Sequence[SendResult]) -> None:
        """The broker has stored it."""

    def failed(self, send: PendingSend[Any], error: RocketError) -> None:
        """An attempt has failed."""


class PendingSend(msgspec.Struct, Generic[R], eq=False, weakref=False, kw_only=True):
    """One send with all its attempts. (A Struct, since making one is a third of the time of a plain class.)

    size, count: how it counts against the bounds. given: the queue that the caller chose. events: a
    listener's. queue: that of the current attempt. sent_ms: when that began, where it matters. on_wire:
    whether an attempt waits for its answer now.
    """

    owner: Owner
    publish_info: TopicPublishInfo
    size: int
    given: MessageQueue | None
    born_ms: int
    accepted_ms: float
    deadline_ms: float
    events: Sequence[SendEvent] = ()
    attempts: tuple[Attempt, ...] = ()
    queue: MessageQueue | None = None
    count: int = 1
    sent_ms: float = 0.0
    on_wire: bool = False

    @property
    def sent(self) -> Sequence[Message]:
        """Its messages."""
        raise NotImplementedError

    @property
    def waiting(self) -> Sequence[asyncio.Future[Any]]:
        """What its callers wait for; with listeners, one an event."""
        raise NotImplementedError

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for it any more."""
        return all(future.done() for future in self.waiting)

    def rules(self, retry: RetryConfig) -> SendRules:
        """What `decide` has to know of it."""
        return SendRules(self.accepted_ms, self.deadline_ms, retry, self.given)

    def frame(self, queue_id: int, opaque: int) -> bytes:
        """Its request with a JSON header."""
        raise NotImplementedError

    def command(self, queue_id: int) -> Command:
        """Its request for any header codec."""
        raise NotImplementedError

    def results(self, answer: Command, queue: MessageQueue) -> Sequence[SendResult]:
        """What an answer means. Raises BrokerError, RemoteProtocolError."""
        raise NotImplementedError

    def resolve(self, results: Sequence[SendResult]) -> None:
        """Give the callers what they wait for."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """Give the callers an error."""
        fail_all(self.waiting, error)

    def ends(
        self, end: Exception | Sequence[SendResult]
    ) -> Iterable[tuple[SendEvent, BaseException | Sequence[SendResult]]]:
        """How it ended, for the listeners."""
        for event, future in zip(self.events, self.waiting, strict=True):
            yield event, asyncio.CancelledError() if future.cancelled() else end

    # -- as the Waiter of a request -----------------------------------------------------------

    def done(self) -> bool:
        """Never: a send whose caller has gone still has to be taken off the bounds."""
        return False

    def set_result(self, answer: Command) -> None:
        """Take the broker's answer."""
        self.on_wire = False
        queue = self.queue
        if queue is None:
            return
        try:
            results = self.results(answer, queue)
        except RocketError as error:
            self.owner.failed(self, error)
        else:
            self.owner.answered(self, results)

    def set_exception(self, error: RocketError) -> None:
        """Take the reason why there is no answer."""
        self.on_wire = False
        self.owner.failed(self, error)


class SingleRequest(PendingSend[R]):
    """One message in a request of its own.

    tail: its properties behind the two that all messages have. body, sys_flag: as they travel; they differ
    from the message's when that is compressed. (A future and not several, and no text that can be made again
    for another attempt: there may be 100,000 of these.)
    """

    flags: ClassVar[int] = 0
    """Of this kind of message, for the sysFlag."""

    message: Message
    message_id: str
    future: asyncio.Future[R]
    body: bytes
    tail: str
    sys_flag: int = 0

    @property
    def sent(self) -> Sequence[Message]:
        """The message."""
        return (self.message,)

    @property
    def waiting(self) -> Sequence[asyncio.Future[R]]:
        """The future."""
        return (self.future,)

    @property
    def is_cancelled(self) -> bool:
        """Whether its caller has gone."""
        return self.future.done()

    @property
    def template(self) -> SendTemplate:
        """Makes its requests."""
        return self.publish_info.single

    @property
    def properties(self) -> str:
        """Its properties as they travel."""
        return head_text(self.message_id, wait_store=self.message.wait_store) + self.tail

    def frame(self, queue_id: int, opaque: int) -> bytes:
        """Its request with a JSON header."""
        return self.template.frame(
            queue_id,
            self.sys_flag | self.flags,
            self.born_ms,
            self.message.flag,
            self.properties,
            opaque,
            self.body,
        )

    def command(self, queue_id: int) -> Command:
        """Its request for any header codec."""
        return self.template.command(
            queue_id, self.sys_flag | self.flags, self.born_ms, self.message.flag, self.properties, self.body
        )


class SingleSend(SingleRequest[SendResult]):
    """One message."""

    def results(self, answer: Command, queue: MessageQueue) -> Sequence[SendResult]:
        """One result."""
        return (parse_response(answer, queue, self.message_id),)

    def resolve(self, results: Sequence[SendResult]) -> None:
        """The future of `send`."""
        if not self.future.done():
            self.future.set_result(results[0])


class UnbatchedSend(SingleSend):
    """One message that never travels with others, whatever the settings say."""


class HalfSend(SingleSend):
    """A half message: the bits in its sysFlag say so, beside the properties. Never part of a batch."""

    flags = MessageSysFlag.TRANSACTION_PREPARED


class ReplyMessage(Message):
    """A reply, made by `create_reply_message`. Give it to `Producer.send`."""

    __slots__ = ()


class ReplySend(SingleSend):
    """A reply: its request code makes the broker push it. Never part of a batch."""

    @property
    def template(self) -> SendTemplate:
        """Makes its requests."""
        return self.publish_info.reply


class OnewaySend(SingleRequest[None]):
    """A message whose answer nobody gets."""

    def frame(self, queue_id: int, opaque: int) -> bytes:
        """A request that says so."""
        return self.template.oneway_frame(
            queue_id, self.sys_flag | self.flags, self.born_ms, self.message.flag, self.properties, self.body
        )

    def resolve(self, results: Sequence[SendResult]) -> None:
        """It was written."""
        if not self.future.done():
            self.future.set_result(None)


class BatchRequest(PendingSend[R]):
    """Several messages in one request, to one queue. properties: those of the request."""

    messages: Sequence[Message]
    message_ids: Sequence[str]
    properties: str

    @property
    def sent(self) -> Sequence[Message]:
        """The messages."""
        return self.messages

    def encoded(self) -> bytes:
        """The body of its request."""
        raise NotImplementedError

    def frame(self, queue_id: int, opaque: int) -> bytes:
        """A batch has its own request code."""
        return self.publish_info.batch.frame(
            queue_id, 0, self.born_ms, 0, self.properties, opaque, self.encoded()
        )

    def command(self, queue_id: int) -> Command:
        """The same for any header codec."""
        return self.publish_info.batch.command(queue_id, 0, self.born_ms, 0, self.properties, self.encoded())

    def results(self, answer: Command, queue: MessageQueue) -> Sequence[SendResult]:
        """One result a message."""
        return parse_batch_response(answer, queue, self.message_ids)


class BatchSend(BatchRequest[Sequence[SendResult]]):
    """One request of `send_batch`. follows: see `SendRules`."""

    body: bytes
    future: asyncio.Future[Sequence[SendResult]]
    follows: bool

    def rules(self, retry: RetryConfig) -> SendRules:
        """See `PendingSend`."""
        return SendRules(self.accepted_ms, self.deadline_ms, retry, self.given, self.follows)

    @property
    def waiting(self) -> Sequence[asyncio.Future[Sequence[SendResult]]]:
        """One future for all."""
        return (self.future,)

    def encoded(self) -> bytes:
        """As it was cut."""
        return self.body

    def resolve(self, results: Sequence[SendResult]) -> None:
        """One list for all."""
        if not self.future.done():
            self.future.set_result(results)

    def ends(
        self, end: Exception | Sequence[SendResult]
    ) -> Iterable[tuple[SendEvent, BaseException | Sequence[SendResult]]]:
        """None: its event is the whole batch's, of which this may be a part."""
        return ()


def fail_all(futures: Iterable[asyncio.Future[Any]], error: Exception) -> None:
    """Give each caller an error: a RocketError of its own, since raising one writes into it."""
    for number, future in enumerate(futures):
        if not future.done():
            future.set_exception(copy_of(error) if number and isinstance(error, RocketError) else error)
