"""A DLedger group must keep acknowledged messages when leaders are killed or all power fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from tests.crash.group_power import PowerCuts
from tests.crash.leader_kill import QUICK, kill_leaders
from tests.interop.cluster import stopping
from tests.interop.ledger_group import LedgerGroup
from tests.interop.processes import OurNameServer


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_acknowledged_is_lost_when_all_power_fails(seed: int) -> None:
    """After a power loss of all peers, the next leader would lack acknowledged messages (I1)."""
    asyncio.run(_cut(3, seed))


async def _cut(cuts: int, seed: int) -> None:
    rounds = PowerCuts(Random(seed))
    for number in range(cuts + 1):
        await rounds.run(cut=number < cuts)
    assert rounds.problems == []
    assert rounds.acked
    assert rounds.torn > 0, "every disk kept everything"


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_when_leaders_are_killed(tmp_path: Path) -> None:
    """Acknowledged messages would be lost with a killed leader, or no other peer be elected."""
    names = OurNameServer(tmp_path).start()
    with (
        stopping([names]),
        LedgerGroup(tmp_path, names.address, ["our"] * 3, conf=QUICK) as group,
    ):
        report = asyncio.run(kill_leaders(group, 3, Random(1)))
    assert report.problems == []
    assert len(report.recovered_s) == 3
    assert report.acked > 150
