"""Groups of peers under every fault that the design survives."""

from pathlib import Path

import pytest

from tests.sim.raft import run_seed
from tests.sim.raft_check import Violation
from tests.sim.raft_planted import DEFECTS
from tests.sim.scenario import play

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("*.txt"))
SEEDS = 500
PLANTED_SEEDS = 120


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_every_promise_holds_in_every_seed(first: int) -> None:
    """An acknowledged message could be lost, or two peers lead at once."""
    acked = sum(len(run_seed(seed).checker.acked) for seed in range(first, first + 50))
    assert acked > 500, "nothing happened"


def test_a_seed_runs_the_same_twice() -> None:
    """A failure that was found with a seed could not be replayed."""
    assert run_seed(3).trace == run_seed(3).trace


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    """The rare schedule that the file's first lines describe would do harm."""
    play(path)


@pytest.mark.planted
@pytest.mark.parametrize("name", DEFECTS)
def test_planted_defect_is_caught(name: str) -> None:
    """A simulation that finds nothing in a broken group proves nothing about a whole one."""
    with DEFECTS[name]():
        assert _catches(), f"{name} went unnoticed"


def _catches() -> bool:
    try:
        for path in SCENARIOS:
            play(path)
        for seed in range(PLANTED_SEEDS):
            run_seed(seed)
    except Violation:
        return True
    return False
