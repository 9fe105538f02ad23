"""Turns messages into sends: unique ids, properties, compressed bodies, bodies of batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, repeat
from typing import Any, Final, NamedTuple

from rocketpy.config import COMPRESSION_TYPES, ProducerConfig
from rocketpy.errors import MessageTooLarge
from rocketpy.hooks import SendEvent
from rocketpy.message.columns import MessageColumns
from rocketpy.message.encoded import EncodedBatch
from rocketpy.message.message import Message
from rocketpy.producer.send.pending import GATHERED, PART, REPLY, SINGLE, PendingSend, SendKind
from rocketpy.producer.send.publish_info import TopicPublishInfo
from rocketpy.producer.send.request_template import head_text, other_properties_text, properties_text
from rocketpy.producer.send.retry import ChooseQueue
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.batch import ELEMENT_FIXED_BYTES, encode_batch
from rocketpy.protocol.message.compression import compress_if_worth
from rocketpy.protocol.message.message_id import UniqueIdGenerator
from rocketpy.protocol.message.properties import PROPERTY_INSTANCE_ID
from rocketpy.protocol.message.record import record_size
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy.results import SendResult

_BATCH_PROPERTIES: Final = {True: "WAIT\x01true\x02", False: "WAIT\x01false\x02"}
_HOSTS_V6: Final = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6


class BatchPart(NamedTuple):
    """The content of one request of a `send_batch`."""

    messages: Sequence[Message]
    message_ids: Sequence[str]
    body: bytes
    sys_flag: int
    """Its compression bits; 0 for plain bodies."""
    wait_store: bool


class MessageEncoder:
    """Makes the sends of one producer.

    address: of the client, for unique ids. namespace: of the client.
    """

    def __init__(self, config: ProducerConfig, address: bytes, namespace: str = "") -> None:
        self._config = config
        compression = config.compression
        self.compress_above: int = compression.above_bytes
        """A longer body is to be compressed."""
        self._compress = partial(
            compress_if_worth,
            compression_type=COMPRESSION_TYPES[compression.type],
            level=compression.level,
        )
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

    def single(
        self,
        kind: SendKind,
        publish_info: TopicPublishInfo,
        message: Message,
        future: asyncio.Future[Any],
        event: SendEvent | None,
        queue: MessageQueue | None,
        timeout_ms: int,
        choose: ChooseQueue | None,
    ) -> PendingSend:
        """Return the send of one message. Raises MessageTooLarge for its properties."""
        other_properties = self.other_properties(message, event)
        born_ms = time.time_ns() // 1_000_000
        now_ms = self._now_s() * 1000
        message_id = message.unique_id or self._ids.next(born_ms)
        body = message.body
        return PendingSend(  # a Struct takes positional arguments in a tenth of the time
            kind,
            publish_info,
            publish_info.reply if kind is REPLY else publish_info.single,
            (message,),
            (message_id,),
            (future,),
            other_properties,
            body,
            len(body),
            born_ms,
            now_ms,
            now_ms + timeout_ms,
            queue,
            () if event is None else (event,),
            1,
            message.flag,
            kind.flags,
            (),
            choose,
        )

    def open_batch(
        self,
        publish_info: TopicPublishInfo,
        messages: list[Message],
        futures: list[asyncio.Future[SendResult]],
        other_properties: list[str],
        events: list[SendEvent],
        queue: MessageQueue | None,
    ) -> PendingSend:
        """Return the send of a batch. Until `seal` the caller may add messages to the lists."""
        return PendingSend(
            kind=GATHERED,
            publish_info=publish_info,
            template=publish_info.batch,
            messages=messages,
            message_ids=(),
            futures=futures,
            properties="",
            other_properties=other_properties,
            body=None,
            size=0,
            count=0,
            chosen_queue=queue,
            born_ms=0,
            accepted_ms=0,
            deadline_ms=0,
            events=events,
        )

    def seal(self, send: PendingSend, timeout_ms: int, *, own_ids: bool) -> None:
        """Set ids and times of a batch that gets no more messages. One of one message becomes a plain send.

        own_ids: whether some messages have a unique id.
        """
        messages, message = send.messages, send.messages[0]
        send.born_ms = time.time_ns() // 1_000_000
        send.accepted_ms = now_ms = self._now_s() * 1000
        send.deadline_ms = now_ms + timeout_ms
        ids = self._ids.take(send.born_ms, send.count)
        send.message_ids = _own_ids(messages, ids) if own_ids else ids
        if send.count == 1:
            send.kind, send.template = SINGLE, send.publish_info.single
            send.flag, send.body = message.flag, message.body
            send.properties, send.other_properties = send.other_properties[0], ()
        else:
            send.properties = _BATCH_PROPERTIES[message.wait_store]

    def part(
        self,
        publish_info: TopicPublishInfo,
        part: BatchPart,
        future: asyncio.Future[Any],
        queue: MessageQueue | None,
        timeout_ms: int,
        events: Sequence[SendEvent],
        *,
        follows: bool,
    ) -> PendingSend:
        """Return one request of a `send_batch`. follows: see `PendingSend`."""
        now_ms = self._now_s() * 1000
        return PendingSend(
            kind=PART,
            publish_info=publish_info,
            template=publish_info.batch,
            messages=part.messages,
            message_ids=part.message_ids,
            futures=(future,),
            body=part.body,
            size=len(part.body),
            sys_flag=part.sys_flag,
            properties=_BATCH_PROPERTIES[part.wait_store],
            chosen_queue=queue,
            follows=follows,
            born_ms=time.time_ns() // 1_000_000,
            accepted_ms=now_ms,
            deadline_ms=now_ms + timeout_ms,
            events=events,
        )

    def compress(self, send: PendingSend, *, ordered: bool) -> asyncio.Future[None] | None:
        """Compress the body of a single send.

        A very long one is compressed in a thread; then the future of the end is returned. If it fails, the
        body stays as it is. ordered: no later send may overtake this one, so no thread is used.
        """
        if ordered or send.size <= self._config.compression.off_loop_above_bytes:
            self._compress_body(send)
            return None
        return self._loop.run_in_executor(None, self._compress_body, send)

    def _compress_body(self, send: PendingSend) -> None:
        send.body, compression_bits = self._compress(send.messages[0].body)
        send.sys_flag |= compression_bits

    async def batch_parts(
        self, messages: Sequence[Message], event: SendEvent | None, *, ordered: bool
    ) -> Iterator[BatchPart]:
        """Return the requests of a `send_batch`. Raises MessageTooLarge.

        ordered: no later batch may overtake this one, so long bodies are not compressed in a thread.
        """
        if isinstance(messages, EncodedBatch) and event is None and self._sends_as_it_is(messages):
            return iter((BatchPart(messages, messages.unique_ids, messages.body, 0, wait_store=True),))
        ids = self._ids.take(time.time_ns() // 1_000_000, len(messages))
        flags: Iterable[int]
        if isinstance(messages, MessageColumns) and event is None:
            topic, bodies, flags = messages.topic, messages.bodies, messages.flags or repeat(0)
            wait_store = True
            properties = messages.property_texts(ids, self._checksum)
        else:
            messages = list(messages)  # columns create each message when it is read
            ids = _own_ids(messages, ids)
            topic, wait_store = messages[0].topic, messages[0].wait_store
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
                wait_store,
            )
            for part in parts
        )

    def _sends_as_it_is(self, batch: EncodedBatch) -> bool:
        """Return whether a batch needs one request, no compression and no checksums."""
        bare = record_size(0, len(batch.topic), 0, _HOSTS_V6) - ELEMENT_FIXED_BYTES
        return (
            not self._checksum
            and batch.longest <= min(self.compress_above, self._config.max_message_bytes)
            and len(batch.body) + len(batch) * bare <= self._config.batch.max_bytes
        )

    async def _compressed(
        self, bodies: Sequence[bytes], *, ordered: bool
    ) -> tuple[Sequence[bytes], Sequence[int]]:
        """Return the bodies of a batch, long ones compressed, and their sysFlags; () if none is long."""
        config = self._config.compression
        lengths = [length for length in map(len, bodies) if length > self.compress_above]
        if not lengths:
            return bodies, ()
        work = partial(_compress_long, bodies, self.compress_above, self._compress)
        if ordered or sum(lengths) <= config.off_loop_above_bytes:
            return work()
        return await self._loop.run_in_executor(None, work)


def _compress_long(
    bodies: Iterable[bytes], above_bytes: int, compress: Callable[[bytes], tuple[bytes, int]]
) -> tuple[list[bytes], list[int]]:
    """Return the bodies, those above a length compressed, and the sysFlag of each."""
    pairs = [compress(body) if len(body) > above_bytes else (body, 0) for body in bodies]
    return [body for body, _ in pairs], [sys_flag for _, sys_flag in pairs]


def _own_ids(messages: Iterable[Message], ids: Iterable[str]) -> list[str]:
    """Return the id of each message: its own, or else the new one at its index."""
    return [message.unique_id or new for message, new in zip(messages, ids, strict=True)]


def check_sizes(bodies: Sequence[bytes], max_message_bytes: int) -> None:
    """Raise MessageTooLarge for a body above `max_message_bytes`."""
    for index, body in enumerate(bodies):
        if len(body) > max_message_bytes:
            raise MessageTooLarge(
                f"message {index} has a body of {len(body)} bytes, {max_message_bytes} are allowed"
            )


def split_batch(
    topic: str,
    bodies: Sequence[bytes],
    properties: Sequence[bytes],
    max_bytes: int,
    sys_flags: Sequence[int] = (),
) -> list[slice]:
    """Return the messages of each request: as many as fit into `max_bytes` of stored records.

    bodies: as sent. properties: of each message, encoded. The limit of a broker is for records, so their
    bytes are counted, with IPv6 hosts. A single message above `max_bytes` has a request of its own.
    sys_flags: of each message, or empty for zeros. All messages of a request have the same one.
    """
    bare = record_size(0, len(topic), 0, _HOSTS_V6)
    lengths = list(map(len, bodies))
    total = bare * len(lengths) + sum(lengths) + sum(map(len, properties))
    if total <= max_bytes and len(set(sys_flags)) < 2:
        return [slice(0, len(lengths))]
    slices: list[slice] = []
    start = used = 0
    for index, length in enumerate(lengths):
        size = bare + length + len(properties[index])
        is_other = bool(sys_flags) and sys_flags[index] != sys_flags[start]
        if used and (is_other or used + size > max_bytes):
            slices.append(slice(start, index))
            start, used = index, 0
        used += size
    slices.append(slice(start, len(lengths)))
    return slices
