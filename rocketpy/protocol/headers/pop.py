"""Headers of message-level sharing (POP): the requests, and their responses.

A pop takes messages of a topic for one consumer, and makes them invisible to the rest of its group for a
while. All times are in ms; times of day are since 1970.
"""

from __future__ import annotations

from typing import Final

from rocketpy.protocol.headers.base import Header, Int32, Int64

ANY_QUEUE: Final = -1
"""Queue id of a pop from all queues of a topic, and of an assignment of all queues of a broker."""
POP_MAX_MESSAGES: Final = 32
"""Most messages that one pop may ask for."""
INIT_AT_MIN: Final = 0
"""A group without an offset begins at the first message (ConsumeInitMode MIN)."""
INIT_AT_MAX: Final = 1
"""A group without an offset begins at the last message (ConsumeInitMode MAX)."""


class PopMessageRequestHeader(Header, kw_only=True):
    """POP_MESSAGE (200050). Source: RocketMQ 5.3.3 PopMessageRequestHeader."""

    consumer_group: str
    topic: str
    queue_id: Int32
    """`ANY_QUEUE`, or one queue."""
    max_msg_nums: Int32
    """At most `POP_MAX_MESSAGES`."""
    invisible_time: Int64
    """How long the messages are invisible to others."""
    poll_time: Int64
    """How long the broker may hold the pop."""
    born_time: Int64
    """When the client sent the pop; 0 stands for the time of its arrival."""
    init_mode: Int32
    """`INIT_AT_MIN` or `INIT_AT_MAX`."""
    exp_type: str | None = None
    """TAG or SQL92."""
    exp: str | None = None
    """The expression. Without it, all messages match."""
    order: bool | None = None
    """Pop in order: a queue gives nothing until all of its popped messages are acknowledged."""
    attempt_id: str | None = None
    """Of an ordered pop: a pop that is sent again with the same id gets the same messages."""


class PopMessageResponseHeader(Header, kw_only=True):
    """The response to POP_MESSAGE with code 0, 209 or 210. Source: as the request."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    """Queue of the revive topic; `receipt.ORDER_REVIVE_QUEUE` for an ordered pop."""
    rest_num: Int64
    """Number of messages that are left, as far as the broker has looked."""
    start_offset_info: str | None = None
    """Offset of each queue's check point: `receipt.parse_start_offsets`."""
    msg_offset_info: str | None = None
    """Offsets of each queue's messages: `receipt.parse_message_offsets`."""
    order_count_info: str | None = None
    """How often messages of an ordered pop were delivered: `receipt.parse_order_counts`."""


class AckMessageRequestHeader(Header, kw_only=True):
    """ACK_MESSAGE (200051). Source: RocketMQ 5.3.3 AckMessageRequestHeader."""

    consumer_group: str
    topic: str
    """The topic that holds the message: for a retried one, the retry topic."""
    queue_id: Int32
    extra_info: str
    """The text of the receipt (`receipt.Receipt`)."""
    offset: Int64


class ChangeInvisibleTimeRequestHeader(AckMessageRequestHeader, kw_only=True):
    """CHANGE_MESSAGE_INVISIBLETIME (200053). Source: RocketMQ 5.3.3 ChangeInvisibleTimeRequestHeader."""

    invisible_time: Int64
    """From now on; the receipt of before is used up."""


class ChangeInvisibleTimeResponseHeader(Header, kw_only=True):
    """The response to CHANGE_MESSAGE_INVISIBLETIME: what the message's new receipt says.

    Source: RocketMQ 5.3.3 ChangeInvisibleTimeResponseHeader.
    """

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class NotificationRequestHeader(Header, kw_only=True):
    """NOTIFICATION (200054): wait until a topic has a message. Source: RocketMQ 5.3.3."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    order: bool | None = None
    attempt_id: str | None = None


class NotificationResponseHeader(Header, kw_only=True):
    """The response to NOTIFICATION. Source: RocketMQ 5.3.3 NotificationResponseHeader."""

    has_msg: bool
    polling_full: bool = False
    """Too many requests wait already."""


class PeekMessageRequestHeader(Header, kw_only=True):
    """PEEK_MESSAGE (200052): read messages without taking them. Source: RocketMQ 5.3.3."""

    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    consumer_group: str


class PollingInfoRequestHeader(Header, kw_only=True):
    """POLLING_INFO (200055): how many pops a broker holds. Source: RocketMQ 5.3.3."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponseHeader(Header, kw_only=True):
    """The response to POLLING_INFO. Source: RocketMQ 5.3.3 PollingInfoResponseHeader."""

    polling_num: Int32
