"""The way from a message to a send in the sender: bounds, selectors, gathering, preparing, compression."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import get_ident
from typing import Any, Final, TypeVar

from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import wrap
from rocketpy.client.routing.selectors import QueueSelector
from rocketpy.config import COMPRESSION_TYPES, ProducerConfig, check_timeout
from rocketpy.errors import BatchIncomplete, MessageInvalid, MessageTooLarge, RocketError
from rocketpy.hooks import SendEvent
from rocketpy.message.message import Message, check_message
from rocketpy.producer.send.batch import check_batch, messages_of
from rocketpy.producer.send.encoder import BatchPart
from rocketpy.producer.send.pending import (
    HalfSend,
    OnewaySend,
    ReplyMessage,
    ReplySend,
    SingleRequest,
    SingleSend,
)
from rocketpy.producer.send.publish_info import TopicPublishInfo
from rocketpy.producer.send.selected import submit_selected
from rocketpy.producer.send.sender import Sender
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.compression import compress_if_worth
from rocketpy.results import SendResult

R = TypeVar("R")


class SendDispatcher:
    """Hands one producer's messages to its sender.

    gathers: whether sends may travel together.
    limiter, new_future: the sender's. Time-outs are in ms; None stands for the producer's.
    """

    def __init__(
        self, sender: Sender, client: ClientInstance, config: ProducerConfig, *, gathers: bool
    ) -> None:
        self.sender: Final = sender
        self.limiter: Final = sender.limiter
        self.new_future: Final[Callable[[], asyncio.Future[Any]]] = sender.new_future
        self._config = config
        self._client = client
        self._gathers = gathers
        self._runs = sender.loop.is_running
        self._compress_above = config.compression.above_bytes
        self._gather_up_to = min(self._compress_above, config.max_message_bytes) if gathers else -1

    def hand_over(
        self,
        kind: type[SingleRequest[R]],
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        arg: object,
        timeout_ms: int | None,
    ) -> asyncio.Future[R]:
        """Submit one message for which there is room; return the future of its end."""
        if get_ident() != self._client.thread:  # a fifth of the time of looking for the loop itself
            self._client.check_loop()
        future: asyncio.Future[R] = self.new_future()
        if selector is None:
            self.submit(kind, message, future, queue, timeout_ms)
        else:
            self.select(kind, message, future, queue, selector, arg, timeout_ms)
        return future

    async def send(
        self,
        kind: type[SingleRequest[R]],
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        arg: object,
        timeout_ms: int | None,
    ) -> R:
        """Wait for room if need be, submit, and wait for the end. See `Producer.send`."""
        self._client.check_loop()
        timeout_ms = await self._wait_for_room(len(message.body), timeout_ms)
        return await self.hand_over(kind, message, queue, selector, arg, timeout_ms)

    async def send_half(
        self, message: Message, timeout_ms: int | None
    ) -> tuple[SendResult, Mapping[str, str]]:
        """Send a half message; return also what listeners have added to its properties."""
        self._client.check_loop()
        timeout_ms = await self._wait_for_room(len(message.body), timeout_ms)
        future: asyncio.Future[SendResult] = self.new_future()
        event = self.submit(HalfSend, message, future, None, timeout_ms)
        return await future, event.extra_properties[0] if event is not None else {}

    async def send_batch(
        self, messages: Iterable[Message], queue: MessageQueue | None, timeout_ms: int | None
    ) -> list[SendResult]:
        """Send a batch in as many requests as it takes. See `Producer.send_batch`."""
        self._client.check_loop()
        messages = messages_of(messages)
        check_batch(messages)
        if queue is not None:
            self._check_queue(queue, messages[0].topic)
        listeners = self.sender.listeners
        listeners.look()
        event = listeners.announce(messages) if listeners.all else None
        results: list[SendResult] = []
        is_given = queue is not None
        try:
            for part in self.sender.encoder.batch_parts(messages, event):
                try:
                    follows = bool(results) and not is_given
                    results += await self._send_part(part, queue, timeout_ms, event, follows=follows)
                except RocketError as error:
                    if not results:
                        raise
                    raise BatchIncomplete(results, len(messages), error) from error
                queue = results[-1].queue  # the rest follows to the same place
        except BaseException as error:
            if event is not None:
                listeners.ended(event, error)
            raise
        if event is not None:
            listeners.ended(event, results)
        return results

    def select(
        self,
        kind: type[SingleRequest[R]],
        message: Message,
        future: asyncio.Future[R],
        queue: MessageQueue | None,
        selector: QueueSelector,
        arg: object,
        timeout_ms: int | None,
    ) -> None:
        """Submit one message to the queue that a selector chooses."""
        if queue is not None:
            raise MessageInvalid(f"both queue={queue} and a selector were given; a message goes to one queue")

        def submit(chosen: MessageQueue, left_ms: int) -> None:
            self.submit(kind, message, future, chosen, left_ms)

        submit_selected(self.sender, message, future, selector, arg, self._time_for(timeout_ms), submit)

    def submit(
        self,
        kind: type[SingleRequest[Any]],
        message: Message,
        future: asyncio.Future[Any],
        queue: MessageQueue | None,
        timeout_ms: int | None,
    ) -> SendEvent | None:
        """Check one message, accept it, and send it as far as that goes without waiting.

        Returns what listeners follow, unless it was gathered.
        """
        size = len(message.body)
        sender = self.sender
        if queue is not None:
            self._check_queue(queue, message.topic)
        publish_info = sender.publish_infos[message.topic]
        timeout_ms = self._config.send_timeout_ms if timeout_ms is None else check_timeout(timeout_ms)
        listeners = sender.listeners
        if listeners.dormant and not self.limiter.count:
            listeners.look()
        if (
            kind is SingleSend
            and size <= self._gather_up_to
            and not message.delay_level
            and publish_info.may_batch
            and (self.limiter.count or not sender.accumulator.last_batch_was_single)
        ):
            if listeners.all:
                self._gather_announced(publish_info, message, future, queue, timeout_ms)
            else:
                sender.accumulator.add(publish_info, message, future, None, queue, timeout_ms)
            return None
        self._check_single(size)
        event = listeners.announce((message,), oneway=kind is OnewaySend) if listeners.all else None
        try:
            tail = sender.encoder.tail(message, event)
        except RocketError as error:
            if event is not None:
                listeners.ended(event, error)
            raise
        events = (event,) if event is not None else ()
        send = sender.encoder.single(kind, publish_info, message, future, tail, queue, timeout_ms, events)
        if self._gathers:
            sender.accumulator.flush_topic(publish_info)
        sender.accept(send)
        if size <= self._compress_above:
            sender.begin(send)
        else:
            self._compress(send)
        return event

    def _gather_announced(
        self,
        publish_info: TopicPublishInfo,
        message: Message,
        future: asyncio.Future[SendResult],
        queue: MessageQueue | None,
        timeout_ms: int,
    ) -> None:
        """Accept a message that travels with others, should there be any, and tell the listeners."""
        event = self.sender.listeners.announce((message,))
        try:
            self.sender.accumulator.add(publish_info, message, future, event, queue, timeout_ms)
        except RocketError as error:
            self.sender.listeners.ended(event, error)
            raise

    def _check_single(self, size: int) -> None:
        """See to it that a message can leave by itself, here. Raises MessageTooLarge, ClientClosed."""
        if not self._runs():  # another loop in the same thread
            self._client.check_loop()
        allowed = self._config.max_message_bytes
        if size > allowed:
            raise MessageTooLarge(f"a body of {size} bytes, {allowed} are allowed")

    def _check_queue(self, queue: MessageQueue, topic: str) -> None:
        """See to it that a queue is one of the message's topic: on the wire there is only its number."""
        if not isinstance(queue, MessageQueue):
            raise MessageInvalid(
                f"queue is {queue!r}; it must be a MessageQueue, as fetch_publish_queues gives"
            )
        namespace = self._client.config.namespace
        if queue.topic != topic and wrap(namespace, queue.topic) != wrap(namespace, topic):
            raise MessageInvalid(
                f"a message of topic {topic} cannot go to a queue of topic {queue.topic}: {queue}"
            )

    def _compress(self, send: SingleRequest[R]) -> None:
        """Compress its body, then begin. On a thread when it is long and no order would be lost by that."""
        config = self._config.compression
        if send.given is not None or send.size <= config.off_loop_above_bytes:
            send.body, send.sys_flag = compress_if_worth(
                send.body, COMPRESSION_TYPES[config.type], config.level
            )
            self.sender.begin(send)
        else:
            self._client.tasks.spawn(self._compress_on_thread(send), "compression")

    async def _compress_on_thread(self, send: SingleRequest[R]) -> None:
        config = self._config.compression
        try:
            send.body, send.sys_flag = await self.sender.loop.run_in_executor(
                None, compress_if_worth, send.body, COMPRESSION_TYPES[config.type], config.level
            )
        finally:
            # Also when that failed: the body is then as it was, and goes like that.
            self.sender.begin_late(send)

    async def _send_part(
        self,
        part: BatchPart,
        queue: MessageQueue | None,
        timeout_ms: int | None,
        event: SendEvent | None,
        *,
        follows: bool,
    ) -> Sequence[SendResult]:
        """Send one request of a batch."""
        sender = self.sender
        left_ms = self._time_for(await self._wait_for_room(len(part.body), timeout_ms))
        future: asyncio.Future[Sequence[SendResult]] = self.new_future()
        publish_info = sender.publish_infos[part.messages[0].topic]
        send = sender.encoder.batch(publish_info, part, future, queue, left_ms, event, follows=follows)
        sender.accept(send)
        sender.begin(send)
        return await future

    async def _wait_for_room(self, size: int, timeout_ms: int | None) -> int | None:
        """Wait until a body of so many bytes would be accepted; what is left of the time-out."""
        if self.limiter.refuses(size):
            return await self.limiter.wait(size, self._time_for(timeout_ms))
        return timeout_ms

    def _time_for(self, timeout_ms: int | None) -> int:
        """The caller's time-out, or the producer's. Raises ConfigInvalid."""
        return self._config.send_timeout_ms if timeout_ms is None else check_timeout(timeout_ms)


def kind_of(message: Message) -> type[SingleSend]:
    """The kind of send that a message needs: replies have one of their own. Raises MessageInvalid."""
    if type(message) is Message:  # in half the time of isinstance
        return SingleSend
    return ReplySend if isinstance(check_message(message), ReplyMessage) else SingleSend
