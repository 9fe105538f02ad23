"""Timed messages: when they are due, how they wait in `rmq_sys_wheel_timer`, and how they leave it.

Source: HookUtils, TimerMessageStore of RocketMQ 5.3.3 (QUIRKS 70 to 72). Differs: the property
`__TIMER_DUE_MS` has the milliseconds, which RocketMQ's TIMER_OUT_MS does not. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from rocketpy.errors import MessageInvalid
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.record import Record
from rocketpy_broker.services.delay.topic_rewrite import copy_to
from rocketpy_broker.services.timers.formats import PRECISION_MS
from rocketpy_broker.store import MessageInner

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
OUT_MS: Final = "TIMER_OUT_MS"
DUE_MS: Final = "__TIMER_DUE_MS"
"""When a message is due, in ms since 1970. Not in RocketMQ."""
RECALLED: Final = props.TIMER_DEL_UNIQKEY
"""Of a recall: topic, plus sign and unique id of the recalled message. See `recalled_key`."""
_ENQUEUE_MS: Final = b"TIMER_ENQUEUE_MS"
_DEQUEUE_MS: Final = b"TIMER_DEQUEUE_MS"
_ROLL_TIMES: Final = b"TIMER_ROLL_TIMES"
_RELATIVE: Final = {props.TIMER_DELAY_SEC: 1000, props.TIMER_DELAY_MS: 1}
_ASKED: Final = (props.TIMER_DELAY_SEC, props.TIMER_DELAY_MS, props.TIMER_DELIVER_MS)
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_ADDED_BYTES: Final = 300
"""Room for the properties that a timed message gets until its delivery."""
_OUT: Final = OUT_MS.encode()
_DUE: Final = DUE_MS.encode()
_RECALLED: Final = RECALLED.encode()


def is_timed(properties: Mapping[str, str]) -> bool:
    """Whether a message asks for a due time. One that was a timer before does not (QUIRKS 71)."""
    return OUT_MS not in properties and any(name in properties for name in _ASKED)


def without_times(properties: dict[str, str]) -> None:
    """Remove the due time of a message with a delay level, which counts instead."""
    for name in _ASKED:
        properties.pop(name, None)


def due_time(properties: Mapping[str, str], now_ms: int) -> int:
    """Return when a timed message is due, in ms since 1970; maybe in the past. Raises MessageInvalid."""
    for name in _ASKED:
        if (text := properties.get(name)) is not None:
            break
    else:
        raise MessageInvalid("the message has no due time")
    if not _NUMBER.fullmatch(text):
        raise MessageInvalid(f"the property {name} is {text[:50]!r}; expected a whole number")
    unit_ms = _RELATIVE.get(name)
    return int(text) if unit_ms is None else now_ms + int(text) * unit_ms


def out_time(due_ms: int) -> int:
    """Return TIMER_OUT_MS: the time of the slot, at the end of which RocketMQ delivers the message."""
    return (due_ms - 1) // PRECISION_MS * PRECISION_MS


def to_timer_message(message: MessageInner, due_ms: int) -> None:
    """Move a message to the timer topic. Raises MessageInvalid if its properties are too long."""
    message.properties += (
        b"TIMER_OUT_MS\x01%d\x02__TIMER_DUE_MS\x01%d\x02REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02"
        % (out_time(due_ms), due_ms, message.topic.encode(), message.queue_id)
    )  # of two properties with one name, the last one counts
    message.topic, message.queue_id = TIMER_TOPIC, 0
    if len(message.properties) > props.MAX_PROPERTIES_BYTES - _ADDED_BYTES:
        raise MessageInvalid(
            f"properties of {len(message.properties)} bytes; a timed message may have "
            f"{props.MAX_PROPERTIES_BYTES - _ADDED_BYTES}, since it gets more until its delivery"
        )


class Timer(NamedTuple):
    """What the properties of a stored timer say."""

    out_ms: int
    due_ms: int
    """0 if RocketMQ stored it, which keeps seconds."""
    recalls: bool
    real_topic: bytes

    @classmethod
    def read(cls, properties: bytes) -> Timer:
        """Read the properties of a record of the timer topic. Raises MessageInvalid."""
        out, due = props.find(properties, _OUT), props.find(properties, _DUE)
        topic = props.find(properties, props.PROPERTY_REAL_TOPIC.encode())
        try:
            out_ms, due_ms = int(out or b"") // PRECISION_MS * PRECISION_MS, int(due or b"0")
        except ValueError:
            out_ms = due_ms = -1
        if not 0 < out_ms < 2**62 or topic is None:
            raise MessageInvalid(f"TIMER_OUT_MS {(out or b'')[:50]!r} is no time, or REAL_TOPIC is missing")
        if not out_ms < due_ms <= out_ms + PRECISION_MS:
            due_ms = 0  # another broker may have changed TIMER_OUT_MS
        return cls(out_ms, due_ms, props.find(properties, _RECALLED) is not None, topic)


def recall_key(topic: bytes, unique_id: bytes) -> bytes:
    """Return the value of TIMER_DEL_UNIQKEY that recalls a message."""
    return topic + b"+" + unique_id


def recalled_key(properties: bytes) -> bytes | None:
    """Return the key of the message that a stored timer recalls; None if it recalls none.

    It is of the same topic. RocketMQ 5.5.0 stores the unique id alone, 5.3.3 the whole key (QUIRKS 74).
    """
    value = props.find(properties, _RECALLED)
    topic = props.find(properties, props.PROPERTY_REAL_TOPIC.encode())
    if value is None or topic is None:
        return None
    return value if value.startswith(topic + b"+") else recall_key(topic, value)


def own_key(properties: bytes) -> bytes | None:
    """Return the key by which a stored timer can be recalled; None if it has no unique id."""
    unique_id = props.find(properties, props.PROPERTY_UNIQ_KEY.encode())
    topic = props.find(properties, props.PROPERTY_REAL_TOPIC.encode())
    return None if unique_id is None or topic is None else recall_key(topic, unique_id)


def rolled(record: Record, enqueued_ms: int, now_ms: int) -> MessageInner:
    """Return the copy of a stored timer that waits further."""
    times = props.find(record.properties, _ROLL_TIMES) or b"0"
    number = int(times) + 1 if _NUMBER.fullmatch(times.decode("ascii", "replace")) else 1
    copy = copy_to(record, TIMER_TOPIC, 0)
    left = _left(record.properties, enqueued_ms, now_ms, _ROLL_TIMES)
    copy.properties = b"%b%b\x01%d\x02" % (left, _ROLL_TIMES, number)
    return copy


def delivered(record: Record, topic: str, queue_id: int, enqueued_ms: int, now_ms: int) -> MessageInner:
    """Return the copy of a stored timer for its real topic and queue."""
    copy = copy_to(record, topic, queue_id)
    copy.properties = properties_of_due(record.properties, enqueued_ms, now_ms)
    return copy


def properties_of_due(properties: bytes, enqueued_ms: int, now_ms: int) -> bytes:
    """Return the properties of a delivered message."""
    return _left(properties, enqueued_ms, now_ms, _DUE)


def _left(properties: bytes, enqueued_ms: int, now_ms: int, removed: bytes) -> bytes:
    """Return the properties with the times of the wheel, and without the removed one."""
    kept = b"\x02" + properties.rstrip(b"\x02") + b"\x02"
    for name in (removed, _ENQUEUE_MS, _DEQUEUE_MS):
        while (at := kept.find(b"\x02%b\x01" % name)) >= 0:
            kept = kept[:at] + kept[kept.index(b"\x02", at + 1) :]
    return b"%bTIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (kept[1:], enqueued_ms, now_ms)
