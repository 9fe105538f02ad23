"""Workers that share messages, and the brokers of a pair or a DLedger group, are killed in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.soak.pops import KINDS, run_piece


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_no_message_is_lost_and_each_copy_has_a_reason(kind: str, tmp_path: Path) -> None:
    """A job would be lost, run again after its acknowledgement, or run on two workers at the same time."""
    report = await run_piece(kind, tmp_path, 2000, kills=4, invisible_s=4)
    assert report.problems == []
    assert (report.lost, report.workers, report.brokers) == (0, 2, 2)
    assert report.switches == {"pair": 1, "dledger": 2}[kind]
    assert report.received >= report.sent >= 2000
    assert report.copies["left on purpose"] > 0
    assert report.extended > 0
