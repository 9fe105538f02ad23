"""Headers about the offsets of queues and of consumer groups."""

from __future__ import annotations

from rocketpy.protocol.headers.base import Header, Int32, Int64


class QueryConsumerOffsetRequestHeader(Header, kw_only=True):
    """QUERY_CONSUMER_OFFSET (14). Source: RocketMQ QueryConsumerOffsetRequestHeader."""

    consumer_group: str
    topic: str
    queue_id: Int32


class QueryConsumerOffsetResponseHeader(Header, kw_only=True):
    """The response to QUERY_CONSUMER_OFFSET. offset: next queue offset to consume. Source: as the request."""

    offset: Int64


class UpdateConsumerOffsetRequestHeader(Header, kw_only=True):
    """UPDATE_CONSUMER_OFFSET (15). Source: RocketMQ UpdateConsumerOffsetRequestHeader."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class SearchOffsetRequestHeader(Header, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP (29). timestamp: store time in ms."""

    topic: str
    queue_id: Int32
    timestamp: Int64


class SearchOffsetResponseHeader(Header, kw_only=True):
    """The response to SEARCH_OFFSET_BY_TIMESTAMP. Source: RocketMQ SearchOffsetResponseHeader."""

    offset: Int64


class GetMaxOffsetRequestHeader(Header, kw_only=True):
    """GET_MAX_OFFSET (30). Source: RocketMQ GetMaxOffsetRequestHeader."""

    topic: str
    queue_id: Int32


class GetMaxOffsetResponseHeader(Header, kw_only=True):
    """The response to GET_MAX_OFFSET: the offset the next message will get."""

    offset: Int64


class GetMinOffsetRequestHeader(Header, kw_only=True):
    """GET_MIN_OFFSET (31). Source: RocketMQ GetMinOffsetRequestHeader."""

    topic: str
    queue_id: Int32


class GetMinOffsetResponseHeader(Header, kw_only=True):
    """The response to GET_MIN_OFFSET: the oldest offset that can still be read."""

    offset: Int64


class GetEarliestMsgStoretimeRequestHeader(Header, kw_only=True):
    """GET_EARLIEST_MSG_STORETIME (32). Source: RocketMQ GetEarliestMsgStoretimeRequestHeader."""

    topic: str
    queue_id: Int32


class GetEarliestMsgStoretimeResponseHeader(Header, kw_only=True):
    """The response to GET_EARLIEST_MSG_STORETIME. timestamp: ms since 1970, -1 when the queue is empty."""

    timestamp: Int64
