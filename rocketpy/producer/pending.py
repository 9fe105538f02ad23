"""A send on its way: what the producer remembers of it, and what a connection tells about it.

Each is the `Waiter` of its own request, so that no future, task or timer stands between a connection and
the caller's future.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from rocketpy.config import RetryConfig
from rocketpy.errors import RocketError
from rocketpy.hooks import SendEvent
from rocketpy.message import Message
from rocketpy.producer.answers import read_answer, read_batch_answer
from rocketpy.producer.publisher import Publisher
from rocketpy.producer.retry import Attempt, SendRules
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.command import Command
from rocketpy.results import SendResult

__all__ = ["BatchRequest", "BatchSend", "LoneSend", "OnewaySend", "Owner", "Pending", "SingleSend"]

R = TypeVar("R")


class Owner(Protocol):
    """Whom a send tells how it went."""

    def answered(self, send: Pending[Any], results: Sequence[SendResult]) -> None:
        """The broker has stored it."""

    def failed(self, send: Pending[Any], error: RocketError) -> None:
        """An attempt has failed."""


class Pending(msgspec.Struct, Generic[R], eq=False, weakref=False):
    """One send with all its attempts. (A Struct, since making one is a third of the time of a plain class.)

    messages, message_ids: what is sent, and the unique ids. futures: what the callers wait for. body: of the
    request. size, count: how it counts against the bounds. given: the queue that the caller chose. events: a
    listener's. queue: that of the current attempt. sent_ms: when that began, where it matters. on_wire:
    whether an attempt waits for its answer now.
    """

    owner: Owner
    publisher: Publisher
    messages: Sequence[Message]
    message_ids: Sequence[str]
    futures: Sequence[asyncio.Future[R]]
    body: bytes
    size: int
    properties: str
    flag: int
    given: MessageQueue | None
    born_ms: int
    accepted_ms: float
    deadline_ms: float
    events: Sequence[SendEvent] = ()
    sys_flag: int = 0
    attempts: tuple[Attempt, ...] = ()
    queue: MessageQueue | None = None
    count: int = 1
    sent_ms: float = 0.0
    on_wire: bool = False

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for it any more."""
        return all(future.done() for future in self.futures)

    def rules(self, retry: RetryConfig) -> SendRules:
        """What `decide` has to know of it."""
        return SendRules(self.accepted_ms, self.deadline_ms, retry, self.given)

    def frame(self, queue_id: int, opaque: int) -> bytes:
        """Its request with a JSON header."""
        return self.publisher.single.frame(
            queue_id, self.sys_flag, self.born_ms, self.flag, self.properties, opaque, self.body
        )

    def command(self, queue_id: int) -> Command:
        """Its request for any header codec."""
        return self.publisher.single.command(
            queue_id, self.sys_flag, self.born_ms, self.flag, self.properties, self.body
        )

    def results(self, answer: Command, queue: MessageQueue) -> Sequence[SendResult]:
        """What an answer means. Raises BrokerError, RemoteProtocolError."""
        raise NotImplementedError

    def resolve(self, results: Sequence[SendResult]) -> None:
        """Give the callers what they wait for."""
        raise NotImplementedError

    def fail(self, error: RocketError) -> None:
        """Give the callers an error."""
        for future in self.futures:
            if not future.done():
                future.set_exception(error)

    def ends(
        self, end: RocketError | Sequence[SendResult]
    ) -> Iterable[tuple[SendEvent, BaseException | Sequence[SendResult]]]:
        """How it ended, for the listeners."""
        for event, future in zip(self.events, self.futures, strict=True):
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


class SingleSend(Pending[SendResult]):
    """One message."""

    def results(self, answer: Command, queue: MessageQueue) -> Sequence[SendResult]:
        """One result."""
        return (read_answer(answer, queue, self.message_ids[0]),)

    def resolve(self, results: Sequence[SendResult]) -> None:
        """The future of `send`."""
        future = self.futures[0]
        if not future.done():
            future.set_result(results[0])


class LoneSend(SingleSend):
    """One message that never travels with others, whatever the settings say."""


class BatchRequest(Pending[R]):
    """Several messages in one request, to one queue."""

    def frame(self, queue_id: int, opaque: int) -> bytes:
        """A batch has its own request code."""
        return self.publisher.batch.frame(queue_id, 0, self.born_ms, 0, self.properties, opaque, self.body)

    def command(self, queue_id: int) -> Command:
        """The same for any header codec."""
        return self.publisher.batch.command(queue_id, 0, self.born_ms, 0, self.properties, self.body)

    def results(self, answer: Command, queue: MessageQueue) -> Sequence[SendResult]:
        """One result a message."""
        return read_batch_answer(answer, queue, self.message_ids)


class BatchSend(BatchRequest[Sequence[SendResult]]):
    """One request of `send_batch`."""

    def resolve(self, results: Sequence[SendResult]) -> None:
        """One future for all."""
        if not self.futures[0].done():
            self.futures[0].set_result(results)

    def ends(
        self, end: RocketError | Sequence[SendResult]
    ) -> Iterable[tuple[SendEvent, BaseException | Sequence[SendResult]]]:
        """None: its event is the whole batch's, of which this may be a part."""
        return ()


class OnewaySend(Pending[None]):
    """A message whose answer nobody gets."""

    def frame(self, queue_id: int, opaque: int) -> bytes:
        """A request that says so."""
        return self.publisher.single.oneway_frame(
            queue_id, self.sys_flag, self.born_ms, self.flag, self.properties, self.body
        )

    def resolve(self, results: Sequence[SendResult]) -> None:
        """It was written."""
        if not self.futures[0].done():
            self.futures[0].set_result(None)
