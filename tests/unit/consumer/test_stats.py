"""The rates that operators see of a consumer."""

from __future__ import annotations

import pytest

from rocketpy.consumer.stats import SAMPLE_MS, ConsumerStats

BEGAN_MS = 500_000
"""The start of the consumer on its monotonic clock."""


def test_rates_cover_the_last_minute() -> None:
    """An operator would see the average since the start, which hides a standstill."""
    stats = ConsumerStats(BEGAN_MS)
    stats.record_pull("T", 600, 90.0)
    stats.record_handled("T", 490, 10, 50.0)
    stats.record_handled("T", 100, 0, 150.0, calls=3)
    stats.sample(BEGAN_MS + SAMPLE_MS)
    busy = stats.status("T", BEGAN_MS + 2 * SAMPLE_MS)
    assert (busy.pull_rt, busy.pull_tps) == (90.0, 30.0)
    assert (busy.consume_rt, busy.consume_ok_tps, busy.consume_failed_tps) == (50.0, 29.5, 0.5)
    for number in range(2, 7):
        stats.sample(BEGAN_MS + number * SAMPLE_MS)
    assert stats.status("T", BEGAN_MS + 6 * SAMPLE_MS).pull_tps == 10.0  # all were pulled within the minute
    stats.sample(BEGAN_MS + 7 * SAMPLE_MS)
    idle = stats.status("T", BEGAN_MS + 8 * SAMPLE_MS)
    assert (idle.pull_tps, idle.consume_ok_tps, idle.consume_rt) == (0.0, 0.0, 0.0)
    assert idle.consume_failed_msgs == 10  # those of the last hour


def test_failures_cover_the_last_hour() -> None:
    """An operator would not see failures of the last hour, or see those of a problem long solved."""
    stats = ConsumerStats(BEGAN_MS)
    stats.record_handled("T", 0, 10, 1.0)
    for number in range(1, 361):
        stats.sample(BEGAN_MS + number * SAMPLE_MS)
    assert stats.status("T", BEGAN_MS + 360 * SAMPLE_MS).consume_failed_msgs == 10
    stats.record_handled("T", 0, 5, 1.0)
    stats.sample(BEGAN_MS + 361 * SAMPLE_MS)
    assert stats.status("T", BEGAN_MS + 361 * SAMPLE_MS).consume_failed_msgs == 5


def test_a_topic_without_messages() -> None:
    """A new topic would break the whole response to an operator."""
    assert ConsumerStats(0).status("T", 0).consume_ok_tps == pytest.approx(0.0)
