"""Headers about the clients of a broker: groups, connections, and requests that brokers send to clients."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Self

from msgspec import field

from rocketpy.protocol.headers.base import Header, Int32, Int64


class UnregisterClientRequestHeader(Header, kw_only=True):
    """UNREGISTER_CLIENT (35), sent more than once by one shutdown (QUIRKS 10)."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class BrokerFeature(StrEnum):
    """What a broker can do that RocketMQ 4.6.0, whose version it reports, cannot. Not in RocketMQ.

    A feature of RocketMQ 5.x is one of its brokers, too, which do not name it: see `PeerConnection`.
    """

    DEAD_LETTER_REASONS = "deadLetterReasons"
    """It stores `ConsumerSendMsgBackRequestHeader.reason`."""
    TIMER = "timer"
    """It has timer messages of RocketMQ 5.x, and takes them back (RECALL_MESSAGE)."""
    POP = "pop"
    """It has message-level sharing of RocketMQ 5.x (POP_MESSAGE)."""


class HeartbeatResponseHeader(Header, kw_only=True):
    """The response to HEART_BEAT (34); that of 4.6.0 has no fields."""

    features: str | None = field(name="rocketpyFeatures", default=None)
    """Names of `BrokerFeature`, separated by commas. Clients skip names that they do not know."""
    is_sub_change: bool | None = field(name="IS_SUB_CHANGE", default=None)
    """Whether the client must send its subscriptions with the next heartbeat. A field of 5.x."""

    @classmethod
    def of(cls, features: Iterable[BrokerFeature]) -> Self:
        """Return the header with these features."""
        return cls(features=",".join(sorted(features)) or None)

    @property
    def feature_set(self) -> frozenset[str]:
        """The names of the features."""
        return frozenset(filter(None, (self.features or "").split(",")))


class GetConsumerListByGroupRequestHeader(Header, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP (38). Source: RocketMQ GetConsumerListByGroupRequestHeader."""

    consumer_group: str


class NotifyConsumerIdsChangedRequestHeader(Header, kw_only=True):
    """NOTIFY_CONSUMER_IDS_CHANGED (40), broker to client, oneway (QUIRKS 41)."""

    consumer_group: str


class ResetOffsetRequestHeader(Header, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET (222) and RESET_CONSUMER_CLIENT_OFFSET (220, broker to client).

    Source: RocketMQ ResetOffsetRequestHeader.
    """

    topic: str
    group: str
    timestamp: Int64
    """Store time in ms from which the group continues, -1 for the end."""
    is_force: bool
    queue_id: Int32 | None = None
    """The queue to reset, at brokers of 5.x that reset offsets themselves."""
    offset: Int64 | None = None
    """The new offset of that queue."""


class GetConsumerStatusRequestHeader(Header, kw_only=True):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) and GET_CONSUMER_STATUS_FROM_CLIENT (221)."""

    topic: str
    group: str
    client_addr: str | None = None
    """Despite its name a client id; absent for all members."""


class GetConsumerRunningInfoRequestHeader(Header, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO (307), passed on by the broker to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyResultRequestHeader(Header, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY (309), passed on by the broker to the client."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


class GetConsumerConnectionListRequestHeader(Header, kw_only=True):
    """GET_CONSUMER_CONNECTION_LIST (203). Source: RocketMQ GetConsumerConnectionListRequestHeader."""

    consumer_group: str


class GetProducerConnectionListRequestHeader(Header, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST (204). Source: RocketMQ GetProducerConnectionListRequestHeader."""

    producer_group: str
