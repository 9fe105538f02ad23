"""Seeds of the world of pops, and whether they notice defects that are planted."""

import pytest

from tests.sim.pop_planted import DEFECTS
from tests.sim.pop_world import run_seed

SEEDS = 300
AT_ONCE = 30


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, SEEDS, AT_ONCE))
def test_seeds(first: int) -> None:
    """Some order of pops, acknowledgements and faults could lose messages, or deliver handled ones again."""
    worlds = [run_seed(seed) for seed in range(first, first + AT_ONCE)]
    assert sum(job.is_acked for world in worlds for job in world.jobs.values()) > 10 * AT_ONCE
    assert sum(world.kills for world in worlds) > 5 * AT_ONCE
    assert sum(world.moves for world in worlds) > 0


def test_some_seeds() -> None:
    """A defect would be found only by the slow tests."""
    assert sum(run_seed(seed).kills for seed in range(1, 11)) > 10


@pytest.mark.parametrize("seed", [5611, 17940])
def test_a_change_in_the_millisecond_of_the_pop(seed: int) -> None:
    """The new check point would have the key of the old one, a timer, whose messages would be lost."""
    run_seed(seed)


def test_a_seed_replays() -> None:
    """A failure that a seed found could not be reproduced."""
    first, second = (run_seed(7) for _ in range(2))
    assert (first.now, first.kills, first.saved) == (second.now, second.kills, second.saved)
    assert first.disk.files() == second.disk.files()


@pytest.mark.planted
@pytest.mark.parametrize("name", DEFECTS)
def test_planted_defects_are_noticed(name: str) -> None:
    """The seeds could pass because the checks do nothing."""
    with DEFECTS[name](), pytest.raises(AssertionError):
        run_seeds(1, 600)


def run_seeds(first: int, last: int) -> None:
    for seed in range(first, last + 1):
        run_seed(seed)
