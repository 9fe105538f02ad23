"""Check points and acknowledgements: their messages in the revive topic, and the names of topics. No I/O.

Source: PopCheckPoint, AckMsg, BatchAckMsg, PopAckConstants, KeyBuilder of RocketMQ 5.3.3 (QUIRKS 76, 77).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from rocketpy.errors import RemoteProtocolError
from rocketpy.protocol.message import properties as props
from rocketpy_broker.services.delay.topic_rewrite import REVIVE_TOPIC_PREFIX
from rocketpy_broker.services.timers.messages import OUT_MS
from rocketpy_broker.store import MessageInner

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
"""The group whose offsets say up to which record all check points of a revive queue are done."""
SEEN_GROUP: Final = "CID_RMQ_SYS_REVIVE_SEEN"
"""The group whose offsets say up to which record the offsets of groups include all pops. Not in RocketMQ."""
MESSAGES_MAX: Final = 32
"""Most messages of a check point: each has a bit of an int."""
INVISIBLE_MS_MAX: Final = 366 * 24 * 3_600_000
CK_TAG: Final = b"ck"
ACK_TAG: Final = b"ack"
BATCH_ACK_TAG: Final = b"bAck"
_TAGS: Final = props.PROPERTY_TAGS.encode()
_OUT_MS: Final = OUT_MS.encode()
_INT32: Final = 1 << 32
_encode_json: Final = msgspec.json.Encoder().encode


def revive_topic(cluster: str) -> str:
    """Return the name of a cluster's revive topic."""
    return REVIVE_TOPIC_PREFIX + cluster


def normal_topic(topic: str, group: str) -> str:
    """Return the topic whose retries a retry topic of a group has; another topic is returned as it is."""
    for separator in "+_":
        prefix = f"{props.RETRY_TOPIC_PREFIX}{group}{separator}"
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic


class PointKey(NamedTuple):
    """What acknowledgements name a check point by."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_ms: int


class _PointBody(msgspec.Struct, gc=False):
    """The body of a check point's record; the fields are in their order there."""

    bm: int
    bn: str
    c: str
    d: list[int]
    it: int
    n: int
    pt: int
    q: int
    reviveTime: int  # noqa: N815 - the name in the record
    ro: int
    rp: str | msgspec.UnsetType
    so: int
    t: str


class _AckBody(msgspec.Struct, gc=False):
    """The body of an acknowledgement's record; the fields are in their order there."""

    ao: int
    aol: list[int] | msgspec.UnsetType
    bn: str
    c: str
    pt: int
    q: int
    so: int
    t: str


@dataclass(eq=False, slots=True)
class CheckPoint:
    """The messages of one queue that one pop has returned."""

    key: PointKey
    invisible_ms: int
    """For how long after the pop nobody else gets the messages."""
    diffs: Sequence[int]
    """Queue offset of each message, less the start offset."""
    revive_queue: int
    broker_name: str
    done: int = 0
    """Bit i: message i is acknowledged, or was revived."""
    offset: int = -1
    """Queue offset of its newest record in the revive queue; -1 without one."""
    appended_ms: int = 0
    """When that record was appended."""
    may_have_timers: bool = False
    """Whether its acknowledgements may be timers, which arrive at the end of its time: RocketMQ has stored
    it, or was the broker in between."""
    postponed_ms: int = 0
    """Until when its revive waits, after an error."""
    tries: str | None = None
    """How often RocketMQ has tried in vain to revive it."""
    may_have_copies: bool = False
    """Whether an earlier process may have revived some of its messages."""
    index: dict[int, int] = field(init=False)
    """diff -> number of the message."""

    def __post_init__(self) -> None:
        self.index = {diff: number for number, diff in enumerate(self.diffs)}

    @property
    def revive_ms(self) -> int:
        """When messages that are not acknowledged become visible again."""
        return self.key.pop_ms + self.invisible_ms

    @property
    def end_offset(self) -> int:
        """Queue offset after the last message."""
        return self.key.start_offset + max(self.diffs, default=-1) + 1

    @property
    def is_done(self) -> bool:
        """Whether all messages are acknowledged or revived."""
        return self.done == (1 << len(self.diffs)) - 1

    def bits_of(self, offsets: Sequence[int]) -> int:
        """Return the bits of messages, by their queue offsets; others are ignored."""
        bits = 0
        for offset in offsets:
            number = self.index.get(offset - self.key.start_offset)
            if number is not None:
                bits |= 1 << number
        return bits

    @property
    def left_count(self) -> int:
        """Number of messages that are not done."""
        return len(self.diffs) - self.done.bit_count()

    def left(self) -> list[int]:
        """Return the queue offsets of the messages that are not done."""
        start = self.key.start_offset
        return [start + diff for number, diff in enumerate(self.diffs) if not self.done >> number & 1]

    def encode(self, *, is_pop: bool = True) -> bytes:
        """Return the body of its record, as RocketMQ writes it.

        is_pop: whether this is the record of a pop. That of a changed invisible time, and one that is stored
        again, have another `ro`, which RocketMQ ignores.
        """
        topic, group, queue_id, start, pop_ms = self.key
        bits = self.done - _INT32 if self.done >> 31 else self.done
        body = _PointBody(
            bm=bits, bn=self.broker_name, c=group, d=list(self.diffs), it=self.invisible_ms,
            n=len(self.diffs), pt=pop_ms, q=queue_id, reviveTime=self.revive_ms, ro=0 if is_pop else 1,
            rp=self.tries or msgspec.UNSET, so=start, t=topic,
        )  # fmt: skip
        return _encode_json(body)

    @staticmethod
    def is_of_pop(body: bytes) -> bool:
        """Whether a record's body is that of a pop; see `encode`."""
        return b'"ro":1,' not in body

    @classmethod
    def decode(cls, body: bytes, revive_queue: int) -> CheckPoint:
        """Read the body of a record. Raises RemoteProtocolError."""
        fields = _Fields.read(body)
        start, count = fields.number("so"), fields.number("n")
        if not 0 <= count <= MESSAGES_MAX:
            raise _wrong("n", count)
        diffs = fields.numbers("d") or list(range(count))  # before 5.0 without gaps
        if not 0 <= len(diffs) <= MESSAGES_MAX or len(set(diffs)) != len(diffs) or min(diffs, default=0) < 0:
            raise RemoteProtocolError(f"a check point with the messages {str(diffs)[:200]}")
        key = PointKey(fields.text("t"), fields.text("c"), fields.number("q"), start, fields.number("pt"))
        tries = fields.find("rp")
        return cls(
            key, fields.number("it"), diffs, revive_queue, str(fields.find("bn") or ""),
            done=fields.number("bm") & (1 << len(diffs)) - 1,
            tries=tries if isinstance(tries, str) and tries.isdecimal() else None,
        )  # fmt: skip


class Acknowledgement(NamedTuple):
    """Messages of a check point that were acknowledged together."""

    key: PointKey
    offsets: Sequence[int]
    broker_name: str

    def encode(self) -> tuple[bytes, bytes]:
        """Return tag and body of its record, as RocketMQ writes them."""
        topic, group, queue_id, start, pop_ms = self.key
        is_single = len(self.offsets) == 1
        body = _AckBody(
            ao=self.offsets[0] if is_single else -1,
            aol=msgspec.UNSET if is_single else list(self.offsets),
            bn=self.broker_name, c=group, pt=pop_ms, q=queue_id, so=start, t=topic,
        )  # fmt: skip
        return ACK_TAG if is_single else BATCH_ACK_TAG, _encode_json(body)

    @classmethod
    def decode(cls, tag: bytes, body: bytes) -> Acknowledgement:
        """Read the body of a record. Raises RemoteProtocolError."""
        fields = _Fields.read(body)
        key = PointKey(
            fields.text("t", "topic"), fields.text("c", "consumerGroup"), fields.number("q", "queueId"),
            fields.number("so", "startOffset"), fields.number("pt", "popTime"),
        )  # fmt: skip
        offsets = (
            [fields.number("ao", "ackOffset")] if tag == ACK_TAG else fields.numbers("aol", "ackOffsetList")
        )
        return cls(key, offsets, str(fields.find("bn", "brokerName") or ""))


class _Fields(NamedTuple):
    """The fields of a body. Those of acknowledgements have longer names in early versions of RocketMQ 5."""

    by_name: dict[str, Any]

    @classmethod
    def read(cls, body: bytes) -> _Fields:
        try:
            return cls(msgspec.json.decode(body, type=dict[str, Any]))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            text = f"{body[:200]!r} is no check point or acknowledgement: {error}"
            raise RemoteProtocolError(text) from None

    def find(self, name: str, long_name: str = "") -> Any:
        return self.by_name.get(name, self.by_name.get(long_name))

    def number(self, name: str, long_name: str = "") -> int:
        value = self.find(name, long_name)
        if type(value) is not int or not -(2**63) <= value < 2**63:
            raise _wrong(name, value)
        return value

    def numbers(self, name: str, long_name: str = "") -> list[int]:
        value = self.find(name, long_name)
        if value is None:
            return []
        if type(value) is not list or any(type(item) is not int for item in value):
            raise _wrong(name, value)
        return value

    def text(self, name: str, long_name: str = "") -> str:
        value = self.find(name, long_name)
        if type(value) is not str or not value:
            raise _wrong(name, value)
        return value


def _wrong(name: str, value: object) -> RemoteProtocolError:
    return RemoteProtocolError(f"field {name} of a check point or acknowledgement is {str(value)[:200]!r}")


def point_properties(point: CheckPoint) -> dict[str, str]:
    """Return the properties of a check point's record, without a due time."""
    topic, group, queue_id, start, pop_ms = point.key
    return {
        props.PROPERTY_UNIQ_KEY: f"{topic}@{queue_id}@{start}@{group}@{pop_ms}@{point.broker_name}@ck",
        props.PROPERTY_TAGS: "ck",
    }


def ack_properties(ack: Acknowledgement, tag: bytes) -> dict[str, str]:
    """Return the properties of an acknowledgement's record, without a due time."""
    topic, group, queue_id, _, pop_ms = ack.key
    offset = ack.offsets[0] if tag == ACK_TAG else -1
    return {
        props.PROPERTY_UNIQ_KEY: f"{topic}@{queue_id}@{offset}@{group}@{pop_ms}@{ack.broker_name}@ack",
        props.PROPERTY_TAGS: tag.decode(),
    }


def revive_message(
    topic: str, queue_id: int, body: bytes, properties: dict[str, str], host: bytes, now_ms: int
) -> MessageInner:
    """Return a message for a revive queue.

    The property TIMER_DELIVER_MS has the current time. RocketMQ takes it for the time up to which it has read
    the queue, and revives what was due two seconds before.
    """
    text = props.encode({props.TIMER_DELIVER_MS: str(now_ms), **properties})
    return MessageInner(topic, queue_id, body, text.encode(), born_timestamp=now_ms, born_host=host)


def tag_of(properties: bytes) -> bytes | None:
    """Return the tag of a record of the revive topic."""
    return props.find(properties, _TAGS)


def was_timer(properties: bytes) -> bool:
    """Whether a record of the revive topic was a timer, as RocketMQ's are."""
    return props.find(properties, _OUT_MS) is not None
