"""From a request to the last consumer: one trace, over real sockets and real OTLP."""

from __future__ import annotations

from rocketpy_broker.embedded import EmbeddedCluster
from tests.otel.kinds import expect_kinds, tell_kinds
from tests.otel.story import expect_one_trace, tell


async def test_one_trace_with_every_attribute() -> None:
    """An operator would see fragments, or spans that say too little to act upon."""
    async with EmbeddedCluster() as cluster:
        collector = await tell(cluster.namesrv_address, "story")
        expect_one_trace(collector, "story", cluster.brokers[0].config.name)


async def test_every_kind_of_send_with_every_attribute() -> None:
    """A kind of send would be a hole in the trace, or lack what dashboards filter by."""
    async with EmbeddedCluster() as cluster:
        collector = await tell_kinds(cluster.namesrv_address, "kinds")
        config = cluster.brokers[0].config
        expect_kinds(collector, "kinds", config.name, config.cluster_name)
