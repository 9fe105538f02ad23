"""OFFSET_MOVED_EVENT: a message about each pull from an offset that is not there (QUIRKS 50).

Source: PullMessageProcessor of RocketMQ 4.6.0. Differs: events of one loop turn about the same queue and
group are one.
"""

from __future__ import annotations

from rocketpy.protocol.bodies import Body, MessageQueue
from rocketpy.protocol.headers import Int64
from rocketpy_broker.store import MessageInner

OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"


class OffsetMovedEvent(Body, kw_only=True):
    """What the message says. Source: RocketMQ OffsetMovedEvent."""

    consumer_group: str
    message_queue: MessageQueue
    offset_new: Int64
    offset_request: Int64


def event_message(event: OffsetMovedEvent, host: bytes, now_ms: int) -> MessageInner:
    """Return the message of an event. host: of the broker, as in records."""
    group = event.consumer_group
    return MessageInner(
        OFFSET_MOVED_TOPIC,
        0,
        event.encode(),
        f"KEYS\x01{group}\x02DELAY\x010\x02TAGS\x01{group}\x02".encode(),
        born_timestamp=now_ms,
        born_host=host,
    )
