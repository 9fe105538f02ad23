"""rocketpy bench: figures of a real run against a cluster."""

from __future__ import annotations

import json

import pytest

from rocketpy import Producer
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.cli.commands import run


@pytest.mark.slow
async def test_figures_of_a_run(cluster: EmbeddedCluster) -> None:
    """Figures could count other messages, or a topic be filled without a confirmation."""
    at = ("-n", cluster.namesrv_address)
    done = await run("bench", "Bench", *at)
    assert (done.status, done.out) == (2, "")
    assert "create topic Bench with 4 queues on each broker, and send 100,000 messages" in done.err
    arguments = ("bench", "Bench", "--messages", "2000", "--size", "100", "--yes")
    done = await run(*arguments, "--json", *at)
    assert (done.status, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["topic"], found["messages"], found["size"], found["failed"]) == ("Bench", 2000, 100, 0)
    for side in ("send", "consume"):
        figures = found[side]
        assert figures["messages"] == 2000
        assert 0 < figures["p50"] <= figures["p95"] <= figures["p99"] <= figures["p99_9"] <= figures["max"]
        assert figures["MB_per_second"] > 0
    assert found["consume"]["max"] >= found["send"]["p50"]
    async with Producer("watchers", cluster.namesrv_address) as producer:
        assert len(await producer.fetch_publish_message_queues("Bench")) == 4
    done = await run(*arguments, "--no-consume", *at)
    assert (done.status, done.err) == (0, "")
    assert [line.split()[0] for line in done.out.splitlines()] == ["messages", "send"]


async def test_a_rate_is_kept(cluster: EmbeddedCluster) -> None:
    """Latencies under a certain load could not be measured."""
    arguments = ("--messages", "200", "--rate", "400", "--json", "--yes", "-n", cluster.namesrv_address)
    done = await run("bench", "T", *arguments)
    assert done.status == 0, done.err
    assert json.loads(done.out)["send"]["per_second"] <= 410
