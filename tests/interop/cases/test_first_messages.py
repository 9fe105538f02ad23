"""Java applications that create their topic at the start, with the clients of three versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.cluster import cluster
from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer
from tests.interop.sides import NEWER_VERSIONS

pytestmark = pytest.mark.interop

DIRECTION = "Java client -> our servers"
# The default of applications; in other cases consumers rebalance every second.
REBALANCE = {"rocketmq.client.rebalance.waitInterval": "20000"}


@pytest.mark.parametrize("version", [DEFAULT_VERSION, *NEWER_VERSIONS])
def test_a_new_topic_is_consumed_at_once(peer: JavaPeer, tmp_path: Path, version: str) -> None:
    """A consumer that finds no route when it starts requests it only after 30 s."""
    driver = peer.of_version(version)
    with cluster(peer, tmp_path, namesrv="our", broker="our") as servers:
        steps = [{"broker": servers.broker.address, "topic": f"Made{number}"} for number in range(3)]
        address = servers.namesrv.address
        results = driver.drive(
            "First", address, "first", home=tmp_path / "driver", steps=steps, properties=REBALANCE
        )
    assert len(results) == 3, results
    late = [result for result in results if result.get("first_ms") is None or result["first_ms"] > 10_000]
    assert not late
    found = {(result.get("queues"), result.get("retries")) for result in results}
    # The tools of 4.6.0 cannot query a single topic or group.
    assert found == {(None, None) if version == DEFAULT_VERSION else (4, 16)}
