"""Namespaces: the names that requests have for the names of an application."""

from __future__ import annotations

import pytest

from rocketpy.client.namespace import unwrap, unwrap_queue, wrap, wrap_queue
from rocketpy.message import MessageQueue


@pytest.mark.parametrize(
    ("name", "travels"),
    [
        ("Orders", "NS1%Orders"),
        ("NS1%Orders", "NS1%Orders"),
        ("%RETRY%group", "%RETRY%NS1%group"),
        ("%DLQ%group", "%DLQ%NS1%group"),
        ("%RETRY%NS1%group", "%RETRY%NS1%group"),
        ("NS2%Orders", "NS1%NS2%Orders"),
        ("TBW102", "TBW102"),
        ("rmq_sys_x", "rmq_sys_x"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
    ],
)
def test_names_are_wrapped_once(name: str, travels: str) -> None:
    """A tenant would read another's topic, or a system topic would not be found."""
    assert wrap("NS1", name) == travels
    assert wrap("NS1", travels) == travels


@pytest.mark.parametrize("name", ["Orders", "%RETRY%group", "%DLQ%group", "TBW102", "NS2%Orders"])
def test_applications_see_their_own_names(name: str) -> None:
    """A result would name a topic that the application does not know."""
    assert unwrap("NS1", wrap("NS1", name)) == name


def test_other_namespaces_stay() -> None:
    """A message of another tenant would look like one's own."""
    assert unwrap("NS1", "NS2%Orders") == "NS2%Orders"
    assert unwrap("NS1", "NS11%Orders") == "NS11%Orders"


def test_without_a_namespace_nothing_changes() -> None:
    """Clients without a namespace would see % signs disappear from their topics."""
    assert (wrap("", "a%b"), unwrap("", "a%b")) == ("a%b", "a%b")


def test_queues() -> None:
    """A queue would lose its broker or number on the way."""
    queue = MessageQueue("Orders", "broker-a", 3)
    assert wrap_queue("NS1", queue) == MessageQueue("NS1%Orders", "broker-a", 3)
    assert unwrap_queue("NS1", wrap_queue("NS1", queue)) == queue
