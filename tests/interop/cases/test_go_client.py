"""rocketmq-client-go with rocketpy's name server and broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop import probe
from tests.interop.cluster import Cluster
from tests.interop.go_peer import GoPeer
from tests.interop.java_peer import JavaPeer, ToolsMissing
from tests.interop.sides import Side, serve

pytestmark = pytest.mark.interop

SIDES = (Side("Go client", "our", "our"), Side("Go client", "our", "java"))


@pytest.fixture(scope="session")
def go() -> GoPeer:
    """The Go program, or a skip that names what this machine lacks."""
    try:
        return GoPeer.prepare()
    except ToolsMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module", params=SIDES, ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Servers with short intervals of transaction checks."""
    conf = {"transactionCheckInterval": 1000, "transactionTimeOut": 1000, "longPollingEnable": "true"}
    with serve(request.param, peer, tmp_path_factory.mktemp("go"), conf=conf) as running:
        yield running


def made_topic(servers: Cluster, stem: str) -> str:
    """A topic of four queues; the Go client asks for a route before it sends."""
    topic = servers.topic(stem)
    servers.make_topic(topic)
    return topic


@pytest.mark.parametrize("how", ["sync", "async", "oneway", "batch", "order"])
def test_sent_messages_are_consumed(servers: Cluster, go: GoPeer, how: str) -> None:
    """Go programs could not send to this broker, or would read other messages than were sent."""
    topic = made_topic(servers, how)
    sent = go.run(how, servers.namesrv.address, topic)
    assert {result["status"] for result in sent} == {0}
    bodies = [str(n) for n in range(8)] + [f"{n}b" for n in range(8) if how == "batch"]
    action = "consume-orderly" if how == "order" else "consume"
    came = go.run(action, servers.namesrv.address, topic, str(len(bodies)))
    assert sorted(one["body"] for one in came) == sorted(bodies)
    assert {(one["tags"], one["colour"], one["keys"].strip()) for one in came} == {
        ("go", "grün", f"key-{body}") for body in bodies
    }
    if how != "batch":  # for batches, the Go client returns no ids
        assert {one["id"] for one in came} >= {one["id"] for one in sent}
    if how == "order":
        for parity in (0, 1):
            mine = [one for one in came if int(one["body"]) % 2 == parity]
            assert [int(one["body"]) for one in mine] == list(range(parity, 8, 2))
            assert len({one["queue"] for one in mine}) == 1


def test_delayed_messages_are_delivered_late(servers: Cluster, go: GoPeer) -> None:
    """A delay would be ignored, or the message lost."""
    topic = made_topic(servers, "delay")
    assert len(go.run("delay", servers.namesrv.address, topic)) == 8
    came = go.run("consume", servers.namesrv.address, topic, "8")
    assert sorted(one["body"] for one in came) == [str(n) for n in range(8)]
    assert min(one["stored"] - one["born"] for one in came) >= 900  # one second, which Java rounds down


def test_transactions_end_as_their_producer_decides(servers: Cluster, go: GoPeer) -> None:
    """A rolled-back message would be delivered, or a message that was checked would be lost."""
    topic = made_topic(servers, "transaction")
    said = go.run("transaction", servers.namesrv.address, topic)
    assert [one["status"] for one in said if "status" in one] == [0, 0, 0]
    assert said[-1] == {"asked": "ask"}
    came = go.run("consume", servers.namesrv.address, topic, "2")
    assert sorted(one["body"] for one in came) == ["ask", "commit"]


def test_a_running_consumer_is_notified_at_once(servers: Cluster, go: GoPeer) -> None:
    """A Go consumer would get new messages only at its next pull, or not become a member of its group."""
    topic = made_topic(servers, "waiting")
    names = servers.namesrv.address

    def members() -> bool:
        return "GO" in servers.admin("consumerConnection", "-g", f"go_consumers_{topic}")

    with go.running("consume", names, topic, "8") as waiting:
        probe.wait_until(lambda: _quietly(members), "the consumer to be connected", step_s=1)
        go.run("sync", names, topic)
        assert sorted(one["body"] for one in GoPeer.events(waiting)) == [str(n) for n in range(8)]


def _quietly(look: Any) -> bool:
    try:
        return bool(look())
    except AssertionError:  # mqadmin fails while the group does not exist
        return False
