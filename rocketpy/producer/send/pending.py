"""Pending sends: the state of each, and the callbacks of its connection.

A send is the `Waiter` of its own request: no future, task or timer stands between the connection and the
futures of the callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from rocketpy.config import RetryConfig
from rocketpy.errors import InvariantError, RocketError
from rocketpy.hooks import SendEvent
from rocketpy.message.message import Message
from rocketpy.message.timers import find_timer
from rocketpy.producer.send.publish_info import TopicPublishInfo
from rocketpy.producer.send.request_template import SendTemplate, encoded_properties, head_text
from rocketpy.producer.send.response import parse_batch_response, parse_response
from rocketpy.producer.send.retry import Attempt, AttemptEnd, ChooseQueue, SendRules, copy_of
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.results import SendResult

NOW: Final = -1
"""Instead of a delay level: a timer message is due."""


@dataclass(frozen=True, slots=True, eq=False)
class SendKind:
    """What distinguishes the kinds of sends. (Slots are read three times as fast as a NamedTuple.)"""

    name: str
    may_join: bool = False
    """Whether the accumulator may put the message into a batch."""
    is_batch: bool = False
    """Whether its request is a batch."""
    is_oneway: bool = False
    """Whether the broker does not respond."""
    is_timer: bool = False
    """Whether the broker must be of RocketMQ 5.x, or consumers would get the message immediately."""
    must_be_ok: bool = True
    """Whether `ProducerConfig.require_send_ok` applies; otherwise the caller checks the results."""
    flags: int = 0
    """Bits of the sysFlag that mark the kind."""


SINGLE: Final = SendKind("single", may_join=True)
"""One message whose caller gets a SendResult."""
UNBATCHED: Final = SendKind("unbatched")
"""The same, but never part of a batch."""
REPLY: Final = SendKind("reply")
"""A reply: its request code makes the broker push it to the requester."""
HALF: Final = SendKind("half", must_be_ok=False, flags=MessageSysFlag.TRANSACTION_PREPARED)
"""A half message of a transaction, marked in its sysFlag and in its properties."""
ONEWAY: Final = SendKind("oneway", is_oneway=True)
"""One message without a response."""
TIMER: Final = SendKind("timer", is_timer=True)
"""One timer message."""
ONEWAY_TIMER: Final = SendKind("oneway timer", is_oneway=True, is_timer=True)
"""One timer message without a response."""
GATHERED: Final = SendKind("gathered", is_batch=True)
"""Messages of several callers in one request; each caller gets a result of its own."""
PART: Final = SendKind("part", is_batch=True, must_be_ok=False)
"""One request of a `send_batch`, with one future for all its results."""


class SendHolder(Protocol):
    """Holds sends that wait for a broker: a sink."""

    def forget(self, send: PendingSend) -> str:
        """Remove a send; return what it has waited for, in words."""


class SendOwner(Protocol):
    """Decides over a send: the sender."""

    def park(self, send: PendingSend, holder: SendHolder) -> None:
        """Let a send wait until `claim`, at most until its deadline; then `holder` forgets it."""

    def claim(self, send: PendingSend) -> bool:
        """End the wait of a send; return whether it is still to be sent."""

    def attempt_ended(self, send: PendingSend, end: AttemptEnd | Exception) -> None:
        """Handle the results or the error of an attempt."""

    def oneway_written(self, send: PendingSend) -> None:
        """End a send that gets no response, at the end of the event loop iteration."""


class PendingSend(msgspec.Struct, eq=False, weakref=False):
    """One send with all its attempts. (A Struct, because it is created faster than a plain class.)

    What can be built for each attempt is not kept, since there may be 100,000 instances. Times other than
    `born_ms` are of the event loop's clock, in ms.
    """

    kind: SendKind
    publish_info: TopicPublishInfo
    """Of its topic."""
    template: SendTemplate
    """Makes its requests."""
    messages: Sequence[Message]
    """The caller's messages."""
    message_ids: Sequence[str]
    """One for each message."""
    futures: Sequence[asyncio.Future[Any]]
    """Those of the callers: one for each message, one in all for a `send_batch`."""
    properties: str
    """Of its request; for a single message, all except UNIQ_KEY and WAIT."""
    body: bytes | None
    """Of its request, maybe compressed; None in a batch of several callers."""
    size: int
    """Bytes of the bodies."""
    born_ms: int
    """In ms since 1970."""
    accepted_ms: float
    deadline_ms: float
    chosen_queue: MessageQueue | None = None
    """That of the caller, or of earlier requests of the same `send_batch`; or None."""
    events: Sequence[SendEvent] = ()
    """Of the listeners, also one for each message."""
    count: int = 1
    """Number of messages; the in-flight limiter counts it and `size`."""
    flag: int = 0
    """Of its request."""
    sys_flag: int = 0
    """Of its request."""
    other_properties: Sequence[str] = ()
    """Of each message in a batch of several callers, all except UNIQ_KEY and WAIT."""
    choose: ChooseQueue | None = None
    """The caller's selector, until it has chosen."""
    follows: bool = False
    """Whether `chosen_queue` is that of earlier requests of the same `send_batch`, not the caller's."""
    waits_for: str = ""
    """What it waits for besides the route, for the error of a timeout; or empty."""
    precedes: bool = False
    """Whether it was part of a rejected batch, and goes before the sends that wait for the same broker."""
    attempts: tuple[Attempt, ...] = ()
    """Those that did not end in SEND_OK."""
    queue: MessageQueue | None = None
    """Of the current attempt."""
    sent_ms: float = 0.0
    """When the current attempt was written."""
    load: int = 0
    """What was in flight then, if its round trip is measured."""
    on_response: Callable[[PendingSend, AttemptEnd], None] | None = None
    """Called with the results or the error of its request; None unless that waits for a response."""
    level: int = 0
    """Delay level that stands for the timer in `properties`; 0 if they have the timer of the message, NOW if
    they have neither."""

    @property
    def is_cancelled(self) -> bool:
        """Whether no caller waits for it any more."""
        return all(future.done() for future in self.futures)

    def rules(self, retry: RetryConfig) -> SendRules:
        """Return the limits of this send, for `rocketpy.producer.send.retry.decide`."""
        return SendRules(
            self.accepted_ms, self.deadline_ms, retry, self.chosen_queue, self.follows, self.waits_for
        )

    # -- its request --------------------------------------------------------------------------

    def use_level(self, level: int) -> None:
        """Put a delay level into the properties of a timer message; 0 for the timer, NOW for neither."""
        if level != self.level:
            # The separator in front: another property's name may end in the same text.
            text = f"\x02{self.properties}"
            self.properties = text.replace(self._timer_text(self.level), self._timer_text(level), 1)[1:]
            self.level = level

    def _timer_text(self, level: int) -> str:
        if level == NOW:
            return "\x02"
        if level:
            return f"\x02DELAY\x01{level}\x02"
        properties = self.messages[0].properties
        name = find_timer(properties) or ""
        return f"\x02{name}\x01{properties.get(name)}\x02"

    def frame(self, opaque: int) -> bytes:
        """Return its request to `queue` as a frame with a JSON header."""
        queue, kind, properties, body = self.queue, self.kind, self.properties, self.body
        if queue is None:
            raise InvariantError("a request is encoded before its queue is chosen")
        if not kind.is_batch:
            properties = head_text(self.message_ids[0], wait_store=self.messages[0].wait_store) + properties
        return self.template.frame(
            queue.queue_id,
            self.sys_flag,
            self.born_ms,
            self.flag,
            properties,
            opaque,
            self._batch_body() if body is None else body,
            oneway=kind.is_oneway,
        )

    def command(self) -> Command:
        """Return its request to `queue` for any header codec."""
        queue, properties = self.queue, self.properties
        if queue is None:
            raise InvariantError("a request is encoded before its queue is chosen")
        if not self.kind.is_batch:
            properties = head_text(self.message_ids[0], wait_store=self.messages[0].wait_store) + properties
        body = self._batch_body() if self.body is None else self.body
        return self.template.command(queue.queue_id, self.sys_flag, self.born_ms, self.flag, properties, body)

    def _batch_body(self) -> bytes:
        messages = self.messages
        wait_store = messages[0].wait_store
        properties = encoded_properties(self.message_ids, self.other_properties, wait_store=wait_store)
        flags, bodies = [message.flag for message in messages], [message.body for message in messages]
        return encode_batch(zip(flags, bodies, properties, strict=True))

    # -- as the Waiter of its request ---------------------------------------------------------

    def done(self) -> bool:
        """Return False: a cancelled send stays in flight until its attempt ends."""
        return False

    def set_result(self, response: Command) -> None:
        """Handle the broker's response."""
        queue, on_response = self.queue, self.on_response
        self.on_response = None
        if queue is None or on_response is None:
            return
        end: AttemptEnd
        try:
            if self.kind.is_batch:
                end = parse_batch_response(response, queue, self.message_ids)
            else:
                end = (parse_response(response, queue, self.message_ids[0]),)
        except RocketError as error:
            end = error
        on_response(self, end)

    def set_exception(self, error: RocketError) -> None:
        """Handle the error of a request that gets no response."""
        on_response, self.on_response = self.on_response, None
        if on_response is not None:
            on_response(self, error)

    # -- its end ------------------------------------------------------------------------------

    def resolve(self, results: Sequence[SendResult]) -> None:
        """Give the callers their results. A oneway send has none."""
        kind = self.kind
        if kind is GATHERED:
            for future, result in zip(self.futures, results, strict=True):
                if not future.done():
                    future.set_result(result)
            return
        value = results if kind is PART else None if kind.is_oneway else results[0]
        if not self.futures[0].done():
            self.futures[0].set_result(value)

    def fail(self, error: Exception) -> None:
        """Give the callers an error, each a RocketError of its own, since raising an error changes it."""
        for number, future in enumerate(self.futures):
            if not future.done():
                own = copy_of(error) if number and isinstance(error, RocketError) else error
                future.set_exception(own)

    def event_outcomes(
        self, end: Exception | Sequence[SendResult]
    ) -> Iterable[tuple[SendEvent, BaseException | Sequence[SendResult]]]:
        """Yield each event with its result or error.

        Yields nothing for a request of `send_batch`: the event belongs to the whole batch.
        """
        if self.kind is PART:
            return
        for number, (event, future) in enumerate(zip(self.events, self.futures, strict=True)):
            if future.cancelled():
                yield event, asyncio.CancelledError()
            else:
                yield event, end if isinstance(end, Exception) else end[number : number + 1]

    # -- batches of several callers -----------------------------------------------------------

    def drop_cancelled(self) -> CancelledMessages | None:
        """Remove the cancelled messages of a batch of several callers; return None if there are none."""
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
        self.events = list(compress(self.events, kept))
        self.attempts = _attempts_for(self.attempts, kept)
        self.count -= dropped.messages
        self.size -= dropped.size
        return dropped

    def split(self) -> list[PendingSend]:
        """Return each message of a rejected batch as a send of its own, with the same id and deadline."""
        events: Sequence[Sequence[SendEvent]] = [(event,) for event in self.events] or [()] * self.count
        indexes = range(self.count)
        return [
            msgspec.structs.replace(
                self,
                kind=SINGLE,
                template=self.publish_info.single,
                messages=(message,),
                message_ids=(message_id,),
                futures=(future,),
                properties=other_properties,
                other_properties=(),
                flag=message.flag,
                body=message.body,
                size=len(message.body),
                count=1,
                events=event,
                attempts=_attempts_for(self.attempts, [other == index for other in indexes]),
                precedes=True,
            )
            for index, message, message_id, other_properties, future, event in zip(
                indexes,
                self.messages,
                self.message_ids,
                self.other_properties,
                self.futures,
                events,
                strict=True,
            )
        ]


def _attempts_for(attempts: tuple[Attempt, ...], kept: Sequence[bool]) -> tuple[Attempt, ...]:
    """Return the attempts of a batch as those of a part of its messages: an attempt may have stored it."""
    return tuple(
        attempt
        if isinstance(attempt.end, RocketError)
        else replace(attempt, end=list(compress(attempt.end, kept)))
        for attempt in attempts
    )


class CancelledMessages(NamedTuple):
    """Totals of the cancelled messages that were removed from a batch."""

    messages: int
    size: int
    events: list[SendEvent]


class ReplyMessage(Message):
    """A reply, made by `create_reply_message`. Pass it to `Producer.send`."""

    __slots__ = ()
