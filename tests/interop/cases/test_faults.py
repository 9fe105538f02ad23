"""Two name servers and two brokers of RocketMQ, each killed and restarted while rocketpy's client sends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.java_peer import JavaPeer
from tests.interop.sides import ALL_VERSIONS, OUR_SDK, Side
from tools.soak.faults import fault_run, servers

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("side", [OUR_SDK[0], *ALL_VERSIONS], ids=lambda side: side.direction)
async def test_every_result_of_a_send_is_true(peer: JavaPeer, tmp_path: Path, side: Side) -> None:
    """After a kill, messages would be lost or doubled, errors have a wrong outcome, or all sends fail."""
    with servers(tmp_path, peer.of_version(side.version)) as running:
        report = await fault_run(running, rounds=1, interval_s=1, refresh_ms=500, recover_within_s=300)
    assert report.problems == []
    assert (report.kills, len(report.recoveries_s)) == (4, 4)
    assert report.read >= report.acked > 0
