"""Metrics of groups that clients name."""

from __future__ import annotations

import pytest

from rocketpy.protocol.bodies import HeartbeatData, ProducerData
from rocketpy_broker import EmbeddedCluster
from rocketpy_broker.metrics import catalog, collecting
from tests.integration.small import SMALL


async def test_groups_beyond_a_limit_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients could make each response of /metrics as large as they like."""
    monkeypatch.setattr(collecting, "_LABEL_BYTES_MAX", 1000)
    async with EmbeddedCluster(settings=SMALL) as cluster:
        broker = cluster.brokers[0]
        assert broker.metrics is not None
        groups = [ProducerData(group_name=f"group-{number:04d}") for number in range(50)]
        beat = HeartbeatData(client_id="me", producer_data_set=groups)
        broker.consumers.clients.heartbeat("channel", beat, language="JAVA", version=0, now_ms=0)
        measured = {one.metric: one.values for one in broker.metrics.collect_from_any_thread()}
        values = {labels[-1]: value for labels, value in measured[catalog.PRODUCERS]}
    assert len(values) == 12
    assert values["group-0000"] == 1
    assert values[collecting.OTHER_GROUPS] == 39
