"""Saves of consumer offsets: they must neither stop the event loop nor lose commits."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from tests.turns import Turns

GROUPS = 10_000


async def test_a_save_lets_others_run_and_loses_no_commit(tmp_path: Path) -> None:
    """A copy of a million offsets stopped the event loop every five seconds."""
    offsets = ConsumerOffsets(tmp_path / "offsets.json")
    copies = Turns(dict.copy)

    class Watched(dict[int, int]):
        def copy(self) -> dict[int, int]:
            copied: dict[int, int] = copies(self)
            return copied

    for number in range(GROUPS):
        offsets.commit(f"g{number}", "T", 0, number)
    offsets._table = {key: Watched(queues) for key, queues in offsets._table.items()}
    saving = asyncio.create_task(offsets.save())
    while not copies.total:  # noqa: ASYNC110 - one iteration each
        await asyncio.sleep(0)
    offsets.commit("g0", "T", 0, 7)  # it was copied already
    offsets.remove_topic("Other")
    await saving
    copies.stop()
    assert (copies.total, copies.longest) == (GROUPS, GROUPS // 5)
    await offsets.save()
    again = ConsumerOffsets(tmp_path / "offsets.json")
    again.load()
    assert (again.get("g0", "T", 0), again.get("g9999", "T", 0)) == (7, 9999)
