"""Crashes of a DLedger peer at any point must not lose acknowledged entries, nor return replaced ones."""

from __future__ import annotations

import pytest

from rocketpy.errors import InvariantError, RocketError
from tests.crash.ledger_crashes import LedgerPass
from tests.crash.ledger_planted import DEFECTS
from tests.crash.ledger_sweep import damage_all, fail_calls, sweep

SEEDS = 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_promise_holds_after_a_crash(seed: int) -> None:
    """Power loss would lose or return entries: the elected leader could lack acknowledged ones."""
    result = sweep(seed, stride=2)
    assert result.failures == []
    assert result.recoveries > 150


@pytest.mark.slow
def test_every_promise_holds_when_a_disk_call_fails() -> None:
    """A full disk or a failing flush would lose acknowledged entries, or keep rejected ones."""
    result = fail_calls(1)
    assert result.failures == []
    assert result.recoveries > 100


@pytest.mark.slow
def test_damage_is_rejected_or_repaired_and_never_served() -> None:
    """With an undetected flipped bit, a peer would serve other entries than it acknowledged (I9)."""
    result = damage_all(2, stride=37)
    assert result.failures == []
    assert 0 < result.refused < result.recoveries


@pytest.mark.planted
@pytest.mark.parametrize("name", DEFECTS)
def test_planted_defect_is_caught(name: str) -> None:
    """A sweep that does not detect defective code proves nothing about correct code."""
    with DEFECTS[name]():
        assert _catches(), f"{name} went unnoticed"


def _catches() -> bool:
    for seed in range(6):
        for run in (sweep, fail_calls, damage_all):
            try:
                result: LedgerPass = run(seed, stride=7) if run is damage_all else run(seed)
            except (RocketError, InvariantError, OSError):
                return True
            if result.failures:
                return True
    return False
