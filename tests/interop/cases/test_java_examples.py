"""The programs of RocketMQ's own rocketmq-example jar, unmodified, against both makes of servers.

This file has the examples that send, pull, and use offsets and heartbeats. Those that join groups are in
test_java_push_consumers.py, transactions and requests in test_java_deferred.py. Not run are
openmessaging.SimplePullConsumer, simple.AclClient, simple.TestProducer (it queries its message before the
message is indexed), simple.PullConsumerTest (it names a broker of its author), and the benchmarks except
benchmark.Producer (tools/bench).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.interop import probe
from tests.interop.cluster import Cluster
from tests.interop.java_peer import EXAMPLES as PACKAGE
from tests.interop.java_peer import JavaPeer
from tests.interop.processes import is_free
from tests.interop.sides import EXAMPLES, Side, serve

pytestmark = pytest.mark.interop
FIXED_PORT = 9876  # port of the name server in the source of some examples


@dataclass(frozen=True)
class Example:
    """One example producer: its topic and messages, and whether it ends by itself."""

    main: str
    topic: str
    bodies: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    ends: bool = True

    def __str__(self) -> str:
        return self.main


def numbered(text: str, count: int) -> tuple[str, ...]:
    """Bodies "text 0" to "text count-1"."""
    return tuple(f"{text} {n}" for n in range(count))


OPERATION = ("-g", "operation_group", "-t", "OperationTest", "-a", "TagA", "-k", "key", "-c", "50")
PRODUCERS = (
    Example("quickstart.Producer", "TopicTest", numbered("Hello RocketMQ", 1000)),
    Example("simple.Producer", "TopicTest", ("Hello world",) * 128),
    Example("simple.AsyncProducer", "Jodie_topic_1023", ("Hello world",) * 100),
    Example("batch.SimpleBatchProducer", "BatchTest", numbered("Hello world", 3), ends=False),
    Example("batch.SplitBatchProducer", "BatchTest", numbered("Hello world", 100_000), ends=False),
    Example("ordermessage.Producer", "TopicTestjjj", numbered("Hello RocketMQ", 100)),
    Example("filter.TagFilterProducer", "TagFilterTest", ("Hello world",) * 60),
    Example("filter.SqlFilterProducer", "SqlFilterTest", numbered("Hello RocketMQ", 10)),
    Example("operation.Producer", "OperationTest", numbered("Hello RocketMQ", 50), OPERATION),
    Example("tracemessage.TraceProducer", "TopicTest", ("Hello world",) * 128),
    Example("namespace.ProducerWithNamespace", "InstanceTest%topicTest", ("Hello world",) * 100, ends=False),
    Example("openmessaging.SimpleProducer", "OMS_HELLO_TOPIC", ("OMS_HELLO_BODY",) * 3),
)


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One running pair of servers a direction, the name server on the examples' port if that is free."""
    side: Side = request.param
    run, port = tmp_path_factory.mktemp("examples"), FIXED_PORT if is_free(FIXED_PORT) else None
    # Pulls of empty queues are held for one second, and not for twenty.
    conf = {"mappedFileSizeCommitLog": 64 << 20, "longPollingEnable": "false"}
    with serve(side, peer, run, namesrv_port=port, conf=conf) as running:
        running.warm_up()
        yield running


@pytest.mark.parametrize("example", PRODUCERS, ids=str)
def test_producer(servers: Cluster, example: Example) -> None:
    """RocketMQ's own example would fail, or its messages would be missing."""
    if example.main.startswith(("namespace.", "openmessaging.")):
        needs_fixed_port(servers)
    already = probe.message_count(servers.namesrv.address, example.topic)
    output = run_example(servers, example, already + len(example.bodies))
    assert "Exception" not in output, output[-3000:]
    received = Counter(bytes.fromhex(one["body"]).decode() for one in servers.pull_all(example.topic))
    assert received.total() == already + len(example.bodies)
    assert not Counter(example.bodies) - received


def test_pull_consumer(servers: Cluster) -> None:
    """RocketMQ's example pull consumer (its topic is called broker-a) would not see each message once."""
    needs_fixed_port(servers)
    bodies = {f"for the example {n}".encode().hex() for n in range(100)}
    servers.produce(*[{"how": "sync", "topic": "broker-a", "body": body} for body in bodies])
    printed = run_main(servers, "simple.PullConsumer")
    assert found_messages(printed) == 100
    assert "Exception" not in printed


def test_pull_consumer_with_namespace(servers: Cluster) -> None:
    """A consumer with a namespace would not find the messages of a producer with that namespace."""
    needs_fixed_port(servers)
    topic = "InstanceTest%topicTest"
    servers.produce(*[{"how": "sync", "topic": topic, "body": f"{n}".encode().hex()} for n in range(20)])
    printed = run_main(servers, "namespace.PullConsumerWithNamespace")
    total = probe.message_count(servers.namesrv.address, topic)
    assert len(re.findall(r"Topic is:topicTest, msgId is:", printed)) == total
    assert "Exception" not in printed


def needs_fixed_port(servers: Cluster) -> None:
    """Skip an example that needs port 9876 when another program on this machine uses it."""
    if servers.namesrv.port != FIXED_PORT:
        pytest.skip(f"port {FIXED_PORT}, which is in this example's source, is taken on this machine")


def run_example(servers: Cluster, example: Example, wanted: int) -> str:
    """Run to its end, or until its messages are stored, and return its output."""
    address = servers.namesrv.address

    def arrived() -> bool:
        return probe.message_count(address, example.topic) >= wanted

    if example.ends:
        printed = run_main(servers, example.main, *example.arguments)
        probe.wait_until(arrived, f"{wanted} messages in {example.topic}")  # oneway sends may be late
        return printed
    home = servers.run / example.main
    with servers.peer.running(f"{PACKAGE}.{example.main}", home=home, properties=properties(servers)):
        probe.wait_until(arrived, f"{wanted} messages in {example.topic}")
    return (home / "console.log").read_text()


def run_main(servers: Cluster, main: str, *arguments: str) -> str:
    """Run one example class that ends by itself."""
    home = servers.run / main
    return servers.peer.run(
        "Main", f"{PACKAGE}.{main}", *arguments, home=home, properties=properties(servers)
    )


def properties(servers: Cluster) -> dict[str, Any]:
    """Where the examples look for their name server, and their header codec."""
    return {"rocketmq.namesrv.addr": servers.namesrv.address, **servers.java_properties}


def found_messages(printed: str) -> int:
    """Messages in all PullResult lines an example printed."""
    return sum(map(int, re.findall(r"pullStatus=FOUND.*msgFoundList=(\d+)", printed)))
