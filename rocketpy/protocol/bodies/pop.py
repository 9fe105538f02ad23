"""Bodies of message-level sharing (POP)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import field

from rocketpy.protocol.bodies.base import Body, always_encoded
from rocketpy.protocol.headers.base import Int32, Int64

_USED_BYTE: Final = re.compile(rb"[^\0]")


class BatchAck(Body, kw_only=True):
    """Messages of one check point that are acknowledged together. Source: RocketMQ 5.3.3 BatchAck.

    The names on the wire are abbreviations. Other fields say what the messages' receipts say.
    """

    consumer_group: str = field(name="c")
    topic: str = field(name="t")
    """The topic that was asked for, also for messages of a retry topic."""
    retry: str = field(name="r")
    """A `receipt.TopicKind`."""
    start_offset: Int64 = field(name="so")
    queue_id: Int32 = field(name="q")
    revive_queue_id: Int32 = field(name="rq")
    pop_time: Int64 = field(name="pt")
    invisible_time: Int64 = field(name="it")
    bit_set: bytes = field(name="b")
    """Bit n, counted from the lowest bit of the first byte, stands for offset start_offset + n."""

    def offsets(self) -> Iterator[int]:
        """Return the offsets of the messages, in ascending order."""
        for used in _USED_BYTE.finditer(self.bit_set):
            for bit in range(8):
                if used[0][0] >> bit & 1:
                    yield self.start_offset + 8 * used.start() + bit

    @property
    def count(self) -> int:
        """The number of messages."""
        return int.from_bytes(self.bit_set).bit_count()


def bit_set(indexes: Iterable[int]) -> bytes:
    """Return the bytes of a bit set, as `BatchAck.bit_set` has them. Source: Java's BitSet.toByteArray."""
    bits = 0
    for index in indexes:
        bits |= 1 << index
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


class BatchAckMessageRequestBody(Body, kw_only=True):
    """The body of BATCH_ACK_MESSAGE (200151). Source: RocketMQ 5.3.3 BatchAckMessageRequestBody."""

    broker_name: str | None = None
    acks: list[BatchAck] = always_encoded([])
