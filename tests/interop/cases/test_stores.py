"""Store directories that one make of broker or store has written, and the other one opens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop import probe
from tests.interop.cluster import Cluster, new_broker, stopping
from tests.interop.java_peer import JavaPeer
from tests.interop.processes import (
    BrokerProcess,
    JavaNameServer,
    NameServerProcess,
    free_broker_port,
    free_port,
)
from tests.interop.sides import HANDOVERS, Handover

pytestmark = pytest.mark.interop
TOPIC, QUEUES = "StoreTopic", 4
# Small files, so that a few hundred messages fill several of each kind.
CONF = {
    "mappedFileSizeCommitLog": 64 << 10,
    "mappedFileSizeConsumeQueue": 20 * 50,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "messageIndexSafe": "true",  # otherwise a killed RocketMQ may lose its newest index entries
    "brokerName": "store-broker",
}
hands = pytest.mark.parametrize("handover", HANDOVERS, ids=lambda handover: handover.direction)


@pytest.fixture(scope="module")
def namesrv(peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServerProcess]:
    """Java's name server, so that these cases test stores only."""
    server = JavaNameServer(peer, tmp_path_factory.mktemp("stores")).start()
    with stopping([server]):
        yield server


class Hands:
    """One store directory, which brokers of either make serve in turn at the same address."""

    def __init__(self, peer: JavaPeer, run: Path, namesrv: NameServerProcess) -> None:
        self.peer, self.run, self.namesrv = peer, run, namesrv
        self.store, self.port, self.raft = run / "store", free_broker_port(), free_port()

    def broker(self, make: Any, *, ledger: bool = False) -> BrokerProcess:
        """A broker of this make on the store, not started. ledger: in a DLedger group of its own."""
        address, conf = self.namesrv.address, dict(CONF)
        if ledger:
            conf |= {
                "enableDLegerCommitLog": "true",
                "dLegerGroup": "store-broker",
                "dLegerPeers": f"n0-127.0.0.1:{self.raft}",
                "dLegerSelfId": "n0",
            }
        return new_broker(make, self.peer, self.run, address, store=self.store, port=self.port, conf=conf)

    def serve(self, broker: BrokerProcess) -> None:
        """Start a broker, and wait until producers find it: one in a group has to be elected first."""
        broker.start()
        wanted = f"{broker.address} to be the master"
        probe.wait_until(
            lambda: probe.master(self.namesrv.address, "store-broker") == broker.address, wanted, 60
        )

    def cluster(self, broker: BrokerProcess) -> Cluster:
        """The broker as a cluster, for use with RocketMQ's client."""
        return Cluster(self.peer, self.run, self.namesrv, broker)

    def produce(self, broker: BrokerProcess) -> list[dict[str, Any]]:
        """Do STEPS; the first one creates the topic, and the others wait until it is registered."""
        cluster, address = self.cluster(broker), self.namesrv.address
        first = cluster.produce(STEPS[0])
        probe.wait_until(lambda: probe.route(address, TOPIC), f"the route of {TOPIC}")
        return first + cluster.produce(*STEPS[1:])

    def java_store(self, conf: Path, *steps: dict[str, Any]) -> list[dict[str, Any]]:
        """RocketMQ's DefaultMessageStore on this directory, no broker around it (see java/Store.java)."""
        return self.peer.drive("Store", str(conf), home=self.run / "java-store", steps=steps)


@pytest.fixture
def hand(peer: JavaPeer, tmp_path: Path, namesrv: NameServerProcess) -> Hands:
    """A fresh store directory."""
    return Hands(peer, tmp_path, namesrv)


@hands
@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_broker_takes_over_a_store(hand: Hands, handover: Handover, ending: str) -> None:
    """After a change to the other broker, messages would be missing, moved or overwritten."""
    writer = hand.broker(handover.writer).start()
    with stopping([writer]):
        sent = [expected(step, a) for step, a in zip(STEPS, hand.produce(writer), strict=True)]
        (writer.kill if ending == "killed" else writer.stop)()
    with stopping([reader := hand.broker(handover.reader).start()]):
        cluster = hand.cluster(reader)
        assert places(cluster.pull_all(TOPIC)) == sorted(sent)
        more = cluster.produce(*[send(1000 + n, queue=n) for n in range(QUEUES)])
        ends = {queue: 1 + max(offset for q, offset, *_ in sent if q == queue) for queue in range(QUEUES)}
        assert {a["queueId"]: a["queueOffset"] for a in more} == ends
        assert len(cluster.pull_all(TOPIC)) == len(sent) + QUEUES
        views = cluster.consume({"do": "view", "topic": TOPIC, "id": more[0]["offsetMsgId"]})
        assert views[0]["body"] == body(1000)


@hands
@pytest.mark.parametrize("before", ["ledger", "commit log"])
def test_broker_takes_over_a_ledger(hand: Hands, handover: Handover, before: str) -> None:
    """A broker of the other make could not open a group's directory, or the store it began with."""
    writer = hand.broker(handover.writer, ledger=before == "ledger")
    with stopping([writer]):
        hand.serve(writer)
        sent = [expected(step, a) for step, a in zip(STEPS, hand.produce(writer), strict=True)]
        writer.stop()
    with stopping([reader := hand.broker(handover.reader, ledger=True)]):
        hand.serve(reader)
        cluster = hand.cluster(reader)
        assert places(cluster.pull_all(TOPIC)) == sorted(sent)
        more = cluster.produce(*[send(1000 + n, queue=n) for n in range(QUEUES)])
        ends = {queue: 1 + max(offset for q, offset, *_ in sent if q == queue) for queue in range(QUEUES)}
        assert {a["queueId"]: a["queueOffset"] for a in more} == ends
        reader.stop()
    with stopping([writer := hand.broker(handover.writer, ledger=True)]):  # and back again
        hand.serve(writer)
        assert len(hand.cluster(writer).pull_all(TOPIC)) == len(sent) + QUEUES


@pytest.mark.parametrize("handover", HANDOVERS[:2], ids=lambda handover: handover.direction)
@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_java_store_reads_a_broker_s_files(hand: Hands, handover: Handover, ending: str) -> None:
    """RocketMQ's own store would lose acknowledged messages, or recover other ones."""
    writer = hand.broker(handover.writer).start()
    with stopping([writer]):
        results = hand.produce(writer)
        sent = [expected(step, result) for step, result in zip(STEPS, results, strict=True)]
        (writer.kill if ending == "killed" else writer.stop)()
    reads = [{"do": "queue", "topic": TOPIC, "queue": queue} for queue in range(QUEUES)]
    reads += [{"do": "key", "topic": TOPIC, "key": f"key{n}"} for n in (0, 17, 399)]
    reads += [{"do": "offset", "at": int(result["offsetMsgId"][-16:], 16)} for result in results[::100]]
    opened, *found = hand.java_store(writer.conf_file, *reads)
    assert opened["opened"] is True
    by_step = {step: [a for a in found if a["step"] == step and "body" in a] for step in range(len(reads))}
    assert places([one for queue in range(QUEUES) for one in by_step[queue]]) == sorted(sent)
    assert [[one["keys"] for one in by_step[QUEUES + n]] for n in range(3)] == [
        ["key0"],
        ["key17"],
        ["key399"],
    ]
    assert [one["body"] for n in range(7, len(reads)) for one in by_step[n]] == [
        s["body"] for s in STEPS[::100]
    ]


@pytest.mark.parametrize("handover", [HANDOVERS[0], HANDOVERS[2]], ids=lambda handover: handover.direction)
@pytest.mark.parametrize("ending", ["closed", "halt"])
def test_broker_reads_a_java_store(hand: Hands, handover: Handover, ending: str) -> None:
    """Messages in RocketMQ's store, single ones and batches, would not be served."""
    reader = hand.broker(handover.reader)
    puts: list[dict[str, Any]] = [{**send(n, queue=n % QUEUES), "do": "put"} for n in range(200)]
    batch = [send(500 + n, queue=0) for n in range(10)]
    puts.append({"do": "putBatch", "topic": TOPIC, "queue": 0, "messages": batch})
    arguments = [str(reader.conf_file), *(["halt"] if ending == "halt" else [])]
    _, *put = hand.peer.drive("Store", *arguments, home=hand.run / "java-store", steps=puts)
    assert {result["status"] for result in put} == {"PUT_OK"}
    with stopping([reader.start()]):
        cluster = hand.cluster(reader)
        cluster.make_topic(TOPIC, QUEUES)
        received = cluster.pull_all(TOPIC)
    wanted = [
        (p["queue"], a["queueOffset"], a["physicalOffset"], p["body"])
        for p, a in zip(puts, put, strict=False)
        if "body" in p
    ]
    got = places(received)
    assert set(wanted) <= set(got)
    assert [place[3] for place in got if place[0] == 0][-10:] == [one["body"] for one in batch]
    assert len(got) == 210


def body(number: int) -> str:
    """A body of one of many sizes; the client compresses every fiftieth."""
    return (f"message {number} ".encode() * (600 if number % 50 == 49 else 1 + number % 20)).hex()


def send(number: int, *, queue: int) -> dict[str, Any]:
    """A send step with a key, tags and a property."""
    return {
        "how": "queue" if number else "sync",  # the first creates the topic
        "queue": queue,
        "topic": TOPIC,
        "body": body(number),
        "keys": f"key{number}",
        "tags": "T",
        "properties": {"number": str(number), "text": "ümlaut 世界"},
    }


def expected(step: dict[str, Any], result: dict[str, Any]) -> tuple[int, int, int, str]:
    """Where a sent message must be found: queue, queue offset, physical offset, body."""
    assert result.get("status") == "SEND_OK", result
    return result["queueId"], result["queueOffset"], int(result["offsetMsgId"][-16:], 16), step["body"]


def places(received: list[dict[str, Any]]) -> list[tuple[int, int, int, str]]:
    """Where messages were found, in order of queue and offset."""
    return sorted(
        (one["queueId"], one["queueOffset"], one["physicalOffset"], one["body"]) for one in received
    )


STEPS = [send(n, queue=n % QUEUES) for n in range(400)]
