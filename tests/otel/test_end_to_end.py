"""From a request to the last consumer: one trace, over real sockets and real OTLP."""

from __future__ import annotations

from rocketpy_broker.embedded import EmbeddedCluster
from tests.otel.kinds import expect_kinds, tell_kinds
from tests.otel.order_scenario import expect_one_trace, run_scenario


async def test_one_trace_with_every_attribute() -> None:
    """An operator would see fragments, or spans without the needed attributes."""
    async with EmbeddedCluster() as cluster:
        collector = await run_scenario(cluster.namesrv_address, "scenario")
        expect_one_trace(collector, "scenario", cluster.brokers[0].config.name)


async def test_every_kind_of_send_with_every_attribute() -> None:
    """A kind of send would be missing in the trace, or lack the attributes that dashboards filter by."""
    async with EmbeddedCluster() as cluster:
        collector = await tell_kinds(cluster.namesrv_address, "kinds")
        config = cluster.brokers[0].config
        expect_kinds(collector, "kinds", config.name, config.cluster_name)
