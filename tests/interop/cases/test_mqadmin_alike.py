"""Every command of mqadmin prints the same with RocketMQ's servers and with rocketpy's.

Values that differ between runs (times, ports, ids, rates) are replaced by a word before the comparison.
docs/differences.md names the commands that are left out, and why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.interop import probe
from tests.interop.cluster import Cluster
from tests.interop.java_peer import EXAMPLES as PACKAGE
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import Side, serve

pytestmark = pytest.mark.interop

DIRECTION = "mqadmin on java and on our servers"
TOPIC, GROUP, NAME = "AlikeTopic", "please_rename_unique_group_name_4", "alike-broker"
BODIES = [
    {"how": "queue", "topic": TOPIC, "queue": n % 2, "body": b"x".hex(), "keys": f"key{n}"} for n in range(8)
]

READ_ONLY = [
    "topicList", "topicList -c", "topicRoute -t {topic}", "topicStatus -t {topic}",
    "topicClusterList -t {topic}", "topicRoute -t Nowhere", "topicStatus -t Nowhere",
    "clusterList", "clusterList -m",
    "queryMsgByKey -t {topic} -k key3", "queryMsgByKey -t {topic} -k nothing",
    "queryMsgByOffset -t {topic} -b {name} -i 1 -o 1", "queryMsgByOffset -t {topic} -b {name} -i 1 -o 99",
    "queryMsgById -i {offset_id}", "queryMsgByUniqueKey -i {unique_id} -t {topic}",
    "printMsg -t {topic} -d true", "printMsgByQueue -t {topic} -a {name} -i 0 -p true -d true",
    "queryCq -t {topic} -q 9 -i 0 -c 2 -b {broker}",
    "allocateMQ -t {topic} -i 10.0.0.1,10.0.0.2", "statsAll -t {topic}", "statsAll -a",
    "producerConnection -g nobody -t {topic}", "consumerConnection -g nobody", "consumerProgress -g nobody",
    "brokerConsumeStats -b {broker}", "sendMsgStatus -b {name} -c 1",
]  # fmt: skip
"""Commands that change nothing; `{…}` is filled in."""
WITH_CONSUMER = [
    "consumerConnection -g {group}", "consumerProgress -g {group}", "consumerProgress -g {group} -s true",
    "consumerProgress", "consumerStatus -g {group}", "consumer -g {group}", "brokerConsumeStats -b {broker}",
    "topicStatus -t TopicTest", "getConsumerStatus -g {group} -t TopicTest",
    "cloneGroupOffset -s {group} -d copied_group -t TopicTest -o true",
    "resetOffsetByTimeOld -g {group} -t TopicTest -s 0 -f true",
    "resetOffsetByTime -g {group} -t TopicTest -s 0",
]  # fmt: skip
"""Commands about a group whose consumer runs."""
CHANGES = [
    "updateTopic -b {broker} -t {topic} -r 4 -w 4 -p 6", "updateTopic -c InteropCluster -t Second -r 1 -w 1",
    "topicRoute -t {topic}", "updateTopicPerm -b {broker} -t {topic} -p 4", "topicRoute -t {topic}",
    "updateTopicPerm -c InteropCluster -t {topic} -p 6",
    "updateOrderConf -m put -t {topic} -v {name}:4", "updateOrderConf -m get -t {topic}",
    "updateOrderConf -m delete -t {topic}", "updateOrderConf -m get -t {topic}",
    "updateKvConfig -s SPACE -k key -v value", "deleteKvConfig -s SPACE -k key",
    "updateSubGroup -b {broker} -g fresh_group -r 3 -s false", "deleteSubGroup -b {broker} -g fresh_group",
    "updateSubGroup -c InteropCluster -g fresh_group", "deleteSubGroup -c InteropCluster -g fresh_group",
    "sendMessage -t {topic} -p hello -k made -c tagged -b {name} -i 0",
    "consumeMessage -t {topic} -b {name} -i 0 -o 0 -c 2",
    "cleanExpiredCQ -b {broker}", "cleanUnusedTopic -b {broker}", "cleanExpiredCQ -c InteropCluster",
    "deleteTopic -c InteropCluster -t Second", "topicList",
    "wipeWritePerm -b {name}", "topicRoute -t {topic}", "wipeWritePerm -b nobody",
]  # fmt: skip
"""Commands that change something, in this order."""


Printed = list[list[str]]
"""The lines that each step of the script printed."""


@pytest.fixture(scope="module")
def both(peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Printed, Printed]:
    """The script on RocketMQ's and on rocketpy's servers."""
    java, ours = (
        _run(peer, Side("mqadmin", make, make), tmp_path_factory.mktemp(f"alike-{make}"))
        for make in ("java", "our")
    )
    return java, ours


@pytest.mark.parametrize("step", [f"{n:02} {c}" for n, c in enumerate(READ_ONLY + WITH_CONSUMER + CHANGES)])
def test_a_command_prints_the_same(both: tuple[Printed, Printed], step: str) -> None:
    """An operator's script would get another output than from RocketMQ's broker."""
    java, ours = both
    number = int(step[:2])
    assert ours[number] == java[number]


def _run(peer: JavaPeer, side: Side, run: Path) -> Printed:
    conf = {"brokerName": NAME, "longPollingEnable": "true"}
    with serve(side, peer, run, conf=conf) as servers:
        servers.make_topic(TOPIC, 2)
        sent = servers.produce(*BODIES)
        assert {result.get("status") for result in sent} == {"SEND_OK"}, sent
        fill = {
            "topic": TOPIC, "group": GROUP, "name": NAME, "broker": servers.broker.address,
            "offset_id": sent[3]["offsetMsgId"], "unique_id": sent[3]["msgId"],
        }  # fmt: skip
        printed = _admin(servers, [c.format(**fill) for c in READ_ONLY])
        with _consumer(servers):
            printed += _admin(servers, [c.format(**fill) for c in WITH_CONSUMER])
        printed += _admin(servers, [c.format(**fill) for c in CHANGES])
    return [_comparable(text) for text in printed]


def _admin(servers: Cluster, commands: list[str]) -> list[str]:
    """Run commands in one JVM; return the output of each."""
    steps: list[dict[str, Any]] = [{"args": command.split()} for command in commands]
    home = servers.run / "mqadmin-steps"
    properties = {"rocketmq.namesrv.addr": servers.namesrv.address}
    results = servers.peer.drive("AdminSteps", home=home, steps=steps, properties=properties)
    assert len(results) == len(commands)
    return [result["printed"] for result in results]


@contextmanager
def _consumer(servers: Cluster) -> Iterator[None]:
    """RocketMQ's quickstart consumer, which has consumed and committed eight messages of TopicTest."""
    # The route of a topic created by a send soon changes, and the producer would begin with another queue.
    servers.make_topic("TopicTest", 4)
    servers.produce(*[{"how": "sync", "topic": "TopicTest", "body": b"x".hex()} for _ in range(8)])
    home = servers.run / "quickstart"
    properties = {"rocketmq.namesrv.addr": servers.namesrv.address}
    with servers.peer.running(f"{PACKAGE}.quickstart.Consumer", home=home, properties=properties):
        console = home / "console.log"
        probe.wait_until(lambda: console.read_text().count("Receive New") >= 8, "8 messages", timeout_s=90)

        def is_done() -> bool:
            printed = servers.admin("consumerProgress", "-g", GROUP)
            return bool(re.search(r"Diff Total: 0\b", printed)) and {"TopicTest", "%RETRY%"} <= set(
                re.findall(r"TopicTest|%RETRY%", printed)
            )

        probe.wait_until(is_done, "offsets to be committed", timeout_s=90, step_s=1)
        yield


_UNLIKE = [
    (r"\d{4}-\d\d-\d\d[ T#]\d\d:\d\d:\d\d([:,.]\d+)?", "TIME"),
    (r"\b[0-9A-F]{32}\b", "ID"),
    (r"\b1[0-9]{12}\b", "MS"),
    (r"(127\.0\.0\.1|\d+\.\d+\.\d+\.\d+):\d+", "HOST"),
    (r"file:\S+|(?<=\s)/\w+/\S+", "FILE"),
    (r"\b\S+@\d+(#\d+)*\b", "CLIENT"),
    (r"\b\d+\.\d+(E-?\d+)?\b", "RATE"),
    (r"\b\d+ms\b", "DURATION"),
    (r"\bjava version.*|OpenJDK.*", "JVM"),
]


def _comparable(text: str) -> list[str]:
    """The lines in a fixed order, with variable parts replaced."""
    for pattern, word in _UNLIKE:
        text = re.sub(pattern, word, text)
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
    return sorted(line for line in lines if line)
