"""Members of a group that differ, or share a client id: everybody who looks is told, with names."""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    ConsumeFrom,
    LitePullConfig,
    LitePullConsumer,
    MessageModel,
    Producer,
    PushConsumer,
)
from rocketpy.admin import Permission
from rocketpy.protocol.bodies import ConsumerConnection
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker import Broker, BrokerConfig
from rocketpy_broker.embedded import EmbeddedCluster
from rocketpy_broker.metrics import catalog
from rocketpy_broker.metrics.collecting import collect
from tests.integration.cli.commands import run
from tests.integration.endpoints import WrappedEndpoint
from tests.integration.sdk_groups import FIRST, Seen, consuming, send
from tests.integration.small import SMALL
from tests.waiting import until

SWIFT: dict[str, Any] = {"rebalance_interval_ms": 50}


class AsInRocketMQ(WrappedEndpoint):
    """A broker that keeps only the last heartbeat of a group, as RocketMQ's do."""

    def handle(self, channel: Channel, request: Command) -> Command | bytes | None:
        response = super().handle(channel, request)
        if request.code == RequestCode.GET_CONSUMER_CONNECTION_LIST and isinstance(response, Command):
            body = ConsumerConnection.decode(response.body)
            for connection in body.connection_set:
                connection.consumer_data = None
            response = request.reply(body=body.encode())
        return response


def make_as_in_rocketmq(config: BrokerConfig) -> Broker:
    return Broker(config, intercept=AsInRocketMQ)


@pytest.fixture(params=[Broker, make_as_in_rocketmq], ids=["rocketpy", "rocketmq"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(settings=SMALL, make_broker=request.param) as cluster:
        async with AdminClient(cluster.namesrv_address) as admin:
            for topic in ("T", "U"):
                await admin.create_topic(topic, 4)
        yield cluster


def is_rocketmq(cluster: EmbeddedCluster) -> bool:
    return isinstance(cluster.brokers[0]._listener, AsInRocketMQ)


def problems(consumer: PushConsumer | LitePullConsumer, words: str) -> list[str]:
    return [text for text in consumer.health().problems if words in text]


def conflict_metrics(cluster: EmbeddedCluster) -> set[tuple[str, ...]]:
    reporter = cluster.brokers[0].metrics
    assert reporter is not None
    (found,) = (one for one in collect(reporter._sources) if one.metric is catalog.CONSUMER_CONFLICTS)
    return {labels[2:] for labels, _ in found.values}


def lines(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    """The log lines about differences between members."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == logger and "group g have" in record.getMessage()
    ]


async def test_members_with_different_subscriptions_are_reported_everywhere(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of the messages reached no handler, the lag was 0, and everything looked healthy."""
    caplog.set_level(logging.WARNING)
    async with (
        consuming(cluster, Seen(), "*", name="one", **SWIFT) as one,
        consuming(cluster, Seen(), "a || b", name="two", **SWIFT) as two,
        AdminClient(cluster.namesrv_address) as admin,
    ):
        await until(lambda: problems(one, "different subscriptions"))
        if not is_rocketmq(cluster):  # there, the last heartbeat may be its own
            await until(lambda: problems(two, "different subscriptions"))
        assert not one.health().ok
        (found,) = await admin.groups.conflicts("g")
        for text in (*problems(one, "different subscriptions"), found):
            assert text.startswith("members of group g have different subscriptions")
            assert "127.0.0.1@one has T '*'" in text
            assert "127.0.0.1@two has T 'a || b'" in text
        where = ("--namesrv", cluster.namesrv_address)
        assert f"problem: {found}" in (await run(*where, "group", "describe", "g")).out
        done = await run(*where, "doctor")
        assert done.status == 1
        assert f"problem  group g: {found}" in done.out
        if not is_rocketmq(cluster):
            members = {
                member.client_id: member.subscriptions["T"] for member in await admin.groups.members("g")
            }
            assert members == {"127.0.0.1@one": "*", "127.0.0.1@two": "a || b"}
        assert len(lines(caplog, "rocketpy.broker.clients")) == 1
        assert 1 <= len(lines(caplog, "rocketpy.consumer")) <= 2
        two.subscribe("T", "*")
        await until(lambda: one.health().ok and two.health().ok)
        assert await admin.groups.conflicts("g") == ()


@pytest.mark.parametrize(
    ("setting", "differing"),
    [
        ("message_model", {"model": MessageModel.BROADCASTING}),
        ("consume_from_where", {"consume_from": ConsumeFrom.LAST_OFFSET}),
    ],
)
async def test_members_with_other_different_settings_are_reported(
    cluster: EmbeddedCluster, setting: str, differing: dict[str, Any]
) -> None:
    """A broadcasting member receives everything, and a clustering one half of it; nothing said so."""
    async with (
        consuming(cluster, Seen(), name="one", **SWIFT) as one,
        consuming(cluster, Seen(), name="two", **SWIFT, **differing) as two,
        AdminClient(cluster.namesrv_address) as admin,
    ):
        await until(lambda: problems(one, "members of group g") or problems(two, "members of group g"))
        (text,) = await admin.groups.conflicts("g")
        assert "127.0.0.1@one has" in text
        assert "127.0.0.1@two has" in text
        if not is_rocketmq(cluster):
            assert conflict_metrics(cluster) == {("g", setting)}


async def test_other_topics_and_pull_consumers_in_a_group_are_reported(cluster: EmbeddedCluster) -> None:
    """Each member is assigned queues of topics that it does not read."""
    config = LitePullConfig(consume_from=FIRST, **SWIFT)
    client = ClientConfig(namesrv=cluster.namesrv_address, instance_name="two")
    async with LitePullConsumer("g", config=config, client=client) as two:
        two.subscribe("T")
        two.subscribe("U")
        async with (
            consuming(cluster, Seen(), name="one", **SWIFT) as one,
            AdminClient(cluster.namesrv_address) as admin,
        ):
            await until(
                lambda: problems(one, "different subscriptions") or problems(two, "different subscriptions")
            )
            subscriptions, kinds = await admin.groups.conflicts("g")
            assert "127.0.0.1@one has T '*'" in subscriptions
            assert "127.0.0.1@two has T '*', U '*'" in subscriptions
            assert "push and pull consumers" in kinds


async def test_equal_members_have_no_conflict(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Tags in another order, or members with and without retries, would be reported as different."""
    async with (
        consuming(cluster, Seen(), "a || b", name="one", **SWIFT) as one,
        consuming(cluster, Seen(), "b||a", name="two", orderly=True, **SWIFT) as two,
        AdminClient(cluster.namesrv_address) as admin,
    ):
        checks = [member.member._conflicts for member in (one, two)]
        await until(lambda: all(check._turn > 1 for check in checks))
        assert one.health().ok
        assert two.health().ok
        assert await admin.groups.conflicts("g") == ()
        assert conflict_metrics(cluster) == set()
    assert lines(caplog, "rocketpy.broker.clients") == []


WORKER = """
import asyncio, os, sys
from rocketpy import ClientConfig, ConsumeFrom, MessageExt, PushConfig, PushConsumer

os.getpid = lambda: 1  # as in a container

async def handle(message: MessageExt) -> None:
    print("got", message.body.decode(), flush=True)

async def main() -> None:
    client = ClientConfig(namesrv=sys.argv[1], instance_name=sys.argv[2], heartbeat_ms=100)
    config = PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET, rebalance_interval_ms=50)
    consumer = PushConsumer("g", handler=handle, config=config, client=client)
    consumer.subscribe("T")
    async with consumer:
        print("id", consumer.health().client_id, flush=True)
        known = ()
        while True:
            await asyncio.sleep(0.02)
            if consumer.health().problems != known:
                known = consumer.health().problems
                print("problems", *known, flush=True)

asyncio.run(main())
"""


class Worker:
    """A consumer in a process that believes to have pid 1. said: its lines."""

    def __init__(self) -> None:
        self.said: list[str] = []

    async def read(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            self.said.append(line.decode().rstrip())

    def of(self, word: str) -> list[str]:
        """The rest of the lines that begin with this word."""
        return [line.removeprefix(word).strip() for line in self.said if line.startswith(word)]


@asynccontextmanager
async def worker(cluster: EmbeddedCluster, name: str) -> AsyncIterator[Worker]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, cluster.namesrv_address, name, stdout=PIPE
    )
    assert process.stdout is not None
    one = Worker()
    reading = asyncio.create_task(one.read(process.stdout))
    try:
        await until(lambda: one.of("id"))
        yield one
    finally:
        process.kill()
        await process.wait()
        await reading


async def test_containers_with_equal_addresses_and_pids_have_their_own_ids(cluster: EmbeddedCluster) -> None:
    """Both read the same half of the queues, and nobody read the other half."""
    async with (
        worker(cluster, "") as one,
        worker(cluster, "") as two,
        AdminClient(cluster.namesrv_address) as admin,
        Producer("p", cluster.namesrv_address) as producer,
    ):
        assert all(client_id.startswith("127.0.0.1@1#") for client_id in (*one.of("id"), *two.of("id")))
        assert one.of("id") != two.of("id")
        bodies = {body.decode() for body in await send(producer, *map(str, range(40)))}
        await until(lambda: {*one.of("got"), *two.of("got")} == bodies)
        assert await admin.groups.conflicts("g") == ()


async def test_a_client_id_that_two_processes_use_is_reported(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Two workers with one instance_name left half of the queues unread, and looked healthy."""
    async with (
        worker(cluster, "worker") as one,
        worker(cluster, "worker") as two,
        AdminClient(cluster.namesrv_address) as admin,
        Producer("p", cluster.namesrv_address) as producer,
    ):
        text = "2 members of group g have the client id 127.0.0.1@worker (127.0.0.1:"
        await until(lambda: all(any(text in line for line in each.of("problems")) for each in (one, two)))
        (found,) = await admin.groups.conflicts("g")
        assert text in found
        await until(lambda: any(text in line for line in lines(caplog, "rocketpy.broker.clients")))
        if not is_rocketmq(cluster):
            assert conflict_metrics(cluster) == {("g", "client_id")}
        bodies = {body.decode() for body in await send(producer, *map(str, range(40)))}
        await until(lambda: {*one.of("got"), *two.of("got")} == bodies)  # repeated, but not lost


async def test_a_topic_that_may_not_be_read_is_a_problem(cluster: EmbeddedCluster) -> None:
    """Failed messages waited forever in a retry topic without read permission; the member was healthy."""
    member = consuming(cluster, Seen(), route_refresh_ms=100, **SWIFT)
    async with AdminClient(cluster.namesrv_address) as admin, member as one:
        await until(lambda: len(one.assignment) == 5)
        await admin.topics.alter("%RETRY%g", perm=Permission.WRITE)
        await until(lambda: one.health().problems == ("topic %RETRY%g has no queue with read permission",))
