"""RocketMQ's own mqadmin against a broker of either make: the same commands must show the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop import probe
from tests.interop.cluster import Cluster
from tests.interop.java_peer import EXAMPLES as PACKAGE
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import Side, serve

pytestmark = pytest.mark.interop

SIDES = (Side("mqadmin", "java", "java"), Side("mqadmin", "our", "our"))
TOPIC, GROUP = "AdminTopic", "admin_group"
QUICKSTART_GROUP = "please_rename_unique_group_name_4"


@pytest.fixture(scope="module", params=SIDES, ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One running pair of servers for each pairing, with a topic of two queues of four messages."""
    side: Side = request.param
    with serve(side, peer, tmp_path_factory.mktemp("mqadmin")) as running:
        running.make_topic(TOPIC, 2)
        steps = [
            {"how": "queue", "topic": TOPIC, "queue": n % 2, "body": b"x".hex(), "keys": f"key{n}"}
            for n in range(8)
        ]
        assert {result.get("status") for result in running.produce(*steps)} == {"SEND_OK"}
        yield running


def lines(text: str, pattern: str) -> list[tuple[str, ...]]:
    """The groups of each line that fits a pattern."""
    found = (re.fullmatch(pattern, line.strip()) for line in text.splitlines())
    return sorted(match.groups() for match in found if match)


def test_topics_show_their_queues(servers: Cluster) -> None:
    """The command topicStatus would show other queues or offsets, or none."""
    printed = servers.admin("topicStatus", "-t", TOPIC)
    name = str(servers.broker.conf["brokerName"])
    row = rf"{re.escape(name)}\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d{{4}}-\d\d-\d\d) \S+"
    assert [found[:3] for found in lines(printed, row)] == [("0", "0", "4"), ("1", "0", "4")]


def test_the_cluster_is_listed(servers: Cluster) -> None:
    """The command clusterList would fail on a value that it expects, or show the broker as too old."""
    printed = servers.admin_shows("V4_6_0", "clusterList")  # a new Java broker has no rates yet
    name = str(servers.broker.conf["brokerName"])
    row = (
        rf"InteropCluster\s+{re.escape(name)}\s+0\s+(\S+)\s+(\S+)\s+([\d.]+)\(.*\)\s+([\d.]+)\(.*\)\s+\d+ .*"
    )
    ((address, version, *_),) = lines(printed, row)
    assert (address, version) == (servers.broker.address, "V4_6_0")
    printed = servers.admin("brokerStatus", "-b", servers.broker.address)
    status = {row[0]: row[1] for row in lines(printed, r"(\w+)\s*: ?(.*)")}
    assert status["brokerVersionDesc"] == "V4_6_0"
    assert status["msgPutTotalTodayNow"] == "8"
    assert {"bootTimestamp", "commitLogMinOffset", "commitLogMaxOffset", "putTps", "runtime"} <= set(status)


@contextmanager
def quickstart_consumer(servers: Cluster) -> Iterator[None]:
    """A running quickstart consumer of topic TopicTest that has consumed a message of each queue."""
    steps = [{"how": "sync", "topic": "TopicTest", "body": b"x".hex()} for _ in range(8)]
    servers.produce(*steps)
    home = servers.run / "quickstart"
    properties = {"rocketmq.namesrv.addr": servers.namesrv.address}
    with servers.peer.running(f"{PACKAGE}.quickstart.Consumer", home=home, properties=properties):
        console = home / "console.log"
        probe.wait_until(
            lambda: console.read_text().count("Receive New") >= 8, "8 messages to arrive", timeout_s=60
        )
        yield


def test_a_running_consumer_is_seen_and_moved(servers: Cluster) -> None:
    """consumerConnection, consumerProgress, consumerStatus or resetOffsetByTime would not work."""
    with quickstart_consumer(servers):
        printed = servers.admin("consumerConnection", "-g", QUICKSTART_GROUP)
        assert len(lines(printed, r"\d+\s+(\S+@\S+)\s+127\.0\.0\.1:\d+\s+(JAVA)\s+(V4_6_0)")) == 1
        assert "ConsumeType: CONSUME_PASSIVELY" in printed
        assert "SubExpression: *" in printed

        def is_done() -> bool:
            progress = servers.admin("consumerProgress", "-g", QUICKSTART_GROUP)
            return bool(re.search(r"Diff Total: 0\b", progress)) and "TopicTest" in progress

        probe.wait_until(is_done, "offsets to be committed", step_s=1)
        status = servers.admin("consumerStatus", "-g", QUICKSTART_GROUP)
        assert re.search(r"001\s+\S+@\S+\s+V4_6_0", status), status
        copy = ("-s", QUICKSTART_GROUP, "-d", "copied_group", "-t", "TopicTest", "-o", "true")
        assert "clone group offset success" in servers.admin("cloneGroupOffset", *copy)
        reset = servers.admin("resetOffsetByTime", "-g", QUICKSTART_GROUP, "-t", "TopicTest", "-s", "0")
        assert len(re.findall(r"^\S+\s+\d\s+0\s*$", reset, re.MULTILINE)) == 4, reset
        console = servers.run / "quickstart" / "console.log"
        probe.wait_until(
            lambda: console.read_text().count("Receive New") >= 16, "8 messages to come again", timeout_s=60
        )


def test_groups_are_made_and_deleted(servers: Cluster) -> None:
    """The commands updateSubGroup and deleteSubGroup would fail."""
    broker = servers.broker.address
    made = servers.admin("updateSubGroup", "-b", broker, "-g", GROUP, "-r", "3")
    assert f"create subscription group to {broker} success" in made
    gone = servers.admin("deleteSubGroup", "-b", broker, "-g", GROUP)
    assert f"delete subscription group [{GROUP}] from broker [{broker}] success" in gone


def test_messages_are_queried(servers: Cluster) -> None:
    """queryMsgByKey, queryMsgByOffset and printMsg would find nothing, or another message."""
    found = (r"([0-9A-F]+)\s+1\s+1", ("queryMsgByKey", "-t", TOPIC, "-k", "key3"))
    probe.wait_until(lambda: len(lines(servers.admin(*found[1]), found[0])) == 1, "key3 to be indexed")
    name = str(servers.broker.conf["brokerName"])
    by_offset = servers.admin("queryMsgByOffset", "-t", TOPIC, "-b", name, "-i", "1", "-o", "1")
    assert re.search(r"Keys:\s+\[key3\]", by_offset), by_offset


def test_settings_are_shown_and_changed(peer: JavaPeer, tmp_path: Path) -> None:
    """getBrokerConfig, updateBrokerConfig and their like of name servers would fail, or change nothing."""
    allowed = {"remoteConfigUpdateEnable": "true"}
    with serve(Side("mqadmin", "our", "our"), peer, tmp_path, conf=allowed, names_conf=allowed) as servers:
        broker = servers.broker.address
        shown = servers.admin("getBrokerConfig", "-b", broker)
        assert re.search(r"^fileReservedTime *= *72", shown, re.MULTILINE)
        assert re.search(rf"^listenPort *= *{servers.broker.port}", shown, re.MULTILINE)
        changed = servers.admin("updateBrokerConfig", "-b", broker, "-k", "fileReservedTime", "-v", "48")
        assert f"update broker config success, {broker}" in changed
        shown = servers.admin("getBrokerConfig", "-b", broker)
        assert re.search(r"^fileReservedTime *= *48", shown, re.MULTILINE)
        for key in ("transactionCheckMax", "sendMessageThreadPoolNums"):  # effective at the next start; never
            changed = servers.admin("updateBrokerConfig", "-b", broker, "-k", key, "-v", "16")
            assert f"update broker config success, {broker}" in changed
        shown = servers.admin("getNamesrvConfig", "-n", servers.namesrv.address)
        assert "orderMessageEnable" in shown
        assert re.search(rf"^listenPort *= *{servers.namesrv.port}", shown, re.MULTILINE)
        update = ("-k", "orderMessageEnable", "-v", "true", "-n", servers.namesrv.address)
        assert "update name server config success!" in servers.admin("updateNamesrvConfig", *update)
        refused = servers.admin("updateBrokerConfig", "-b", broker, "-k", "storePathRootDir", "-v", "x")
        assert "success" not in refused


def test_a_topic_is_deleted_and_queues_are_cleaned(servers: Cluster) -> None:
    """The command deleteTopic would leave the topic; cleanUnusedTopic and cleanExpiredCQ would fail."""
    broker = servers.broker.address
    servers.make_topic("AdminGone", 1)
    deleted = servers.admin("deleteTopic", "-c", "InteropCluster", "-t", "AdminGone")
    assert "delete topic [AdminGone] from cluster [InteropCluster] success" in deleted
    assert "success" in servers.admin("cleanUnusedTopic", "-b", broker)
    assert "success" in servers.admin("cleanExpiredCQ", "-b", broker)
    assert lines(servers.admin("topicStatus", "-t", TOPIC), r"\S+\s+(\d)\s+0\s+4\s+.*") == [("0",), ("1",)]
