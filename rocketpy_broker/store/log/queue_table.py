"""Which offset the next message of each queue gets: RocketMQ's topicQueueTable."""

from __future__ import annotations

from rocketpy.errors import TopicInvalid
from rocketpy.protocol.message.record import MAX_TOPIC_BYTES


class QueueCursor:
    """One queue as the commit log sees it.

    topic_bytes: the topic in UTF-8. next_offset: queue offset of the next message.
    """

    __slots__ = ("next_offset", "queue_id", "topic", "topic_bytes")

    def __init__(self, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.next_offset = 0


class QueueTable(dict[tuple[str, int], QueueCursor]):
    """Cursors by (topic, queue id); made when first asked for. Raises TopicInvalid for a bad name then."""

    def __missing__(self, key: tuple[str, int]) -> QueueCursor:
        check_topic(*key)
        cursor = self[key] = QueueCursor(*key)
        return cursor


def check_topic(topic: str, queue_id: int) -> None:
    """A topic becomes a directory name here: it must not lead anywhere else. Raises TopicInvalid."""
    if not topic or len(topic.encode()) > MAX_TOPIC_BYTES:
        raise TopicInvalid(f"topic of {len(topic.encode())} bytes; it must have 1 to {MAX_TOPIC_BYTES}")
    if topic in {".", ".."} or "/" in topic or "\0" in topic:
        raise TopicInvalid(f"topic {topic!r} cannot name a directory")
    if queue_id < 0:
        raise TopicInvalid(f"queue id {queue_id} of topic {topic} is negative")
