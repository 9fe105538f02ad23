"""A DLedger group would lose what it acknowledged with its leader, or when all power fails."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.crash.group_power import PowerCuts


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_acknowledged_is_lost_when_all_power_fails(seed: int) -> None:
    """Whoever leads next would not have what a producer was told is safe (I1)."""
    asyncio.run(_cut(3, seed))


async def _cut(cuts: int, seed: int) -> None:
    rounds = PowerCuts(Random(seed))
    for number in range(cuts + 1):
        await rounds.run(cut=number < cuts)
    assert rounds.problems == []
    assert rounds.acked
    assert rounds.torn > 0, "every disk kept everything"
