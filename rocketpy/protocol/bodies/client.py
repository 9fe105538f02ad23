"""Bodies about the clients of a broker."""

from __future__ import annotations

from msgspec import field

from rocketpy.protocol.bodies.base import Body, MessageQueue, always_encoded
from rocketpy.protocol.headers.base import Int32, Int64


class SubscriptionData(Body, kw_only=True):
    """The subscription of a consumer to a topic. Source: RocketMQ SubscriptionData."""

    topic: str
    sub_string: str | None = None
    """``*``, tags joined by ``||``, or SQL92 (expression_type)."""
    tags_set: set[str] = always_encoded(set())
    code_set: set[Int32] = always_encoded(set())
    """`java.tags_code` of the tags."""
    sub_version: Int64 = always_encoded(0)
    """When the subscription was created, in ms; the broker keeps the newest."""
    expression_type: str = always_encoded("TAG")
    class_filter_mode: bool = always_encoded(False)


class QuerySubscriptionResponseBody(Body, kw_only=True):
    """The response to QUERY_SUBSCRIPTION_BY_CONSUMER (345). Source: RocketMQ 5.3.3."""

    group: str
    topic: str | None = None
    subscription_data: SubscriptionData | None = None
    """None if no member of the group is online, or it does not subscribe to the topic."""


class ProducerData(Body, kw_only=True):
    """A producer group of the client."""

    group_name: str


class ConsumerData(Body, kw_only=True):
    """A consumer group of the client. Source: RocketMQ ConsumerData."""

    group_name: str
    consume_type: str | None = None
    """CONSUME_ACTIVELY (pull) or CONSUME_PASSIVELY (push)."""
    message_model: str | None = None
    """CLUSTERING or BROADCASTING."""
    consume_from_where: str | None = None
    """CONSUME_FROM_LAST_OFFSET, ..FIRST_OFFSET, ..TIMESTAMP."""
    subscription_data_set: list[SubscriptionData] = always_encoded([])
    unit_mode: bool = always_encoded(False)


class HeartbeatData(Body, kw_only=True):
    """The body of HEART_BEAT. Source: RocketMQ HeartbeatData."""

    client_id: str = field(name="clientID")
    producer_data_set: list[ProducerData] = always_encoded([])
    consumer_data_set: list[ConsumerData] = always_encoded([])
    without_sub: bool = False
    """Whether a client of 5.x leaves the subscriptions out, because the broker said that it keeps them."""


class CheckClientRequestBody(Body, kw_only=True):
    """The body of CHECK_CLIENT_CONFIG, which checks whether the broker supports a filter."""

    client_id: str
    group: str
    subscription_data: SubscriptionData


class Connection(Body, kw_only=True):
    """One client seen by a broker."""

    client_id: str
    client_addr: str
    language: str
    """A name of `codes.LanguageCode`."""
    version: Int32
    consumer_data: ConsumerData | None = None
    """The member's last heartbeat. Only brokers of rocketpy send it, and only while the members of a group
    differ; RocketMQ's clients ignore it."""


class ProducerConnection(Body, kw_only=True):
    """The response to GET_PRODUCER_CONNECTION_LIST."""

    connection_set: list[Connection] = always_encoded([])


class ProducerInfo(Body, kw_only=True):
    """A member of a producer group. Source: RocketMQ 4.9.7."""

    client_id: str
    remote_ip: str = field(name="remoteIP")
    """Host and port, after a slash."""
    language: str
    """A name of `codes.LanguageCode`."""
    version: Int32
    last_update_timestamp: Int64
    """Time of its last heartbeat, in ms since 1970."""


class ProducerTableInfo(Body, kw_only=True):
    """The response to GET_ALL_PRODUCER_INFO. Source: RocketMQ 4.9.7."""

    data: dict[str, list[ProducerInfo]] = always_encoded({})
    """By producer group."""


class ConsumerConnection(Body, kw_only=True):
    """The response to GET_CONSUMER_CONNECTION_LIST."""

    connection_set: list[Connection] = always_encoded([])
    subscription_table: dict[str, SubscriptionData] = always_encoded({})
    """By topic."""
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class GetConsumerListByGroupResponseBody(Body, kw_only=True):
    """The response to GET_CONSUMER_LIST_BY_GROUP: client ids."""

    consumer_id_list: list[str] = always_encoded([])


class LockBatchRequestBody(Body, kw_only=True):
    """The body of LOCK_BATCH_MQ: queues that an orderly consumer wants for itself."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = always_encoded([])


class LockBatchResponseBody(Body, kw_only=True):
    """The response to LOCK_BATCH_MQ: the locked queues."""

    lock_ok_mq_set: list[MessageQueue] = field(name="lockOKMQSet", default_factory=list)


class UnlockBatchRequestBody(LockBatchRequestBody, kw_only=True):
    """The body of UNLOCK_BATCH_MQ."""


class ConsumeMessageDirectlyResult(Body, kw_only=True):
    """The response to CONSUME_MESSAGE_DIRECTLY. Source: RocketMQ ConsumeMessageDirectlyResult."""

    order: bool = always_encoded(False)
    auto_commit: bool = always_encoded(True)
    consume_result: str | None = None
    """CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION or CR_RETURN_NULL."""
    remark: str | None = None
    spent_time_mills: Int64 = always_encoded(0)


class ProcessQueueInfo(Body, kw_only=True):
    """A queue as its consumer sees it. Timestamps in ms. ``droped`` is RocketMQ's spelling."""

    commit_offset: Int64 = always_encoded(0)
    cached_msg_min_offset: Int64 = always_encoded(0)
    cached_msg_max_offset: Int64 = always_encoded(0)
    cached_msg_count: Int32 = always_encoded(0)
    cached_msg_size_in_mib: Int32 = field(name="cachedMsgSizeInMiB", default_factory=lambda: 0)
    transaction_msg_min_offset: Int64 = always_encoded(0)
    transaction_msg_max_offset: Int64 = always_encoded(0)
    transaction_msg_count: Int32 = always_encoded(0)
    locked: bool = always_encoded(False)
    try_unlock_times: Int64 = always_encoded(0)
    last_lock_timestamp: Int64 = always_encoded(0)
    droped: bool = always_encoded(False)
    last_pull_timestamp: Int64 = always_encoded(0)
    last_consume_timestamp: Int64 = always_encoded(0)


class ConsumeStatus(Body, kw_only=True):
    """Rates of one topic in a consumer: messages per second, and ms (rt). None where Java has NaN."""

    pull_rt: float | None = field(name="pullRT", default=None)
    pull_tps: float | None = field(name="pullTPS", default=None)
    consume_rt: float | None = field(name="consumeRT", default=None)
    consume_ok_tps: float | None = field(name="consumeOKTPS", default=None)
    consume_failed_tps: float | None = field(name="consumeFailedTPS", default=None)
    consume_failed_msgs: Int64 = always_encoded(0)


class ConsumerRunningInfo(Body, kw_only=True):
    """The response to GET_CONSUMER_RUNNING_INFO. Source: RocketMQ ConsumerRunningInfo."""

    properties: dict[str, str] = always_encoded({})
    subscription_set: list[SubscriptionData] = always_encoded([])
    mq_table: dict[MessageQueue, ProcessQueueInfo] = always_encoded({})
    status_table: dict[str, ConsumeStatus] = always_encoded({})
    jstack: str | None = None
