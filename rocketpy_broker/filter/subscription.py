"""From what a consumer subscribes to, to the test that each message has to pass.

Source: FilterAPI, ExpressionMessageFilter, ExpressionForRetryMessageFilter of RocketMQ 4.6.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rocketpy.protocol import properties as props
from rocketpy.protocol.bodies import SubscriptionData
from rocketpy.protocol.java import tags_code
from rocketpy_broker.filter.sql92 import Expression, compile_expression
from rocketpy_broker.filter.tokens import ExpressionInvalid

__all__ = ["EVERYTHING", "SQL92", "MessageFilter", "filter_of", "is_tag_type", "subscription_of"]

RETRY_PREFIX: Final = "%RETRY%"
SQL92: Final = "SQL92"
_RETRY_TOPIC: Final = props.PROPERTY_RETRY_TOPIC.encode()

Find = Callable[[str], SubscriptionData | None]
"""What the same group wants of another topic."""


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """tag_codes: hash codes of the tags that are let through, None for all. accepts: asked with the
    properties of each message, as they are stored; None when there is nothing more to ask.
    """

    tag_codes: frozenset[int] | None = None
    accepts: Callable[[bytes], bool] | None = None


EVERYTHING: Final = MessageFilter()


def is_tag_type(expression_type: str | None) -> bool:
    """Whether a subscription goes by tags."""
    return expression_type in (None, "", "TAG")


def subscription_of(topic: str, text: str | None, expression_type: str | None) -> SubscriptionData:
    """Return the subscription that a pull request carries. Raises ExpressionInvalid."""
    if is_tag_type(expression_type):
        tags = [tag.strip() for tag in (text or "*").split("||") if tag.strip()]
        if not tags:
            raise ExpressionInvalid(f"subscription {text!r} names no tag")
    return SubscriptionData(topic=topic, sub_string=text, expression_type=expression_type or "TAG")


def filter_of(subscription: SubscriptionData, *, find: Find | None = None) -> MessageFilter:
    """Return the filter of a subscription.

    find: given when retried messages pass the filter of their first topic again. Raises ExpressionInvalid.
    """
    if subscription.class_filter_mode:
        return EVERYTHING
    if find is not None and subscription.topic.startswith(RETRY_PREFIX):
        return MessageFilter(None, _retried(find))
    if is_tag_type(subscription.expression_type):
        codes = _tag_codes(subscription)
        return EVERYTHING if codes is None else MessageFilter(codes)
    return MessageFilter(None, _by(_compiled(subscription)))


def _compiled(subscription: SubscriptionData) -> Expression:
    if subscription.expression_type != SQL92:
        raise ExpressionInvalid(f"messages cannot be filtered by {subscription.expression_type[:50]!r}")
    return compile_expression(subscription.sub_string or "")


def _tag_codes(subscription: SubscriptionData) -> frozenset[int] | None:
    text = (subscription.sub_string or "").strip()
    if text in ("", "*"):
        return None
    if subscription.code_set:
        return frozenset(subscription.code_set)
    return frozenset(tags_code(tag.strip()) for tag in text.split("||") if tag.strip())


def _by(expression: Expression) -> Callable[[bytes], bool]:
    return lambda raw: expression.matches(props.decode(raw))


def _retried(find: Find) -> Callable[[bytes], bool]:
    def accepts(raw: bytes) -> bool:
        topic = props.find(raw, _RETRY_TOPIC)
        subscription = find(topic.decode("utf-8", "replace")) if topic else None
        if subscription is None or is_tag_type(subscription.expression_type):
            return True
        try:
            return _compiled(subscription).matches(props.decode(raw))
        except ExpressionInvalid:
            return True

    return accepts
