"""Makes the filters of subscriptions, which each message must pass. `QueueReader` applies them.

Source: FilterAPI, ExpressionMessageFilter, ExpressionForRetryMessageFilter of RocketMQ 4.6.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from rocketpy.protocol.bodies import SubscriptionData
from rocketpy.protocol.java import string_hashes, trim
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.properties import RETRY_TOPIC_PREFIX
from rocketpy_broker.filter.compile_cache import CompileCache
from rocketpy_broker.filter.sql92 import Expression, compile_expression
from rocketpy_broker.filter.tokens import EXPRESSION_CHARACTERS_MAX, ExpressionInvalid

SQL92: Final = "SQL92"
TAGS_CHARACTERS_MAX: Final = EXPRESSION_CHARACTERS_MAX
"""Limit of tags joined by ``||``, about a thousand tags. Not in RocketMQ: 4.6.0 has no limit."""
_TYPE_CHARACTERS_MAX: Final = 100
_RETRY_TOPIC: Final = props.PROPERTY_RETRY_TOPIC.encode()

Find = Callable[[str], SubscriptionData | None]
"""Returns the subscription of the same group to another topic."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class MessageFilter:
    """A filter."""

    tag_codes: frozenset[int] | None = None
    """Hash codes of accepted tags, None for all."""
    accepts: Callable[[bytes], bool] | None = None
    """Checks the stored properties of a message; None without such a check."""
    kept_bytes: int = 0
    """Approximate memory."""


EVERYTHING: Final = MessageFilter()

_shared: Final[WeakValueDictionary[frozenset[int] | str, MessageFilter]] = WeakValueDictionary()
"""Filters in use by tag codes or expression. All held pulls of a group share one."""
_CODE_BYTES: Final = 64
"""Memory of a tag code in a set."""
_CHARACTER_BYTES: Final = 100
"""Memory of a compiled expression for each of its characters: ``a=1 OR`` becomes five objects."""


def is_tag_type(expression_type: str | None) -> bool:
    """Whether a subscription filters by tags."""
    return expression_type in (None, "", "TAG")


def subscription_of(topic: str, text: str | None, expression_type: str | None) -> SubscriptionData:
    """Return the subscription in a pull request. Raises ExpressionInvalid."""
    if is_tag_type(expression_type) and text and text != "*" and not _codes_of(text):
        raise ExpressionInvalid(f"subscription {text!r} contains no tag")
    return SubscriptionData(topic=topic, sub_string=text, expression_type=expression_type or "TAG")


def bounded(subscription: SubscriptionData) -> SubscriptionData:
    """Return a subscription of a heartbeat without parts that no pull can use.

    A too long expression is truncated right after its limit, so `filter_of` still rejects it. Sets of tags
    and codes that are larger than the expression allows are omitted; they are derived from the expression.
    """
    text = subscription.sub_string or ""
    limit = TAGS_CHARACTERS_MAX if is_tag_type(subscription.expression_type) else EXPRESSION_CHARACTERS_MAX
    tags_max = (len(text) + 2) // 3  # "a||b||c"
    is_plausible = len(text) <= limit and (
        len(subscription.code_set) <= tags_max
        and len(subscription.tags_set) <= tags_max
        and sum(map(len, subscription.tags_set)) <= len(text)
    )
    if is_plausible and len(subscription.expression_type) <= _TYPE_CHARACTERS_MAX:
        return subscription
    return SubscriptionData(
        topic=subscription.topic,
        sub_string=text[: limit + 1],
        sub_version=subscription.sub_version,
        expression_type=subscription.expression_type[:_TYPE_CHARACTERS_MAX],
        class_filter_mode=subscription.class_filter_mode,
    )


def filter_of(subscription: SubscriptionData, *, find: Find | None = None) -> MessageFilter:
    """Return the filter of a subscription. Raises ExpressionInvalid.

    find: if given, messages of a retry topic must only pass the SQL92 filter of their original topic.
    """
    if subscription.class_filter_mode:
        return EVERYTHING
    if find is not None and subscription.topic.startswith(RETRY_TOPIC_PREFIX):
        return MessageFilter(None, _retry_check(find))
    if is_tag_type(subscription.expression_type):
        codes = _tag_codes(subscription)
        return EVERYTHING if codes is None else _by_codes(codes)
    return _by_expression(_compiled(subscription))


def _by_codes(codes: frozenset[int]) -> MessageFilter:
    found = _shared.get(codes)
    if found is None:
        found = _shared[codes] = MessageFilter(codes, None, _CODE_BYTES * len(codes))
    return found


def _by_expression(expression: Expression) -> MessageFilter:
    found = _shared.get(expression.text)
    if found is None:
        size = _CHARACTER_BYTES * len(expression.text)
        found = _shared[expression.text] = MessageFilter(None, _expression_check(expression), size)
    return found


def _compiled(subscription: SubscriptionData) -> Expression:
    if subscription.expression_type != SQL92:
        raise ExpressionInvalid(f"messages cannot be filtered by {subscription.expression_type[:50]!r}")
    return compile_expression(subscription.sub_string or "")


def _tag_codes(subscription: SubscriptionData) -> frozenset[int] | None:
    text = subscription.sub_string or ""
    if text in ("", "*"):
        return None
    codes = _codes_of(text)  # rejects a too long text, also with leading spaces
    if trim(text) in ("", "*"):
        return None
    return frozenset(subscription.code_set) if subscription.code_set else codes


def _compile_tags(text: str) -> frozenset[int]:
    # Not with `tags_code`, whose cache is for the tags of messages.
    return frozenset(string_hashes({trim(tag) for tag in text.split("||")} - {""}))


_codes_of: Final = CompileCache(_compile_tags, TAGS_CHARACTERS_MAX)


def _expression_check(expression: Expression) -> Callable[[bytes], bool]:
    return lambda raw: expression.matches(props.decode(raw))


def _retry_check(find: Find) -> Callable[[bytes], bool]:
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
