"""Two name servers and two brokers, each killed and restarted while the client sends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.soak.faults import fault_run, servers


@pytest.mark.slow
async def test_every_result_of_a_send_is_true(tmp_path: Path) -> None:
    """After a kill, messages would be lost or doubled, errors have a wrong outcome, or all sends fail."""
    with servers(tmp_path) as running:
        # Durations mean nothing on a busy machine; `python -m tools.soak.faults` checks them.
        report = await fault_run(running, rounds=1, interval_s=0.3, refresh_ms=500, recover_within_s=300)
    assert report.problems == []
    assert (report.kills, len(report.recoveries_s)) == (4, 4)
    assert report.read >= report.acked > 0
