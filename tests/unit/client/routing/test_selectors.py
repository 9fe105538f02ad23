"""Selectors: the queue that an application chooses for a message."""

from __future__ import annotations

import pytest

from rocketpy.client.routing.selectors import ByMachineRoom, RoundRobin, by_hash, by_random, java_hash
from rocketpy.errors import Outcome, RouteNotFound
from rocketpy.message import Message, MessageQueue
from tests import golden_data

MESSAGE = Message("T", b"x")
QUEUES = [MessageQueue("T", "broker-a", n) for n in range(4)]


def test_hashes_are_javas() -> None:
    """Java and Python producers would send one order's messages to different queues."""
    vectors = golden_data.vectors("hashCodes")
    assert vectors
    for vector in vectors:
        text, value = vector["string"], vector["javaHashCode"]
        assert java_hash(text) == value
        assert by_hash(QUEUES, MESSAGE, text) == QUEUES[abs(value) % 4]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (42, 42),
        (-1, -1),
        (2**31, -(2**31)),
        (2**32 + 5, 4),
        (2**32 + 1000, 1001),
        (-(2**40), -256),
        (2**64, java_hash(str(2**64))),
    ],
)
def test_numbers_hash_as_integer_and_long(value: int, expected: int) -> None:
    """An order number would go elsewhere than from a Java producer that passes an Integer or a Long."""
    assert java_hash(value) == expected


def test_an_argument_of_any_type_has_a_queue() -> None:
    """A selector would fail for an argument of another type, or choose different queues for it."""
    for arg in (None, True, ("a", 1), 1.5):
        assert by_hash(QUEUES, MESSAGE, arg) == QUEUES[abs(java_hash(str(arg))) % 4]
    # The hash of this text has no positive counterpart in Java.
    assert java_hash("polygenelubricants") == -(2**31)
    assert by_hash(QUEUES[:3], MESSAGE, "polygenelubricants") == QUEUES[2**31 % 3]


def test_random_reaches_every_queue() -> None:
    """Some queue would never get a message."""
    assert {by_random(QUEUES, MESSAGE, None) for _ in range(500)} == set(QUEUES)


def test_each_topic_has_its_own_turn() -> None:
    """With two topics in one producer each would skip queues, and half of them could stay empty."""
    turns = RoundRobin()
    other = Message("Other", b"x")
    found = [(turns(QUEUES, MESSAGE, None), turns(QUEUES, other, None)) for _ in range(5)]
    assert found == [(queue, queue) for queue in [*QUEUES, QUEUES[0]]]


def test_machine_rooms() -> None:
    """Messages would cross between data centres although there are brokers near by."""
    queues = [MessageQueue("T", name, n) for name in ("hz@a", "hz@b", "sh@a", "plain") for n in range(2)]
    near = ByMachineRoom(["hz"])
    assert [near(queues, MESSAGE, None) for _ in range(4)] == queues[:4]
    assert ByMachineRoom("sh")(queues, MESSAGE, None) == queues[4]
    with pytest.raises(
        RouteNotFound, match=r"machine rooms \['bj'\], only on hz@a, hz@b, plain, sh@a"
    ) as caught:
        ByMachineRoom(["bj"])(queues, MESSAGE, None)
    assert caught.value.outcome is Outcome.NOT_SENT
