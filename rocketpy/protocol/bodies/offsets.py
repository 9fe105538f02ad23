"""Bodies that hold offsets of many queues."""

from __future__ import annotations

from rocketpy.protocol.bodies.base import Body, MessageQueue, always_encoded
from rocketpy.protocol.bodies.client import SubscriptionData
from rocketpy.protocol.bodies.topic import DataVersion
from rocketpy.protocol.headers.base import Int32, Int64


class ConsumerOffsetSerializeWrapper(Body, kw_only=True):
    """The response to GET_ALL_CONSUMER_OFFSET, and consumerOffset.json."""

    offset_table: dict[str, dict[int, Int64]] = always_encoded({})
    """``topic@group`` to queue id to next offset."""
    version_table: dict[str, dict[int, Int64]] | None = None
    """When each offset was committed, in ms since 1970; an extension of rocketpy, which RocketMQ ignores."""


class DelayOffsetSerializeWrapper(Body, kw_only=True):
    """The response to GET_ALL_DELAY_OFFSET, and delayOffset.json."""

    offset_table: dict[int, Int64] = always_encoded({})
    """Delay level to next offset."""


class TimerCount(Body, kw_only=True):
    """How many timers a topic has."""

    count: Int64
    time_stamp: Int64
    """When it changed last, in ms since 1970."""


class TimerMetricsSerializeWrapper(Body, kw_only=True):
    """The response to GET_TIMER_METRICS, and timermetrics. Source: RocketMQ 5.3.3 TimerMetrics."""

    data_version: DataVersion = always_encoded(DataVersion())
    timing_count: dict[str, TimerCount] = always_encoded({})
    """Real topic to its timers that are not delivered."""


class OffsetSerializeWrapper(Body, kw_only=True):
    """offsets.json, where broadcasting consumers keep their next offsets."""

    offset_table: dict[MessageQueue, Int64] = always_encoded({})


class OffsetWrapper(Body, kw_only=True):
    """How far a group is in a queue."""

    broker_offset: Int64
    consumer_offset: Int64
    last_timestamp: Int64 = always_encoded(0)
    """Store time in ms of the last message consumed."""
    pull_offset: Int64 | None = None
    """The consumer offset and the number of messages that members handle now. Since RocketMQ 5."""


class ConsumeStats(Body, kw_only=True):
    """The response to GET_CONSUME_STATS."""

    offset_table: dict[MessageQueue, OffsetWrapper] = always_encoded({})
    consume_tps: float | None = None
    """Messages per second, None where Java has NaN."""


class ConsumeStatsList(Body, kw_only=True):
    """The response to GET_BROKER_CONSUME_STATS."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = always_encoded([])
    """One map for each group, from its name to one ConsumeStats for each topic."""
    broker_addr: str | None = None
    total_diff: Int64 = always_encoded(0)
    """The lag of all groups, in messages."""


class TopicOffset(Body, kw_only=True):
    """Offsets of a queue."""

    min_offset: Int64
    max_offset: Int64
    last_update_timestamp: Int64 = always_encoded(0)
    """Store time in ms of its last message, 0 if empty."""


class TopicStatsTable(Body, kw_only=True):
    """The response to GET_TOPIC_STATS_INFO."""

    offset_table: dict[MessageQueue, TopicOffset] = always_encoded({})


class ResetOffsetBody(Body, kw_only=True):
    """The response to INVOKE_BROKER_TO_RESET_OFFSET; sent on to Java clients
    (RESET_CONSUMER_CLIENT_OFFSET).
    """

    offset_table: dict[MessageQueue, Int64] = always_encoded({})


class MessageQueueForC(Body, kw_only=True):
    """A queue with its offset, for clients that cannot read a map with objects as keys."""

    topic: str
    broker_name: str
    queue_id: Int32
    offset: Int64


class ResetOffsetBodyForC(Body, kw_only=True):
    """`ResetOffsetBody` for clients in other languages than Java."""

    offset_table: list[MessageQueueForC] = always_encoded([])


class GetConsumerStatusBody(Body, kw_only=True):
    """Next offsets of a group."""

    message_queue_table: dict[MessageQueue, Int64] = always_encoded({})
    """One client's own."""
    consumer_table: dict[str, dict[MessageQueue, Int64]] = always_encoded({})
    """By client id."""


class QueueTimeSpan(Body, kw_only=True):
    """Store times in ms of a queue: of its oldest, its newest, and the last message consumed by the group.
    The ``_str`` fields are the same times as text; only RocketMQ sets them.
    """

    message_queue: MessageQueue
    min_time_stamp: Int64 = always_encoded(0)
    max_time_stamp: Int64 = always_encoded(0)
    consume_time_stamp: Int64 = always_encoded(0)
    delay_time: Int64 = always_encoded(0)
    """Ms since the next message was stored; 0 without one."""
    min_time_stamp_str: str | None = None
    max_time_stamp_str: str | None = None
    consume_time_stamp_str: str | None = None


class QueryConsumeTimeSpanBody(Body, kw_only=True):
    """The response to QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: list[QueueTimeSpan] = always_encoded([])


class QueryCorrectionOffsetBody(Body, kw_only=True):
    """The response to QUERY_CORRECTION_OFFSET: queue id to offset."""

    correction_offsets: dict[int, Int64] = always_encoded({})


class ConsumeQueueData(Body, kw_only=True):
    """One unit of a consume queue."""

    physic_offset: Int64
    physic_size: Int32
    tags_code: Int64
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = always_encoded(False)
    """Whether it passes the filter of the group."""
    msg: str | None = None


class QueryConsumeQueueResponseBody(Body, kw_only=True):
    """The response to QUERY_CONSUME_QUEUE."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] | None = None
    max_queue_index: Int64 = always_encoded(0)
    min_queue_index: Int64 = always_encoded(0)
