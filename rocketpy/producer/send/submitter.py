"""Checks messages, waits for the in-flight limits and calls selectors; then passes messages on.

A message goes to the accumulator if it may be batched, or else to the sender.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from threading import get_ident
from typing import Any

from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import wrap
from rocketpy.client.routing.selectors import QueueSelector
from rocketpy.config import ProducerConfig, check_timeout
from rocketpy.errors import (
    BatchIncomplete,
    MessageInvalid,
    MessageTooLarge,
    NotDurable,
    RocketError,
)
from rocketpy.hooks import SendEvent
from rocketpy.message.columns import MessageColumns
from rocketpy.message.encoded import EncodedBatch
from rocketpy.message.message import Message, check_message
from rocketpy.message.timers import check_timer, find_timer, shown_timer
from rocketpy.producer.listeners import Listeners
from rocketpy.producer.send.accumulator import Accumulator
from rocketpy.producer.send.encoder import BatchPart, MessageEncoder
from rocketpy.producer.send.flow_control import InFlightLimiter
from rocketpy.producer.send.pending import (
    HALF,
    ONEWAY_TIMER,
    REPLY,
    SINGLE,
    TIMER,
    ReplyMessage,
    SendKind,
)
from rocketpy.producer.send.publish_info import PublishInfoTable
from rocketpy.producer.send.response import are_ok
from rocketpy.producer.send.retry import ChooseQueue
from rocketpy.producer.send.sender import Sender
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.properties import PROPERTY_MESSAGE_TYPE, RETRY_TOPIC_PREFIX
from rocketpy.results import SendResult
from rocketpy.runtime.application import describe, ends_program, name_of, shown


@dataclass(eq=False)
class Submitter:
    """Checks one producer's messages and passes them on. Timeouts are in ms; None stands for that of the
    producer.
    """

    client: ClientInstance
    config: ProducerConfig
    limiter: InFlightLimiter
    publish_infos: PublishInfoTable
    listeners: Listeners
    accumulator: Accumulator
    encoder: MessageEncoder
    sender: Sender
    _: KW_ONLY
    batching: bool
    """Whether sends may share a request."""

    def __post_init__(self) -> None:
        self._batch_up_to = (
            min(self.config.compression.above_bytes, self.config.max_message_bytes) if self.batching else -1
        )
        self._loop = asyncio.get_running_loop()
        self._new_future: Callable[[], asyncio.Future[Any]] = partial(asyncio.Future, loop=self._loop)

    def submit(
        self,
        kind: SendKind,
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        arg: object,
        timeout_ms: int | None,
    ) -> asyncio.Future[SendResult]:
        """Send one message that the in-flight limiter allows; return the future of its result.

        The future of a oneway send ends with None.
        """
        if get_ident() != self.client.thread:  # cheaper than a look for the running loop
            self.client.check_loop()
        future: asyncio.Future[SendResult] = self._new_future()
        choose: ChooseQueue | None = None
        if selector is not None:
            if queue is not None:
                raise MessageInvalid(f"both queue={queue} and a selector were given; pass only one of them")
            choose = partial(self._choose, selector, message, arg)
            route = self.publish_infos[message.topic].view.route
            if route is not None and route.queues:
                queue, choose = choose(route.queues, 0, None), None
        self._submit(kind, message, future, queue, timeout_ms, choose)
        return future

    async def send_half(
        self, message: Message, timeout_ms: int | None
    ) -> tuple[SendResult, Mapping[str, str]]:
        """Send a half message; return its result, and the properties that listeners have added."""
        timeout_ms = await self.wait_for_limiter(message, timeout_ms)
        future: asyncio.Future[SendResult] = self._new_future()
        event = self._submit(HALF, message, future, None, timeout_ms)
        return await future, event.extra_properties[0] if event is not None else {}

    async def send_batch(
        self, messages: Iterable[Message], queue: MessageQueue | None, timeout_ms: int | None
    ) -> Sequence[SendResult]:
        """Send a batch in as many requests as it needs; see `Producer.send_batch`."""
        self.client.check_loop()
        messages = messages_of(messages)
        topic = check_batch(messages)
        if queue is not None:
            self._check_queue(queue, topic)
        publish_info = self.publish_infos[topic]
        listeners = self.listeners
        listeners.dormant.check_if_due()
        event = listeners.announce(messages) if listeners.all else None
        results: Sequence[SendResult] = ()
        is_given = queue is not None
        try:
            for part in await self.encoder.batch_parts(messages, event, ordered=is_given):
                try:
                    left_ms = self._time_for(await self.wait_for_limiter(part, timeout_ms))
                    future: asyncio.Future[Sequence[SendResult]] = self._new_future()
                    follows = bool(results) and not is_given
                    events = () if event is None else (event,)
                    send = self.encoder.part(
                        publish_info, part, future, queue, left_ms, events, follows=follows
                    )
                    self.limiter.acquire(send.size)
                    self.sender.start(send)
                    found = await future
                    results = [*results, *found] if results else found
                except RocketError as error:
                    if not results:
                        raise
                    raise BatchIncomplete(results, len(messages), error) from error
                queue = results[0].queue  # all later requests go to the same queue
        except BaseException as error:  # the listeners get its end, also when cancelled
            listeners.ended(event, error)
            raise
        if self.config.require_send_ok and not are_ok(results):
            not_durable = NotDurable(results)
            listeners.ended(event, not_durable)
            raise not_durable
        listeners.ended(event, results)
        return results

    def flush(self) -> None:
        """Send the open batches."""
        self.accumulator.flush()

    def close(self, reason: RocketError) -> None:
        """Reject new sends with the reason, and send the open batches."""
        self.limiter.close(reason)
        self.accumulator.flush()

    def _submit(
        self,
        kind: SendKind,
        message: Message,
        future: asyncio.Future[Any],
        queue: MessageQueue | None,
        timeout_ms: int | None,
        choose: ChooseQueue | None = None,
    ) -> SendEvent | None:
        """Check one message, and pass it on to the accumulator or the sender.

        choose: the selector of a message whose route is not known yet. Returns the event of the listeners
        for a message that is sent individually.
        """
        size = len(message.body)
        if queue is not None:
            self._check_queue(queue, message.topic)
        publish_info = self.publish_infos[message.topic]
        timeout_ms = self.config.send_timeout_ms if timeout_ms is None else check_timeout(timeout_ms)
        listeners = self.listeners
        if not self.limiter.count:
            listeners.dormant.check_if_due()
        if message.properties and (timer := find_timer(message.properties)) is not None:
            kind = _timer_kind(kind, message, timer)
        batched = (
            kind.may_join
            and size <= self._batch_up_to
            and not message.delay_level
            and publish_info.may_batch
            and (self.limiter.count or not self.accumulator.last_batch_was_single)
            and choose is None
        )
        if not batched:
            if not self._loop.is_running():  # another loop in the same thread
                self.client.check_loop()
            if size > (allowed := self.config.max_message_bytes):
                raise MessageTooLarge(f"the body has {size} bytes; {allowed} are allowed")
            if message.delay_level > self.config.max_delay_level:
                raise MessageInvalid(
                    f"delay level {message.delay_level} is above {self.config.max_delay_level}, the last "
                    "one of brokers (max_delay_level); DelayLevels.level_for gives the level of a time"
                )
        event = listeners.announce((message,), oneway=kind.is_oneway) if listeners.all else None
        try:
            if batched:
                self.accumulator.add(publish_info, message, future, event, queue, timeout_ms)
                return None
            send = self.encoder.single(kind, publish_info, message, future, event, queue, timeout_ms, choose)
        except RocketError as error:
            listeners.ended(event, error)
            raise
        if self.accumulator.open:
            self.accumulator.flush_topic(publish_info)
        self.limiter.acquire(size)
        compressed: asyncio.Future[None] | None = None
        if size > self.encoder.compress_above:
            compressed = self.encoder.compress(send, ordered=queue is not None or choose is not None)
        self.sender.start(send, compressed)
        return event

    def _choose(
        self,
        selector: QueueSelector,
        message: Message,
        arg: object,
        queues: Sequence[MessageQueue],
        _index: int,
        _failed_broker: str | None,
    ) -> MessageQueue:
        """Return the selector's queue. Raises its errors, and MessageInvalid for a wrong result."""
        try:
            queue = selector(queues, message, arg)
        except BaseException as error:  # the application's code
            if ends_program(error) or (isinstance(error, Exception) and not isinstance(error, StopIteration)):
                raise
            # A future cannot raise StopIteration, and another task must not end by GeneratorExit.
            raise RuntimeError(f"the selector {name_of(selector)} failed: {describe(error)}") from error
        if not isinstance(queue, MessageQueue):
            raise MessageInvalid(
                f"the selector {name_of(selector)} returned {shown(queue)}; it must return a queue of those "
                f"it was given (its arg was {shown(arg)})"
            )
        self._check_queue(queue, message.topic)
        return queue

    # -- checks and timeouts ------------------------------------------------------------------

    def _check_queue(self, queue: MessageQueue, topic: str) -> None:
        """Raise MessageInvalid unless the queue is of the topic: a request has only its queue id."""
        if not isinstance(queue, MessageQueue):
            raise MessageInvalid(
                f"queue is {queue!r}; it must be a MessageQueue, such as fetch_publish_message_queues returns"
            )
        namespace = self.client.config.namespace
        if queue.topic != topic and wrap(namespace, queue.topic) != wrap(namespace, topic):
            raise MessageInvalid(
                f"a message of topic {topic} cannot go to a queue of topic {queue.topic}: {queue}"
            )

    async def wait_for_limiter(self, content: Message | BatchPart, timeout_ms: int | None) -> int | None:
        """Wait until the in-flight limiter allows a body; return the rest of the timeout in ms.

        Returns None when `timeout_ms` is None and there was no wait. Raises FlowControlled, ClientClosed.
        """
        self.client.check_loop()
        size = len(content.body)
        if self.limiter.would_block(size):
            return await self.limiter.wait(size, self._time_for(timeout_ms))
        return timeout_ms

    def _time_for(self, timeout_ms: int | None) -> int:
        """Return the caller's timeout, or that of the producer. Raises ConfigInvalid."""
        return self.config.send_timeout_ms if timeout_ms is None else check_timeout(timeout_ms)


def kind_of(message: Message) -> SendKind:
    """Return the kind of the send of a message of any class. Raises MessageInvalid."""
    return REPLY if isinstance(check_message(message), ReplyMessage) else SINGLE


def _timer_kind(kind: SendKind, message: Message, timer: str) -> SendKind:
    """Return the kind of the send of a timer message. Raises MessageInvalid.

    kind: without the timer. timer: the name of its property.
    """
    check_timer(message.properties, timer, message.delay_level)
    if kind is REPLY:
        raise MessageInvalid(f"{shown_timer(timer)}: a reply has no timer, it is passed on immediately")
    return ONEWAY_TIMER if kind.is_oneway else TIMER


def messages_of(messages: Iterable[Message]) -> Sequence[Message]:
    """Return the messages of a batch as a sequence. Raises MessageInvalid for other values."""
    if isinstance(messages, list | tuple | MessageColumns | EncodedBatch):
        return messages
    try:
        return list(messages)
    except TypeError:
        raise MessageInvalid(
            f"a batch needs an iterable of messages, not a {type(messages).__name__}; "
            "use `send` for a single message"
        ) from None


def check_batch(messages: Sequence[Message]) -> str:
    """Return the topic of messages that RocketMQ can store as a batch.

    Raises MessageInvalid for others; the error names one of them. Source: RocketMQ MessageBatch
    generateFromList.
    """
    if not messages:
        raise MessageInvalid("a batch needs at least one message")
    # The first two have one topic and no delays.
    topic = messages.topic if isinstance(messages, MessageColumns | EncodedBatch) else _check_alike(messages)
    if topic.startswith(RETRY_TOPIC_PREFIX):
        raise MessageInvalid(f"messages of retry topics cannot be sent in a batch: {topic}")
    return topic


def _check_alike(messages: Sequence[Message]) -> str:
    """Return the topic of messages. Raises MessageInvalid unless they can share a request."""
    first = check_message(messages[0])
    for index, message in enumerate(messages):
        if type(message) is not Message:
            check_message(message)
        if message.topic != first.topic:
            raise MessageInvalid(
                f"message {index} is for {message.topic}, message 0 for {first.topic}; a batch has one topic"
            )
        if message.delay_level:
            raise MessageInvalid(
                f"message {index} has delay level {message.delay_level}; a batch has no delay"
            )
        if message.properties:
            _check_properties(index, message)
        if message.wait_store != first.wait_store:
            raise MessageInvalid(
                f"message {index} differs from message 0 in wait_store; a batch has one value"
            )
    return first.topic


def _check_properties(index: int, message: Message) -> None:
    if PROPERTY_MESSAGE_TYPE in message.properties:
        raise MessageInvalid(f"message {index} is a reply; replies are sent individually")
    timer = find_timer(message.properties)
    if timer is not None:
        raise MessageInvalid(
            f"message {index} has {shown_timer(timer)}; a batch has no timer messages, send it individually"
        )
