"""How subscriptions are sent to brokers, and how results of handlers are interpreted."""

from __future__ import annotations

import pytest

from rocketpy.consumer.fetch.subscription import Sql, subscription_data, wanted_messages
from rocketpy.consumer.outcomes import ACKNOWLEDGED, ConsumeResult, Later, to_handling_result
from rocketpy.errors import ConfigInvalid
from tests.unit.consumer.fetch.test_process_queue import message


def test_tags_travel_with_their_hashes() -> None:
    """A broker would filter by other hashes than those in its consume queues."""
    data = subscription_data("T", "TagA || TagC|| ", 7)
    assert (data.sub_string, data.tags_set, data.sub_version) == ("TagA || TagC|| ", {"TagA", "TagC"}, 7)
    assert data.code_set == {2598919, 2598921}  # Java's "TagA".hashCode()
    assert data.expression_type == "TAG"


@pytest.mark.parametrize("expression", ["*", ""])
def test_everything(expression: str) -> None:
    """A subscription to all would ask for messages with the tag *."""
    data = subscription_data("T", expression, 7)
    assert (data.sub_string, data.tags_set, data.code_set) == ("*", set(), set())


def test_sql() -> None:
    """A broker would take an SQL92 expression for tags."""
    data = subscription_data("T", Sql("a > 5"), 7)
    assert (data.sub_string, data.expression_type, data.tags_set) == ("a > 5", "SQL92", set())


@pytest.mark.parametrize("expression", ["\ud800", Sql("a = '\ud800'")])
def test_an_expression_that_is_not_unicode_is_rejected(expression: str | Sql) -> None:
    """A heartbeat with it could not be encoded, which closes the client."""
    with pytest.raises(ConfigInvalid, match="not valid Unicode"):
        subscription_data("T", expression, 7)


@pytest.mark.parametrize("expression", [" || ", Sql(" ")])
def test_an_empty_expression_is_rejected(expression: str | Sql) -> None:
    """A typing error would look like a topic without messages."""
    with pytest.raises(ConfigInvalid):
        subscription_data("T", expression, 7)


def test_strangers_with_the_same_hash_stay_out() -> None:
    """A handler would get a tag it did not ask for: Java's hash of "Aa" is that of "BB"."""
    mine, other = message(0, tags="Aa"), message(1, tags="BB")
    assert wanted_messages([mine, other], {"Aa"}) == [mine]
    assert wanted_messages([mine, other], ()) == [mine, other]


def test_results_that_a_handler_may_return() -> None:
    """A failed message would be committed, or a handled one delivered again."""
    assert to_handling_result(None) is to_handling_result(ConsumeResult.SUCCESS) is ACKNOWLEDGED
    assert to_handling_result(ConsumeResult.LATER).done == 0
    later = to_handling_result(Later(delay_level=5, done=2))
    assert (later.done, later.later.delay_level, later.kind) == (2, 5, "CR_LATER")
    assert (to_handling_result(True).done, to_handling_result(True).kind) == (0, "CR_RETURN_NULL")
