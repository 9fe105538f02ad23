"""Headers of requests that send a message or a reply, or send a message back, and of their responses."""

from __future__ import annotations

from msgspec import field

from rocketpy.protocol.headers.base import Header, Int32, Int64


class SentMessageHeader(Header, kw_only=True):
    """Fields of all requests with a sent message."""

    producer_group: str
    topic: str
    default_topic: str
    """The template with which the broker creates a missing topic."""
    default_topic_queue_nums: Int32
    """The number of queues of a topic that the broker creates."""
    queue_id: Int32
    sys_flag: Int32
    """Bits of `sysflag.MessageSysFlag`."""
    born_timestamp: Int64
    """Ms since 1970."""
    flag: Int32
    properties: str | None = None
    """See `properties.encode`."""
    reconsume_times: Int32 | None = None
    unit_mode: bool = False


class SendMessageRequestHeader(SentMessageHeader, kw_only=True):
    """SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324). Source: RocketMQ SendMessageRequestHeader."""

    max_reconsume_times: Int32 | None = None
    batch: bool = False


class SendMessageRequestHeaderV2(SendMessageRequestHeader, kw_only=True):
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), SEND_REPLY_MESSAGE_V2 (325): one letter a field.

    The attributes are the same as in SendMessageRequestHeader (QUIRKS 19). Source: RocketMQ
    SendMessageRequestHeaderV2.
    """

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c")
    default_topic_queue_nums: Int32 = field(name="d")
    queue_id: Int32 = field(name="e")
    sys_flag: Int32 = field(name="f")
    born_timestamp: Int64 = field(name="g")
    flag: Int32 = field(name="h")
    properties: str | None = field(name="i", default=None)
    reconsume_times: Int32 | None = field(name="j", default=None)
    unit_mode: bool = field(name="k", default=False)
    max_reconsume_times: Int32 | None = field(name="l", default=None)
    batch: bool = field(name="m", default=False)


class SendMessageErrorHeader(Header, kw_only=True):
    """Fields that a broker adds to every response to a send, also to a rejection (QUIRKS 18)."""

    msg_region: str | None = field(name="MSG_REGION", default=None)
    trace_on: bool | None = field(name="TRACE_ON", default=None)


class SendMessageResponseHeader(SendMessageErrorHeader, kw_only=True):
    """The response to a send that was stored. Source: RocketMQ SendMessageResponseHeader."""

    msg_id: str
    """Broker message id; for a batch one each, separated by commas."""
    queue_id: Int32
    """For a delayed or half message see QUIRKS 20."""
    queue_offset: Int64
    """For a delayed or half message see QUIRKS 20."""
    transaction_id: str | None = None
    recall_handle: str | None = None
    """Of a timer message that is not due yet; see `protocol.message.recall_handle`. Not in RocketMQ 4.x."""


class RecallMessageRequestHeader(Header, kw_only=True):
    """RECALL_MESSAGE (370). Source: RocketMQ 5.3.3 RecallMessageRequestHeader."""

    producer_group: str | None = None
    topic: str
    recall_handle: str
    broker_name: str | None = field(name="bname", default=None)
    """That of the handle; RocketMQ's proxies need it."""


class RecallMessageResponseHeader(Header, kw_only=True):
    """The response to RECALL_MESSAGE. Source: RocketMQ 5.3.3 RecallMessageResponseHeader."""

    msg_id: str
    """The unique id of the message."""


class ConsumerSendMsgBackRequestHeader(Header, kw_only=True):
    """CONSUMER_SEND_MSG_BACK (36). Source: RocketMQ ConsumerSendMsgBackRequestHeader."""

    offset: Int64
    """Physical offset of the message."""
    group: str
    delay_level: Int32
    """0 leaves it to the broker, -1 means the dead letter queue (QUIRKS 37)."""
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    reason: str | None = None
    """Why the message becomes a dead letter; not in RocketMQ, whose brokers ignore it."""


class ReplyMessageRequestHeader(SentMessageHeader, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326). Source: RocketMQ ReplyMessageRequestHeader."""

    born_host: str
    """A Java text with a leading slash, ``/127.0.0.1:20010`` (QUIRKS 30)."""
    store_host: str
    """As `born_host`."""
    store_timestamp: Int64
