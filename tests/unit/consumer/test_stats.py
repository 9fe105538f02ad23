"""The rates that operators see of a consumer."""

from __future__ import annotations

import pytest

from rocketpy.consumer.stats import SAMPLE_MS, ConsumerStats


def test_rates_cover_the_last_minute() -> None:
    """An operator would see the average since the start, which hides a standstill."""
    stats = ConsumerStats(0)
    stats.record_pull("T", 600, 90.0)
    stats.record_handled("T", 490, 10, 50.0)
    stats.record_handled("T", 100, 0, 150.0, calls=3)
    stats.sample(SAMPLE_MS)
    busy = stats.status("T", 2 * SAMPLE_MS)
    assert (busy.pull_rt, busy.pull_tps) == (90.0, 30.0)
    assert (busy.consume_rt, busy.consume_ok_tps, busy.consume_failed_tps) == (50.0, 29.5, 0.5)
    for number in range(2, 10):
        stats.sample(number * SAMPLE_MS)
    idle = stats.status("T", 10 * SAMPLE_MS)
    assert (idle.pull_tps, idle.consume_ok_tps, idle.consume_rt) == (0.0, 0.0, 0.0)
    assert idle.consume_failed_msgs == 10  # those of the last hour


def test_a_topic_without_messages() -> None:
    """A new topic would break the whole response to an operator."""
    assert ConsumerStats(0).status("T", 0).consume_ok_tps == pytest.approx(0.0)
