"""The properties of a message as one text, and the names that RocketMQ reserves.

A property is ``name U+0001 value U+0002``, in UTF-8. Decoding follows Java's ``split`` exactly (QUIRKS 21). A
piece that does not split into two parts is dropped, for example if its value is empty or contains U+0001. If
two pieces have the same name, the last one counts.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Final

from rocketpy.errors import MessageInvalid

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
MAX_PROPERTIES_BYTES: Final = 32767
_BROKER_BYTES: Final = 300
"""Room for properties that a broker adds, such as its cluster."""
"""The length is a signed 16-bit field of the record."""

KEY_SEPARATOR: Final = " "
"""Separates the keys in the value of KEYS."""

RETRY_TOPIC_PREFIX: Final = "%RETRY%"
"""The topic for redeliveries to a consumer group is this prefix and the group. Source: RocketMQ MixAll."""
DLQ_TOPIC_PREFIX: Final = "%DLQ%"
"""The topic for the dead letters of a consumer group is this prefix and the group."""

PROPERTY_KEYS: Final = "KEYS"
PROPERTY_TAGS: Final = "TAGS"
PROPERTY_WAIT_STORE_MSG_OK: Final = "WAIT"
PROPERTY_DELAY_TIME_LEVEL: Final = "DELAY"
PROPERTY_RETRY_TOPIC: Final = "RETRY_TOPIC"
PROPERTY_REAL_TOPIC: Final = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID: Final = "REAL_QID"
PROPERTY_TRANSACTION_PREPARED: Final = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP: Final = "PGROUP"
PROPERTY_MIN_OFFSET: Final = "MIN_OFFSET"
PROPERTY_MAX_OFFSET: Final = "MAX_OFFSET"
PROPERTY_BUYER_ID: Final = "BUYER_ID"
PROPERTY_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
PROPERTY_TRANSFER_FLAG: Final = "TRANSFER_FLAG"
PROPERTY_CORRECTION_FLAG: Final = "CORRECTION_FLAG"
PROPERTY_MQ2_FLAG: Final = "MQ2_FLAG"
PROPERTY_RECONSUME_TIME: Final = "RECONSUME_TIME"
PROPERTY_MSG_REGION: Final = "MSG_REGION"
PROPERTY_TRACE_SWITCH: Final = "TRACE_ON"
PROPERTY_UNIQ_KEY: Final = "UNIQ_KEY"
"""Holds the client unique id."""
PROPERTY_MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
PROPERTY_CONSUME_START_TIMESTAMP: Final = "CONSUME_START_TIME"
PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_INSTANCE_ID: Final = "INSTANCE_ID"
PROPERTY_CORRELATION_ID: Final = "CORRELATION_ID"
PROPERTY_MESSAGE_REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
PROPERTY_MESSAGE_TTL: Final = "TTL"
PROPERTY_REPLY_MESSAGE_ARRIVE_TIME: Final = "ARRIVE_TIME"
PROPERTY_PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
PROPERTY_CLUSTER: Final = "CLUSTER"
PROPERTY_MESSAGE_TYPE: Final = "MSG_TYPE"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
"""Which message the record of a recall takes back."""
START_DELIVER_TIME: Final = "__STARTDELIVERTIME"
POP_RECEIPT: Final = "POP_CK"
"""The receipt of a popped message. Brokers of RocketMQ 5 add it to the records of retried ones."""
DEAD_LETTER_REASON: Final = "__DLQ_REASON"
"""Why a message is a dead letter; RocketMQ has no such property."""

TIMER_PROPERTIES: Final = frozenset(
    {
        TIMER_DELAY_SEC,
        TIMER_DELAY_MS,
        TIMER_DELIVER_MS,
        START_DELIVER_TIME,
    }
)
"""When a message is to be delivered, in timer messages of RocketMQ 5.x. Brokers of 4.x ignore them."""
RETRY_PROPERTIES: Final = frozenset(
    {
        PROPERTY_RETRY_TOPIC,
        PROPERTY_RECONSUME_TIME,
        PROPERTY_MAX_RECONSUME_TIMES,
        PROPERTY_ORIGIN_MESSAGE_ID,
        DEAD_LETTER_REASON,
    }
)
"""Properties of messages that a consumer sent back. Its group gets them under the topic RETRY_TOPIC."""


def split_keys(text: str | None) -> tuple[str, ...]:
    """Return the keys in the value of KEYS. As in Java, only U+0020 separates keys."""
    return tuple(filter(None, text.split(KEY_SEPARATOR))) if text else ()


RESERVED_BY_5: Final = frozenset(
    {
        "1ST_POP_TIME", "BORN_TIMESTAMP", "DLQ_ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC", "DUP_INFO",
        "EXTEND_UNIQ_INFO", "INNER_BASE", "INNER_MULTI_QUEUE_OFFSET", "INNER_NUM", POP_RECEIPT,
        "POP_CK_OFFSET",
        "PROPERTY_FORWARD_QUEUE_ID", "REDIRECT", "TIMER_DELAY_LEVEL", TIMER_DEL_UNIQKEY,
        "TIMER_DEQUEUE_MS", "TIMER_ENQUEUE_MS", "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "__BORNHOST", "__CRC32#",
        "__RMQ.TRANSIENT.GROUP_SYS_FLAG", "__RMQ.TRANSIENT.TOPIC_SYS_FLAG", "__transactionId__",
    }
)  # fmt: skip
"""Further names that RocketMQ 5.3.3 uses itself. Source: MessageConst.

Left out are the timer properties, and those that Java's clients let applications set: __SHARDINGKEY,
TRACE_CONTEXT and INNER_MULTI_DISPATCH.
"""

_REASON_CHARACTERS_MAX: Final = 500


def set_reason(properties: MutableMapping[str, str], reason: str | None) -> None:
    """Set why a message is a dead letter, or remove an earlier reason.

    The reason is cut to 500 characters, its control characters are replaced, and it is left out if the
    properties would be too long: a dead letter is never lost because of its reason.
    """
    properties.pop(DEAD_LETTER_REASON, None)
    text = "".join(char if char.isprintable() else " " for char in (reason or "")[:_REASON_CHARACTERS_MAX])
    if text.strip():
        longer = {**properties, DEAD_LETTER_REASON: text.strip()}
        if len(encode(longer).encode("utf-8", "replace")) <= MAX_PROPERTIES_BYTES - _BROKER_BYTES:
            properties.update(longer)


def encode(properties: Mapping[str, str | None]) -> str:
    """Encode properties in their order, with a separator after each.

    None becomes the word null, as in RocketMQ; an empty value is encoded, but readers drop it. Raises
    MessageInvalid when a name or value contains a separator.
    Source: RocketMQ MessageDecoder messageProperties2String.
    """
    text = "".join(
        [f"{name}\x01{'null' if value is None else value}\x02" for name, value in properties.items()]
    )
    if text.count("\x01") != len(properties) or text.count("\x02") != len(properties):
        bad = [
            name for name, value in properties.items() if not {"\x01", "\x02"}.isdisjoint(f"{name}{value}")
        ]
        raise MessageInvalid(
            f"properties {bad} contain U+0001 or U+0002, which separate properties on the wire"
        )
    return text


def decode(text: str | bytes) -> dict[str, str]:
    """Decode properties. Malformed pieces are dropped, and invalid UTF-8 becomes U+FFFD.

    Source: RocketMQ MessageDecoder string2messageProperties.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    properties = {}
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if "\x01" in value:
            value = value.rstrip("\x01")
            if "\x01" in value:
                continue
        if value:
            properties[name] = value
    return properties


def find(raw: bytes, name: bytes) -> bytes | None:
    """Return the undecoded value of one property, or None; the others are not decoded.

    raw: the properties in UTF-8.
    """
    needle = b"\x02" + name + b"\x01"
    at = raw.rfind(needle)
    start = at + len(needle)
    if at < 0:
        if not raw.startswith(needle[1:]):
            return None
        start = len(needle) - 1
    end = raw.find(b"\x02", start)
    value = raw[start:] if end < 0 else raw[start:end]
    if value and b"\x01" not in value:
        return value
    return _find_slowly(raw, name)


def _find_slowly(raw: bytes, name: bytes) -> bytes | None:
    """Find an earlier piece with the name, since the last one is malformed."""
    for piece in reversed(raw.split(b"\x02")):
        found, _, value = piece.partition(b"\x01")
        value = value.rstrip(b"\x01")
        if found == name and value and b"\x01" not in value:
            return value
    return None
