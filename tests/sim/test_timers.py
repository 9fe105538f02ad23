"""Many timed messages over days of a simulated clock; see timers.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.timers import simulate

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [1, 2])
def test_each_timed_message_is_delivered_once_and_in_time(tmp_path: Path, seed: int) -> None:
    """Timers would be lost, early, late or delivered twice over stops, kills and rolls."""
    assert "40 restarts" in simulate(tmp_path, 3000, seed, days=5)
