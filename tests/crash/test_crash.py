"""A crash anywhere would cost an acknowledged message, invent one, or keep the broker from starting."""

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
RECOVERIES = 2000
FAULTS = 150
DAMAGES = 250
_WEIGHTS = sum(workload.weight for workload in WORKLOADS.values())


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_promise_holds_after_a_crash(name: str) -> None:
    """Power loss or a kill would lose, invent or reorder messages, or recovery would not end."""
    workload = WORKLOADS[name]
    wanted = max(4, round((RECOVERIES - FAULTS - DAMAGES) * workload.weight / _WEIGHTS))
    done, seed = 0, SEED
    while done < wanted:
        result = run_pass(workload, seed, stride=5 if workload.weight == 1 else 9, variants=3,
                          recoveries_max=wanted - done)  # fmt: skip
        assert not result.failures, "\n".join(map(str, result.failures))
        done += result.recoveries
        seed += 1


def test_every_promise_holds_when_a_disk_call_fails() -> None:
    """A full disk or a failing flush would lose what was acknowledged, or keep what was refused."""
    random = Random(SEED)
    calls = count_calls(SEED)
    done = 0
    while done < FAULTS:
        at, code = random.randrange(1, calls + 1), random.choice((errno.ENOSPC, errno.EIO))
        result = run_fault(SEED, at, code, lasting=random.random() < 0.5)
        assert not result.failures, "\n".join(map(str, result.failures))
        done += result.recoveries


@pytest.mark.parametrize("clean", [True, False])
def test_damage_is_mended_or_refused_and_never_served(clean: bool) -> None:
    """A flipped bit, a short or a missing file would hand out wrong messages, or hide right ones."""
    stored = base(clean=clean)
    chosen = Random(SEED).sample(list(damages(stored.writer.disk, Random(SEED))), DAMAGES // 2)
    outcomes = [outcome_of(stored, damage) for damage in chosen]
    assert {"mended", "refused"} <= set(outcomes)


def test_each_file_that_is_removed_is_built_again_or_missed() -> None:
    """An operator who lost a file would not hear of it."""
    for clean in (True, False):
        stored = base(clean=clean)
        for path in stored.writer.disk.files():
            outcome = outcome_of(stored, Damage("remove", path))
            assert outcome == "refused" if "/commitlog/" in path else "mended", (path, outcome)


# -- the sweep itself ----------------------------------------------------------------------------


def catches(name: str) -> str:
    """What the sweep says of a store with this defect; empty when it says nothing.

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
    """A sweep that finds nothing in a broken store proves nothing about a whole one."""
    assert catches(name), f"{name} went unnoticed"
