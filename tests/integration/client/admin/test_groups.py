"""AdminClient.groups with rocketpy's servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    ConsumeResult,
    Credentials,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
)
from rocketpy.admin import GroupChanges, GroupSettings, ResetTo
from rocketpy.admin.group_settings import raw_group
from rocketpy.errors import (
    BrokerError,
    BrokersFailed,
    ConfigInvalid,
    GroupInvalid,
    RouteNotFound,
    UsageError,
)
from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from rocketpy_broker import Broker, EmbeddedCluster
from tests.integration.access_place import Servers
from tests.integration.client.admin.admin_place import CLUSTER, OTHER, missing_broker, other_cluster
from tests.integration.sdk_groups import SETTINGS, Seen, consuming
from tests.waiting import until

PER_QUEUE = 5


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """Two brokers, with topic T of two queues on each."""
    async with EmbeddedCluster(brokers=2, settings=SETTINGS) as running:
        async with AdminClient(running.namesrv_address) as admin:
            await admin.topics.create("T", 2)
        yield running


@pytest.fixture
async def admin(cluster: EmbeddedCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.namesrv_address) as client:
        yield client


async def fill(cluster: EmbeddedCluster, *, namespace: str = "") -> list[MessageQueue]:
    """Send messages to each queue of T; return the queues."""
    client = ClientConfig(namespace=namespace)
    async with Producer("p", cluster.namesrv_address, client=client) as producer:
        queues = sorted(await producer.fetch_publish_message_queues("T"))
        for queue in queues:
            for _ in range(PER_QUEUE):
                result = await producer.send(Message("T", b"x"), queue=queue)
                await producer.send(Message("Log", b"%d" % result.queue_offset))
    return queues


async def commit(cluster: EmbeddedCluster, offsets: dict[MessageQueue, int], group: str = "g") -> None:
    """Give a group these offsets, without a member."""
    async with PullConsumer(group, cluster.namesrv_address) as consumer:
        for queue, offset in offsets.items():
            await consumer.commit(queue, offset)


async def test_groups_are_created_altered_and_deleted(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """A broker would lack the group, or keep other settings than the operator gave."""
    assert await admin.groups.list() == ()
    await admin.groups.create("g")
    await admin.groups.create("limited", max_retries=3, broadcast=False)
    plain, limited = await admin.groups.list()
    assert plain == ("g", {"broker-a": GroupSettings(), "broker-b": GroupSettings()})
    expected = GroupSettings(max_retries=3, broadcast=False)
    assert limited == ("limited", {"broker-a": expected, "broker-b": expected})
    assert {"TOOLS_CONSUMER", "g"} <= {group.name for group in await admin.groups.list(include_system=True)}
    await admin.groups.alter("limited", enabled=False)
    _, limited = await admin.groups.list()
    changed = GroupSettings(max_retries=3, broadcast=False, enabled=False)
    assert set(limited.brokers.values()) == {changed}
    await admin.groups.delete("limited")
    await admin.groups.delete("limited")  # it is already deleted
    assert [group.name for group in await admin.groups.list()] == ["g"]
    for broker in cluster.brokers:
        assert broker.consumers.groups.get("limited") is None


async def test_a_group_that_exists_is_not_created_again(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """A deployment that creates its groups would undo what an operator has altered."""
    first = cluster.brokers[0]
    assert await admin.groups.create("g", retry_queues=2, max_retries=3) == {}
    await admin.groups.alter("g", enabled=False, broadcast=False)
    altered = GroupSettings(retry_queues=2, max_retries=3, enabled=False, broadcast=False)
    settings: tuple[GroupChanges, ...] = ({}, {"retry_queues": 1}, {"retry_queues": 2, "max_retries": 9})
    for given in settings:
        assert await admin.groups.create("g", **given) == {"broker-a": altered, "broker-b": altered}
    assert await admin.groups.list() == (("g", {"broker-a": altered, "broker-b": altered}),)
    await first.consumers.groups.delete("g")
    expected = r"g was not created with 4 retry queues: .* broker-b with 2. .*groups.alter or rocketpy group"
    with pytest.raises(ConfigInvalid, match=expected):
        await admin.groups.create("g", retry_queues=4)
    assert first.consumers.groups.get("g") is None
    assert await admin.groups.create("g", max_retries=5) == {"broker-b": altered}
    assert await admin.groups.list() == (
        ("g", {"broker-a": GroupSettings(max_retries=5), "broker-b": altered}),
    )
    async with missing_broker(cluster):
        with pytest.raises(BrokersFailed, match="broker-z") as failed:
            await admin.groups.create("g")
        assert failed.value.results == {"broker-a": GroupSettings(max_retries=5), "broker-b": altered}
        with pytest.raises(BrokersFailed, match="broker-z") as failed:
            await admin.groups.create("h")
        assert failed.value.results == {"broker-a": None, "broker-b": None}


def retry_queues(broker: Broker, group: str = "g") -> tuple[int, int, int] | None:
    """The queues to read and to write of a group's retry topic, and its permission."""
    topic = broker.topics.get(f"%RETRY%{group}")
    return None if topic is None else (topic.read_queue_nums, topic.write_queue_nums, topic.perm)


@pytest.mark.parametrize("namespace", ["", "tenant"])
async def test_more_retry_queues_lose_no_message(cluster: EmbeddedCluster, namespace: str) -> None:
    """A part of the failed messages would be stored in queues that no consumer reads."""
    client = ClientConfig(namespace=namespace)
    failing = Seen(lambda message: ConsumeResult.LATER if not message.reconsume_times else None)
    async with AdminClient(cluster.namesrv_address, client=client) as admin:
        await admin.topics.create("T", 2)
        async with consuming(cluster, failing, namespace=namespace, route_refresh_ms=100):
            group = f"{namespace}%g" if namespace else "g"
            await until(
                lambda: [retry_queues(broker, group) for broker in cluster.brokers] == [(1, 1, 6)] * 2
            )
            await admin.groups.alter("g", retry_queues=4)
            assert [retry_queues(broker, group) for broker in cluster.brokers] == [(4, 4, 6)] * 2
            async with Producer("p", cluster.namesrv_address, client=client) as producer:
                for number in range(40):
                    await producer.send(Message("T", b"%d" % number))
            await until(lambda: min(failing.bodies.values(), default=0) == 2 and len(failing.bodies) == 40)


async def test_retry_topics_keep_their_other_settings(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """A new number of retry queues would undo changes of the retry topic, or shrink it."""
    first, second = cluster.brokers
    await admin.groups.create("g")
    await first.topics.update(
        TopicConfig(topic_name="%RETRY%g", read_queue_nums=6, write_queue_nums=1, perm=4)
    )
    await admin.groups.alter("g", retry_queues=3)
    assert retry_queues(first) == (6, 3, 4)
    assert retry_queues(second) is None  # its broker creates it with the queues of the group
    await admin.groups.alter("g", max_retries=1)
    await admin.groups.alter("g", retry_queues=1)
    assert retry_queues(first) == (6, 3, 4)
    await admin.groups.delete("g", keep_topics=True)
    await admin.groups.create("g", retry_queues=8)
    assert retry_queues(first) == (8, 8, 4)
    assert [broker.consumers.groups.get("g").retry_queue_nums for broker in cluster.brokers] == [8, 8]  # type: ignore[union-attr] # they exist


async def test_a_group_is_not_altered_without_its_topic(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """The group would have more retry queues than the topic of a broker that refuses them."""
    await admin.groups.create("g")
    await cluster.brokers[0].topics.update(TopicConfig(topic_name="%RETRY%g", read_queue_nums=1))
    with pytest.raises(BrokersFailed, match="maxTopicQueues"):
        await admin.groups.alter("g", retry_queues=1_000_000)
    for broker in cluster.brokers:
        group = broker.consumers.groups.get("g")
        assert group is not None
        assert group.retry_queue_nums == 1


async def test_wrong_groups_and_settings_are_refused(admin: AdminClient) -> None:
    """A misspelt name would create another group, or look like one without members."""
    with pytest.raises(GroupInvalid):
        await admin.groups.create("no name")
    with pytest.raises(ConfigInvalid, match="no group setting 'max_retry'; choose from: enabled, "):
        await admin.groups.create("g", max_retry=1)  # type: ignore[call-arg] # the mistake
    with pytest.raises(ConfigInvalid, match="max_retries is -1"):
        await admin.groups.alter("g", max_retries=-1)
    with pytest.raises(ConfigInvalid, match="give a setting"):
        await admin.groups.alter("g")
    with pytest.raises(BrokerError, match="there is no group Nobody"):
        await admin.groups.alter("Nobody", enabled=False)
    with pytest.raises(BrokerError, match="there is no group Nobody"):
        await admin.groups.clone("Nobody", "g", "T")
    for dry_run in (True, False):
        with pytest.raises(BrokerError, match="there is no group Nobody; create it, or correct its name"):
            await admin.groups.reset("Nobody", "T", ResetTo.end(), dry_run=dry_run)
    assert (await admin.topics.describe("T")).groups == ()
    await admin.groups.create("new")
    assert len(await admin.groups.reset("new", "T", ResetTo.end())) == 4
    with pytest.raises(ConfigInvalid, match="no cluster 'Nowhere'"):
        await admin.groups.list("Nowhere")
    for call in (
        admin.groups.lag("g", "Nowhere"),
        admin.groups.clone("g", "h", "Nowhere"),
        admin.groups.reset("g", "Nowhere", ResetTo.end()),
    ):
        with pytest.raises(RouteNotFound, match="Nowhere"):
            await call
    assert await admin.groups.members("Nobody") == ()
    for topic in (None, "T"):
        with pytest.raises(BrokerError, match="there is no group Nobody"):
            await admin.groups.lag("Nobody", topic)


def test_settings_of_newer_brokers_stay() -> None:
    """A change of one setting would reset those that only newer brokers have."""
    config = {"groupName": "g", "retryMaxTimes": 3, "groupSysFlag": 7, "attributes": {"a": "b"}}
    body = fastjson.dumps({"subscriptionGroupTable": {"g": config}, "dataVersion": {}})
    assert raw_group(body, "g") == {"groupName": "g", "retryMaxTimes": 3, "groupSysFlag": 7}
    assert raw_group(body, "h") is None


async def test_only_brokers_with_the_group_are_altered(
    admin: AdminClient, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """A change of a setting would create the group in other clusters."""
    async with other_cluster(cluster, tmp_path) as other:
        await admin.groups.create("g", cluster=CLUSTER, max_retries=2)
        await admin.groups.create("h", cluster=OTHER)
        await admin.groups.alter("g", enabled=False)
        assert other.consumers.groups.get("g") is None
        assert [group.name for group in await admin.groups.list(OTHER)] == ["h"]
        found = {group.name: set(group.brokers) for group in await admin.groups.list()}
        assert found == {"g": {"broker-a", "broker-b"}, "h": {"other-a"}}
        await admin.groups.delete("g", cluster=OTHER)
        assert [group.name for group in await admin.groups.list()] == ["g", "h"]
        await admin.groups.delete("g", cluster=CLUSTER)
        assert [group.name for group in await admin.groups.list()] == ["h"]


async def test_a_group_is_deleted_with_its_topics(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """A group of the same name would receive the retries of the deleted one."""
    for keep in (True, False):
        async with consuming(cluster, Seen()):
            await until(lambda: all(broker.topics.get("%RETRY%g") for broker in cluster.brokers))
        await admin.groups.delete("g", keep_topics=keep)
        assert [group.name for group in await admin.groups.list()] == []
        assert ("%RETRY%g" in await admin.topics.list(include_system=True)) is keep


async def test_members_of_two_brokers_are_listed_once(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """A member would be missing, or be there once for each broker."""
    async with AsyncExitStack() as stack:
        for name in ("one", "two"):
            await stack.enter_async_context(consuming(cluster, Seen(), "a || b", name=name))
        await stack.enter_async_context(
            consuming(cluster, Seen(), group="all", name="three", model=MessageModel.BROADCASTING)
        )
        members = await admin.groups.members("g")
        assert [member.client_id.partition("@")[2] for member in members] == ["one", "two"]
        for member in members:
            assert (member.language, member.version, member.broadcasting) == ("PYTHON", "4.6.0", False)
            assert member.brokers == ("broker-a", "broker-b")
            assert member.address.startswith("127.0.0.1:")
            assert member.subscriptions == {"%RETRY%g": "*", "T": "a || b"}
        (member,) = await admin.groups.members("all")
        assert member.broadcasting
    assert await admin.groups.members("g") == ()


async def test_lag_is_summed_over_brokers(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """An operator would see the lag of one broker only, or not which member is behind."""
    queues = await fill(cluster)
    await commit(cluster, {queues[0]: 2, queues[3]: 5})
    found = await admin.groups.lag("g", "T")
    assert list(found.queues) == queues
    assert [(at.group_offset, at.lag) for at in found.queues.values()] == [(2, 3), (0, 5), (0, 5), (5, 0)]
    assert (found.total, found.messages_per_second) == (13, 0.0)
    assert [at.last_consumed_ms is None for at in found.queues.values()] == [False, True, True, False]
    assert list((await admin.groups.lag("g")).queues) == queues
    seen = Seen()
    async with consuming(cluster, seen, name="one") as consumer:
        await until(lambda: len(consumer.assignment) == 6)
        with_clients = await admin.groups.lag("g", with_clients=True)
        clients = {queue: at.client_id for queue, at in with_clients.queues.items() if queue.topic == "T"}
        assert list(clients) == queues
        assert set(clients.values()) == {consumer.health().client_id}
    finished = await admin.groups.lag("g", "T")
    assert finished.total == 0  # committed with the end of the member
    await commit(cluster, {queues[0]: 2, queues[3]: 105})
    beyond = await admin.groups.lag("g", "T")
    assert [at.lag for at in beyond.queues.values()] == [3, 0, 0, -100]
    assert beyond.total == 3


async def test_offsets_are_reset_without_members(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """A stopped group could not be moved, or a dry run would move it."""
    queues = await fill(cluster)
    await commit(cluster, dict.fromkeys(queues, 3))

    async def offsets() -> list[int]:
        return [at.group_offset for at in (await admin.groups.lag("g", "T")).queues.values()]

    planned = await admin.groups.reset("g", "T", ResetTo.beginning(), dry_run=True)
    assert planned == dict.fromkeys(queues, (3, 0))
    assert await offsets() == [3, 3, 3, 3]
    assert await admin.groups.reset("g", "T", ResetTo.beginning()) == planned
    assert await offsets() == [0, 0, 0, 0]
    assert await admin.groups.reset("g", "T", ResetTo.end()) == dict.fromkeys(queues, (0, 5))
    assert await offsets() == [5, 5, 5, 5]
    await admin.groups.reset("g", "T", ResetTo.offset(4))
    assert await offsets() == [4, 4, 4, 4]
    await admin.groups.reset("g", "T", ResetTo.offset({queues[1]: 1, queues[2]: 99}))
    assert await offsets() == [4, 1, 5, 4]
    async with PullConsumer("readers", cluster.namesrv_address) as reader:
        stored_ms = (await reader.pull(queues[0], 2, 1)).messages[0].store_timestamp
        expected = [await reader.search_offset(queue, stored_ms) for queue in queues]
    await admin.groups.reset("g", "T", ResetTo.time(stored_ms))
    assert await offsets() == expected


@pytest.mark.parametrize("are_online", [False, True])
async def test_a_reset_to_a_time_skips_no_message_of_that_time(
    admin: AdminClient, cluster: EmbeddedCluster, are_online: bool
) -> None:
    """Of a batch, whose messages have one store time, the first half would never be delivered again."""
    async with Producer("p", cluster.namesrv_address) as producer:
        queue = (await producer.fetch_publish_message_queues("T"))[0]
        await producer.send(Message("T", b"before"), queue=queue)
        await asyncio.sleep(0.002)  # a later millisecond
        await producer.send_batch([Message("T", b"%d" % n) for n in range(51)], queue=queue)
    seen = Seen()
    async with consuming(cluster, seen) as consumer:
        await seen.until(52)
        batch = [message for message in seen.messages if message.body != b"before"]
        [stored_ms] = {message.store_timestamp for message in batch}
        assert stored_ms > min(message.store_timestamp for message in seen.messages)
        assert await consumer.search_offset(queue, stored_ms) == 1
        assert await consumer.search_offset(queue, stored_ms + 1) == 52
        if are_online:
            changes = await admin.groups.reset("g", "T", ResetTo.time(stored_ms))
            assert changes[queue].new == 1
            await until(lambda: len(seen.messages) == 52 + 51)
    if not are_online:
        changes = await admin.groups.reset("g", "T", ResetTo.time(stored_ms))
        assert changes[queue] == (52, 1)
        seen = Seen()
        async with consuming(cluster, seen):
            await seen.until(51)
        assert len(seen.messages) == 51
        assert seen.bodies[b"before"] == 0


async def test_a_reset_to_a_time_before_the_clock_was_set_back(
    admin: AdminClient, cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that were stored before the clock was set back would never be delivered again."""
    hour_ms = 3_600_000
    start = time.time_ns() // 1_000_000
    minutes = [*range(60), *range(10, 70)]  # the clock is set back by 50 minutes
    now = start
    for broker in cluster.brokers:
        monkeypatch.setattr(broker.store.commit_log, "_clock", lambda: now)
    config = ProducerConfig(batching=False)
    async with Producer("p", cluster.namesrv_address, config=config) as producer:
        queue = (await producer.fetch_publish_message_queues("T"))[0]
        for minute in minutes:
            now = start - hour_ms + minute * 60_000
            await producer.send(Message("T", b"%d" % minute), queue=queue)
    await admin.groups.create("g")
    changes = await admin.groups.reset("g", "T", ResetTo.time(start - hour_ms // 2), dry_run=True)
    assert changes[queue].new == 30
    changes = await admin.groups.reset("g", "T", ResetTo.time(start), dry_run=True)
    assert changes[queue].new == 60 + 50
    for first, last in ((0, 5), (20, 30), (55, 65), (61, 69), (3, 100)):
        begin_ms, end_ms = (start - hour_ms + minute * 60_000 for minute in (first, last))
        found = [int(message.body) async for message in admin.messages.by_time("T", begin_ms, end_ms)]
        assert found == [minute for minute in minutes if first <= minute <= last]


@pytest.mark.parametrize("to", [ResetTo.beginning(), ResetTo.time(0)], ids=["beginning", "time"])
async def test_offsets_are_reset_with_members(
    admin: AdminClient, cluster: EmbeddedCluster, to: ResetTo
) -> None:
    """Running members would go on from their own offsets and overwrite the new ones."""
    queues = await fill(cluster)
    seen = Seen()
    async with consuming(cluster, seen):
        await until(lambda: len(seen.messages) == 4 * PER_QUEUE)
        changes = await admin.groups.reset("g", "T", to)
        assert list(changes) == queues
        assert {change.new for change in changes.values()} == {0}
        await until(lambda: len(seen.messages) == 8 * PER_QUEUE)
        with pytest.raises(UsageError, match=r"group g has 1 members online \(.*Stop them first"):
            await admin.groups.reset("g", "T", ResetTo.offset(1))
        with pytest.raises(UsageError, match="would overwrite"):
            await admin.groups.clone("g", "g", "T")
    assert (await admin.groups.lag("g", "T")).total == 0


async def test_members_without_offsets_are_reset(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """Brokers refuse to reset an online group that has no offset in some queue."""
    await fill(cluster)
    async with consuming(cluster, Seen(), topic="Log") as consumer:
        await until(lambda: len(consumer.assignment) > 0)
        changes = await admin.groups.reset("g", "T", ResetTo.end())
        assert {change.new for change in changes.values()} == {PER_QUEUE}
    assert {at.group_offset for at in (await admin.groups.lag("g", "T")).queues.values()} == {PER_QUEUE}


async def test_offsets_are_cloned(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """A new group would begin elsewhere than the one that it replaces."""
    queues = await fill(cluster)
    await commit(cluster, dict(zip(queues, (1, 2, 3, 4), strict=True)))
    await admin.groups.clone("g", "copy", "T")
    found = await admin.groups.lag("copy", "T")
    assert [at.group_offset for at in found.queues.values()] == [1, 2, 3, 4]


async def test_a_namespace_has_its_own_groups(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """A tenant would see or move the groups of another."""
    await admin.groups.create("g", max_retries=1)
    async with AdminClient(cluster.namesrv_address, client=ClientConfig(namespace="tenant")) as tenant:
        assert await tenant.groups.list() == ()
        await tenant.topics.create("T", 2)
        queues = await fill(cluster, namespace="tenant")
        seen = Seen()
        async with consuming(cluster, seen, namespace="tenant") as consumer:
            await until(lambda: len(seen.messages) == 4 * PER_QUEUE)
            (member,) = await tenant.groups.members("g")
            assert set(member.subscriptions) == {"%RETRY%g", "T"}
            lag = await tenant.groups.lag("g", "T", with_clients=True)
            assert list(lag.queues) == queues
            assert {at.client_id for at in lag.queues.values()} == {consumer.health().client_id}
            assert list(await tenant.groups.reset("g", "T", ResetTo.beginning())) == queues
            await until(lambda: len(seen.messages) == 8 * PER_QUEUE)
        await tenant.groups.reset("g", "T", ResetTo.offset({queues[0]: 2}))
        assert (await tenant.groups.lag("g", "T")).queues[queues[0]].group_offset == 2
        await tenant.groups.clone("g", "copy", "T")
        assert (await tenant.groups.lag("copy", "T")).queues[queues[0]].group_offset == 2
        assert [group.name for group in await tenant.groups.list()] == ["g"]
        assert [group.name for group in await admin.groups.list()] == ["g", "tenant%g"]
        await tenant.groups.delete("g")
    (left,) = await admin.groups.list()
    assert left.name == "g"


async def test_a_broker_that_is_offline_is_named(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """A change would silently miss a broker, or a query return a part."""
    async with missing_broker(cluster, "T"):
        for call in (
            admin.groups.list(),
            admin.groups.create("g"),
            admin.groups.alter("g", enabled=False),
            admin.groups.delete("g"),
            admin.groups.members("g"),
            admin.groups.lag("g"),
            admin.groups.lag("g", "T"),
            admin.groups.reset("g", "T", ResetTo.end()),
            admin.groups.clone("g", "h", "T"),
        ):
            with pytest.raises(BrokersFailed, match="1 of 3 servers failed: broker-z: ") as failed:
                await call
            assert set(failed.value.results) == {"broker-a", "broker-b"}


async def test_an_account_without_rights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator would not learn that the account lacks a right."""
    credentials = Credentials(access_key="my-account", secret_key="my-secret")
    async with Servers(tmp_path, monkeypatch) as servers:
        config = ClientConfig(credentials=credentials)
        async with AdminClient(str(servers.names), client=config) as admin:
            for call in (admin.groups.create("mygroup"), admin.groups.list(), admin.groups.delete("mygroup")):
                with pytest.raises(BrokerError, match="my-account"):
                    await call


def test_wrong_places_are_refused() -> None:
    """A time without a time zone, or a negative offset, would move a group to a wrong place."""
    with pytest.raises(ConfigInvalid, match="no time zone"):
        ResetTo.time(datetime(2026, 1, 1))  # noqa: DTZ001 - the mistake
    with pytest.raises(ConfigInvalid, match="time is -1"):
        ResetTo.time(-1)
    with pytest.raises(ConfigInvalid, match="offset is -1"):
        ResetTo.offset(-1)
    with pytest.raises(ConfigInvalid, match="offset is -2"):
        ResetTo.offset({MessageQueue("T", "a", 0): -2})
    assert ResetTo.time(datetime(1970, 1, 2, tzinfo=UTC)) == ResetTo.time(86_400_000)


def test_a_group_without_settings_is_as_in_rocketmq() -> None:
    """A new group could not consume, or its messages would be retried another number of times."""
    ours, javas = GroupSettings(), SubscriptionGroupConfig(group_name="g")
    assert (ours.enabled, ours.broadcast) == (javas.consume_enable, javas.consume_broadcast_enable)
    assert (ours.max_retries, ours.retry_queues) == (javas.retry_max_times, javas.retry_queue_nums)
    assert (ours.broker_id, ours.broker_id_when_slow) == (
        javas.broker_id,
        javas.which_broker_when_consume_slowly,
    )
    assert ours.notify_changes == javas.notify_consumer_ids_changed_enable
