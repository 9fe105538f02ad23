"""Headers that create and remove topics and subscription groups."""

from __future__ import annotations

from rocketpy.protocol.headers.base import Header, Int32


class CreateTopicRequestHeader(Header, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC (17). Source: RocketMQ CreateTopicRequestHeader."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    """4 read, 2 write, 1 inherit."""
    topic_filter_type: str
    """SINGLE_TAG or MULTI_TAG."""
    topic_sys_flag: Int32 | None = None
    order: bool = False
    only_if_missing: bool | None = None
    """Reject the request with TOPIC_EXIST_ALREADY if the topic exists; brokers of RocketMQ ignore it."""
    attributes: str | None = None
    """Changes of its attributes, such as ``+message.type=FIFO,-reserve.time``. Since RocketMQ 5."""


class GetTopicConfigRequestHeader(Header, kw_only=True):
    """GET_TOPIC_CONFIG (351). Source: RocketMQ 5.3.3 GetTopicConfigRequestHeader.

    Its field `lo` is left out: it asks for the queue mapping of static topics, which rocketpy does not have.
    """

    topic: str


class DeleteTopicRequestHeader(Header, kw_only=True):
    """DELETE_TOPIC_IN_BROKER (215). Source: RocketMQ DeleteTopicRequestHeader."""

    topic: str


class GetTopicStatsInfoRequestHeader(Header, kw_only=True):
    """GET_TOPIC_STATS_INFO (202). Source: RocketMQ GetTopicStatsInfoRequestHeader."""

    topic: str


class QueryTopicConsumeByWhoRequestHeader(Header, kw_only=True):
    """QUERY_TOPIC_CONSUME_BY_WHO (300). Source: RocketMQ QueryTopicConsumeByWhoRequestHeader."""

    topic: str


class QueryTopicsByConsumerRequestHeader(Header, kw_only=True):
    """QUERY_TOPICS_BY_CONSUMER (343). Source: RocketMQ 5.3.3 QueryTopicsByConsumerRequestHeader."""

    group: str


class QuerySubscriptionByConsumerRequestHeader(Header, kw_only=True):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345).

    Source: RocketMQ 5.3.3 QuerySubscriptionByConsumerRequestHeader.
    """

    group: str
    topic: str | None = None


class UpdateGroupForbiddenRequestHeader(Header, kw_only=True):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353). Source: RocketMQ 5.3.3 UpdateGroupForbiddenRequestHeader."""

    group: str
    topic: str
    readable: bool | None = None
    """Whether the group may read the topic; None only asks."""


class GetSubscriptionGroupConfigRequestHeader(Header, kw_only=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352). Source: RocketMQ 5.3.3 GetSubscriptionGroupConfigRequestHeader."""

    group: str


class DeleteSubscriptionGroupRequestHeader(Header, kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP (207). Source: RocketMQ DeleteSubscriptionGroupRequestHeader."""

    group_name: str
