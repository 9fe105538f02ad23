"""From messages to sends: unique ids, properties, batch bodies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Final, NamedTuple, TypeVar

from rocketpy.config import ProducerConfig
from rocketpy.hooks import SendEvent
from rocketpy.message.columns import MessageColumns
from rocketpy.message.message import Message
from rocketpy.producer.send.batch import split_batch
from rocketpy.producer.send.batch_builder import BatchBuilder, ProducerBatch
from rocketpy.producer.send.pending import BatchSend, Owner, SingleRequest, SingleSend
from rocketpy.producer.send.publish_info import TopicPublishInfo
from rocketpy.producer.send.request_template import head_text, properties_text, tail_text
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.protocol.message.message_id import UniqueIdGenerator
from rocketpy.protocol.message.properties import PROPERTY_INSTANCE_ID
from rocketpy.results import SendResult

_BATCH_PROPERTIES: Final = {True: "WAIT\x01true\x02", False: "WAIT\x01false\x02"}

R = TypeVar("R")


class BatchPart(NamedTuple):
    """What goes into one request of a batch."""

    messages: Sequence[Message]
    message_ids: Sequence[str]
    body: bytes


class MessageEncoder:
    """Makes the sends of one producer. address: the client's, for unique ids. namespace: the client's."""

    def __init__(self, owner: Owner, config: ProducerConfig, address: bytes, namespace: str = "") -> None:
        self._owner = owner
        self._config = config
        self._checksum = config.body_checksum
        self._instance = {PROPERTY_INSTANCE_ID: namespace} if namespace else None
        self._adds_none = not self._checksum and not self._instance
        self._ids = UniqueIdGenerator(address)
        self._head_bytes = len(head_text("0" * (24 + 2 * len(address)), wait_store=False))
        self._steady = asyncio.get_running_loop().time

    def single(
        self,
        kind: type[SingleRequest[R]],
        publish_info: TopicPublishInfo,
        message: Message,
        future: asyncio.Future[R],
        tail: str,
        queue: MessageQueue | None,
        timeout_ms: int,
        events: Sequence[SendEvent],
    ) -> SingleRequest[R]:
        """A send of one message, whose properties are made already: see `tail`."""
        born_ms = time.time_ns() // 1_000_000
        message_id = message.unique_id or self._ids.next(born_ms)
        now_ms = self._steady() * 1000
        return kind(
            message,
            message_id,
            future,
            message.body,
            tail,
            owner=self._owner,
            publish_info=publish_info,
            size=len(message.body),
            given=queue,
            born_ms=born_ms,
            accepted_ms=now_ms,
            deadline_ms=now_ms + timeout_ms,
            events=events,
        )

    def tail(self, message: Message, event: SendEvent | None) -> str:
        """Its properties behind those that all messages have. Raises MessageTooLarge."""
        has_own = message.properties or message.tags or message.keys or message.delay_level
        if event is None and self._adds_none and not has_own:
            return ""
        extra = event.extra_properties[0] if event is not None else None
        if self._instance is not None:
            extra = {**self._instance, **(extra or {})}
        head_bytes = self._head_bytes
        if message.unique_id is not None:
            head_bytes = len(head_text(message.unique_id, wait_store=False))
        return tail_text(message, head_bytes, self._checksum, extra)

    def gathered(self, batch: BatchBuilder) -> ProducerBatch:
        """What was gathered, as it leaves: with ids and times."""
        born_ms = time.time_ns() // 1_000_000
        count = len(batch.messages)
        now_ms = self._steady() * 1000
        ids = self._ids.take(born_ms, count)
        return ProducerBatch(
            batch.messages,
            _own_ids(batch.messages, ids) if batch.has_ids else ids,
            _BATCH_PROPERTIES[batch.wait],
            batch.futures,
            batch.tails,
            batch.wait,
            owner=self._owner,
            publish_info=batch.publish_info,
            size=batch.size,
            given=batch.given,
            born_ms=born_ms,
            accepted_ms=now_ms,
            deadline_ms=now_ms + batch.timeout_ms,
            events=batch.events,
            count=count,
        )

    def alone(self, batch: BatchBuilder) -> SingleRequest[SendResult]:
        """The only message of a batch, as a send of its own."""
        return self.single(
            SingleSend,
            batch.publish_info,
            batch.messages[0],
            batch.futures[0],
            batch.tails[0],
            batch.given,
            batch.timeout_ms,
            batch.events,
        )

    def batch_parts(self, messages: Sequence[Message], event: SendEvent | None) -> Iterator[BatchPart]:
        """The requests that a batch takes. Raises MessageTooLarge before the first."""
        ids = self._ids.take(time.time_ns() // 1_000_000, len(messages))
        flags: Iterable[int]
        if isinstance(messages, MessageColumns) and event is None and not self._checksum:
            topic, bodies, flags = messages.topic, messages.bodies, repeat(0)
            properties = messages.property_texts(ids)
        else:
            messages = list(messages)  # of columns each element is made when it is asked for
            ids = _own_ids(messages, ids)
            topic = messages[0].topic
            bodies = [message.body for message in messages]
            flags = [message.flag for message in messages]
            extras = event.extra_properties if event is not None else repeat({})
            properties = [
                properties_text(message, message_id, self._checksum, extra).encode()
                for message, message_id, extra in zip(messages, ids, extras, strict=False)
            ]
        config = self._config
        elements = zip(flags, bodies, properties, strict=False)
        for part in split_batch(topic, bodies, properties, config.batch.max_bytes, config.max_message_bytes):
            body = encode_batch(islice(elements, part.stop - part.start))
            yield BatchPart(messages[part], ids[part], body)

    def batch(
        self,
        publish_info: TopicPublishInfo,
        part: BatchPart,
        future: asyncio.Future[Sequence[SendResult]],
        queue: MessageQueue | None,
        timeout_ms: int,
        event: SendEvent | None,
        *,
        follows: bool,
    ) -> BatchSend:
        """A send of one part; listeners hear of the whole batch's end only. follows: see `SendRules`."""
        now_ms = self._steady() * 1000
        return BatchSend(
            part.messages,
            part.message_ids,
            _BATCH_PROPERTIES[part.messages[0].wait_store],
            part.body,
            future,
            follows,
            owner=self._owner,
            publish_info=publish_info,
            size=len(part.body),
            given=queue,
            born_ms=time.time_ns() // 1_000_000,
            accepted_ms=now_ms,
            deadline_ms=now_ms + timeout_ms,
            events=(event,) if event is not None else (),
        )


def _own_ids(messages: Iterable[Message], ids: Iterable[str]) -> list[str]:
    """The id of each message: its own, or else the new one for its place."""
    return [message.unique_id or new for message, new in zip(messages, ids, strict=True)]
