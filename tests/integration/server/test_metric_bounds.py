"""Metrics of groups that clients name."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from rocketpy.protocol.bodies import HeartbeatData, ProducerData
from rocketpy_broker import EmbeddedCluster
from rocketpy_broker.metrics import catalog, collecting
from rocketpy_broker.store import MessageInner
from tests.integration.small import SMALL
from tests.turns import Turns


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


async def test_metrics_of_many_queues_leave_time_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scrape of a broker with 20,000 queues stopped it for a quarter of a second."""
    async with EmbeddedCluster(settings=SMALL) as cluster:
        broker = cluster.brokers[0]
        assert broker.metrics is not None
        for queue_id in range(300):
            broker.store.put_message(MessageInner("T", queue_id, b"x", born_host=bytes(8)))
            broker.consumers.offsets.commit("g", "T", queue_id, 0)
        reads = Turns(broker.store.max_offset_in_queue)
        monkeypatch.setattr(broker.store, "max_offset_in_queue", reads)
        loop, times = asyncio.get_running_loop(), itertools.count()
        with monkeypatch.context() as patch:
            patch.setattr(loop, "time", lambda: next(times) / 5000)  # each queue takes 0.2 ms
            measured = await collecting.collect_in_slices(broker.metrics._sources)
        reads.stop()
        assert reads.total >= 600
        assert reads.longest <= 12
        values = {one.metric: one.values for one in measured}
        assert [value for _, value in values[catalog.LAG_MESSAGES]] == [300]
        assert [one.metric for one in collecting.collect(broker.metrics._sources)] == list(values)
