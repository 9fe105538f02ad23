"""rocketpy's consumers with servers of either make, and in one group with RocketMQ's consumers."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rocketpy import (
    AdminClient,
    AllocateAveragely,
    AllocateByCircle,
    AllocateByConsistentHash,
    AllocationStrategy,
    ClientConfig,
    ConsumeFrom,
    ConsumeResult,
    LitePullConfig,
    LitePullConsumer,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
    Sql,
)
from tests.interop import probe
from tests.interop.cluster import Cluster
from tests.interop.java_member import JavaMember
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import Side, newer_servers, serve

pytestmark = pytest.mark.interop

SIDES = (
    Side("our consumers", "java", "java"),
    Side("our consumers", "our", "our"),
    *newer_servers("our consumers"),
)
CONF = {
    "enablePropertyFilter": "true",
    "messageDelayLevel": "1s",  # levels above the last one count as the last one
    "mappedFileSizeCommitLog": 64 << 20,
}
STRATEGIES: tuple[AllocationStrategy, ...] = (
    AllocateAveragely(),
    AllocateByCircle(),
    AllocateByConsistentHash(),
)
FIRST = ConsumeFrom.FIRST_OFFSET


@pytest.fixture(scope="module", params=SIDES, ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One running pair of servers for each pairing."""
    with serve(request.param, peer, tmp_path_factory.mktemp("consumers"), conf=CONF) as running:
        yield running


@contextmanager
def java_member(
    servers: Cluster, group: str, topic: str, *, strategy: str = "AVG", orderly: bool = False
) -> Iterator[JavaMember]:
    """Run a Java push consumer until the end of the block, then kill it."""
    home = servers.run / f"push-{group}"
    arguments = (servers.namesrv.address, group, topic, strategy, str(orderly).lower())
    with servers.peer.running("Push", *arguments, home=home, properties=servers.java_properties):
        yield JavaMember(home / "console.log")


class Seen:
    """A handler that records its messages. says: its result, by message."""

    def __init__(self, says: Callable[[MessageExt], Any] = lambda _: None) -> None:
        self.says = says
        self.messages: list[MessageExt] = []

    async def __call__(self, message: MessageExt) -> Any:
        self.messages.append(message)
        return self.says(message)

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of the messages, in the order of delivery."""
        return [message.body for message in self.messages]


@asynccontextmanager
async def consuming(
    servers: Cluster, group: str, topic: str, handler: Any, expression: str | Sql = "*", **config: Any
) -> AsyncIterator[PushConsumer]:
    """One running member with rocketpy's consumer."""
    consumer = PushConsumer(
        group,
        servers.namesrv.address,
        handler,
        config=PushConfig(**{"consume_from": FIRST} | config),
        client=ClientConfig(instance_name=group),
    )
    consumer.subscribe(topic, expression)
    async with consumer:
        yield consumer


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait up to a minute."""
    await asyncio.to_thread(probe.wait_until, condition, what, timeout_s=60)


def sender(servers: Cluster) -> Producer:
    """A producer whose messages go to the queues in turn."""
    return Producer("senders", servers.namesrv.address, config=ProducerConfig(batching=False))


async def send(producer: Producer, topic: str, name: str, count: int, **settings: Any) -> list[bytes]:
    """Send messages; return their bodies."""
    bodies = [f"{name} {number}".encode() for number in range(count)]
    for body in bodies:
        await producer.send(Message(topic, body, **settings))
    return bodies


async def made(servers: Cluster, producer: Producer, stem: str, queues: int = 8) -> str:
    """A topic that no other case uses."""
    topic = servers.topic(stem)
    template = str(servers.broker.conf["brokerClusterName"])
    await producer.create_topic(topic, queues, key=template)
    return topic


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_allocation_equals_java_s(peer: JavaPeer, tmp_path: Path, strategy: AllocationStrategy) -> None:
    """In a mixed group a queue would be read by two members, or by none."""
    cases = [
        (
            [f"broker-{letter}" for letter in "abc"[: 1 + queues % 3]],
            queues,
            sorted(f"10.1.2.{number}@{97 * number % 31}#x" for number in range(members)),
        )
        for queues in (1, 3, 4, 8, 16)
        for members in (1, 2, 3, 5, 9, 20)
    ]
    steps = [
        {"strategy": strategy.name, "topic": "T", "brokers": brokers, "queues": count, "members": members}
        for brokers, count, members in cases
    ]
    results = peer.drive("Allocate", home=tmp_path, steps=steps)
    for (brokers, count, members), result in zip(cases, results, strict=True):
        queues = [MessageQueue("T", broker, queue_id) for broker in brokers for queue_id in range(count)]
        ours = [strategy.allocate("g", member, queues, members) for member in members]
        assert [[f"{q.broker_name}:{q.queue_id}" for q in share] for share in ours] == result["shares"]


@pytest.mark.parametrize("strategy", [STRATEGIES[0], STRATEGIES[2]], ids=lambda strategy: strategy.name)
async def test_one_group_of_both(servers: Cluster, strategy: AllocationStrategy) -> None:
    """Members of both makes would read a queue twice, or leave one out when a member joins or leaves."""
    group, seen = servers.topic("both"), Seen()
    queues = 32  # consistent hashes differ between runs, and could assign a few queues to one member
    async with sender(servers) as producer:
        topic = await made(servers, producer, "shared", queues)
        async with consuming(servers, group, topic, seen, allocation=strategy) as ours:
            before = await send(producer, topic, "before", 2 * queues)
            await until(lambda: len(seen.bodies) == 2 * queues, "all messages at our member")

            def mine() -> int:
                return sum(queue.topic == topic for queue in ours.assignment)

            with java_member(servers, group, topic, strategy=strategy.name) as theirs:
                await until(lambda: 0 < mine() < queues, "a share of the queues for Java")
                await until(theirs.console.exists, "Java's member")
                total = len(before)
                for round_ in range(20):  # until the Java member has started to read each of its queues
                    total += len(await send(producer, topic, f"warm{round_}", queues))
                    if theirs.bodies():
                        break
                    await asyncio.sleep(1)
                await until(lambda: len(set(seen.bodies + theirs.bodies())) == total, "all of them")
                both = await send(producer, topic, "both", 64)
                await until(lambda: len(set(seen.bodies + theirs.bodies()) & set(both)) == 64, "all at both")
                got = Counter(body for body in seen.bodies + theirs.bodies() if body.startswith(b"both"))
                assert got == Counter(both)
                assert any(body.startswith(b"both") for body in seen.bodies)
                assert any(body.startswith(b"both") for body in theirs.bodies())
            await until(lambda: mine() == queues, "our member to take over")
            after = await send(producer, topic, "after", 16)
            await until(lambda: set(after) <= set(seen.bodies), "all messages at our member again")


async def test_an_orderly_group_of_both(servers: Cluster) -> None:
    """A queue would be handled by a Java member and a rocketpy member at once, or out of order."""
    group, seen = servers.topic("ordered"), Seen()
    async with sender(servers) as producer:
        topic = await made(servers, producer, "ordered", 4)
        async with consuming(servers, group, topic, seen, orderly=True):
            await send(producer, topic, "one", 16)
            await until(lambda: len(seen.bodies) == 16, "all messages at our member")
            with java_member(servers, group, topic, orderly=True) as theirs:
                sent = 16
                for round_ in range(40):
                    sent += len(await send(producer, topic, f"two{round_}", 8))
                    if theirs.bodies():
                        break
                    await asyncio.sleep(1)
                await until(lambda: len(set(seen.bodies + theirs.bodies())) == sent, "all of them")
                both = Counter(seen.bodies + theirs.bodies())
                their_queues = {one["queueId"] for one in theirs.messages()}
    assert set(both.values()) == {1}
    assert their_queues
    offsets: defaultdict[int, list[int]] = defaultdict(list)
    for message in seen.messages:
        offsets[message.queue_id].append(message.queue_offset)
    assert all(numbers == sorted(numbers) for numbers in offsets.values())


async def test_filters(servers: Cluster) -> None:
    """A group would get messages that its filter drops, or miss others."""
    by_tag, by_sql = Seen(), Seen()
    async with sender(servers) as producer:
        topic = await made(servers, producer, "filtered", 4)
        async with (
            consuming(servers, servers.topic("tags"), topic, by_tag, "red || blue"),
            consuming(servers, servers.topic("sql"), topic, by_sql, Sql("n BETWEEN 2 AND 3")),
        ):
            for number, tag in enumerate(["red", "green", "blue", "red", "green"]):
                await producer.send(Message(topic, b"%d" % number, tags=tag, properties={"n": str(number)}))
            await until(lambda: len(by_tag.bodies) == 3 and len(by_sql.bodies) == 2, "filtered messages")
    assert sorted(by_tag.bodies) == [b"0", b"2", b"3"]
    assert sorted(by_sql.bodies) == [b"2", b"3"]


async def test_retries_and_dead_letters(servers: Cluster) -> None:
    """A message whose handler fails would be lost, or be retried without end."""
    group = servers.topic("failing")
    seen = Seen(lambda message: ConsumeResult.LATER if message.body == b"bad 1" else None)
    async with sender(servers) as producer:
        topic = await made(servers, producer, "failing", 4)
        async with consuming(servers, group, topic, seen, max_reconsume_times=2):
            sent = await send(producer, topic, "bad", 3, tags="TagA")
            dead = f"%DLQ%{group}"
            await until(lambda: probe.route(servers.namesrv.address, dead), "the dead letters' topic")
            await until(lambda: probe.message_count(servers.namesrv.address, dead) == 1, "a dead letter")
        async with AdminClient(servers.namesrv.address) as admin:
            (letter,) = (await admin.dead_letters.fetch(group)).messages
    assert (letter.body, letter.tags, letter.reconsume_times) == (b"bad 1", "TagA", 3)
    assert letter.dead_letter_reason == "the handler returned LATER"
    assert Counter(seen.bodies) == Counter([*sent, b"bad 1", b"bad 1"])
    tries = [message for message in seen.messages if message.body == b"bad 1"]
    assert [(m.topic, m.tags, m.reconsume_times) for m in tries] == [
        (topic, "TagA", times) for times in range(3)
    ]


async def test_broadcasting(servers: Cluster, tmp_path: Path) -> None:
    """Members of a broadcasting group would share messages, or start over at each start."""
    group, one, two, again = servers.topic("cast"), Seen(), Seen(), Seen()

    @asynccontextmanager
    async def member(name: str, handler: Seen, topic: str) -> AsyncIterator[None]:
        consumer = PushConsumer(
            group,
            servers.namesrv.address,
            handler,
            config=PushConfig(consume_from=FIRST, model=MessageModel.BROADCASTING, offset_directory=tmp_path),
            client=ClientConfig(instance_name=name),
        )
        consumer.subscribe(topic)
        async with consumer:
            yield

    async with sender(servers) as producer:
        topic = await made(servers, producer, "cast", 4)
        sent = await send(producer, topic, "cast", 8)
        async with member("one", one, topic), member("two", two, topic):
            await until(lambda: len(one.bodies) == len(two.bodies) == 8, "everything at both")
        more = await send(producer, topic, "more", 8)
        async with member("one", again, topic):
            await until(lambda: len(again.bodies) == 8, "what came meanwhile")
    assert Counter(one.bodies) == Counter(two.bodies) == Counter(sent)
    assert Counter(again.bodies) == Counter(more)


async def test_transactions_and_delays(servers: Cluster) -> None:
    """A consumer would get messages that were rolled back, or not those that were committed or delayed."""
    seen = Seen()
    commit, rollback = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
    async with sender(servers) as producer:
        producer.check_transactions(lambda half: commit if half.body == b"yes" else rollback)
        topic = await made(servers, producer, "later", 4)
        async with consuming(servers, servers.topic("later"), topic, seen):
            await producer.send_in_transaction(Message(topic, b"no"), local_transaction=lambda _: rollback)
            await producer.send_in_transaction(Message(topic, b"yes"), local_transaction=lambda _: commit)
            await producer.send(Message(topic, b"delayed", delay_level=1))
            await until(lambda: len(seen.bodies) >= 2, "both of them")
    assert sorted(seen.bodies) == [b"delayed", b"yes"]
    (yes,) = (message for message in seen.messages if message.body == b"yes")
    assert yes.transaction_id


async def test_polling(servers: Cluster) -> None:
    """A polling consumer would miss messages, or its commits not be seen by other members."""
    group = servers.topic("polling")
    async with sender(servers) as producer:
        topic = await made(servers, producer, "polling", 4)
        sent = await send(producer, topic, "polled", 12, tags="TagA")
        await send(producer, topic, "other", 4, tags="TagB")
        config = LitePullConfig(consume_from=FIRST, auto_commit=False)
        consumer = LitePullConsumer(group, servers.namesrv.address, config=config)
        consumer.subscribe(topic, "TagA")
        found: list[bytes] = []
        async with consumer:
            while len(found) < 12:
                found += [message.body for message in await consumer.poll()]
            progress = ""
            async with asyncio.timeout(60):
                while not re.search(
                    r"Diff Total: 0\b", progress
                ):  # until it has skipped the messages that do not match
                    found += [message.body for message in await consumer.poll(100)]
                    await consumer.commit()
                    progress = await asyncio.to_thread(servers.admin, "consumerProgress", "-g", group)
    assert Counter(found) == Counter(sent)


async def test_mqadmin_shows_consumers_of_rocketpy(servers: Cluster) -> None:
    """An operator would see nothing of a consumer with rocketpy, or could not reset it."""
    group, seen = servers.topic("seen"), Seen()
    async with sender(servers) as producer:
        topic = await made(servers, producer, "seen", 2)
        async with consuming(servers, group, topic, seen, persist_interval_ms=200) as ours:
            sent = await send(producer, topic, "seen", 10)
            await until(lambda: len(seen.bodies) == 10, "its messages")

            async def admin(*arguments: str) -> str:
                return await asyncio.to_thread(servers.admin, *arguments)

            client_id = re.escape(ours.member.client.client_id)
            connection = await admin("consumerConnection", "-g", group)
            assert re.search(rf"{client_id}\s+127\.0\.0\.1:\d+\s+PYTHON\s+V4_6_0", connection), connection
            assert "ConsumeType: CONSUME_PASSIVELY" in connection
            await asyncio.to_thread(servers.admin_shows, "Diff Total: 0\n", "consumerProgress", "-g", group)
            status = await admin("consumerStatus", "-g", group)
            assert re.search(rf"001\s+{client_id}\s+V4_6_0", status), status
            one = await admin("consumerStatus", "-g", group, "-i", ours.member.client.client_id)
            assert "#Consumer Consumption Rate#" in one or topic in one, one
            await until(
                lambda: sum(p.process_queue.count for p in ours.member.pullers.values()) == 0, "no work left"
            )
            await admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
            await until(lambda: len(seen.bodies) == 20, "everything once more")
    assert Counter(seen.bodies) == Counter(sent * 2)


async def test_a_java_member_with_another_subscription(servers: Cluster) -> None:
    """A group of both makes would lose messages, because each member filters its own queues."""
    group = servers.topic("differing")
    async with sender(servers) as producer, AdminClient(servers.namesrv.address) as admin:
        topic = await made(servers, producer, "differing")
        async with consuming(servers, group, topic, Seen(), "a || b", rebalance_interval_ms=500) as ours:
            with java_member(servers, group, topic):

                def problems() -> list[str]:
                    return [text for text in ours.health().problems if "different subscriptions" in text]

                await until(problems, "a report by our member")
                for text in (*problems(), *await admin.groups.conflicts(group)):
                    if "different subscriptions" in text:
                        assert f"{ours.health().client_id} has {topic} 'a || b'" in text
                        assert re.search(rf"@\d+\S* has {topic} '\*'", text), text
                printed = await asyncio.to_thread(servers.admin, "consumerConnection", "-g", group)
                assert {"JAVA", "PYTHON"} <= set(printed.split())
