"""Batches before they are encoded: checks and splits lists of messages, and collects sends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from rocketpy.errors import MessageInvalid, MessageTooLarge
from rocketpy.hooks import SendEvent
from rocketpy.message.columns import MessageColumns
from rocketpy.message.message import Message, check_message, timer_property
from rocketpy.producer.send.publish_info import TopicPublishInfo
from rocketpy.protocol.bodies import RETRY_TOPIC_PREFIX, MessageQueue
from rocketpy.protocol.message.properties import PROPERTY_MESSAGE_TYPE
from rocketpy.protocol.message.record import record_size
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy.results import SendResult

_HOSTS_V6 = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6


class BatchBuilder:
    """An open batch of sends, with one entry for each message in the lists.

    chosen_queue: the queue that the callers chose, or None. other_properties: all except UNIQ_KEY and WAIT.
    events: empty without listeners. has_ids: whether a message has a unique id of its own. wait_store: that
    of all its messages. timeout_ms: the longest timeout of the sends. size: bytes of the bodies. wire_bytes:
    upper estimate of the stored records, in bytes.
    """

    def __init__(
        self,
        publish_info: TopicPublishInfo,
        chosen_queue: MessageQueue | None,
        timeout_ms: int,
        *,
        wait_store: bool,
    ) -> None:
        self.publish_info = publish_info
        self.chosen_queue = chosen_queue
        self.timeout_ms = timeout_ms
        self.wait_store = wait_store
        self.messages: list[Message] = []
        self.futures: list[asyncio.Future[SendResult]] = []
        self.other_properties: list[str] = []
        self.events: list[SendEvent] = []
        self.has_ids = False
        self.size = 0
        self.wire_bytes = 0


def messages_of(messages: Iterable[Message]) -> Sequence[Message]:
    """Return the messages of a batch as a sequence. Raises MessageInvalid for other values."""
    if isinstance(messages, list | tuple | MessageColumns):
        return messages
    try:
        return list(messages)
    except TypeError:
        raise MessageInvalid(
            f"a batch needs an iterable of messages, not a {type(messages).__name__}; "
            "use `send` for a single message"
        ) from None


def check_batch(messages: Sequence[Message]) -> None:
    """Raise MessageInvalid for messages that RocketMQ cannot store as a batch; the error names one of them.

    Source: RocketMQ MessageBatch generateFromList.
    """
    if not messages:
        raise MessageInvalid("a batch needs at least one message")
    first = check_message(messages[0])
    if first.topic.startswith(RETRY_TOPIC_PREFIX):
        raise MessageInvalid(f"messages of retry topics cannot be sent in a batch: {first.topic}")
    if isinstance(messages, MessageColumns):
        return  # they have one topic and no delays
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


def _check_properties(index: int, message: Message) -> None:
    if PROPERTY_MESSAGE_TYPE in message.properties:
        raise MessageInvalid(f"message {index} is a reply; replies are sent individually")
    timer = timer_property(message)
    if timer is not None:
        raise MessageInvalid(
            f"message {index} has property {timer}; a batch has no timer messages, send it individually"
        )


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
