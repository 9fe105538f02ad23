"""Moves delayed messages and half messages to their system topics, and back to their real topics.

The real topic and queue are stored in the properties REAL_TOPIC and REAL_QID, which are never removed
(QUIRKS 28, 29). Source: CommitLog.putMessage, TransactionalMessageBridge of RocketMQ 4.6.0. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rocketpy.errors import MessageInvalid
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy.protocol.message.record import Record
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.store import MessageInner

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
"""The revive topic is this prefix and the cluster; see `rocketpy_broker.services.pop`."""

_REMOVED_FROM_HALF: Final = (
    props.PROPERTY_DELAY_TIME_LEVEL,
    props.PROPERTY_TRANSACTION_CHECK_TIMES,
    props.PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
)
_REAL_TOPIC: Final = props.PROPERTY_REAL_TOPIC.encode()
_REAL_QUEUE_ID: Final = props.PROPERTY_REAL_QUEUE_ID.encode()
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,20}")
"""As Java reads it, but for digits of other scripts; Python's `int` takes ``1_0`` and spaces, too."""
_V6: Final = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6


def delay_level(properties: Mapping[str, str]) -> int:
    """Return the delay level, 0 without one. Raises MessageInvalid if it is not a number."""
    text = properties.get(props.PROPERTY_DELAY_TIME_LEVEL, "0")
    if not _NUMBER.fullmatch(text):
        raise MessageInvalid(f"the property DELAY is {text[:50]!r}; expected the number of a delay level")
    return int(text)


def is_half(properties: Mapping[str, str]) -> bool:
    """Whether a message is a half message, which waits for the end of its transaction."""
    return properties.get(props.PROPERTY_TRANSACTION_PREPARED, "").lower() == "true"


def to_delayed_message(message: MessageInner, properties: dict[str, str], level: int, level_max: int) -> int:
    """Move a message to the queue of its delay level, at most `level_max`. Return the level.

    properties: all properties of the message; they are changed and stored in it.
    """
    level = min(level, level_max)
    properties[props.PROPERTY_DELAY_TIME_LEVEL] = str(level)
    move(message, properties, SCHEDULE_TOPIC, level - 1)
    return level


def to_half_message(message: MessageInner, properties: dict[str, str]) -> None:
    """Turn a message into a half message; see `to_delayed_message`.

    Its transaction type becomes TRANSACTION_NOT: consume queues leave out prepared messages, but a half
    message must be in the queue of HALF_TOPIC. DELAY is removed, as in RocketMQ's clients: a half message
    cannot be delayed as well. So are the properties that the checks set: with them, a half message could
    stand for that of another producer.
    """
    for name in _REMOVED_FROM_HALF:
        properties.pop(name, None)
    message.sys_flag = MessageSysFlag.with_transaction(message.sys_flag, MessageSysFlag.TRANSACTION_NOT)
    move(message, properties, HALF_TOPIC, 0)


def move(message: MessageInner, properties: dict[str, str], topic: str, queue_id: int) -> None:
    """Move a message to a queue of a system topic, and note its real queue.

    properties: all properties of the message; they are changed and stored in it.
    """
    properties[props.PROPERTY_REAL_TOPIC] = message.topic
    properties[props.PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    message.topic, message.queue_id = topic, queue_id
    message.properties = props.encode(properties).encode()


def real_queue(properties: bytes) -> tuple[str, int]:
    """Return the real topic and queue of a stored message. Raises MessageInvalid without them."""
    topic = props.find(properties, _REAL_TOPIC)
    queue_id = props.find(properties, _REAL_QUEUE_ID)
    try:
        name, number = (topic or b"").decode(), int(queue_id or b"")
    except ValueError:
        name, number = "", -1
    if not name or not 0 <= number < 2**31:
        raise MessageInvalid(
            f"REAL_TOPIC {(topic or b'')[:200]!r} and REAL_QID {(queue_id or b'')[:50]!r} name no queue"
        )
    return name, number


def copy_to(record: Record, topic: str, queue_id: int) -> MessageInner:
    """Return a copy of a stored message for another queue.

    The size limit is not checked, so that a longer topic or an added property does not make a stored message
    undeliverable.
    """
    return MessageInner(
        topic,
        queue_id,
        record.body,
        record.properties,
        record.flag,
        record.sys_flag & ~_V6,
        record.born_timestamp,
        record.born_host,
        record.reconsume_times,
        is_copy=True,
    )
