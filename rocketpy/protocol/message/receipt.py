"""Receipt: names one delivery of a popped message, for its acknowledgement or another invisible time.

Its text is ``checkpoint pop-time invisible-time revive-queue kind broker queue [offset]``. A pop's response
has fields from which its consumer makes the receipts. Both have RocketMQ's form (5.3.3 ExtraInfoUtil).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Self, TypeAlias

from rocketpy.errors import MessageInvalid, RemoteProtocolError
from rocketpy.protocol.message.properties import RETRY_TOPIC_PREFIX

ORDER_REVIVE_QUEUE: Final = 999
"""Stands for the revive queue in receipts of ordered pops, which have no check point."""

_WORDS_MIN: Final = 7
_ENTRY_WORDS: Final = 3
_MAX_DIGITS: Final = 19
_NUMBER: Final = f"(-?[0-9]{{1,{_MAX_DIGITS}}})"
_TEXT: Final = re.compile(
    f"{_NUMBER} {_NUMBER} {_NUMBER} {_NUMBER} ([012]) ([^ ]*) {_NUMBER}(?: {_NUMBER}(?: .*)?)?", re.DOTALL
)
"""Further words are ignored, as in Java."""
_QUEUE_OFFSET: Final = "qo"


class TopicKind(StrEnum):
    """Which topic holds a popped message: the one that was asked for, or one of the group's retry topics."""

    NORMAL = "0"
    RETRY_V1 = "1"
    RETRY_V2 = "2"

    @classmethod
    def of(cls, topic: str) -> Self:
        """Return the kind of a topic by its name."""
        if not topic.startswith(RETRY_TOPIC_PREFIX):
            return cls("0")
        return cls("2") if "+" in topic else cls("1")

    def topic(self, topic: str, group: str) -> str:
        """Return the name of the topic of this kind; both names with their namespace."""
        match self:
            case TopicKind.NORMAL:
                return topic
            case TopicKind.RETRY_V1:
                return f"{RETRY_TOPIC_PREFIX}{group}_{topic}"
            case TopicKind.RETRY_V2:
                return f"{RETRY_TOPIC_PREFIX}{group}+{topic}"


class Receipt(NamedTuple):
    """What the text of a receipt says."""

    checkpoint_offset: int
    """Queue offset at which the check point of the pop begins."""
    pop_time: int
    """When the broker gave the message, in ms since 1970, by its clock."""
    invisible_time: int
    """How long the message is invisible from then on, in ms."""
    revive_queue: int
    """Queue of the revive topic with the check point, or `ORDER_REVIVE_QUEUE`."""
    kind: TopicKind
    broker_name: str
    queue_id: int
    queue_offset: int | None = None
    """Offset of the message, if the text names one. Receipts of a whole pop do not."""

    @property
    def is_ordered(self) -> bool:
        """True if the pop was in order."""
        return self.revive_queue == ORDER_REVIVE_QUEUE

    def encode(self) -> str:
        """Return the text of the receipt."""
        words = self if self.queue_offset is not None else self[:_WORDS_MIN]
        return " ".join(map(str, words))

    @classmethod
    def decode(cls, text: object) -> Self:
        """Read the text of a receipt. Raises MessageInvalid."""
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise MessageInvalid(
                f"{str(text)[:100]!r} is not a receipt; pass a message that a consumer received"
            )
        checkpoint, pop_time, invisible, revive, kind, broker_name, queue_id, queue_offset = found.groups()
        return cls(
            int(checkpoint),
            int(pop_time),
            int(invisible),
            int(revive),
            TopicKind(kind),
            broker_name,
            int(queue_id),
            None if queue_offset is None else int(queue_offset),
        )


QueueKey: TypeAlias = tuple[TopicKind, int]
"""A queue in the fields of a pop's response: the kind of its topic, and its id."""


def encode_start_offsets(offsets: Mapping[QueueKey, int]) -> str:
    """Return the text of startOffsetInfo: where the check point of each queue begins."""
    return _encode((kind, str(queue), str(offset)) for (kind, queue), offset in offsets.items())


def parse_start_offsets(text: str | None) -> dict[QueueKey, int]:
    """Read startOffsetInfo. Raises RemoteProtocolError."""
    return {
        (kind, _field(queue, text)): _field(offset, text)
        for (kind, queue), offset in _entries("startOffsetInfo", text).items()
    }


def encode_message_offsets(offsets: Mapping[QueueKey, Sequence[int]]) -> str:
    """Return the text of msgOffsetInfo: the offsets of the messages of each queue."""
    return _encode((kind, str(queue), ",".join(map(str, each))) for (kind, queue), each in offsets.items())


def parse_message_offsets(text: str | None) -> dict[QueueKey, list[int]]:
    """Read msgOffsetInfo. Raises RemoteProtocolError."""
    return {
        (kind, _field(queue, text)): [_field(offset, text) for offset in offsets.split(",")]
        for (kind, queue), offsets in _entries("msgOffsetInfo", text).items()
    }


OrderCounts: TypeAlias = Mapping[tuple[TopicKind, int, int | None], int]
"""How often messages were delivered before: by kind, queue and offset; the offset None counts for a queue's
messages that are not named."""


def encode_order_counts(counts: OrderCounts) -> str:
    """Return the text of orderCountInfo."""
    return _encode(
        (kind, str(queue) if offset is None else f"{_QUEUE_OFFSET}{queue}%{offset}", str(count))
        for (kind, queue, offset), count in counts.items()
    )


def parse_order_counts(text: str | None) -> OrderCounts:
    """Read orderCountInfo. Raises RemoteProtocolError."""
    counts = {}
    for (kind, key), count in _entries("orderCountInfo", text).items():
        queue, _, offset = key.removeprefix(_QUEUE_OFFSET).partition("%")
        place = (kind, _field(queue, text), _field(offset, text) if offset else None)
        counts[place] = _field(count, text)
    return counts


def _encode(entries: Iterable[tuple[str, str, str]]) -> str:
    return ";".join(map(" ".join, entries))


def _entries(field: str, text: str | None) -> dict[tuple[TopicKind, str], str]:
    """Return the entries of a field: from the first two words to the third. As in Java, none twice."""
    entries: dict[tuple[TopicKind, str], str] = {}
    for entry in text.split(";") if text else ():
        words = entry.split(" ")
        try:
            kind, key, value = TopicKind(words[0]), *words[1:]
        except ValueError:
            raise _malformed(text, field) from None
        if (kind, key) in entries:
            raise _malformed(text, field)
        entries[kind, key] = value
    return entries


def _number(text: str) -> int:
    """Read a Java long without Python's further forms. Raises ValueError."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS):
        raise ValueError(text)
    return int(text)


def _field(number: str, text: str | None) -> int:
    try:
        return _number(number)
    except ValueError:
        raise _malformed(text) from None


def _malformed(text: str | None, field: str = "a field") -> RemoteProtocolError:
    return RemoteProtocolError(f"{field} of the response to a pop is malformed: {(text or '')[:100]!r}")
