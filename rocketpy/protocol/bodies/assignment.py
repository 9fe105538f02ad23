"""Bodies about the queues that a broker assigns to consumers, and how these request messages. RocketMQ 5."""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from rocketpy.protocol.bodies.base import Body, MessageQueue, always_encoded
from rocketpy.protocol.bodies.topic import DataVersion
from rocketpy.protocol.headers.base import Int32


class RequestMode(StrEnum):
    """How the members of a group request the messages of a topic. Source: RocketMQ MessageRequestMode."""

    PULL = "PULL"
    """A queue belongs to one member, which pulls its messages."""
    POP = "POP"
    """Members share queues; the broker hides a delivered message from the others for a time."""


class SetMessageRequestModeRequestBody(Body, kw_only=True):
    """The body of SET_MESSAGE_REQUEST_MODE, and the entry of a topic and a group in messageRequestMode.json.

    Source: RocketMQ 5.3.3.
    """

    topic: str
    consumer_group: str
    mode: RequestMode = always_encoded(RequestMode.PULL)
    pop_share_queue_num: Int32 = always_encoded(0)
    """With POP, a member also gets the queues of this many members that follow it by client id. 0 or less:
    all queues."""


class MessageRequestModeSerializeWrapper(Body, kw_only=True):
    """The response to GET_ALL_MESSAGE_REQUEST_MODE, and messageRequestMode.json. Source: RocketMQ 5.3.3."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = always_encoded({})
    """Topic -> group -> mode."""
    data_version: DataVersion = field(default_factory=DataVersion)
    """Only in rocketpy, and ignored by RocketMQ."""


class QueryAssignmentRequestBody(Body, kw_only=True):
    """The body of QUERY_ASSIGNMENT. Source: RocketMQ 5.3.3."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    """Name of an allocation strategy."""
    message_model: str | None = None
    """CLUSTERING or BROADCASTING."""


class MessageQueueAssignment(Body, kw_only=True):
    """A queue that a member gets. Source: RocketMQ 5.3.3."""

    message_queue: MessageQueue | None = None
    """Its id is ANY_QUEUE for all queues of a broker."""
    mode: RequestMode = always_encoded(RequestMode.PULL)
    attachments: dict[str, str] | None = None


class QueryAssignmentResponseBody(Body, kw_only=True):
    """The response to QUERY_ASSIGNMENT. Source: RocketMQ 5.3.3."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None
    """None if the broker does not know: then the member keeps the queues that it has."""
