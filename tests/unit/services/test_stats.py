"""Counters must never fall, and their rates must be those of the period that was asked for."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from rocketpy.protocol.bodies import BrokerStatsItem
from rocketpy_broker.services.stats import (
    BROKER_PUT_NUMS,
    TOPIC_PUT_NUMS,
    BrokerStats,
    Counter,
    PutCounts,
)
from rocketpy_broker.store import MessageStore
from tests.unit.store.helpers import drop_queues, put, small_config


def test_counts_of_deleted_queues_stay(tmp_path: Path) -> None:
    """After a topic was deleted, the rate of the whole broker would be negative for a day."""
    with MessageStore(small_config(tmp_path)) as store:
        put(store, 1, 2, 3, topic="Before")
        puts, stats = PutCounts(store), BrokerStats("cluster")
        put(store, *range(10), topic="Gone")
        put(store, 4, topic="Before")
        put(store, 5, topic="Stays")
        counts = {topic: (count, size) for topic, count, size in puts}
        assert {topic: count for topic, (count, _) in counts.items()} == {"Before": 1, "Gone": 10, "Stays": 1}
        assert counts["Before"][1] - len("Before") == counts["Stays"][1] - len("Stays") > 0
        stats.sample(0, puts)

        assert drop_queues(store, lambda queue: queue.topic != "Stays") == 2
        assert {topic: (count, size) for topic, count, size in puts} == counts
        stats.sample(10_000, puts)
        total = stats.find(BROKER_PUT_NUMS, "cluster")
        assert total is not None
        assert (total.value, total.over("day", 10_000).sum) == (12, 0)

        put(store, 6, 7, topic="Gone")
        put(store, 8, 9, topic="Before")
        assert {topic: count for topic, count, _ in puts} == {"Before": 3, "Gone": 12, "Stays": 1}
        assert puts.total == 16


def test_a_rate_before_its_period_has_passed_is_that_since_the_start() -> None:
    """In the first ten minutes, the rate over ten minutes would be that of the last minute."""
    counter = Counter()
    for at_s in range(0, 310, 10):
        counter.sample(at_s * 1000, before_ms=None)
        counter.add(60 if at_s < 150 else 0)
    now_ms = 300_000
    assert counter.rate_since(now_ms - 60_000, now_ms) == 0
    assert counter.rate_since(now_ms - 600_000, now_ms) == pytest.approx(3)


def test_a_counter_that_rested_has_the_rates_of_its_periods() -> None:
    """Only changes are sampled: a rate would be that since the last change, perhaps hours before."""
    counter = Counter()
    sampled_ms: int | None = None

    def pass_time(until_s: int) -> None:
        nonlocal sampled_ms
        begin_s = 0 if sampled_ms is None else sampled_ms // 1000 + 10
        for at_s in range(begin_s, until_s + 1, 10):
            if not counter.is_settled:
                counter.sample(at_s * 1000, sampled_ms)
            sampled_ms = at_s * 1000

    pass_time(0)
    counter.add(1_000)
    pass_time(10)
    assert not counter.is_settled  # the samples of an hour and a day lack it
    pass_time(3_600)
    assert counter.is_settled
    pass_time(20_000)
    assert counter.over("hour", 20_000_000).sum == 0
    assert counter.over("day", 20_000_000).sum == 1_000

    for now_s in range(20_010, 20_070, 10):
        counter.add(20)
        pass_time(now_s)
    now_ms = 20_060_000
    minute = counter.over("minute", now_ms)
    assert (minute.sum, minute.tps) == (120, pytest.approx(2))
    hour = counter.over("hour", now_ms)
    assert (hour.sum, hour.tps) == (120, pytest.approx(120 / 3_600, rel=0.2))
    assert counter.rate_since(now_ms - 10_000, now_ms) == pytest.approx(2)
    assert counter.rate_since(now_ms - 600_000, now_ms) == pytest.approx(0.2)
    pass_time(120_000)
    assert counter.over("day", 120_000_000) == BrokerStatsItem(sum=0, tps=0.0, avgpt=0.0)


def test_idle_topics_cost_a_sample_little() -> None:
    """With 12,000 topics a sample took 100 ms, in which no client was served."""
    stats = BrokerStats("cluster")
    puts = [(f"topic-{number}", number, number) for number in range(100)]
    for at_s in range(0, 8_000, 10):
        stats.sample(at_s * 1000, puts)
    counter = stats.find(TOPIC_PUT_NUMS, "topic-1")
    assert counter is not None
    assert counter.is_settled


def test_the_garbage_collector_scans_no_counters() -> None:
    """A full collection with the counters of many thousand topics would stop the event loop."""
    stats = BrokerStats("cluster")
    topics = [f"T{number}" for number in range(100)]
    stats.sample(0, [])
    gc.collect()
    before = len(gc.get_objects())
    for at_s in (10, 20, 700):
        stats.sample(at_s * 1000, [(topic, at_s, at_s) for topic in topics])
    gc.collect()
    assert len(gc.get_objects()) - before < len(topics) / 10


def test_counters_are_sampled_in_slices() -> None:
    """With 5,000 topics, no client was served for 20 ms every ten seconds."""
    stats = BrokerStats("cluster")
    slices = sum(1 for _ in stats.sampling(0, [(f"T{number}", 1, 1) for number in range(100)]))
    assert slices >= 3 * 100
