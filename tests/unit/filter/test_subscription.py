"""Filters of subscriptions."""

import pytest

from rocketpy.protocol.bodies import SubscriptionData
from rocketpy.protocol.java import tags_code
from rocketpy_broker.filter import EVERYTHING, ExpressionInvalid, filter_of, subscription_of


def test_everything_is_wanted_by_a_star() -> None:
    """A consumer without a filter would get nothing."""
    for text in ("*", "", None):
        assert filter_of(subscription_of("T", text, "TAG")) is EVERYTHING


def test_tags_become_their_hash_codes() -> None:
    """QUIRKS 44: the consume queue could not tell which messages are wanted."""
    wanted = filter_of(subscription_of("T", " TagA || TagB", None))
    assert wanted.tag_codes == frozenset({tags_code("TagA"), tags_code("TagB")})
    wide = filter_of(subscription_of("T", "\u3000TagA\u00a0||\tTagB\x1f", None))
    assert wide.tag_codes == frozenset({tags_code("\u3000TagA\u00a0"), tags_code("TagB")})
    said = SubscriptionData(topic="T", sub_string="TagA", code_set={1, 2})
    assert filter_of(said).tag_codes == frozenset({1, 2})
    with pytest.raises(ExpressionInvalid):
        subscription_of("T", " || ", "TAG")


def test_an_expression_is_evaluated_for_each_message() -> None:
    """SQL92 subscriptions would let everything through."""
    accepts = filter_of(subscription_of("T", "n = 1", "SQL92")).accepts
    assert accepts is not None
    assert accepts(b"n\x011\x02")
    assert not accepts(b"n\x012\x02")
    with pytest.raises(ExpressionInvalid, match="XPATH"):
        filter_of(subscription_of("T", "n = 1", "XPATH"))


def test_a_class_filter_leaves_it_to_the_consumer() -> None:
    """Consumers with a filter class would get nothing."""
    assert filter_of(SubscriptionData(topic="T", sub_string="a.B", class_filter_mode=True)) is EVERYTHING


def test_retried_messages_pass_the_filter_of_their_topic() -> None:
    """filterSupportRetry: a changed filter would not apply to retries."""
    subscriptions = {"T": SubscriptionData(topic="T", sub_string="n = 1", expression_type="SQL92")}
    retry = SubscriptionData(topic="%RETRY%g", sub_string="*")
    assert filter_of(retry) is EVERYTHING
    accepts = filter_of(retry, find=subscriptions.get).accepts
    assert accepts is not None
    assert accepts(b"RETRY_TOPIC\x01T\x02n\x011\x02")
    assert not accepts(b"RETRY_TOPIC\x01T\x02n\x012\x02")
    assert accepts(b"RETRY_TOPIC\x01other\x02n\x012\x02")
    assert accepts(b"n\x012\x02")
