"""Headers about the offsets of queues and of consumer groups."""

from __future__ import annotations

from typing import Final

from rocketpy.protocol.headers.base import Header, Int32, Int64

LOWER_BOUNDARY: Final = "lower"
UPPER_BOUNDARY: Final = "upper"


class QueueRequestHeader(Header, kw_only=True):
    """A request about one queue."""

    topic: str
    queue_id: Int32


class OffsetResponseHeader(Header, kw_only=True):
    """A response with a queue offset."""

    offset: Int64


class QueryConsumerOffsetRequestHeader(Header, kw_only=True):
    """QUERY_CONSUMER_OFFSET (14). Source: RocketMQ QueryConsumerOffsetRequestHeader."""

    consumer_group: str
    topic: str
    queue_id: Int32


class QueryConsumerOffsetResponseHeader(OffsetResponseHeader, kw_only=True):
    """The response to QUERY_CONSUMER_OFFSET. offset: next queue offset to consume. Source: as the request."""


class UpdateConsumerOffsetRequestHeader(QueryConsumerOffsetRequestHeader, kw_only=True):
    """UPDATE_CONSUMER_OFFSET (15). Source: RocketMQ UpdateConsumerOffsetRequestHeader."""

    commit_offset: Int64


class SearchOffsetRequestHeader(QueueRequestHeader, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    timestamp: Int64
    """Store time in ms."""
    boundary_type: str | None = None
    """`UPPER_BOUNDARY` for the last message stored at or before the time, instead of the first one at or
    after it. Since RocketMQ 5.1.1."""


class SearchOffsetResponseHeader(OffsetResponseHeader, kw_only=True):
    """The response to SEARCH_OFFSET_BY_TIMESTAMP. Source: RocketMQ SearchOffsetResponseHeader."""

    boundary_type: str | None = None
    """`LOWER_BOUNDARY` if the offset is that of the first message stored at or after the time,
    `UPPER_BOUNDARY` if it is that of the last one at or before it. Only rocketpy's broker sends it."""


class GetMaxOffsetRequestHeader(QueueRequestHeader, kw_only=True):
    """GET_MAX_OFFSET (30). Source: RocketMQ GetMaxOffsetRequestHeader."""


class GetMaxOffsetResponseHeader(OffsetResponseHeader, kw_only=True):
    """The response to GET_MAX_OFFSET: the offset the next message will get."""


class GetMinOffsetRequestHeader(QueueRequestHeader, kw_only=True):
    """GET_MIN_OFFSET (31). Source: RocketMQ GetMinOffsetRequestHeader."""


class GetMinOffsetResponseHeader(OffsetResponseHeader, kw_only=True):
    """The response to GET_MIN_OFFSET: the oldest offset that can still be read."""


class GetEarliestMsgStoretimeRequestHeader(QueueRequestHeader, kw_only=True):
    """GET_EARLIEST_MSG_STORETIME (32). Source: RocketMQ GetEarliestMsgStoretimeRequestHeader."""


class GetEarliestMsgStoretimeResponseHeader(Header, kw_only=True):
    """The response to GET_EARLIEST_MSG_STORETIME."""

    timestamp: Int64
    """Ms since 1970, -1 when the queue is empty."""
