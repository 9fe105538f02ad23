"""Subscriptions: filter expressions of topics, and the topics of redelivered messages.

Source: RocketMQ 4.6 FilterAPI, MessageSelector, SubscriptionData.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from rocketpy.client.namespace import unwrap
from rocketpy.config import check_text
from rocketpy.errors import ConfigInvalid
from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import SubscriptionData
from rocketpy.protocol.java import tags_code, trim
from rocketpy.protocol.message.properties import PROPERTY_RETRY_TOPIC, RETRY_TOPIC_PREFIX

ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class Sql:
    """A filter on properties, for brokers with enablePropertyFilter: ``Sql("color = 'red' AND n > 3")``."""

    text: str


Expression = str | Sql
"""Tags joined by ``||``, ``*`` for everything, or `Sql`."""


def subscription_data(topic: str, expression: Expression, version_ms: int) -> SubscriptionData:
    """Return the subscription that brokers receive.

    version_ms: its creation time; brokers keep the newest version. Raises ConfigInvalid for an expression
    without a tag, for empty SQL, and for text that is not valid Unicode.
    """
    if isinstance(expression, Sql):
        text: object = expression.text
        if not isinstance(text, str) or not text.strip():
            raise ConfigInvalid(
                f"the SQL92 expression for topic {topic} is {text!r}; it must be a string that is not empty"
            )
        check_text(f"the SQL92 expression for topic {topic}", text)
        return SubscriptionData(
            topic=topic, sub_string=expression.text, sub_version=version_ms, expression_type="SQL92"
        )
    if not isinstance(expression, str):
        raise ConfigInvalid(
            f"the expression for topic {topic} is {expression!r}; it must be a string of tags, or Sql(...)"
        )
    if expression in {"", ALL}:
        return SubscriptionData(topic=topic, sub_string=ALL, sub_version=version_ms)
    check_text(f"the expression for topic {topic}", expression)
    tags = {trim(tag) for tag in expression.split("||")} - {""}
    if not tags:
        raise ConfigInvalid(
            f"the expression {expression!r} for topic {topic} names no tag; write a || b, or *"
        )
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        tags_set=tags,
        code_set={tags_code(tag) for tag in tags},
        sub_version=version_ms,
    )


def wanted_messages(messages: list[MessageExt], tags: Collection[str]) -> list[MessageExt]:
    """Return the messages that have one of the tags. Brokers compare only hashes of tags, which may collide.

    A message whose tag cannot be read is kept, because the hash of its tag matched.
    """
    if not tags:
        return messages
    return [
        message
        for message in messages
        if (tag := message.tags) in tags or (tag is None and message.decode_error is not None)
    ]


def retry_topic(group: str) -> str:
    """Return the topic of a group's redelivered messages. group: with its namespace."""
    return RETRY_TOPIC_PREFIX + group


def restore_topics(messages: list[MessageExt], group: str, namespace: str) -> list[MessageExt]:
    """Return messages of one topic under their original topics, without the namespace."""
    if messages and messages[0].topic == retry_topic(group):
        return [restore_topic(message, group, namespace) for message in messages]
    if not namespace:
        return messages
    return [message.with_topic(unwrap(namespace, message.topic)) for message in messages]


def restore_topic(message: MessageExt, group: str, namespace: str) -> MessageExt:
    """Return a message under its original topic, also if it was redelivered to the group."""
    topic = message.topic
    if topic == retry_topic(group):
        topic = message.properties.get(PROPERTY_RETRY_TOPIC, topic)
    return message.with_topic(unwrap(namespace, topic))
