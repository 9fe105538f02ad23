"""OpenTelemetry context through Java's broker and a Java program that forwards properties."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.interop.cluster import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import ALL_VERSIONS, OUR_SDK, Side, serve
from tests.otel.kinds import expect_kinds, tell_kinds
from tests.otel.order_scenario import expect_one_trace, run_scenario

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module", params=[*OUR_SDK[::3], *ALL_VERSIONS], ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Servers of each make."""
    side: Side = request.param
    with serve(side, peer, tmp_path_factory.mktemp("tracing")) as running:
        yield running


@pytest.mark.parametrize("forwarder", ["ours", "Java"])
async def test_one_trace_with_every_attribute(servers: Cluster, forwarder: str) -> None:
    """A trace would end at Java's broker, or at a Java program that forwards a message."""
    stem = servers.topic("tracing")

    async def forward(source: str, target: str) -> None:
        step = {"do": "forward", "from": source, "to": target, "body": b"forwarded".hex()}
        home = servers.run / f"forward-{stem}"
        drive = servers.peer.drive
        (result,) = await asyncio.to_thread(
            drive, "Trace", servers.namesrv.address, "forwarders", home=home, steps=[step]
        )
        assert "msgId" in result, result

    collector = await run_scenario(servers.namesrv.address, stem, forward if forwarder == "Java" else None)
    expect_one_trace(collector, stem, servers.broker.name)


async def test_every_kind_of_send_with_every_attribute(servers: Cluster) -> None:
    """A kind of send would lose its trace at one of the two brokers."""
    stem = servers.topic("kinds")
    collector = await tell_kinds(servers.namesrv.address, stem)
    expect_kinds(collector, stem, servers.broker.name, "InteropCluster")
