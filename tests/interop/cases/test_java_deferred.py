"""RocketMQ's own transaction and request-reply examples, unmodified, and scheduled messages of its client."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.interop import probe
from tests.interop.cluster import Cluster
from tests.interop.java_peer import EXAMPLES as PACKAGE
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import EXAMPLES, Side, serve

pytestmark = pytest.mark.interop

CONF = {
    "mappedFileSizeCommitLog": 64 << 20,
    "transactionTimeOut": 500,
    "transactionCheckInterval": 1000,
    "messageDelayLevel": "2s 4s 1h",
}


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One running pair of servers for each pairing, with short delays and check intervals."""
    side: Side = request.param
    with serve(side, peer, tmp_path_factory.mktemp("deferred"), conf=CONF) as running:
        running.warm_up()
        yield running


def bodies(servers: Cluster, topic: str) -> list[str]:
    """Every message of a topic, sorted."""
    return sorted(bytes.fromhex(one["body"]).decode() for one in servers.pull_all(topic))


def test_scheduled_messages(servers: Cluster) -> None:
    """A Java producer's delayed messages would be delivered at once, or never."""
    topic, begin = "Scheduled", time.time()
    steps = [
        {"how": "sync", "topic": topic, "body": f"level {level}".encode().hex(), "delay": level}
        for level in (1, 2, 3)
    ]
    assert [result["status"] for result in servers.produce(*steps)] == ["SEND_OK"] * 3
    address = servers.namesrv.address
    probe.wait_until(lambda: probe.message_count(address, topic) == 2, "levels 1 and 2")
    assert time.time() - begin >= 4
    assert bodies(servers, topic) == ["level 1", "level 2"]


def test_transaction_example(servers: Cluster) -> None:
    """Of the example's ten transactions, others than the three with a positive check would commit."""
    topic = "TopicTest1234"
    home = servers.run / "transaction"
    address = servers.namesrv.address
    with servers.peer.running(
        f"{PACKAGE}.transaction.TransactionProducer", home=home, properties=properties(servers)
    ):
        probe.wait_until(lambda: probe.message_count(address, topic) == 3, "three commits")
        time.sleep(2.5)  # two more checks: nothing may be committed twice
    assert bodies(servers, topic) == [f"Hello RocketMQ {number}" for number in (1, 4, 7)]
    assert "Exception" not in (home / "console.log").read_text()


def test_request_reply_example(servers: Cluster) -> None:
    """Java's requests, one that waits and one with a callback, would time out."""
    home = servers.run / "rpc"
    with servers.peer.running(f"{PACKAGE}.rpc.ResponseConsumer", home=home, properties=properties(servers)):
        probe.wait_until(
            lambda: "Consumer Started" in (home / "console.log").read_text(), "the consumer", timeout_s=60
        )

        def has_reply() -> bool:
            """Send a request; the first one creates the topic, and may find no consumer."""
            printed = servers.peer.run(
                "Main",
                f"{PACKAGE}.rpc.RequestProducer",
                home=servers.run / "ask",
                properties=properties(servers),
            )
            return "replyMessage: Message" in printed

        probe.wait_until(has_reply, "a request with a reply")
        asked = servers.run / "ask-async"
        with servers.peer.running(
            f"{PACKAGE}.rpc.AsyncRequestProducer", home=asked, properties=properties(servers)
        ):
            probe.wait_until(
                lambda: "replyMessage: Message" in (asked / "console.log").read_text(),
                "a reply to a callback",
            )


def properties(servers: Cluster) -> dict[str, str]:
    """Where the examples look for their name server, and their header codec."""
    return {"rocketmq.namesrv.addr": servers.namesrv.address, **servers.java_properties}
