"""The parts of the doctor that compute: clocks of brokers."""

from __future__ import annotations

import pytest

from rocketpy_cli.doctor.brokers import _skew_s


@pytest.mark.parametrize("ahead_s", [-3600, -1, 0, 120])
def test_the_clock_of_a_broker_follows_from_its_uptime(ahead_s: int) -> None:
    """Brokers with right clocks would be reported, or a wrong clock would not."""
    booted_s, uptime_s = 1_700_000_000, ((3 * 24 + 4) * 60 + 5) * 60 + 6
    table = {
        "bootTimestamp": str(booted_s * 1000),
        "runtime": "[ 3 days, 4 hours, 5 minutes, 6 seconds ]",
    }
    skew_s = _skew_s(table, booted_s + uptime_s - ahead_s)
    assert skew_s == pytest.approx(ahead_s, abs=0.5)


@pytest.mark.parametrize("runtime", ["", "[ 3 days, 4 hours ]", "?"])
def test_an_unknown_uptime_is_no_clock(runtime: str) -> None:
    """A broker that reports its uptime in another form would fail the command."""
    assert _skew_s({"bootTimestamp": "1", "runtime": runtime}, 0) is None
    assert _skew_s({"runtime": "[ 3 days, 4 hours, 5 minutes, 6 seconds ]"}, 0) is None
