"""Members keep their queues while a broker is away, and go on where they were: real processes."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
)
from tests.integration import processes
from tests.integration.sdk_groups import FIRST, Seen, of_topic
from tests.waiting import until

_SETTINGS = {"flushConsumerOffsetInterval": "3600000"}  # a kill loses all commits
_ROUTES = ClientConfig(route_refresh_ms=100)


class Two:
    """A name server and the brokers broker-a and broker-b, with one queue of topic T on each."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._brokers: dict[str, Process] = {}
        self._addresses: dict[str, str] = {}
        self._namesrv: Process | None = None
        self.namesrv = ""

    async def start(self) -> None:
        self._namesrv, self.namesrv = await processes.start("namesrv", "--listen", "127.0.0.1:0")
        await asyncio.gather(*(self.start_broker(name) for name in ("broker-a", "broker-b")))
        async with AdminClient(self.namesrv) as admin:
            await admin.topics.create("T", 1)

    async def start_broker(self, name: str, store: str = "") -> None:
        """Start a broker, again on its store and address. store: another directory."""
        settings = [f"--set={key}={value}" for key, value in _SETTINGS.items()]
        where = (
            "--store",
            str(self._home / (store or name)),
            "--listen",
            self._addresses.get(name, "127.0.0.1:0"),
        )
        process, address = await processes.start(
            "broker", "--namesrv", self.namesrv, "--name", name, *where, *settings
        )
        self._brokers[name], self._addresses[name] = process, address

    async def stop_broker(self, name: str, number: int) -> None:
        """Stop a broker, and wait until the name server has removed it."""
        await processes.stop(self._brokers.pop(name), number)

    async def close(self) -> None:
        for process in (*self._brokers.values(), *filter(None, [self._namesrv])):
            await processes.stop(process)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    cluster = Two(tmp_path)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.close()


async def send(two: Two, *bodies: bytes) -> None:
    """Send messages to the queue of broker-b."""
    async with Producer("p", two.namesrv) as producer:
        for body in bodies:
            await producer.send(Message("T", body), queue=MessageQueue("T", "broker-b", 0))


def has_lost(consumer: PushConsumer | LitePullConsumer) -> bool:
    """Whether the consumer's route of the topic lacks broker-b."""
    route = consumer.member.client.routes.entry("T").route
    return route is not None and all(data.broker_name != "broker-b" for data in route.queue_datas)


@pytest.mark.parametrize(
    ("number", "orderly"), [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGTERM, False)]
)
async def test_a_push_consumer_goes_on_after_a_restart(two: Two, number: int, orderly: bool) -> None:
    """It would go back to the broker's last saved offset, and handle messages again."""
    seen = Seen()
    config = PushConfig(consume_from=FIRST, orderly=orderly, rebalance_interval_ms=200)
    consumer = PushConsumer("g", two.namesrv, seen, config=config, client=_ROUTES)
    consumer.subscribe("T")
    async with consumer:
        await send(two, b"1", b"2", b"3")
        await seen.until(3)
        await two.stop_broker("broker-b", number)
        await until(lambda: has_lost(consumer))
        assert await consumer.member.rebalance()
        assert len(of_topic(consumer)) == 2
        await two.start_broker("broker-b")
        await send(two, b"4")
        await seen.until(4)
    assert seen.bodies.total() == 4


async def test_a_lite_pull_consumer_goes_on_after_a_restart(two: Two) -> None:
    """Polled messages would be returned again, and its commit would be lost with the broker's memory."""
    config = LitePullConfig(consume_from=FIRST, rebalance_interval_ms=200, persist_interval_ms=100)
    consumer = LitePullConsumer("g", two.namesrv, config=config, client=_ROUTES)
    consumer.subscribe("T")
    queue = MessageQueue("T", "broker-b", 0)
    async with consumer:
        await send(two, b"1", b"2")
        bodies = [message.body for _ in range(2) for message in await consumer.poll(max_count=1)]
        await consumer.commit()
        assert await consumer.committed(queue) == 2
        await two.stop_broker("broker-b", signal.SIGKILL)
        await until(lambda: has_lost(consumer))
        await two.start_broker("broker-b")
        async with PullConsumer("g", two.namesrv) as reader:  # it is stored again without a new message
            while await reader.committed(queue) != 2:
                assert await consumer.poll(100) == []
        await send(two, b"3")
        while len(bodies) < 3:
            bodies += [message.body for message in await consumer.poll()]
    assert bodies == [b"1", b"2", b"3"]


async def test_a_topic_that_a_living_broker_has_no_more_is_given_up(two: Two) -> None:
    """The member would pull a deleted part of the topic for an hour, and report it as a problem."""
    config = PushConfig(consume_from=FIRST, rebalance_interval_ms=200)
    consumer = PushConsumer("g", two.namesrv, Seen(), config=config, client=_ROUTES)
    consumer.subscribe("T")
    async with consumer:
        await until(lambda: len(of_topic(consumer)) == 2)
        await two.stop_broker("broker-b", signal.SIGKILL)
        await two.start_broker("broker-b", store="empty")
        await until(lambda: [queue.broker_name for queue in of_topic(consumer)] == ["broker-a"])


async def test_two_members_keep_their_queues(two: Two) -> None:
    """The member that reconnects first would take over the queue of the other one."""
    seen = {"one": Seen(), "two": Seen()}
    config = PushConfig(consume_from=FIRST, rebalance_interval_ms=200)
    members = []
    for name, handler in seen.items():
        client = ClientConfig(instance_name=name, route_refresh_ms=100)
        member = PushConsumer("g", two.namesrv, handler, config=config, client=client)
        member.subscribe("T")
        members.append(member)
    async with members[0], members[1]:
        await until(lambda: all(len(of_topic(member)) == 1 for member in members))
        await send(two, b"1", b"2", b"3")
        await until(lambda: sum(one.bodies.total() for one in seen.values()) == 3)
        before = [member.assignment for member in members]
        await two.stop_broker("broker-b", signal.SIGKILL)
        await two.start_broker("broker-b")
        await send(two, b"4")
        await until(lambda: any(b"4" in one.bodies for one in seen.values()))
        await until(lambda: [member.assignment for member in members] == before)
    assert sum(one.bodies.total() for one in seen.values()) == 4
