"""Filters of subscriptions: by tag, or by an SQL92 expression over properties. No I/O.

Pulls apply them: the store's `QueueReader` compares the tag hashes, and `PullHandler` limits the time of an
expression.
"""

from rocketpy_broker.filter.sql92 import Expression, compile_expression
from rocketpy_broker.filter.subscription import (
    EVERYTHING,
    MessageFilter,
    bounded,
    filter_of,
    is_tag_type,
    subscription_of,
)
from rocketpy_broker.filter.tokens import ExpressionInvalid

__all__ = [
    "EVERYTHING",
    "Expression",
    "ExpressionInvalid",
    "MessageFilter",
    "bounded",
    "compile_expression",
    "filter_of",
    "is_tag_type",
    "subscription_of",
]
