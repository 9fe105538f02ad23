"""Pending sends: the state of each, and the callbacks of its connection.

Each is the `Waiter` of its own request: no future, task or timer stands between the connection and the
future of the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from rocketpy.config import RetryConfig
from rocketpy.errors import RocketError
from rocketpy.hooks import SendEvent
from rocketpy.message.message import Message
from rocketpy.producer.send.publish_info import TopicPublishInfo
from rocketpy.producer.send.request_template import SendTemplate, encoded_properties, head_text
from rocketpy.producer.send.response import parse_batch_response, parse_response
from rocketpy.producer.send.retry import Attempt, AttemptEnd, ChooseQueue, SendRules, copy_of
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.results import SendResult

R = TypeVar("R")


class PendingSend(msgspec.Struct, Generic[R], eq=False, weakref=False, kw_only=True):
    """One send with all its attempts. (A Struct, because it is created faster than a plain class.)

    on_attempt_end: called with the results or the error of each attempt. size: bytes of the bodies. count:
    number of messages. The in-flight limiter counts both. chosen_queue: the caller's queue, or None. choose:
    the caller's selector, until it has chosen. born_ms: in ms since 1970; other times are of the event loop's
    clock, in ms. attempts: those that did not end in SEND_OK. queue: of the current attempt. sent_ms: when
    this attempt began, if latencies are measured. on_wire: whether its request waits for a response.
    sys_flag: compression bits.
    """

    is_oneway: ClassVar[bool] = False
    may_be_deferred: ClassVar[bool] = False
    """Whether the sender looks at the broker before it writes the request: batches and timer messages."""
    must_be_ok: ClassVar[bool] = True
    """Whether `ProducerConfig.require_send_ok` applies; otherwise the caller checks the results."""

    on_attempt_end: Callable[[PendingSend[Any], AttemptEnd], None]
    publish_info: TopicPublishInfo
    size: int
    chosen_queue: MessageQueue | None
    choose: ChooseQueue | None = None
    born_ms: int
    accepted_ms: float
    deadline_ms: float
    events: Sequence[SendEvent] = ()
    attempts: tuple[Attempt, ...] = ()
    queue: MessageQueue | None = None
    count: int = 1
    sent_ms: float = 0.0
    on_wire: bool = False
    sys_flag: int = 0

    @property
    def messages(self) -> Sequence[Message]:
        """Its messages."""
        raise NotImplementedError

    @property
    def futures(self) -> Sequence[asyncio.Future[Any]]:
        """The futures that its callers wait for; with listeners, one for each event."""
        raise NotImplementedError

    @property
    def is_cancelled(self) -> bool:
        """Whether no caller waits for it any more."""
        return all(future.done() for future in self.futures)

    def rules(self, retry: RetryConfig) -> SendRules:
        """Return the limits of this send, for `rocketpy.producer.send.retry.decide`."""
        return SendRules(self.accepted_ms, self.deadline_ms, retry, self.chosen_queue)

    def frame(self, queue_id: int, opaque: int) -> bytes:
        """Return its request as a frame with a JSON header."""
        raise NotImplementedError

    def command(self, queue_id: int) -> Command:
        """Return its request for any header codec."""
        raise NotImplementedError

    def parse(self, response: Command, queue: MessageQueue) -> Sequence[SendResult]:
        """Return the results in a response. Raises BrokerError, RemoteProtocolError."""
        raise NotImplementedError

    def resolve(self, results: Sequence[SendResult]) -> None:
        """Give the callers their results."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """Give the callers an error."""
        fail_all(self.futures, error)

    def event_outcomes(
        self, end: Exception | Sequence[SendResult]
    ) -> Iterable[tuple[SendEvent, BaseException | Sequence[SendResult]]]:
        """Yield each event with its result or error."""
        for number, (event, future) in enumerate(zip(self.events, self.futures, strict=True)):
            if future.cancelled():
                yield event, asyncio.CancelledError()
            else:
                yield event, end if isinstance(end, Exception) else end[number : number + 1]

    # -- as the Waiter of a request -----------------------------------------------------------

    def done(self) -> bool:
        """Return False: a cancelled send stays in flight until its attempt ends."""
        return False

    def set_result(self, response: Command) -> None:
        """Handle the broker's response."""
        self.on_wire = False
        queue = self.queue
        if queue is None:
            return
        end: AttemptEnd
        try:
            end = self.parse(response, queue)
        except RocketError as error:
            end = error
        self.on_attempt_end(self, end)

    def set_exception(self, error: RocketError) -> None:
        """Handle the error of a request that gets no response."""
        self.on_wire = False
        self.on_attempt_end(self, error)


class SingleRequest(PendingSend[R]):
    """One message in a request of its own.

    other_properties: all except UNIQ_KEY and WAIT. body: as sent, which may be compressed. There may be
    100,000 instances, so each holds one future, and text that can be rebuilt for a retry is not kept.
    """

    flags: ClassVar[int] = 0
    """Bits of the sysFlag that mark this kind of message."""

    message: Message
    message_id: str
    future: asyncio.Future[R]
    body: bytes
    other_properties: str

    @property
    def messages(self) -> Sequence[Message]:
        return (self.message,)

    @property
    def futures(self) -> Sequence[asyncio.Future[R]]:
        return (self.future,)

    @property
    def is_cancelled(self) -> bool:
        return self.future.done()

    @property
    def template(self) -> SendTemplate:
        """The template of its requests."""
        return self.publish_info.single

    @property
    def properties(self) -> str:
        """Its properties as sent."""
        return head_text(self.message_id, wait_store=self.message.wait_store) + self.other_properties

    def frame(self, queue_id: int, opaque: int) -> bytes:
        return self.template.frame(
            queue_id,
            self.sys_flag | self.flags,
            self.born_ms,
            self.message.flag,
            self.properties,
            opaque,
            self.body,
            oneway=self.is_oneway,
        )

    def command(self, queue_id: int) -> Command:
        return self.template.command(
            queue_id, self.sys_flag | self.flags, self.born_ms, self.message.flag, self.properties, self.body
        )


class SingleSend(SingleRequest[SendResult]):
    """A message whose caller gets a SendResult; the accumulator may put it into a batch instead."""

    def parse(self, response: Command, queue: MessageQueue) -> Sequence[SendResult]:
        return (parse_response(response, queue, self.message_id),)

    def resolve(self, results: Sequence[SendResult]) -> None:
        if not self.future.done():
            self.future.set_result(results[0])


class UnbatchedSend(SingleSend):
    """One message that is never part of a batch, even if the configuration allows batches."""


class HalfSend(UnbatchedSend):
    """A half message of a transaction, marked in its sysFlag and in its properties."""

    flags = MessageSysFlag.TRANSACTION_PREPARED
    must_be_ok = False


class ReplyMessage(Message):
    """A reply, made by `create_reply_message`. Pass it to `Producer.send`."""

    __slots__ = ()


class ReplySend(UnbatchedSend):
    """A reply: its request code makes the broker push it to the requester."""

    @property
    def template(self) -> SendTemplate:
        return self.publish_info.reply


class OnewaySend(SingleRequest[None]):
    """A one-way send: the broker does not respond."""

    is_oneway = True

    def resolve(self, results: Sequence[SendResult]) -> None:
        if not self.future.done():
            self.future.set_result(None)


class TimerSend(UnbatchedSend):
    """A timer message: its broker must be of RocketMQ 5.x, or consumers would get it at once."""

    may_be_deferred = True


class OnewayTimerSend(OnewaySend):
    """A timer message that is sent oneway."""

    may_be_deferred = True


class BatchRequest(PendingSend[R]):
    """Several messages in one request, to one queue. properties: those of the request."""

    messages: Sequence[Message]
    message_ids: Sequence[str]
    properties: str

    def encode_body(self) -> bytes:
        """Return the body of its request."""
        raise NotImplementedError

    def frame(self, queue_id: int, opaque: int) -> bytes:
        return self.publish_info.batch.frame(
            queue_id, self.sys_flag, self.born_ms, 0, self.properties, opaque, self.encode_body()
        )

    def command(self, queue_id: int) -> Command:
        return self.publish_info.batch.command(
            queue_id, self.sys_flag, self.born_ms, 0, self.properties, self.encode_body()
        )

    def parse(self, response: Command, queue: MessageQueue) -> Sequence[SendResult]:
        return parse_batch_response(response, queue, self.message_ids)


class BatchSend(BatchRequest[Sequence[SendResult]]):
    """One request of `send_batch`. follows: see `SendRules`."""

    must_be_ok = False

    body: bytes
    future: asyncio.Future[Sequence[SendResult]]
    follows: bool

    @property
    def futures(self) -> Sequence[asyncio.Future[Sequence[SendResult]]]:
        return (self.future,)

    def rules(self, retry: RetryConfig) -> SendRules:
        return SendRules(self.accepted_ms, self.deadline_ms, retry, self.chosen_queue, self.follows)

    def encode_body(self) -> bytes:
        return self.body

    def resolve(self, results: Sequence[SendResult]) -> None:
        if not self.future.done():
            self.future.set_result(results)

    def event_outcomes(
        self, end: Exception | Sequence[SendResult]
    ) -> Iterable[tuple[SendEvent, BaseException | Sequence[SendResult]]]:
        """Yield nothing: the event belongs to the whole `send_batch`, of which this may be a part."""
        return ()


class CancelledMessages(NamedTuple):
    """Totals of the cancelled messages that were removed from a batch."""

    messages: int
    size: int
    events: list[SendEvent]


class ProducerBatch(BatchRequest[SendResult]):
    """Sends of several callers in one request; each caller gets a result of its own.

    other_properties, wait_store: as in `BatchBuilder`.
    """

    may_be_deferred = True

    messages: list[Message]
    message_ids: list[str]
    futures: list[asyncio.Future[SendResult]]
    other_properties: list[str]
    wait_store: bool

    def encode_body(self) -> bytes:
        """Return the body, built for each attempt and not kept."""
        properties = encoded_properties(self.message_ids, self.other_properties, wait_store=self.wait_store)
        return encode_batch(
            [
                (message.flag, message.body, text)
                for message, text in zip(self.messages, properties, strict=True)
            ]
        )

    def resolve(self, results: Sequence[SendResult]) -> None:
        for future, result in zip(self.futures, results, strict=True):
            if not future.done():
                future.set_result(result)

    def drop_cancelled(self) -> CancelledMessages | None:
        """Remove the cancelled messages; return None if there are none."""
        cancelled = [future.done() for future in self.futures]
        if True not in cancelled:
            return None
        kept = [not done for done in cancelled]
        sizes = [len(message.body) for message in compress(self.messages, cancelled)]
        dropped = CancelledMessages(len(sizes), sum(sizes), list(compress(self.events, cancelled)))
        self.messages = list(compress(self.messages, kept))
        self.futures = list(compress(self.futures, kept))
        self.other_properties = list(compress(self.other_properties, kept))
        self.message_ids = list(compress(self.message_ids, kept))
        self.events: Sequence[SendEvent] = list(compress(self.events, kept))
        self.count: int = self.count - dropped.messages
        self.size: int = self.size - dropped.size
        return dropped

    def split(self) -> list[SingleSend]:
        """Return each message as a send of its own, with the same id and deadline."""
        events: Sequence[Sequence[SendEvent]] = [(event,) for event in self.events] or [()] * self.count
        return [
            SingleSend(
                message,
                message_id,
                future,
                message.body,
                other_properties,
                on_attempt_end=self.on_attempt_end,
                publish_info=self.publish_info,
                size=len(message.body),
                chosen_queue=self.chosen_queue,
                born_ms=self.born_ms,
                accepted_ms=self.accepted_ms,
                deadline_ms=self.deadline_ms,
                events=event,
                attempts=self.attempts,
            )
            for message, message_id, other_properties, future, event in zip(
                self.messages, self.message_ids, self.other_properties, self.futures, events, strict=True
            )
        ]


def fail_all(futures: Iterable[asyncio.Future[Any]], error: Exception) -> None:
    """Fail the futures, each with a RocketError of its own, since raising an error changes it."""
    for number, future in enumerate(futures):
        if not future.done():
            future.set_exception(copy_of(error) if number and isinstance(error, RocketError) else error)
