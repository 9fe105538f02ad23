"""Seeds of the replication world, and whether they notice defects that are planted."""

import pytest

from tests.sim.check_ha import run_seed
from tests.sim.ha_planted import DEFECTS

SEEDS = 200
AT_ONCE = 20


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, SEEDS, AT_ONCE))
def test_seeds(first: int) -> None:
    """Some order of faults could lose acknowledged messages."""
    acked = 0
    for seed in range(first, first + AT_ONCE):
        acked += len(run_seed(seed, steps=40).acked)
    assert acked > 20, "the world stands still: nothing was proven"


def test_a_seed_replays() -> None:
    """A failure that a seed found could not be reproduced."""
    first, second = (run_seed(7, steps=60) for _ in range(2))
    assert (first.acked, first.now, first.promotions) == (second.acked, second.now, second.promotions)
    images = [[node.disk.files() for node in world.nodes] for world in (first, second)]
    assert images[0] == images[1]


@pytest.mark.planted
@pytest.mark.parametrize("name", DEFECTS)
def test_planted_defects_are_noticed(name: str) -> None:
    """The seeds could pass because the checks do nothing."""
    with DEFECTS[name](), pytest.raises(AssertionError):
        run_seeds(1, 300)


def run_seeds(first: int, last: int) -> None:
    for seed in range(first, last + 1):
        run_seed(seed, steps=150)
