"""Message and MessageExt: a message to send, and a received message.

Source: RocketMQ Message, MessageExt, Validators. Differs: a topic may have 127 characters, which is the limit
of the stored record; RocketMQ's client allows 255, which its broker rejects.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Self, cast

import msgspec

from rocketpy.errors import GroupInvalid, MessageInvalid, RocketError, TopicInvalid
from rocketpy.message import timers
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.java import trim
from rocketpy.protocol.message import properties as names
from rocketpy.protocol.message.checksum import PROPERTY_BODY_CHECKSUM
from rocketpy.protocol.message.message_id import UniqueIdGenerator, message_id
from rocketpy.protocol.message.record import (
    MAX_TOPIC_BYTES,
    Record,
    envelope_properties,
    envelope_queue_offset,
    envelope_topic,
    host_text,
    open_envelope,
)

DEFAULT_TOPIC: Final = "TBW102"
"""The topic whose route is used for topics that do not exist yet. Source: RocketMQ MixAll."""
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
"""The topic of message traces (`rocketpy.telemetry.message_trace`). Source: RocketMQ MixAll."""
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
"""After the name of a cluster: the topic of replies."""
MAX_GROUP_LENGTH: Final = 255

RESERVED_PROPERTIES: Final = frozenset(
    value for name, value in vars(names).items() if name.startswith("PROPERTY_") and value != "\x02"
) | {PROPERTY_BODY_CHECKSUM, names.DEAD_LETTER_REASON, *names.RESERVED_BY_5}
"""Names of properties that RocketMQ uses, up to 5.3.3, and two of rocketpy. Source: RocketMQ MessageConst.

The timer properties are not among them: with brokers of RocketMQ 5.x, applications set them.
"""

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})
_INT32: Final = range(-(2**31), 2**31)
_LEVEL_DIGITS_MAX: Final = 10
_UNIQUE_ID: Final = re.compile(r"[0-9A-Fa-f]{32}(?:[0-9A-Fa-f]{24})?")
_LOOPBACK: Final = bytes((127, 0, 0, 1))


class Message:
    """A message to send. Immutable; it can be sent several times.

    Args:
        topic: At most 127 letters, digits and ``% | _ -``.
        body: 1 byte to 4 MiB (the limit of the producer).
        tags: One tag, by which consumers filter in the broker. It has no ``||`` and no spaces at its ends:
            no subscription could name it.
        keys: Keys for queries; a string is split at spaces, as in RocketMQ.
        deliver_at: When consumers get the message, with a time zone; a time in the past is now. `deliver_at`,
            `delay` and `delay_level` exclude each other.
        delay: How long after the broker has stored it consumers get the message. `deliver_at` and `delay`
            need a broker with timers, rocketpy's or one of RocketMQ 5, which limits them
            (`timerMaxDelaySec`). To one of RocketMQ 4.x, `send` gives a delay the level of exactly this
            length, and refuses others.
        delay_level: 0 for no delay, else a level of the broker (`messageDelayLevel`): 1 to 18 are 1 s to 2 h
            in the default table. A producer refuses higher levels (`ProducerConfig.max_delay_level`), since
            brokers treat them as their last. `DelayLevels` converts a timedelta to a level.
        wait_store: Whether the broker responds only after its configured flush and replication.
        flag: Any signed 32-bit number; brokers keep it unchanged.
        properties: Properties of the user, without reserved names and empty values. The attribute
            `properties` also has those of `buyer_id`, `instance_id`, `deliver_at` and `delay`, which are
            TIMER_DELIVER_MS and TIMER_DELAY_MS.
        buyer_id: The property BUYER_ID, which brokers ignore.
        instance_id: The property INSTANCE_ID, which brokers ignore; a client with a namespace sets it.
        transaction_id: Not sent; a transactional send sets it in the message for the local transaction.
        unique_id: The id (UNIQ_KEY) in every send of the message, from `new_unique_id`; None for a new id in
            each send. Set it before the first send when you send again after an error, so that consumers can
            recognize duplicates.

    Raises:
        TopicInvalid: The topic is invalid.
        MessageInvalid: Another argument is invalid.
    """

    __slots__ = (
        "body",
        "delay_level",
        "flag",
        "keys",
        "properties",
        "tags",
        "topic",
        "transaction_id",
        "unique_id",
        "wait_store",
    )

    topic: Final[str]
    body: Final[bytes]
    tags: Final[str | None]
    keys: Final[tuple[str, ...]]
    delay_level: Final[int]
    wait_store: Final[bool]
    flag: Final[int]
    properties: Final[Mapping[str, str]]
    transaction_id: Final[str | None]
    unique_id: Final[str | None]

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
        delay_level: int = 0,
        wait_store: bool = True,
        flag: int = 0,
        properties: Mapping[str, str] | None = None,
        buyer_id: str | None = None,
        instance_id: str | None = None,
        transaction_id: str | None = None,
        unique_id: str | None = None,
    ) -> None:
        try:
            self.topic = check_topic(topic)
        except TypeError:  # not hashable, so it is not in the cache of checked topics
            raise TopicInvalid(f"topic is {topic!r}; it must be a string") from None
        self.body = body if type(body) is bytes else _bytes(body)
        if not body:
            raise MessageInvalid(
                f"message for {topic} has an empty body, which RocketMQ brokers reject; set a body"
            )
        self.tags = check_tag(tags) if tags else None
        self.keys = _keys(keys) if keys else ()
        if delay_level or flag or type(delay_level) is not int or type(flag) is not int:
            _check_numbers(delay_level, flag)
        if wait_store is not True and wait_store is not False:
            raise MessageInvalid(f"wait_store is {wait_store!r}; it must be True or False")
        self.delay_level = delay_level
        self.wait_store = wait_store
        self.flag = flag
        self.transaction_id = transaction_id
        self.unique_id = _checked_id(unique_id) if unique_id is not None else None
        found = _user_properties(properties) if properties else _NO_PROPERTIES
        if buyer_id is not None or instance_id is not None:
            found = _with_ids(found, buyer_id, instance_id)
        if deliver_at is not None or delay is not None:
            timer = timers.timer_properties(deliver_at, delay, delay_level, found)
            found = MappingProxyType({**found, **timer})
        self.properties = found

    @property
    def deliver_at(self) -> datetime | None:
        """When consumers get it, in UTC and rounded up to a millisecond; None for no time."""
        return timers.deliver_at_of(self.properties)

    @property
    def delay(self) -> timedelta | None:
        """How long after it is stored consumers get it, rounded up to a millisecond; None for no delay."""
        return timers.delay_of(self.properties)

    @property
    def buyer_id(self) -> str | None:
        """The property BUYER_ID."""
        return self.properties.get(names.PROPERTY_BUYER_ID)

    @property
    def instance_id(self) -> str | None:
        """The property INSTANCE_ID."""
        return self.properties.get(names.PROPERTY_INSTANCE_ID)

    @classmethod
    def with_reserved(
        cls, message: Message, reserved: Mapping[str, str], *, transaction_id: str | None = None
    ) -> Self:
        """Return a copy with reserved properties, such as those of a half message.

        For internal use: the values are checked as in `check_value`, the names are not checked.
        """
        for name, value in reserved.items():
            check_value(f"property {name}", value)
        copy = cls.__new__(cls)
        fields = {name: getattr(message, name) for name in Message.__slots__}
        fields["properties"] = MappingProxyType({**message.properties, **reserved})
        fields["transaction_id"] = transaction_id or message.transaction_id
        for name, value in fields.items():
            setattr(copy, name, value)
        return copy

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in Message.__slots__)

    def __hash__(self) -> int:
        return hash((self.topic, self.body, self.tags, self.keys))

    def __getstate__(self) -> dict[str, object]:
        """Return the state for pickle and copy, which do not support a MappingProxyType."""
        return {name: getattr(self, name) for name in Message.__slots__} | {
            "properties": dict(self.properties)
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore pickled state. Older pickles have no `unique_id`."""
        for name, value in {"unique_id": None, **state}.items():
            setattr(self, name, value)
        self.properties = MappingProxyType(state["properties"])  # type: ignore[misc] # as `__init__` does

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, <{len(self.body)} bytes>, tags={self.tags!r}, keys={self.keys!r})"


def new_unique_id() -> str:
    """Return a new id for `Message(unique_id=...)`. Safe in threads and after a fork."""
    if _own.process != os.getpid():
        _own.process, _own.ids = os.getpid(), UniqueIdGenerator(_LOOPBACK)
    return _own.ids.next(time.time_ns() // 1_000_000)


class _ThreadGenerator(threading.local):
    """The generator of unique ids of a thread, and the process that made it."""

    process = 0
    ids: UniqueIdGenerator


_own: Final = _ThreadGenerator()


@lru_cache(maxsize=4096)
def check_topic(topic: object) -> str:
    """Return the topic, if messages may be sent to it. Raises TopicInvalid."""
    if not isinstance(topic, str) or not _NAME.fullmatch(topic):
        raise TopicInvalid(f"topic {topic!r} must be made of letters, digits and % | _ -")
    if len(topic) > MAX_TOPIC_BYTES:
        raise TopicInvalid(f"the topic has {len(topic)} characters; {MAX_TOPIC_BYTES} are allowed: {topic!r}")
    if topic == DEFAULT_TOPIC:
        raise TopicInvalid(f"{DEFAULT_TOPIC} is the template of new topics; choose another topic")
    return topic


def check_message(message: object) -> Message:
    """Return the argument, if it is a `Message`. Raises MessageInvalid."""
    if not isinstance(message, Message):
        hint = (
            "create a Message from its topic and body"
            if isinstance(message, MessageExt)
            else "write Message(topic, body)"
        )
        raise MessageInvalid(f"a {type(message).__name__} cannot be sent; {hint}")
    return message


def check_received(message: object) -> MessageExt:
    """Return the argument, if it is a message that was read from a broker. Raises MessageInvalid."""
    if not isinstance(message, MessageExt):
        raise MessageInvalid(f"a {type(message).__name__} is not a received message; pass a MessageExt")
    return message


def check_group(group: object) -> str:
    """Return the name of a group, if it is valid. Raises GroupInvalid."""
    if not isinstance(group, str) or not _NAME.fullmatch(group):
        raise GroupInvalid(f"group {group!r} must be made of letters, digits and % | _ -")
    if len(group) > MAX_GROUP_LENGTH:
        raise GroupInvalid(
            f"the group has {len(group)} characters; {MAX_GROUP_LENGTH} are allowed: {group!r}"
        )
    return group


def _bytes(body: object) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise MessageInvalid(f"the body is a {type(body).__name__}; it must be bytes: text needs .encode()")


def _check_numbers(delay_level: object, flag: object) -> None:
    _check_number("delay_level", delay_level, range(2**31))
    check_flag(flag)


def check_flag(flag: object) -> None:
    """Raise MessageInvalid unless a flag is a signed 32-bit number."""
    _check_number("flag", flag, _INT32)


def _check_number(name: str, value: object, allowed: range) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
        raise MessageInvalid(
            f"{name} is {value!r}; it must be a whole number from {allowed[0]} to {allowed[-1]}"
        )


def _checked_id(unique_id: object) -> str:
    if isinstance(unique_id, str) and _UNIQUE_ID.fullmatch(unique_id):
        return unique_id
    raise MessageInvalid(
        f"unique_id is {unique_id!r}; it must have 32 or 56 hexadecimal digits: new_unique_id() makes one"
    )


def check_value(name: str, value: object) -> str:
    """Return a value of a property, tags or keys, if it is not blank and can be encoded. Raises
    MessageInvalid.
    """
    if not isinstance(value, str) or (not value.strip() and not trim(value)):
        raise MessageInvalid(f"{name} is {value!r}; it must be a string that is not empty")
    if "\x01" in value or "\x02" in value:
        raise MessageInvalid(f"{name} contains U+0001 or U+0002, which separate properties on the wire")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise MessageInvalid(f"{name} is not valid Unicode text: {error.reason}") from None
    return value


def check_tag(tag: object) -> str:
    """Return a tag, if a subscription can name it. Raises MessageInvalid."""
    try:
        return _checked_tag(tag)
    except TypeError:  # not hashable, so it is not in the cache of checked tags
        return check_value("tags", tag)


@lru_cache(maxsize=4096)
def _checked_tag(tag: object) -> str:
    text = check_value("tags", tag)
    if "||" in text:
        raise MessageInvalid(
            f"tags is {text!r}; a message has one tag, and || separates those of subscriptions"
        )
    if text.startswith(" ") or text.endswith(" "):
        raise MessageInvalid(f"tags is {text!r}; remove the spaces at its ends, which subscriptions ignore")
    return text


def _keys(keys: str | Iterable[str]) -> tuple[str, ...]:
    if isinstance(keys, str):
        return names.split_keys(check_value("keys", keys))
    try:
        found = tuple(keys)
    except TypeError:
        raise MessageInvalid(f"keys is {keys!r}; it must be a string, or several strings") from None
    for key in found:
        if names.KEY_SEPARATOR in check_value("a key", key):
            raise MessageInvalid(f"key {key!r} contains a space, which separates keys on the wire")
    return found


def _user_properties(properties: Mapping[str, str]) -> Mapping[str, str]:
    if type(properties) is not dict and not isinstance(properties, Mapping):
        raise MessageInvalid(f"properties is a {type(properties).__name__}; it must be a dict of strings")
    for name, value in properties.items():
        _check_name(name)
        # Printable text has no control characters and no lone surrogates.
        if type(value) is not str or not value.isprintable() or not value or value.isspace():
            check_value(f"property {name!r}", value)
    return MappingProxyType(dict(properties))


def check_properties(names_given: Iterable[str]) -> None:
    """Check the names of user properties of a batch. Raises MessageInvalid."""
    for name in names_given:
        _check_name(name)
        if name in names.TIMER_PROPERTIES:
            raise MessageInvalid(
                f"{timers.shown_timer(name)}: a batch has no timer messages; send them individually"
            )


def check_extra_property(name: str, value: str) -> None:
    """Check a property that a listener adds to a message of any kind. Raises MessageInvalid."""
    check_properties((name,))
    check_value(f"property {name!r}", value)


@lru_cache(maxsize=4096)
def _check_name(name: object) -> None:
    """Check the name of a property; cached, since a program uses few names."""
    if check_value("a property's name", name) in RESERVED_PROPERTIES:
        raise MessageInvalid(f"property name {name!r} is reserved by RocketMQ; choose another")


def _with_ids(
    properties: Mapping[str, str], buyer_id: str | None, instance_id: str | None
) -> Mapping[str, str]:
    ids = {names.PROPERTY_BUYER_ID: buyer_id, names.PROPERTY_INSTANCE_ID: instance_id}
    given = {name: check_value(name, value) for name, value in ids.items() if value is not None}
    return MappingProxyType({**properties, **given})


class MessageExt(msgspec.Struct, gc=False, eq=False):
    """A received message."""

    _record: Record | bytes
    """Or the envelope of the record, see `split_records`. Most consumers need only the body."""
    queue: Final[MessageQueue]
    """The queue that it was read from."""
    body: Final[bytes]
    """The body, decompressed. With a `decode_error` it has the raw bytes, compressed or damaged. If topic,
    properties and body cannot be separated, it has all bytes after the head of the record."""
    _properties: dict[str, str] | None = None
    decode_error: RocketError | None = None
    """Why the message cannot be decoded, or None."""
    receipt: str | None = None
    """Names this delivery, if a `SimpleConsumer` or a consumer with `Sharing.MESSAGES` received it. None for
    other consumers, and after it was acknowledged. An opaque text."""

    @property
    def _whole(self) -> Record:
        """The record, decoded on first use."""
        record = self._record
        if type(record) is bytes:
            record = self._record = open_envelope(record, self.body)
        return cast("Record", record)

    @property
    def topic(self) -> str:
        """The topic it is stored under."""
        record = self._record
        return envelope_topic(record) if type(record) is bytes else self._whole.topic

    @property
    def properties(self) -> dict[str, str]:
        """All properties, with the reserved ones; decoded on first use."""
        if self._properties is None:
            self._properties = names.decode(self._encoded_properties)
        return self._properties

    @property
    def _encoded_properties(self) -> bytes:
        record = self._record
        return envelope_properties(record) if type(record) is bytes else self._whole.properties

    @property
    def tags(self) -> str | None:
        """The tag."""
        return self.properties.get(names.PROPERTY_TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys."""
        return names.split_keys(self.properties.get(names.PROPERTY_KEYS))

    @property
    def message_id(self) -> str:
        """The unique id from the producer; the broker's id when the producer set none."""
        return self.properties.get(names.PROPERTY_UNIQ_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The broker's id: the address of the broker and the physical offset."""
        return message_id(self._whole.store_host, self._whole.physical_offset)

    @property
    def transaction_id(self) -> str | None:
        """The id of a transactional message; None for others."""
        if names.PROPERTY_TRANSACTION_PREPARED not in self.properties:
            return None
        return self.properties.get(names.PROPERTY_UNIQ_KEY)

    @property
    def dead_letter_reason(self) -> str | None:
        """Why a group gave the message up, such as the exception of its handler; None if that is not known.

        Only dead letters of rocketpy's consumers have a reason.
        """
        return self.properties.get(names.DEAD_LETTER_REASON)

    @property
    def buyer_id(self) -> str | None:
        """The property BUYER_ID."""
        return self.properties.get(names.PROPERTY_BUYER_ID)

    @property
    def instance_id(self) -> str | None:
        """The namespace of its producer, if any."""
        return self.properties.get(names.PROPERTY_INSTANCE_ID)

    @property
    def correlation_id(self) -> str | None:
        """The id that connects a request and its reply; None for other messages."""
        return self.properties.get(names.PROPERTY_CORRELATION_ID)

    @property
    def wait_store(self) -> bool:
        """Whether the producer waited for flush and replication; always True from brokers of 4.9 and
        later.
        """
        return self.properties.get(names.PROPERTY_WAIT_STORE_MSG_OK, "true").lower() == "true"

    @property
    def queue_offset(self) -> int:
        """The offset in the queue."""
        record = self._record
        return envelope_queue_offset(record) if type(record) is bytes else self._whole.queue_offset

    @property
    def physical_offset(self) -> int:
        """The offset of its record in the commit log, in bytes."""
        return self._whole.physical_offset

    @property
    def flag(self) -> int:
        """The 32 bits from the producer."""
        return self._whole.flag

    @property
    def sys_flag(self) -> int:
        """Bits of `protocol.message.sysflag.MessageSysFlag`, as stored."""
        return self._whole.sys_flag

    @property
    def delay_level(self) -> int:
        """The delay level of the send; 0 for none."""
        text = self.properties.get(names.PROPERTY_DELAY_TIME_LEVEL, "0")
        return int(text) if text.isdecimal() and len(text) <= _LEVEL_DIGITS_MAX else 0

    @property
    def deliver_at(self) -> datetime | None:
        """When it was to be delivered, in UTC; None unless it was sent with `deliver_at` or `delay`.

        A delay counts from `born_timestamp` here.
        """
        return timers.deliver_at_of(self.properties, self.born_timestamp)

    @property
    def born_timestamp(self) -> int:
        """When its producer sent it, in ms since 1970, by the producer's clock."""
        return self._whole.born_timestamp

    @property
    def store_timestamp(self) -> int:
        """When the broker stored it, in ms since 1970."""
        return self._whole.store_timestamp

    @property
    def born_host(self) -> tuple[str, int]:
        """Address and port of the producer."""
        return host_text(self._whole.born_host)

    @property
    def store_host(self) -> tuple[str, int]:
        """Address and port of the broker that stored it."""
        return host_text(self._whole.store_host)

    @property
    def reconsume_times(self) -> int:
        """The number of times that consumers have sent it back."""
        return self._whole.reconsume_times

    @property
    def delivery_attempt(self) -> int:
        """Which delivery of the message this is: 1 for the first."""
        return self.reconsume_times + 1

    @property
    def prepared_transaction_offset(self) -> int:
        """The physical offset of the half message of a committed transactional message."""
        return self._whole.prepared_transaction_offset

    @property
    def store_size(self) -> int:
        """The size of its record in bytes."""
        return self._whole.size

    @property
    def queue_id(self) -> int:
        """The id of the queue that it is stored in."""
        return self._whole.queue_id

    def with_queue(self, queue: MessageQueue) -> MessageExt:
        """Return a copy with another queue."""
        return MessageExt(self._record, queue, self.body, None, self.decode_error)

    def with_reconsume_times(self, times: int) -> MessageExt:
        """Return a copy with another number of retries, which an orderly consumer counts itself."""
        record = msgspec.structs.replace(self._whole, reconsume_times=times)
        return MessageExt(record, self.queue, self.body, None, self.decode_error, self.receipt)

    def with_topic(self, topic: str) -> MessageExt:
        """Return a copy with another topic, such as the one without the namespace."""
        if topic == self.topic:
            return self
        queue = MessageQueue(topic, self.queue.broker_name, self.queue.queue_id)
        record = msgspec.structs.replace(self._whole, topic=topic)
        return MessageExt(record, queue, self.body, None, self.decode_error, self.receipt)

    def __repr__(self) -> str:
        return f"MessageExt({self.queue}, offset={self.queue_offset}, <{len(self.body)} bytes>)"


def receipt_from_broker(message: MessageExt) -> str | None:
    """Return the receipt in the record of a message, which RocketMQ 5 adds to retried ones; None without."""
    receipt = names.find(message._encoded_properties, names.POP_RECEIPT.encode())  # noqa: SLF001 - same module
    return receipt.decode("utf-8", "replace") if receipt is not None else None
