"""EncodedBatch: messages that are already encoded as the body of a batch, as by the Spark sink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, overload

from rocketpy.message.message import Message, check_topic
from rocketpy.protocol.message.batch import BatchMessage, decode_batch
from rocketpy.protocol.message.properties import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    decode,
)

_SIZE: Final = Struct(">i")


class EncodedBatch(Sequence[Message]):
    """Messages of one topic, encoded as the body of a batch. For internal use.

    `Producer.send_batch` sends the body as it is, unless it needs several requests, compression, checksums or
    properties of listeners. Elements are decoded on access.

    Args:
        topic: The topic of all messages.
        body: As of `protocol.message.batch.encode_batch`, which is not checked.
        unique_ids: The property UNIQ_KEY of each message.
        longest: The bytes of the longest body of a message.

    Raises:
        TopicInvalid: The topic is invalid.
    """

    __slots__ = ("body", "longest", "topic", "unique_ids")

    def __init__(self, topic: str, body: bytes, unique_ids: Sequence[str], longest: int) -> None:
        self.topic: Final = check_topic(topic)
        self.body: Final = body
        self.unique_ids: Final = unique_ids
        self.longest: Final = longest

    def __len__(self) -> int:
        return len(self.unique_ids)

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return list(self)[index]
        start = size = 0
        for _ in range(range(len(self))[index] + 1):  # raises IndexError
            start += size
            (size,) = _SIZE.unpack_from(self.body, start)
        return self._message(*decode_batch(self.body[start : start + size]))

    def __iter__(self) -> Iterator[Message]:
        return map(self._message, decode_batch(self.body))

    def _message(self, element: BatchMessage) -> Message:
        properties = decode(element.properties)
        unique_id = properties.pop(PROPERTY_UNIQ_KEY, None)
        return Message(
            self.topic,
            element.body,
            tags=properties.pop(PROPERTY_TAGS, None),
            keys=properties.pop(PROPERTY_KEYS, ()),
            flag=element.flag,
            properties=properties,
            unique_id=unique_id,
        )
