"""The consumers of RocketMQ's example jar that join groups, unmodified, against both makes of servers."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.interop import probe
from tests.interop.cluster import Cluster
from tests.interop.java_peer import EXAMPLES as PACKAGE
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import EXAMPLES, Side, serve

pytestmark = pytest.mark.interop

_SEEN = re.compile(
    r"MessageExt \[.*?queueId=(\d+),.*?queueOffset=(\d+),.*?topic='([^']+)'.*?body=\[([-\d, ]*)\]"
)
_homes = itertools.count(1)


@dataclass(frozen=True)
class Consumer:
    """A running example that prints each message that it gets."""

    console: Path

    def text(self) -> str:
        """Its output so far."""
        return self.console.read_text(errors="replace")

    def places(self) -> list[tuple[int, int]]:
        """Queue id and offset of its messages, in the order it got them."""
        return [(int(queue), int(offset)) for queue, offset, *_ in _SEEN.findall(self.text())]

    def bodies(self) -> list[str]:
        """Their bodies."""
        return [
            bytes(int(number) & 0xFF for number in body.split(",")).decode()
            for *_, body in _SEEN.findall(self.text())
        ]


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One running pair of servers for each pairing."""
    side: Side = request.param
    conf = {"mappedFileSizeCommitLog": 64 << 20, "enablePropertyFilter": "true"}
    with serve(side, peer, tmp_path_factory.mktemp("push"), conf=conf) as running:
        running.warm_up()
        yield running


@contextmanager
def consuming(servers: Cluster, main: str, says: str = "Consumer Started") -> Iterator[Consumer]:
    """Run one example consumer until the end of the block, then kill it. says: output to wait for."""
    home = servers.run / f"{main}-{next(_homes)}"
    properties = {"rocketmq.namesrv.addr": servers.namesrv.address, **servers.java_properties}
    with servers.peer.running(f"{PACKAGE}.{main}", home=home, properties=properties):
        consumer = Consumer(home / "console.log")
        probe.wait_until(lambda: says in consumer.text(), f"{main} to start")
        yield consumer


def send(servers: Cluster, topic: str, texts: Sequence[str], **settings: Any) -> None:
    """Send one message for each text."""
    send_all(servers, [step(topic, text, **settings) for text in texts])


def step(topic: str, text: str, **settings: Any) -> dict[str, Any]:
    """One message for the Java producer."""
    return {"how": "sync", "topic": topic, "body": text.encode().hex(), **settings}


def send_all(servers: Cluster, steps: Sequence[dict[str, Any]]) -> None:
    """Send messages with one Java producer."""
    results = servers.produce(*steps)
    assert [result for result in results if result.get("status") != "SEND_OK"] == []


def texts(name: str, count: int) -> list[str]:
    """Bodies that no other case sends."""
    return [f"{name} {number}" for number in range(count)]


def wanted(consumer: Consumer, name: str) -> list[str]:
    """Its bodies that belong to a case."""
    return [body for body in consumer.bodies() if body.startswith(f"{name} ")]


def wait_for(name: str, count: int, *consumers: Consumer) -> Counter[str]:
    """Wait until consumers together have this many messages of a case; return how often each was received."""

    def got() -> Counter[str]:
        return Counter(body for consumer in consumers for body in wanted(consumer, name))

    probe.wait_until(lambda: got().total() >= count, f"{count} messages of {name}")
    return got()


def test_messages_arrive_while_it_waits(servers: Cluster) -> None:
    """A Java push consumer would not get new messages, or get them twice."""
    send(servers, "TopicTest", texts("early", 20))
    with consuming(servers, "quickstart.Consumer") as consumer:
        assert wait_for("early", 20, consumer) == Counter(texts("early", 20))
        for round_ in range(3):
            name = f"round{round_}"
            send(servers, "TopicTest", texts(name, 20))
            assert wait_for(name, 20, consumer) == Counter(texts(name, 20))


def test_members_share_queues_and_take_over(servers: Cluster) -> None:
    """Members of a group would handle messages twice, or not read the queues of a dead member."""
    send(servers, "TopicTest", texts("before", 4))
    with consuming(servers, "simple.PushConsumer") as first:
        wait_for("before", 4, first)
        with consuming(servers, "simple.PushConsumer") as second:
            sent = itertools.count()

            def shared() -> bool:
                send(servers, "TopicTest", texts(f"share{next(sent)}", 8))
                return any("share" in body for body in second.bodies())

            probe.wait_until(shared, "the second member to get a queue")
            send(servers, "TopicTest", texts("both", 80), tags="TagA")
            assert wait_for("both", 80, first, second) == Counter(texts("both", 80))
            assert wanted(first, "both")
            assert wanted(second, "both")
        send(servers, "TopicTest", texts("alone", 40))
        got = wait_for("alone", 40, first)
        assert set(got) == set(texts("alone", 40))


def test_a_queue_is_consumed_in_its_order(servers: Cluster) -> None:
    """An orderly consumer would see a later message of a queue before an earlier one."""
    send(servers, "TopicTest", texts("first", 1), tags="TagA")
    with consuming(servers, "ordermessage.Consumer") as consumer:
        wait_for("first", 1, consumer)
        send(servers, "TopicTest", texts("order", 60), tags="TagC")
        send(servers, "TopicTest", texts("other", 10), tags="TagB")
        wait_for("order", 60, consumer)
        assert wanted(consumer, "other") == []
    last: dict[int, int] = {}
    for queue_id, offset in consumer.places():
        assert offset >= last.get(
            queue_id, 0
        )  # a batch that was rolled back is delivered again from its start
        last[queue_id] = offset


def test_a_tag_filter_lets_its_tags_through(servers: Cluster) -> None:
    """A consumer would get messages that it did not subscribe to, or miss some."""
    send(servers, "TagFilterTest", texts("first", 1), tags="TagA")
    with consuming(servers, "filter.TagFilterConsumer") as consumer:
        for tag in ("TagA", "TagB", "TagC"):
            send(servers, "TagFilterTest", texts(tag, 20), tags=tag)
        send(servers, "TagFilterTest", texts("end", 8), tags="TagA")
        wait_for("end", 8, consumer)
        assert wait_for("TagA", 20, consumer) == Counter(texts("TagA", 20))
        assert wait_for("TagC", 20, consumer) == Counter(texts("TagC", 20))
        assert wanted(consumer, "TagB") == []


def test_an_expression_filters_by_properties(servers: Cluster) -> None:
    """A consumer with an SQL92 expression would get messages that do not match."""
    send(servers, "SqlFilterTest", texts("first", 1), tags="TagA", properties={"a": "1"})
    with consuming(servers, "filter.SqlFilterConsumer") as consumer:
        send_all(
            servers,
            [
                step("SqlFilterTest", f"{tag} {number}", tags=tag, properties={"a": str(number)})
                for number in range(10)
                for tag in ("TagA", "TagC")
            ],
        )
        send(servers, "SqlFilterTest", texts("none", 4), tags="TagA")
        send(servers, "SqlFilterTest", texts("end", 8), tags="TagB", properties={"a": "0"})
        wait_for("end", 8, consumer)
        assert Counter(wanted(consumer, "TagA")) == Counter(texts("TagA", 4))
        assert wanted(consumer, "TagC") == []
        assert wanted(consumer, "none") == []


def test_broadcast_reaches_every_member(servers: Cluster) -> None:
    """Only one member of a broadcast group would get a message."""
    with (
        consuming(servers, "broadcast.PushConsumer") as first,
        consuming(servers, "broadcast.PushConsumer") as second,
    ):
        sent = itertools.count()

        def ready() -> bool:
            send(servers, "TopicTest", texts(f"ready{next(sent)}", 8), tags="TagA")
            return all("ready" in consumer.text() or consumer.bodies() for consumer in (first, second))

        probe.wait_until(ready, "both members to pull")
        send(servers, "TopicTest", texts("all", 40), tags="TagD")
        send(servers, "TopicTest", texts("nobody", 10), tags="TagB")
        for consumer in (first, second):
            assert wait_for("all", 40, consumer) == Counter(texts("all", 40))
            assert wanted(consumer, "nobody") == []


def test_polling_with_a_subscription(servers: Cluster) -> None:
    """RocketMQ's polling consumer would miss messages of the queues it shares, or get them twice."""
    send(servers, "TopicTest", texts("polled", 40))
    with consuming(servers, "simple.LitePullConsumerSubscribe", "[") as consumer:
        assert wait_for("polled", 40, consumer) == Counter(texts("polled", 40))
        send(servers, "TopicTest", texts("later", 20))
        assert wait_for("later", 20, consumer) == Counter(texts("later", 20))


def test_polling_assigned_queues(servers: Cluster) -> None:
    """A consumer would not begin at the offset that it seeks, or get messages of unassigned queues."""
    send(servers, "TopicTest", texts("assigned", 60))
    with consuming(servers, "simple.LitePullConsumerAssign", "[") as consumer:
        ends = {one["queueId"]: one["queueOffset"] for one in servers.pull_all("TopicTest")}

        def whole(offsets: list[int], queue_id: int) -> bool:
            return offsets == list(range(10, ends[queue_id] + 1))

        def seen() -> dict[int, list[int]]:
            found: dict[int, list[int]] = {}
            for queue_id, offset in consumer.places():
                found.setdefault(queue_id, []).append(offset)
            return found

        probe.wait_until(
            lambda: any(whole(offsets, queue_id) for queue_id, offsets in seen().items()),
            "a queue from offset 10 to its end",
        )
        assert len(seen()) <= len(ends) // 2


def test_the_pull_schedule(servers: Cluster) -> None:
    """A schedule of pulls, with offsets that the client keeps, would skip messages or stop."""
    send(servers, "TopicTest", texts("scheduled", 40))
    total = len(servers.pull_all("TopicTest"))
    pulled = re.compile(r"pullStatus=FOUND, nextBeginOffset=\d+.*?msgFoundList=(\d+)")
    with consuming(servers, "simple.PullScheduleService", "pullStatus=FOUND") as consumer:
        probe.wait_until(
            lambda: sum(map(int, pulled.findall(consumer.text()))) >= total, f"{total} pulled messages"
        )
    assert sum(map(int, pulled.findall(consumer.text()))) == total
