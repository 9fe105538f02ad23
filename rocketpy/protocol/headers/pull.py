"""Headers of the requests that read messages, and of their responses."""

from __future__ import annotations

from typing import Final

from msgspec import field

from rocketpy.protocol.headers.base import Header, Int32, Int64

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""Field of a query by client unique id. RocketMQ's clients up to 4.9.3 do not sign it (MixAll)."""
UNIQUE_INDEX: Final = "U"
"""Index of client unique ids. Source: RocketMQ 5.5 MessageConst."""


class PullMessageRequestHeader(Header, kw_only=True):
    """PULL_MESSAGE (11), and LITE_PULL_MESSAGE (361). Source: RocketMQ PullMessageRequestHeader."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    """Bits of `sysflag.PullSysFlag`."""
    commit_offset: Int64
    suspend_timeout_millis: Int64
    """How long the broker may hold the pull."""
    sub_version: Int64
    subscription: str | None = None
    """Absent for push consumers (QUIRKS 32)."""
    expression_type: str | None = None


class PullMessageResponseHeader(Header, kw_only=True):
    """The response to a pull with code 0, 19, 20 or 21 (QUIRKS 34). Source: RocketMQ
    PullMessageResponseHeader.
    """

    suggest_which_broker_id: Int64
    """Id of the broker to pull from next."""
    next_begin_offset: Int64
    """The queue offset at which the next pull begins."""
    min_offset: Int64
    """The first queue offset."""
    max_offset: Int64
    """The queue offset after the last message."""
    offset_delta: Int64 | None = None
    """From RocketMQ 5, for a queue of a static topic, whose records have the id of another queue."""


class QueryMessageRequestHeader(Header, kw_only=True):
    """QUERY_MESSAGE (12): messages by key. Source: RocketMQ QueryMessageRequestHeader."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    """The earliest store time, in ms since 1970."""
    end_timestamp: Int64
    """The latest store time, in ms since 1970."""
    index_type: str | None = None
    """`UNIQUE_INDEX` for a client unique id."""
    unique_key_query: bool | None = field(name=UNIQUE_KEY_QUERY, default=None)
    """The key is a client unique id, and the broker chooses max_num. RocketMQ's clients send it beside the
    header's own fields, and its versions do not agree whether a signature covers it. So rocketpy sends
    index_type, which brokers before 5.4 ignore."""


class QueryMessageResponseHeader(Header, kw_only=True):
    """The response to QUERY_MESSAGE, also when nothing was found."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageRequestHeader(Header, kw_only=True):
    """VIEW_MESSAGE_BY_ID (33)."""

    offset: Int64
    """Physical offset of the record."""
