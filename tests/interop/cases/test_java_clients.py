"""RocketMQ's client with every pairing of servers; the cases with Java's servers check the test setup."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.interop import probe
from tests.interop.cluster import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.processes import JavaBroker
from tests.interop.sides import JAVA_CLIENT, Side, serve

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module", params=JAVA_CLIENT, ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One running pair of servers for each pairing."""
    side: Side = request.param
    with serve(side, peer, tmp_path_factory.mktemp("java-clients")) as running:
        yield running


def test_messages_of_sync_sends_are_complete(servers: Cluster) -> None:
    """A Java user's body, tags, keys, flag and properties would be altered."""
    topic = servers.topic("sync")
    steps = [
        message(topic, n, tags=f"tag{n % 3}", keys=f"k{n} shared", flag=n, properties=PROPERTIES)
        for n in range(20)
    ]
    sent = servers.produce(*steps)
    assert [result["status"] for result in sent] == ["SEND_OK"] * 20
    received = {one["msgId"]: one for one in servers.pull_all(topic, 20)}
    assert len(received) == 20
    for step, result in zip(steps, sent, strict=True):
        expect_same(step, received[result["msgId"]])


def test_async_and_oneway_sends_arrive(servers: Cluster) -> None:
    """Callbacks would not fire, or oneway messages would vanish."""
    topic = servers.topic("async")
    asynchronous = [message(topic, n, how="async") for n in range(10)]
    oneway = [message(topic, 100 + n, how="oneway") for n in range(10)]
    sent = servers.produce(*asynchronous, *oneway)
    assert [result["status"] for result in sent[:10]] == ["SEND_OK"] * 10
    assert all(result["sent"] for result in sent[10:])
    probe.wait_until(
        lambda: probe.message_count(servers.namesrv.address, topic) == 20, "20 messages to be stored"
    )
    bodies = sorted(one["body"] for one in servers.pull_all(topic))
    assert bodies == sorted(step["body"] for step in asynchronous + oneway)


def test_chosen_queues_are_kept_in_order(servers: Cluster) -> None:
    """Ordered producers would see their messages in another queue or out of order."""
    topic = servers.topic("order")
    servers.produce(message(topic, 0))  # creates the topic
    steps = [message(topic, 10 + n, how="queue", queue=n % 4) for n in range(12)]
    steps += [message(topic, 50 + n, how="selector", arg=7) for n in range(5)]
    sent = servers.produce(*steps)
    assert [result["queueId"] for result in sent[:12]] == [n % 4 for n in range(12)]
    assert [result["queueId"] for result in sent[12:]] == [3] * 5
    received = servers.pull_all(topic)
    for queue_id in range(4):
        offsets = [one["queueOffset"] for one in received if one["queueId"] == queue_id]
        assert offsets == list(range(len(offsets)))
    by_place = {(one["queueId"], one["queueOffset"]): one["body"] for one in received}
    assert [by_place[a["queueId"], a["queueOffset"]] for a in sent] == [step["body"] for step in steps]


def test_each_message_of_a_batch_gets_an_id_and_an_offset(servers: Cluster) -> None:
    """A batch's messages would be lost, merged, or have ids that find nothing."""
    topic = servers.topic("batch")
    parts = [message(topic, n, keys=f"b{n}", tags="B", properties=PROPERTIES) for n in range(25)]
    (sent,) = servers.produce({"how": "batch", "messages": parts})
    assert sent["status"] == "SEND_OK"
    assert len(sent["msgId"].split(",")) == len(sent["offsetMsgId"].split(",")) == 25
    received = servers.pull_all(topic)
    assert [one["msgId"] for one in received] == sent["msgId"].split(",")
    for step, one in zip(parts, received, strict=True):
        expect_same(step, one)


def test_large_bodies_travel_compressed(servers: Cluster) -> None:
    """Bodies above 4 KiB, which Java's client deflates, would be received compressed or damaged."""
    topic = servers.topic("large")
    bodies = [b"abcdefgh" * 1000, bytes(range(256)) * 4000, b"z" * 4097]
    steps = [{"how": "sync", "topic": topic, "body": body.hex()} for body in bodies]
    servers.produce(*steps)
    received = {one["body"]: one for one in servers.pull_all(topic)}
    assert {body.hex() for body in bodies} == set(received)
    # A client of 5.3.3 removes the compression flag from received messages, so the sizes are compared.
    assert all(received[body.hex()]["storeSize"] < len(body) / 4 for body in bodies)


def test_message_is_found_by_its_broker_id(servers: Cluster) -> None:
    """Support tools that query a message by the id of its send result would find none, or another."""
    topic = servers.topic("view")
    sent = servers.produce(*[message(topic, n) for n in range(5)])
    views = [{"do": "view", "topic": topic, "id": result["offsetMsgId"]} for result in sent]
    seen = servers.consume(*views)
    assert [one["body"] for one in seen] == [message(topic, n)["body"] for n in range(5)]


def test_offsets_by_time_and_bounds(servers: Cluster) -> None:
    """A consumer that starts from a point in time would start too early or too late."""
    topic = servers.topic("time")
    servers.produce(message(topic, 0))
    servers.produce(*[message(topic, 1 + n, how="queue", queue=1) for n in range(3)])
    time.sleep(0.05)  # so that the last message has a later timestamp
    (last,) = servers.produce(message(topic, 10, how="queue", queue=1))
    end = last["queueOffset"]
    stamps = {m["queueOffset"]: m["storeTimestamp"] for m in servers.pull_all(topic) if m["queueId"] == 1}
    # RocketMQ 4.6.0 returns the nearest message before or after the time, or the last one. Our broker returns
    # the first message since the time, or the end of the queue, as 5.1.1 does.
    is_nearest = isinstance(servers.broker, JavaBroker)
    wanted = {
        stamps[end]: end,
        stamps[end - 1] + 1: end - is_nearest,
        stamps[end] - 1: end,
        0: 0,
        stamps[end] + 9999: end + (not is_nearest),
    }
    steps = [{"do": "search", "topic": topic, "queue": 1, "time": at} for at in wanted]
    *found, bounds = [
        a for a in servers.consume(*steps, {"do": "queues", "topic": topic}) if a.get("queueId", 1) == 1
    ]
    assert [result["offset"] for result in found] == list(wanted.values())
    assert (bounds["min"], bounds["max"]) == (0, end + 1)


def test_pulls_at_the_edges_of_a_queue(servers: Cluster) -> None:
    """A consumer at the end of a queue, or after it, would get a wrong status or next offset."""
    topic = servers.topic("edge")
    servers.produce(message(topic, 0))
    servers.produce(*[message(topic, n, how="queue", queue=2) for n in range(3)])
    (bounds,) = [a for a in servers.consume({"do": "queues", "topic": topic}) if a["queueId"] == 2]
    end = bounds["max"]
    steps = [{"do": "status", "topic": topic, "queue": 2, "offset": at} for at in (0, end, end + 10, end - 1)]
    found = [(a["status"], a["next"], a["max"]) for a in servers.consume(*steps)]
    # Far beyond the end 4.6.0 sends a consumer back to the start of a queue that begins at 0.
    assert found == [
        ("FOUND", end, end),
        ("NO_NEW_MSG", end, end),
        ("OFFSET_ILLEGAL", 0, end),
        ("FOUND", end, end),
    ]


def test_unknown_topic_is_created_with_four_queues(servers: Cluster) -> None:
    """The first send to a new topic would fail, or make another number of queues than Java's default of 4."""
    topic = servers.topic("auto")
    servers.produce(message(topic, 0))
    probe.wait_until(lambda: probe.route(servers.namesrv.address, topic), "the new topic's route")
    found = probe.route(servers.namesrv.address, topic)
    assert found is not None
    (queues,) = found["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (4, 4, 6)


def test_mqadmin_creates_a_topic(servers: Cluster) -> None:
    """RocketMQ's own admin tool could not create a topic, or producers would not see its queues."""
    topic = servers.topic("admin")
    printed = servers.admin("updateTopic", "-b", servers.broker.address, "-t", topic, "-r", "6", "-w", "5")
    assert f"create topic to {servers.broker.address} success" in printed
    probe.wait_until(lambda: probe.route(servers.namesrv.address, topic), "the new topic's route")
    (sent,) = servers.produce(message(topic, 1, how="queue", queue=4))
    assert (sent["status"], sent["queueId"], sent["queueOffset"]) == ("SEND_OK", 4, 0)
    assert len(servers.consume({"do": "queues", "topic": topic})) == 6


def test_mqadmin_creates_a_topic_on_a_cluster(servers: Cluster) -> None:
    """`mqadmin updateTopic -c`, which asks the name server for the cluster's masters first, would fail."""
    topic = servers.topic("admin_cluster")
    printed = servers.admin("updateTopic", "-c", "InteropCluster", "-t", topic, "-r", "3", "-w", "3")
    assert "success" in printed
    route = servers.admin("topicRoute", "-t", topic)
    assert servers.broker.address in route
    assert topic in servers.admin("topicList")


def test_mqadmin_sends_and_reads(servers: Cluster) -> None:
    """RocketMQ's admin tool could not send a message, or not show one by its offset or in a listing."""
    topic, broker = servers.topic("tool"), servers.broker.conf["brokerName"]
    servers.produce(message(topic, 0, how="sync"))
    place = ("-t", topic, "-b", str(broker), "-i", "2")
    assert "SEND_OK" in servers.admin(
        "sendMessage", *place, "-p", "from the tool", "-k", "toolkey", "-c", "toolA"
    )
    (bounds,) = [a for a in servers.consume({"do": "queues", "topic": topic}) if a["queueId"] == 2]
    shown = servers.admin("queryMsgByOffset", *place, "-o", str(bounds["max"] - 1))
    assert "toolkey" in shown
    assert "from the tool" in servers.admin("printMsg", "-t", topic, "-d", "true")


def test_many_messages_arrive_once_and_in_order(servers: Cluster) -> None:
    """Under light load messages would be lost, doubled or reordered."""
    topic = servers.topic("many")
    servers.produce(message(topic, 0))
    steps = [message(topic, 1 + n, how="queue", queue=n % 4) for n in range(2000)]
    sent = servers.produce(*steps)
    assert all(result["status"] == "SEND_OK" for result in sent)
    received = servers.pull_all(topic)
    assert len(received) == 2001
    by_queue = {q: [one["body"] for one in received if one["queueId"] == q] for q in range(4)}
    for queue_id, bodies in by_queue.items():
        assert bodies[-500:] == [step["body"] for step in steps if step["queue"] == queue_id]


PROPERTIES = {"a": "1", "unicode": "地球 🚀 ümlaut", "long": "x" * 1000}


def message(topic: str, number: int, *, how: str = "sync", **more: Any) -> dict[str, Any]:
    """A send step whose body contains its number."""
    return {"how": how, "topic": topic, "body": f"body {number} é世".encode().hex(), **more}


def expect_same(step: Mapping[str, Any], one: Mapping[str, Any]) -> None:
    """The received messages equal the sent ones."""
    assert one["body"] == step["body"]
    assert one.get("tags") == step.get("tags")
    assert one.get("keys") == step.get("keys")
    assert one["flag"] == step.get("flag", 0)
    for name, value in step.get("properties", {}).items():
        assert one["properties"][name] == value
