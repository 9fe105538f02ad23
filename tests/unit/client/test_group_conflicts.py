"""Which differences between the members of a group count, and how they are described."""

from __future__ import annotations

import pytest

from rocketpy.client.group_conflicts import MemberView, find_conflicts, settings_of, texts_of
from rocketpy.protocol.bodies import ConsumerData, SubscriptionData


def member(client_id: str, *subscriptions: tuple[str, str | None], **settings: str) -> MemberView:
    data = ConsumerData(
        group_name="g",
        subscription_data_set=[
            SubscriptionData(topic=topic, sub_string=text) for topic, text in subscriptions
        ],
        **settings,  # type: ignore[arg-type] # only texts are given
    )
    return MemberView(client_id, f"10.0.0.1:{client_id}", settings_of(data))


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ([("T", "*")], [("T", None)], False),
        ([("T", "*")], [("T", "")], False),
        ([("T", "a || b")], [("T", "b||a")], False),
        ([("T", "*"), ("%RETRY%g", "*")], [("T", "*")], False),
        ([("T", "a")], [("T", "b")], True),
        ([("T", "*"), ("U", "*")], [("T", "*")], True),
        ([("T", "*")], [], True),
    ],
)
def test_filters_are_compared_by_their_meaning(
    one: list[tuple[str, str | None]], other: list[tuple[str, str | None]], differ: bool
) -> None:
    """Equal members would raise an alarm, or different ones none."""
    found = find_conflicts("g", [member("1", *one), member("2", *other)])
    assert [conflict.kind for conflict in found] == (["subscriptions"] if differ else [])


def test_unknown_settings_differ_from_nothing() -> None:
    """A client in a language that does not tell its settings would raise an alarm."""
    known = member("1", ("T", "*"), consume_type="CONSUME_PASSIVELY")
    assert find_conflicts("g", [known, MemberView("2", "host:1", None)]) == []
    assert find_conflicts("g", [known, member("2", ("T", "*"))]) == []


def test_sql_is_not_a_list_of_tags() -> None:
    """`a || b` in SQL92 differs from the two tags."""
    tags = member("1", ("T", "a || b"))
    data = ConsumerData(
        group_name="g",
        subscription_data_set=[SubscriptionData(topic="T", sub_string="a || b", expression_type="SQL92")],
    )
    assert find_conflicts("g", [tags, MemberView("2", "host:1", settings_of(data))])


def test_texts_are_short_whatever_peers_send() -> None:
    """A log line of a group with thousands of members, topics or characters would be megabytes long."""
    members = [
        member(f"{number}{'x' * 10_000}", *((f"T{topic}{'y' * 1000}", f"{number}") for topic in range(500)))
        for number in range(200)
    ]
    (text,) = texts_of(find_conflicts("g" * 10_000, members))
    assert len(text) < 5000
    assert "197 other variants" in text


def test_broadcasting_members_may_share_a_client_id() -> None:
    """In Java, all broadcasting clients of a host do; each of them gets all queues anyway."""
    members = [member("1", ("T", "*"), message_model="BROADCASTING") for _ in range(2)]
    assert find_conflicts("g", members) == []
    members = [member("1", ("T", "*"), message_model="CLUSTERING") for _ in range(2)]
    assert [conflict.kind for conflict in find_conflicts("g", members)] == ["client_id"]
