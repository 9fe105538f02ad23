"""From a request to the last consumer: one trace, over real sockets and real OTLP."""

from __future__ import annotations

from rocketpy_broker.embedded import EmbeddedCluster
from tests.otel.story import expect_one_trace, tell


async def test_one_trace_with_every_attribute() -> None:
    """An operator would see fragments, or spans that say too little to act upon."""
    async with EmbeddedCluster() as cluster:
        collector = await tell(cluster.namesrv_address, "story")
        expect_one_trace(collector, "story", cluster.brokers[0].config.name)
