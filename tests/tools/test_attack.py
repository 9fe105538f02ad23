"""Hostile connections would slow down good clients, lose their messages, or fill the servers' memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.attack.kinds import HOSTILE
from tools.attack.run import Plan, attack


@pytest.mark.slow
async def test_good_clients_work_under_attack(tmp_path: Path) -> None:
    """The short form of `make attack`: times have wide bounds, as other tests run beside it.

    A turn of the servers' event loop is measured in processor time, and so has a narrow one.
    """
    plan = Plan(
        connections=800,
        rate=80,
        seed=1,
        budget_s=60,
        p99_floor_ms=10_000,
        failed_share_max=0.5,
        turn_ms_max=100,
    )
    outcome = await attack(plan, tmp_path)
    assert outcome.problems == []
    assert set(HOSTILE) <= set(outcome.kinds)
