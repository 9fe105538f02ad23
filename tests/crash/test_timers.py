"""Timers of broker processes over kills and changes of the master; see timers.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.timers import FAULTS, Outcome, observe

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_timer_is_delivered_once(tmp_path: Path, fault: str) -> None:
    """Timers would be lost, early or delivered twice when their broker dies."""
    outcome = await observe(fault, tmp_path, count=400, longest_s=6)
    assert len(outcome.dues) == 400
    assert (outcome.lost(), outcome.early(), outcome.twice()) == (0, 0, 0), outcome
    assert len(outcome.kills) == {"none": 0, "kill": 3, "slave": 1, "switch": 2}[fault]


def test_what_an_outcome_says() -> None:
    """A broken promise would not be reported, or an outage would count as lateness."""
    outcome = Outcome(
        dues={0: 1000, 1: 2000, 2: 2000, 3: 3100, 4: 3500, 5: 4000, 6: 5000},
        stored={0: [1003], 1: [1999], 2: [2000, 2700], 3: [3600], 4: [3600], 5: [4010]},
        kills=[(3000, 3050)],
    )
    assert (outcome.lost(), outcome.early(), outcome.twice()) == (1, 1, 1)
    assert outcome.outages() == [(3000, 3600)]
    assert outcome.late() == [-1, 0, 3, 10]
    assert "7 timers: 1 lost, 1 early, 1 twice; late by 3 ms (median), 10 ms (p99)" in str(outcome)
    assert "1 outages of 0.6 s at most, 2 due in them" in str(outcome)
