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
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.properties import RETRY_TOPIC_PREFIX

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
