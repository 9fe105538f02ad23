"""Crashes of a store at any point must not lose or invent messages, nor prevent a start."""

from __future__ import annotations

import errno
from random import Random

import pytest

from rocketpy.errors import StoreError
from tests.crash.damage import Damage, base, damages, outcome_of
from tests.crash.faults import count_calls, run_fault
from tests.crash.planted import DEFECTS
from tests.crash.sweep import run_pass
from tests.crash.verify import Violation
from tests.crash.workloads import WORKLOADS

SEED = 1
VARIANTS = 3
_WEIGHTS = sum(workload.weight for workload in WORKLOADS.values())


@pytest.mark.parametrize("recoveries", [400, pytest.param(1600, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_promise_holds_after_a_crash(name: str, recoveries: int) -> None:
    """Power loss or a kill would lose, invent or reorder messages, or recovery would not end."""
    workload = WORKLOADS[name]
    wanted = max(2, round(recoveries * workload.weight / _WEIGHTS))
    boundaries = run_pass(workload, SEED, recoveries_max=0).boundaries
    stride = max(5, boundaries * VARIANTS // wanted)  # spreads the crashes over the whole pass
    done, seed = 0, SEED
    while done < wanted:
        result = run_pass(workload, seed, stride=stride, variants=VARIANTS, recoveries_max=wanted - done)
        assert not result.failures, "\n".join(map(str, result.failures))
        done += result.recoveries
        seed += 1


@pytest.mark.parametrize("recoveries", [40, pytest.param(150, marks=pytest.mark.slow)])
def test_every_promise_holds_when_a_disk_call_fails(recoveries: int) -> None:
    """A full disk or a failing flush would lose acknowledged messages, or keep rejected ones."""
    random = Random(SEED)
    calls = count_calls(SEED)
    done = 0
    while done < recoveries:
        at, code = random.randrange(1, calls + 1), random.choice((errno.ENOSPC, errno.EIO))
        result = run_fault(SEED, at, code, lasting=random.random() < 0.5)
        assert not result.failures, "\n".join(map(str, result.failures))
        done += result.recoveries


@pytest.mark.parametrize("count", [40, pytest.param(125, marks=pytest.mark.slow)])
@pytest.mark.parametrize("clean", [True, False])
def test_damage_is_repaired_or_rejected_and_never_served(clean: bool, count: int) -> None:
    """With a flipped bit or a short file, wrong messages would be served, or correct ones be missing."""
    stored = base(clean=clean)
    chosen = Random(SEED).sample(list(damages(stored.writer.disk, Random(SEED))), count)
    outcomes = [outcome_of(stored, damage) for damage in chosen]
    assert {"repaired", "refused"} <= set(outcomes)


def test_each_removed_file_is_rebuilt_or_reported() -> None:
    """An operator would not learn that a file is missing."""
    for clean in (True, False):
        stored = base(clean=clean)
        for path in stored.writer.disk.files():
            outcome = outcome_of(stored, Damage("remove", path))
            assert outcome == "refused" if "/commitlog/" in path else "repaired", (path, outcome)


# -- the sweep itself ----------------------------------------------------------------------------


def catches(name: str) -> str:
    """The failures that the sweep finds in a store with this defect; empty if it finds none.

    The budget is 5,000 recoveries; most defects need a few dozen.
    """
    patch, workload = DEFECTS[name]
    with patch():
        try:
            if workload == "faults":
                return _catches_by_faults()
            for seed in range(1, 6):
                result = run_pass(WORKLOADS[workload], seed, stride=2, recoveries_max=1000, failures_max=1)
                if result.failures:
                    return str(result.failures[0])
        except (Violation, StoreError, AssertionError) as error:
            return f"in the workload itself: {error}"
    return ""


def _catches_by_faults() -> str:
    for seed in range(1, 3):
        for at in range(5, count_calls(seed) + 1):
            for code in (errno.EIO, errno.ENOSPC):
                result = run_fault(seed, at, code, lasting=False)
                if result.failures:
                    return str(result.failures[0])
    return ""


@pytest.mark.planted
@pytest.mark.parametrize("name", DEFECTS)
def test_planted_defect_is_caught(name: str) -> None:
    """A sweep that does not detect a defective store proves nothing about a correct one."""
    assert catches(name), f"{name} went unnoticed"
