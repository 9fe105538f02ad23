"""Encodes messages into sends: unique ids, properties, compressed bodies, bodies of batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, repeat
from typing import Any, Final, NamedTuple, TypeVar

from rocketpy.config import COMPRESSION_TYPES, ProducerConfig
from rocketpy.hooks import SendEvent
from rocketpy.message.columns import MessageColumns
from rocketpy.message.message import Message
from rocketpy.producer.send.batch_builder import BatchBuilder, check_sizes, split_batch
from rocketpy.producer.send.pending import BatchSend, ProducerBatch, SingleRequest, SingleSend
from rocketpy.producer.send.publish_info import TopicPublishInfo
from rocketpy.producer.send.request_template import head_text, other_properties_text, properties_text
from rocketpy.producer.send.sender import Sender
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.protocol.message.compression import compress_if_worth
from rocketpy.protocol.message.message_id import UniqueIdGenerator
from rocketpy.protocol.message.properties import PROPERTY_INSTANCE_ID
from rocketpy.results import SendResult
from rocketpy.runtime.tasks import Tasks

_BATCH_PROPERTIES: Final = {True: "WAIT\x01true\x02", False: "WAIT\x01false\x02"}

R = TypeVar("R")


class BatchPart(NamedTuple):
    """The content of one request of a `send_batch`. sys_flag: its compression bits; 0 for plain bodies."""

    messages: Sequence[Message]
    message_ids: Sequence[str]
    body: bytes
    sys_flag: int


class MessageEncoder:
    """Makes the sends of one producer and passes them to the sender.

    address: of the client, for unique ids. namespace, tasks: of the client.
    """

    def __init__(
        self, sender: Sender, config: ProducerConfig, tasks: Tasks, address: bytes, namespace: str = ""
    ) -> None:
        self._sender = sender
        self._on_attempt_end = sender.attempt_ended
        self._config = config
        self._compress_above = config.compression.above_bytes
        self._tasks = tasks
        self._checksum = config.body_checksum
        self._instance = {PROPERTY_INSTANCE_ID: namespace} if namespace else None
        self._adds_no_properties = not self._checksum and not self._instance
        self._ids = UniqueIdGenerator(address)
        self._head_bytes = len(head_text("0" * (24 + 2 * len(address)), wait_store=False))
        self._loop = asyncio.get_running_loop()
        self._now_s = self._loop.time

    def other_properties(self, message: Message, event: SendEvent | None) -> str:
        """Return a message's properties except UNIQ_KEY and WAIT. Raises MessageTooLarge."""
        has_own = message.properties or message.tags or message.keys or message.delay_level
        if event is None and self._adds_no_properties and not has_own:
            return ""
        extra = event.extra_properties[0] if event is not None else None
        if self._instance is not None:
            extra = {**self._instance, **(extra or {})}
        head_bytes = self._head_bytes
        if message.unique_id is not None:
            head_bytes = len(head_text(message.unique_id, wait_store=False))
        return other_properties_text(message, head_bytes, self._checksum, extra)

    def send_single(self, send: SingleRequest[Any]) -> None:
        """Send one message in a request of its own, made by `single`."""
        self._sender.accept(send)
        if send.size > self._compress_above:
            self._compress(send)
        else:
            self._sender.begin(send)

    def send_batches(self, batches: Iterable[BatchBuilder]) -> None:
        """Send batches of the accumulator, and flush their connections.

        Their messages already count as in flight.
        """
        for batch in batches:
            try:
                send = self._send_of_batch(batch)
            except Exception as error:  # noqa: BLE001 - a bug; the callers wait for their futures
                self._sender.fail_unsent(batch, error)
            else:
                self._sender.begin_batch(send)
        for publish_info in {batch.publish_info: None for batch in batches}:
            publish_info.flush()

    def send_part(
        self,
        publish_info: TopicPublishInfo,
        part: BatchPart,
        future: asyncio.Future[Sequence[SendResult]],
        queue: MessageQueue | None,
        timeout_ms: int,
        event: SendEvent | None,
        *,
        follows: bool,
    ) -> None:
        """Send one request of a `send_batch`. follows: see `SendRules`."""
        now_ms = self._now_s() * 1000
        send = BatchSend(
            part.messages,
            part.message_ids,
            _BATCH_PROPERTIES[part.messages[0].wait_store],
            part.body,
            future,
            follows,
            on_attempt_end=self._on_attempt_end,
            publish_info=publish_info,
            size=len(part.body),
            chosen_queue=queue,
            born_ms=time.time_ns() // 1_000_000,
            accepted_ms=now_ms,
            deadline_ms=now_ms + timeout_ms,
            events=(event,) if event is not None else (),
            sys_flag=part.sys_flag,
        )
        self._sender.accept(send)
        self._sender.begin(send)

    async def batch_parts(
        self, messages: Sequence[Message], event: SendEvent | None, *, ordered: bool
    ) -> Iterator[BatchPart]:
        """Return the requests of a `send_batch`. Raises MessageTooLarge.

        ordered: no later batch may overtake this one, so long bodies are not compressed in a thread.
        """
        ids = self._ids.take(time.time_ns() // 1_000_000, len(messages))
        flags: Iterable[int]
        if isinstance(messages, MessageColumns) and event is None:
            topic, bodies, flags = messages.topic, messages.bodies, messages.flags or repeat(0)
            properties = messages.property_texts(ids, self._checksum)
        else:
            messages = list(messages)  # columns create each message when it is read
            ids = _own_ids(messages, ids)
            topic = messages[0].topic
            bodies = [message.body for message in messages]
            flags = [message.flag for message in messages]
            extras = event.extra_properties if event is not None else repeat({})
            properties = [
                properties_text(message, message_id, self._checksum, extra).encode()
                for message, message_id, extra in zip(messages, ids, extras, strict=False)
            ]
        check_sizes(bodies, self._config.max_message_bytes)
        packed, sys_flags = await self._compressed(bodies, ordered=ordered)
        split = partial(split_batch, topic, properties=properties, max_bytes=self._config.batch.max_bytes)
        parts = split(packed, sys_flags=sys_flags)
        if sys_flags and len(parts) > len(plain_parts := split(bodies)):
            packed, sys_flags, parts = bodies, (), plain_parts
        elements = zip(flags, packed, properties, strict=False)
        return (
            BatchPart(
                messages[part],
                ids[part],
                encode_batch(islice(elements, part.stop - part.start)),
                sys_flags[part.start] if sys_flags else 0,
            )
            for part in parts
        )

    async def _compressed(
        self, bodies: Sequence[bytes], *, ordered: bool
    ) -> tuple[Sequence[bytes], Sequence[int]]:
        """Return the bodies of a batch, long ones compressed, and their sysFlags; () if none is long."""
        config = self._config.compression
        lengths = [length for length in map(len, bodies) if length > self._compress_above]
        if not lengths:
            return bodies, ()
        compress = partial(
            compress_if_worth, compression_type=COMPRESSION_TYPES[config.type], level=config.level
        )
        work = partial(_compress_long, bodies, self._compress_above, compress)
        if ordered or sum(lengths) <= config.off_loop_above_bytes:
            return work()
        return await self._loop.run_in_executor(None, work)

    def single(
        self,
        kind: type[SingleRequest[R]],
        publish_info: TopicPublishInfo,
        message: Message,
        future: asyncio.Future[R],
        other_properties: str,
        queue: MessageQueue | None,
        timeout_ms: int,
        events: Sequence[SendEvent],
    ) -> SingleRequest[R]:
        """Return the send of one message. other_properties: from the method of this name."""
        born_ms = time.time_ns() // 1_000_000
        message_id = message.unique_id or self._ids.next(born_ms)
        now_ms = self._now_s() * 1000
        return kind(
            message,
            message_id,
            future,
            message.body,
            other_properties,
            on_attempt_end=self._on_attempt_end,
            publish_info=publish_info,
            size=len(message.body),
            chosen_queue=queue,
            born_ms=born_ms,
            accepted_ms=now_ms,
            deadline_ms=now_ms + timeout_ms,
            events=events,
        )

    def _send_of_batch(self, batch: BatchBuilder) -> SingleRequest[SendResult] | ProducerBatch:
        """Convert a batch of the accumulator to a send with ids and times.

        A batch of one message becomes a SingleSend.
        """
        count = len(batch.messages)
        if count == 1:
            return self.single(
                SingleSend,
                batch.publish_info,
                batch.messages[0],
                batch.futures[0],
                batch.other_properties[0],
                batch.chosen_queue,
                batch.timeout_ms,
                batch.events,
            )
        born_ms = time.time_ns() // 1_000_000
        now_ms = self._now_s() * 1000
        ids = self._ids.take(born_ms, count)
        return ProducerBatch(
            batch.messages,
            _own_ids(batch.messages, ids) if batch.has_ids else ids,
            _BATCH_PROPERTIES[batch.wait_store],
            batch.futures,
            batch.other_properties,
            batch.wait_store,
            on_attempt_end=self._on_attempt_end,
            publish_info=batch.publish_info,
            size=batch.size,
            chosen_queue=batch.chosen_queue,
            born_ms=born_ms,
            accepted_ms=now_ms,
            deadline_ms=now_ms + batch.timeout_ms,
            events=batch.events,
            count=count,
        )

    def _compress(self, send: SingleRequest[Any]) -> None:
        """Compress the body, then begin the send.

        A long body is compressed in a thread, unless the caller chooses the queue: that could reorder sends.
        """
        config = self._config.compression
        compress = partial(compress_if_worth, send.body, COMPRESSION_TYPES[config.type], config.level)
        is_ordered = send.chosen_queue is not None or send.choose is not None
        if is_ordered or send.size <= config.off_loop_above_bytes:
            send.body, send.sys_flag = compress()
            self._sender.begin(send)
        else:
            self._tasks.spawn(self._compress_on_thread(send, compress), "compression")

    async def _compress_on_thread(
        self, send: SingleRequest[Any], compress: partial[tuple[bytes, int]]
    ) -> None:
        try:
            send.body, send.sys_flag = await self._loop.run_in_executor(None, compress)
        finally:
            # If the compression failed, the body is sent uncompressed.
            self._sender.begin_if_live(send)


def _compress_long(
    bodies: Iterable[bytes], above_bytes: int, compress: Callable[[bytes], tuple[bytes, int]]
) -> tuple[list[bytes], list[int]]:
    """Return the bodies, those above a length compressed, and the sysFlag of each."""
    pairs = [compress(body) if len(body) > above_bytes else (body, 0) for body in bodies]
    return [body for body, _ in pairs], [sys_flag for _, sys_flag in pairs]


def _own_ids(messages: Iterable[Message], ids: Iterable[str]) -> list[str]:
    """Return the id of each message: its own, or else the new one at its index."""
    return [message.unique_id or new for message, new in zip(messages, ids, strict=True)]
