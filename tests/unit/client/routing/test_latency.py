"""Latency fault tolerance: which brokers are skipped, for how long, and which broker is chosen instead."""

from __future__ import annotations

import pytest

from rocketpy.client.routing.latency import BrokerLatencies
from rocketpy.config import LatencyConfig
from rocketpy.message import MessageQueue

QUEUES = [MessageQueue("T", name, number) for number in range(2) for name in "abc"]


def latencies() -> BrokerLatencies:
    """With RocketMQ's numbers."""
    config = LatencyConfig()
    return BrokerLatencies(config.latency_ms, config.not_available_ms, config.failed_ms)


def chosen(known: BrokerLatencies, now_ms: float, avoid: str | None = None) -> set[str]:
    """The brokers that are chosen within many turns."""
    return {known.select(QUEUES, index, now_ms, avoid).broker_name for index in range(60)}


@pytest.mark.parametrize(
    ("latency_ms", "not_available_ms"),
    [
        (0, 0),
        (49, 0),
        (549, 0),
        (550, 30_000),
        (1000, 60_000),
        (2999, 120_000),
        (3000, 180_000),
        (99_999, 600_000),
    ],
)
def test_a_slow_broker_is_skipped_as_long_as_in_rocketmq(latency_ms: float, not_available_ms: float) -> None:
    """A broker with a slow disk would get its share of sends, and delay their callers."""
    known = latencies()
    known.update("a", latency_ms, 1000)
    assert known.is_available("a", 1000 + not_available_ms)
    assert not_available_ms == 0 or not known.is_available("a", 1000 + not_available_ms - 1)
    if not_available_ms:
        assert chosen(known, 1000) == {"b", "c"}
    assert chosen(known, 1000 + not_available_ms) == {"a", "b", "c"}


def test_a_failed_attempt_counts_as_thirty_seconds() -> None:
    """Sends would try a dead broker repeatedly."""
    known = latencies()
    known.update("a", 1, 0, failed=True)
    assert not known.is_available("a", 599_999)
    assert known.is_available("a", 600_000)


def test_a_good_response_brings_a_broker_back() -> None:
    """One slow response would exclude a broker although it recovered."""
    known = latencies()
    known.update("a", 5000, 0)
    known.update("a", 5, 1)
    assert chosen(known, 1) == {"a", "b", "c"}


def test_the_broker_that_just_failed_is_avoided() -> None:
    """A retry would go to the same broker, as it does in 4.6.0."""
    known = latencies()
    known.update("b", 5000, 0)
    assert chosen(known, 0, "a") == {"c"}


def test_while_all_are_out_the_better_half_is_used() -> None:
    """With only slow brokers, no message could be sent, or the slowest would get its share as well."""
    known = latencies()
    for name, latency_ms in (("a", 9000), ("b", 600), ("c", 700)):
        known.update(name, latency_ms, 0)
    assert chosen(known, 0) == {"b"}
    assert chosen(known, 0, "b") == {"c"}


def test_a_single_broker_is_used_even_if_it_is_slow() -> None:
    """A topic on one broker could not be sent to for ten minutes."""
    known = latencies()
    known.update("a", 9000, 0)
    only = [MessageQueue("T", "a", 0)]
    assert known.select(only, 3, 0, "a") == only[0]


def test_queues_of_available_brokers_take_turns() -> None:
    """One queue would get all messages while a broker is out."""
    known = latencies()
    known.update("a", 9000, 0)
    assert {known.select(QUEUES, index, 0) for index in range(6)} == {
        queue for queue in QUEUES if queue.broker_name != "a"
    }
