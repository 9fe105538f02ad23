"""`AdminClient.topics` and `AdminClient.groups` with RocketMQ's servers of four versions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpy import (
    AdminClient,
    ConsumeFrom,
    Later,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
)
from rocketpy.admin import GroupSettings, Permission, ResetTo, TopicSettings
from rocketpy.errors import BrokerError, ConfigInvalid, RouteNotFound, UsageError
from tests.interop import probe
from tests.interop.cluster import Cluster, new_broker
from tests.interop.java_peer import EXAMPLES as PACKAGE
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import NEWER, OUR_SDK, Side, serve
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.interop

SIDES = (OUR_SDK[0], *NEWER)
NAME, CLUSTER = "admin-broker", "InteropCluster"
BOTH = Permission.READ | Permission.WRITE
QUICKSTART_GROUP = "please_rename_unique_group_name_4"
COUNT = 6


@pytest.fixture(scope="module", params=SIDES, ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """RocketMQ's servers."""
    side: Side = request.param
    with serve(side, peer, tmp_path_factory.mktemp("admin"), conf={"brokerName": NAME}) as running:
        yield running


async def fill(servers: Cluster, admin: AdminClient, topic: str) -> list[MessageQueue]:
    """Make a topic of two queues, with messages in each; return the queues."""
    await admin.topics.create(topic, 2)
    async with Producer("admin_senders", servers.namesrv.address) as producer:
        queues = sorted(await producer.fetch_publish_message_queues(topic))
        for queue in queues:
            for _ in range(COUNT):
                await producer.send(Message(topic, b"x"), queue=queue)
    async with asyncio.timeout(30):  # RocketMQ's brokers dispatch a little after they respond
        while {await admin.max_offset(queue) for queue in queues} != {COUNT}:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.05)
    return queues


async def test_topics_are_administered(servers: Cluster) -> None:
    """An operator could not create, change or delete a topic, or would see other settings."""
    topic = servers.topic("admin")
    async with AdminClient(servers.namesrv.address) as admin:
        await admin.topics.create(topic, 3)
        assert topic in await admin.topics.list()
        assert topic in await admin.topics.list(CLUSTER)
        assert "TBW102" not in await admin.topics.list()
        assert {"TBW102", topic} <= set(await admin.topics.list(include_system=True))
        found = await admin.topics.describe(topic)
        assert found.brokers == {NAME: TopicSettings(3, 3, BOTH, ordered=False)}
        assert list(found.queues) == [MessageQueue(topic, NAME, number) for number in range(3)]
        assert set(found.queues.values()) == {(0, 0, None)}
        assert (found.groups, found.messages_per_second) == ((), 0.0)
        await admin.topics.alter(topic, perm=Permission.READ)
        await admin.topics.alter(topic, write_queues=1)
        found = await admin.topics.describe(topic)
        assert found.brokers == {NAME: TopicSettings(3, 1, Permission.READ, ordered=False)}
        await admin.topics.alter(topic, ordered=True)
        await admin.topics.alter(topic, perm=BOTH)
        ordered = {NAME: TopicSettings(3, 1, BOTH, ordered=True)}
        async with asyncio.timeout(60):  # until the broker has registered
            while (await admin.topics.describe(topic)).brokers != ordered:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.1)
        await admin.topics.delete(topic)
        assert topic not in await admin.topics.list()
        await admin.topics.delete(topic)
        with pytest.raises(RouteNotFound, match=topic):
            await admin.topics.describe(topic)
        with pytest.raises(ConfigInvalid, match=f"knows: {CLUSTER}"):
            await admin.topics.list("Nowhere")


async def test_what_exists_is_not_created_again(servers: Cluster) -> None:
    """A deployment that creates its topics and groups would undo what an operator has altered."""
    topic, group = servers.topic("again"), servers.topic("again_group")
    async with AdminClient(servers.namesrv.address) as admin:
        assert await admin.topics.create(topic, 4) == {}
        await admin.topics.alter(topic, perm=Permission.READ)
        unchanged = {NAME: TopicSettings(4, 4, Permission.READ, ordered=False)}
        assert await admin.topics.create(topic, 2) == unchanged
        assert await admin.create_topic(topic, 1, key=CLUSTER) == unchanged
        with pytest.raises(ConfigInvalid, match=r"topics\.alter"):
            await admin.topics.create(topic, 8)
        assert (await admin.topics.describe(topic)).brokers == unchanged
        assert await admin.groups.create(group, max_retries=3) == {}
        await admin.groups.alter(group, broadcast=False)
        altered = {NAME: GroupSettings(max_retries=3, broadcast=False)}
        assert await admin.groups.create(group, max_retries=9) == altered
        with pytest.raises(ConfigInvalid, match=r"groups\.alter"):
            await admin.groups.create(group, retry_queues=4)
        assert {one.name: one.brokers for one in await admin.groups.list()}[group] == altered


async def test_more_retry_queues_lose_no_message(servers: Cluster) -> None:
    """A part of the failed messages would be stored in queues that no consumer reads."""
    topic, group, count = servers.topic("retried"), servers.topic("retried_group"), 24
    delivered: Counter[bytes] = Counter()

    async def handler(message: MessageExt) -> Later | None:
        delivered[message.body] += 1
        return None if message.reconsume_times else Later(delay_level=1)

    def consumer() -> PushConsumer:
        config = PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
        made = PushConsumer(group, servers.namesrv.address, handler, config=config)
        made.subscribe(topic)
        return made

    async with (
        AdminClient(servers.namesrv.address) as admin,
        Producer("admin_senders", servers.namesrv.address) as producer,
    ):
        await admin.topics.create(topic, 2)
        retries = f"%RETRY%{group}"

        async def retry_queues() -> TopicSettings | None:
            try:
                return (await admin.topics.describe(retries)).brokers[NAME]
            except RouteNotFound:
                return None

        async with consumer():  # its heartbeat creates the retry topic
            async with asyncio.timeout(60):
                while await retry_queues() is None:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.1)
        assert await retry_queues() == TopicSettings(1, 1, BOTH, ordered=False)
        await admin.groups.alter(group, retry_queues=4)
        assert await retry_queues() == TopicSettings(4, 4, BOTH, ordered=False)
        async with consumer():
            for number in range(count):
                await producer.send(Message(topic, b"%d" % number))
            await until(lambda: len(delivered) == count and min(delivered.values()) >= 2)


async def test_groups_are_administered(servers: Cluster) -> None:
    """An operator could not create, change or delete a group, or would see other settings."""
    group = servers.topic("admin_group")
    async with AdminClient(servers.namesrv.address) as admin:

        async def settings() -> GroupSettings | None:
            found = {one.name: one.brokers for one in await admin.groups.list()}
            return found[group][NAME] if group in found else None

        assert await settings() is None
        await admin.groups.create(group, max_retries=3, broadcast=False)
        assert await settings() == GroupSettings(max_retries=3, broadcast=False)
        await admin.groups.alter(group, enabled=False)
        assert await settings() == GroupSettings(max_retries=3, broadcast=False, enabled=False)
        assert await admin.groups.members(group) == ()
        await admin.groups.delete(group)
        if servers.version == "5.5.0":  # creates it again, unless its offsets are deleted, too
            assert await settings() == GroupSettings()
            return
        assert await settings() is None
        await admin.groups.delete(group)
        with pytest.raises(BrokerError, match=f"no group {group}"):
            await admin.groups.alter(group, enabled=True)


async def test_stopped_groups_are_moved(servers: Cluster) -> None:
    """Offsets would not change, or to other values than the operator sees."""
    topic, group, copy = (servers.topic(stem) for stem in ("moved", "moved_group", "copied_group"))
    async with (
        AdminClient(servers.namesrv.address) as admin,
        PullConsumer(group, servers.namesrv.address) as consumer,
        PullConsumer("admin_readers", servers.namesrv.address) as reader,
    ):
        queues = await fill(servers, admin, topic)
        for name in (group, copy):
            await admin.groups.create(name)
        for queue in queues:
            await consumer.commit(queue, 2)

        async def offsets(name: str = group) -> list[int]:
            lag = await admin.groups.lag(name, topic)
            assert lag.total == sum(COUNT - at.group_offset for at in lag.queues.values())
            return [at.group_offset for at in lag.queues.values()]

        assert await offsets() == [2, 2]
        planned = await admin.groups.reset(group, topic, ResetTo.end(), dry_run=True)
        assert planned == dict.fromkeys(queues, (2, COUNT))
        assert await offsets() == [2, 2]
        assert await admin.groups.reset(group, topic, ResetTo.end()) == planned
        assert await offsets() == [COUNT, COUNT]
        await admin.groups.reset(group, topic, ResetTo.beginning())
        assert await offsets() == [0, 0]
        await admin.groups.reset(group, topic, ResetTo.offset({queues[1]: 4}))
        assert await offsets() == [0, 4]
        stored_ms = (await reader.pull(queues[0], 3, 1)).messages[0].store_timestamp
        expected = [await consumer.search_offset(queue, stored_ms) for queue in queues]
        await admin.groups.reset(group, topic, ResetTo.time(stored_ms))
        assert await offsets() == expected
        await admin.groups.reset(group, topic, ResetTo.offset(1))
        assert (await admin.topics.describe(topic)).groups == (group,)
        await admin.groups.clone(group, copy, topic)
        assert await offsets(copy) == [1, 1]
        with pytest.raises(BrokerError, match="there is no group nobody"):
            await admin.groups.clone("nobody", copy, topic)


async def test_running_members_are_seen_and_moved(servers: Cluster) -> None:
    """Members would be missing, or go on from their own offsets."""
    topic, group = servers.topic("online"), servers.topic("online_group")
    seen: list[MessageExt] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message)

    async with AdminClient(servers.namesrv.address) as admin:
        queues = await fill(servers, admin, topic)
        config = PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer = PushConsumer(group, servers.namesrv.address, handle, config=config)
        consumer.subscribe(topic, "*")
        async with consumer:
            await until(lambda: len(seen) == 2 * COUNT)
            (member,) = await admin.groups.members(group)
            assert (member.client_id, member.language) == (consumer.health().client_id, "PYTHON")
            assert member.brokers == (NAME,)
            assert member.subscriptions == {f"%RETRY%{group}": "*", topic: "*"}
            lag = await admin.groups.lag(group, topic, with_clients=True)
            assert list(lag.queues) == queues
            assert {at.client_id for at in lag.queues.values()} == {member.client_id}
            async with asyncio.timeout(LIMIT_S):
                while (await admin.groups.lag(group, topic)).total:
                    pass  # RocketMQ's brokers do not reset a group that has committed nothing
            changes = await admin.groups.reset(group, topic, ResetTo.beginning())
            assert {change.new for change in changes.values()} == {0}
            assert list(changes) == queues
            await until(lambda: len(seen) == 4 * COUNT)
            with pytest.raises(UsageError, match="Stop them first"):
                await admin.groups.reset(group, topic, ResetTo.offset(1))
        assert (await admin.groups.lag(group, topic)).total == 0
        await admin.groups.delete(group)
        assert f"%RETRY%{group}" not in await admin.topics.list(include_system=True)


async def test_a_java_member_is_seen_and_moved(servers: Cluster) -> None:
    """A consumer in Java would be missing, or not go back."""
    console = servers.run / "quickstart" / "console.log"
    properties = {"rocketmq.namesrv.addr": servers.namesrv.address}
    async with AdminClient(servers.namesrv.address) as admin:
        await fill(servers, admin, "TopicTest")
        running = servers.peer.running(
            f"{PACKAGE}.quickstart.Consumer", home=console.parent, properties=properties
        )
        with running:

            def has_seen(count: int) -> bool:
                return console.read_text().count("Receive New") >= count

            await asyncio.to_thread(
                probe.wait_until, lambda: has_seen(2 * COUNT), "the messages to arrive", timeout_s=60
            )
            (member,) = await admin.groups.members(QUICKSTART_GROUP)
            assert (member.language, member.version) == ("JAVA", "4.6.0")
            lag = await admin.groups.lag(QUICKSTART_GROUP, "TopicTest", with_clients=True)
            assert {at.client_id for at in lag.queues.values()} == {member.client_id}
            await admin.groups.reset(QUICKSTART_GROUP, "TopicTest", ResetTo.beginning())
            await asyncio.to_thread(
                probe.wait_until, lambda: has_seen(4 * COUNT), "them to come again", timeout_s=90
            )


async def test_clusters_are_kept_apart(peer: JavaPeer, tmp_path: Path) -> None:
    """RocketMQ's name server forgets a deleted topic in all clusters, also where it is to stay."""
    with serve(SIDES[0], peer, tmp_path / "first", conf={"brokerName": NAME}) as servers:
        conf = {"brokerName": "other-broker", "brokerClusterName": "Other"}
        other = new_broker("java", peer, tmp_path / "other", servers.namesrv.address, conf=conf)
        other.start()
        try:
            async with AdminClient(servers.namesrv.address) as admin:
                async with asyncio.timeout(30):
                    while "Other" not in (await admin.topics.list(include_system=True)):  # noqa: ASYNC110 - it has no event
                        await asyncio.sleep(0.1)
                await admin.topics.create("Both", 2)
                await admin.groups.create("both_group")
                queues = {*(await admin.topics.describe("Both")).queues}
                assert {queue.broker_name for queue in queues} == {NAME, "other-broker"}
                await admin.topics.delete("Both", cluster=CLUSTER)
                found = await admin.topics.describe("Both")
                assert found.brokers == {"other-broker": TopicSettings(2, 2, BOTH, ordered=False)}
                assert await admin.topics.list(CLUSTER) == ()
                assert [one.name for one in await admin.groups.list("Other")] == ["both_group"]
                await admin.groups.delete("both_group", cluster=CLUSTER)
                assert [set(one.brokers) for one in await admin.groups.list()] == [{"other-broker"}]
        finally:
            other.kill()
