"""Messages to send, received messages, and messages in columns."""

from rocketpy.message.message import (
    DEFAULT_TOPIC,
    REPLY_TOPIC_SUFFIX,
    RESERVED_PROPERTIES,
    TRACE_TOPIC,
    Message,
    MessageExt,
    check_group,
    check_message,
    check_properties,
    check_topic,
    check_value,
    new_unique_id,
)
from rocketpy.protocol.bodies import RETRY_TOPIC_PREFIX, MessageQueue

__all__ = [
    "DEFAULT_TOPIC",
    "REPLY_TOPIC_SUFFIX",
    "RESERVED_PROPERTIES",
    "RETRY_TOPIC_PREFIX",
    "TRACE_TOPIC",
    "Message",
    "MessageExt",
    "MessageQueue",
    "check_group",
    "check_message",
    "check_properties",
    "check_topic",
    "check_value",
    "new_unique_id",
]
