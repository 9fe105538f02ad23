"""AdminClient.topics with rocketpy's servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    ConsumeFrom,
    Credentials,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
)
from rocketpy.admin import Permission, TopicSettings
from rocketpy.errors import (
    BrokerError,
    BrokersFailed,
    ConfigInvalid,
    ConnectFailed,
    RouteNotFound,
    TopicInvalid,
)
from rocketpy.protocol.bodies import BrokerStatsData, TopicConfig
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import DeleteTopicInNamesrvRequestHeader
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Address
from rocketpy_broker import Broker, EmbeddedCluster, NameServer, NamesrvConfig, load_broker_config
from rocketpy_broker.config.model import ListenConfig
from tests.integration.access_place import Servers
from tests.integration.client.admin.admin_place import CLUSTER, OTHER, missing_broker, other_cluster
from tests.integration.raw_client import RawClient
from tests.integration.sdk_groups import SETTINGS, Seen, consuming
from tests.waiting import until

BOTH = Permission.READ | Permission.WRITE
Create = Callable[..., Awaitable[dict[str, TopicSettings]]]


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """Two brokers."""
    async with EmbeddedCluster(brokers=2, settings=SETTINGS) as running:
        yield running


@pytest.fixture
async def admin(cluster: EmbeddedCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.namesrv_address) as client:
        yield client


async def test_topics_are_created_on_every_broker(admin: AdminClient) -> None:
    """A broker would lack the topic, or have it with other settings."""
    await admin.topics.create("Plain")
    await admin.topics.create("Special", 2, perm=Permission.READ)
    plain = TopicSettings(4, 4, BOTH, ordered=False)
    assert (await admin.topics.describe("Plain")).brokers == {"broker-a": plain, "broker-b": plain}
    special = TopicSettings(2, 2, Permission.READ, ordered=False)
    assert (await admin.topics.describe("Special")).brokers == {"broker-a": special, "broker-b": special}
    with pytest.raises(TopicInvalid):
        await admin.topics.create("no name")
    with pytest.raises(ConfigInvalid, match="queues is 0"):
        await admin.topics.create("Plain", 0)
    with pytest.raises(ConfigInvalid, match=f"no cluster 'Nowhere'.* knows: {CLUSTER}"):
        await admin.topics.create("Plain", cluster="Nowhere")


@pytest.fixture(params=["topics.create", "AdminClient.create_topic", "Producer.create_topic"])
async def create(
    request: pytest.FixtureRequest, cluster: EmbeddedCluster, admin: AdminClient
) -> AsyncIterator[Create]:
    """Each method that creates topics."""
    async with Producer("p", cluster.namesrv_address) as producer:
        methods: dict[str, Create] = {
            "topics.create": admin.topics.create,
            "AdminClient.create_topic": admin.create_topic,
            "Producer.create_topic": producer.create_topic,
        }
        yield methods[request.param]


async def test_no_message_is_lost_when_a_topic_is_created_again(
    cluster: EmbeddedCluster, create: Create
) -> None:
    """Messages in the queues that are gone would never be consumed."""
    assert await create("T", 8) == {}
    sent = set()
    async with Producer("p", cluster.namesrv_address) as producer:
        for queue in await producer.fetch_publish_message_queues("T"):
            sent.add(str(queue).encode())
            await producer.send(Message("T", str(queue).encode()), queue=queue)
    unchanged = TopicSettings(8, 8, BOTH, ordered=False)
    assert await create("T", 4) == {"broker-a": unchanged, "broker-b": unchanged}
    seen = Seen()
    async with consuming(cluster, seen):
        await seen.until(16)
    assert set(seen.bodies) == sent
    assert await create("T") == {"broker-a": unchanged, "broker-b": unchanged}


async def test_concurrent_creations_do_not_change_each_other(
    admin: AdminClient, cluster: EmbeddedCluster, create: Create
) -> None:
    """Two deployments, or a deployment and the first send, would replace each other's queues."""
    for number in range(8):
        topic = f"T{number}"
        ends = await asyncio.gather(create(topic, 3), admin.topics.create(topic, 5), return_exceptions=True)
        for broker in cluster.brokers:
            config = broker.topics.get(topic)
            assert config is not None
            smaller, larger = ends
            assert isinstance(smaller, dict)
            if config.write_queue_nums == 5:
                assert smaller[broker.config.name].write_queues == 5
            else:
                assert isinstance(larger, ConfigInvalid)
                assert broker.config.name not in smaller


async def test_a_topic_that_name_servers_forgot_is_registered_again(
    admin: AdminClient, cluster: EmbeddedCluster, create: Create
) -> None:
    """Brokers register only topics that change: a creation would wait for the route in vain."""
    await admin.topics.create("T", 3, perm=Permission.READ)
    before = [broker.topics.get("T") for broker in cluster.brokers]
    async with await RawClient.open(cluster.namesrv_address) as client:
        header = DeleteTopicInNamesrvRequestHeader(topic="T")
        await client.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
    assert await admin.topics.list() == ()
    assert set(await create("T", 2)) == {"broker-a", "broker-b"}
    assert await admin.topics.list() == ("T",)
    assert [broker.topics.get("T") for broker in cluster.brokers] == before


async def test_an_alteration_is_not_undone(
    admin: AdminClient, cluster: EmbeddedCluster, create: Create
) -> None:
    """A deployment that creates its topics would undo what an operator has altered."""
    await create("T", 4)
    await admin.topics.alter("T", read_queues=8, write_queues=6, perm=Permission.READ)
    for broker in cluster.brokers:
        config = broker.topics.get("T")
        assert config is not None
        config.topic_sys_flag, config.topic_filter_type = 1, "MULTI_TAG"
    before = [broker.topics.get("T") for broker in cluster.brokers]
    unchanged = TopicSettings(8, 6, Permission.READ, ordered=False)
    assert await create("T", 4) == {"broker-a": unchanged, "broker-b": unchanged}
    assert [broker.topics.get("T") for broker in cluster.brokers] == before


async def test_a_topic_is_added_where_it_is_missing(cluster: EmbeddedCluster, create: Create) -> None:
    """A broker that joins the cluster would not get the topic, or the others would get its settings."""
    first, second = cluster.brokers
    await first.topics.update(TopicConfig(topic_name="T", read_queue_nums=6, write_queue_nums=5))
    assert await create("T", 2) == {"broker-a": TopicSettings(6, 5, BOTH, ordered=False)}
    added = second.topics.get("T")
    assert added is not None
    assert (added.read_queue_nums, added.write_queue_nums, added.perm) == (2, 2, BOTH)


@pytest.mark.parametrize(("reads", "writes"), [(3, 3), (8, 3), (3, 8)])
async def test_creation_with_more_queues_is_refused(
    cluster: EmbeddedCluster, create: Create, reads: int, writes: int
) -> None:
    """A caller would rely on queues that the topic does not have, or only on some brokers."""
    first, second = cluster.brokers
    config = TopicConfig(topic_name="T", read_queue_nums=reads, write_queue_nums=writes)
    await second.topics.update(config)
    with pytest.raises(
        ConfigInvalid, match=r"broker-b with \d queues to read .*topics.alter or rocketpy"
    ) as e:
        await create("T", 4)
    assert "T was not created with 4 queues" in str(e.value)
    assert first.topics.get("T") is None
    assert second.topics.get("T") == config


async def test_creation_leaves_the_order_of_a_topic(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """A second creation would end the order of a topic, or change the queues of its keys."""
    assert cluster.namesrv is not None
    kv = cluster.namesrv.kv
    await admin.topics.create("T", 2, ordered=True)
    ordered = TopicSettings(2, 2, BOTH, ordered=True)
    for again in (False, True):
        found = await admin.topics.create("T", 1, ordered=again)
        assert found == {"broker-a": ordered, "broker-b": ordered}
        assert kv.get("ORDER_TOPIC_CONFIG", "T") == "broker-a:2;broker-b:2"
    await cluster.brokers[1].topics.delete("T")
    assert await admin.topics.create("T", 2) == {"broker-a": ordered}
    assert kv.get("ORDER_TOPIC_CONFIG", "T") == "broker-a:2;broker-b:2"
    await admin.topics.create("Plain", 2)
    with pytest.raises(ConfigInvalid, match=r"not created as an ordered topic: .*broker-a .*topics.alter"):
        await admin.topics.create("Plain", 2, ordered=True)
    assert kv.get("ORDER_TOPIC_CONFIG", "Plain") is None
    await admin.name_servers.put("ORDER_TOPIC_CONFIG", "Left", "broker-a:7")  # its topic was deleted
    await admin.topics.create("Left", 2)
    assert kv.get("ORDER_TOPIC_CONFIG", "Left") is None


async def test_topics_are_listed(admin: AdminClient, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """A topic would be missing, or those that brokers make for themselves be among them."""
    async with other_cluster(cluster, tmp_path):
        await admin.topics.create("B")
        await admin.topics.create("A", cluster=OTHER)
        await admin.topics.create("C", cluster=CLUSTER)
        assert await admin.topics.list() == ("A", "B", "C")
        assert await admin.topics.list(OTHER) == ("A", "B")
        assert await admin.topics.list(CLUSTER) == ("B", "C")
        with_system = await admin.topics.list(include_system=True)
        assert {"A", "B", "C", "TBW102", "broker-a", OTHER} <= set(with_system)
        with pytest.raises(ConfigInvalid, match="there is no cluster 'Nowhere'"):
            await admin.topics.list("Nowhere")
        assert set((await admin.topics.describe("A")).brokers) == {"other-a"}
        assert set((await admin.topics.describe("A", cluster=OTHER)).brokers) == {"other-a"}
        with pytest.raises(RouteNotFound, match=f"no broker of cluster {CLUSTER} has topic A"):
            await admin.topics.describe("A", cluster=CLUSTER)


async def test_a_description_has_offsets_groups_and_rate(
    admin: AdminClient, cluster: EmbeddedCluster
) -> None:
    """An operator would see a queue of one broker only, or miss a group."""
    await admin.topics.create("T", 2)
    async with Producer("p", cluster.namesrv_address) as producer:
        queues = await producer.fetch_publish_message_queues("T")
        for queue in queues:
            results = [await producer.send(Message("T", b"x"), queue=queue) for _ in range(3)]
            assert [result.queue_offset for result in results] == [0, 1, 2]
    seen = Seen()
    async with consuming(cluster, seen, group="online"):
        await seen.until(1)
        found = await admin.topics.describe("T")
    assert found.name == "T"
    assert list(found.queues) == sorted(queues)
    assert len(found.queues) == 4
    assert {(at.min_offset, at.max_offset) for at in found.queues.values()} == {(0, 3)}
    assert all((at.last_stored_ms or 0) > 1_600_000_000_000 for at in found.queues.values())
    assert found.groups == ("online",)
    assert found.messages_per_second >= 0
    await admin.topics.create("Empty", 1)
    empty = await admin.topics.describe("Empty")
    assert set(empty.queues.values()) == {(0, 0, None)}
    assert (empty.groups, empty.messages_per_second) == ((), 0.0)


async def test_unknown_topics_are_reported(admin: AdminClient) -> None:
    """A misspelt name would look like a topic without messages."""
    with pytest.raises(RouteNotFound, match="Nowhere"):
        await admin.topics.describe("Nowhere")
    with pytest.raises(RouteNotFound, match="Nowhere"):
        await admin.topics.alter("Nowhere", read_queues=1)
    await admin.topics.delete("Nowhere")  # it does not exist, which is no error


async def test_only_given_settings_are_altered(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """Settings that differ between brokers would be replaced by those of one broker."""
    await admin.topics.create("T", 4)
    table = cluster.brokers[0].topics
    config = table.get("T")
    assert config is not None
    config.topic_sys_flag = 1
    config.read_queue_nums, config.perm = 7, Permission.READ.value
    await admin.topics.alter("T", write_queues=2)
    assert (await admin.topics.describe("T")).brokers == {
        "broker-a": TopicSettings(7, 2, Permission.READ, ordered=False),
        "broker-b": TopicSettings(4, 2, BOTH, ordered=False),
    }
    altered = table.get("T")
    assert altered is not None
    assert altered.topic_sys_flag == 1
    await admin.topics.alter("T", perm=BOTH, read_queues=3)
    assert set((await admin.topics.describe("T")).brokers.values()) == {
        TopicSettings(3, 2, BOTH, ordered=False)
    }
    with pytest.raises(ConfigInvalid, match="give a setting"):
        await admin.topics.alter("T")
    with pytest.raises(ConfigInvalid, match="write_queues is -1"):
        await admin.topics.alter("T", write_queues=-1)


@pytest.mark.parametrize("change", [{"write_queues": 5}, {"read_queues": 3}])
async def test_queues_without_readers_are_refused(admin: AdminClient, change: dict[str, int]) -> None:
    """Producers would write to queues that no consumer reads."""
    await admin.topics.create("T", 4)
    with pytest.raises(ConfigInvalid, match=r"T was not changed: .* broker broker-., .*raise both"):
        await admin.topics.alter("T", **change)  # type: ignore[arg-type] # it is one of two numbers
    assert set((await admin.topics.describe("T")).brokers.values()) == {
        TopicSettings(4, 4, BOTH, ordered=False)
    }


async def test_queues_with_unread_messages_are_kept(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """Nobody would consume these messages, and the lag of the group would not have them."""
    await admin.topics.create("T", 4)
    handler, rest = Seen(), MessageQueue("T", "broker-b", 3)
    async with Producer("p", cluster.namesrv_address) as producer:
        async with consuming(cluster, handler):
            await producer.send(Message("T", b"read"), queue=rest)
            await until(lambda: handler.messages)
        await admin.topics.alter("T", write_queues=2)  # keeps the queue readable
        await admin.topics.alter("T", write_queues=4)
        await producer.send(Message("T", b"unread"), queue=rest)
    with pytest.raises(
        ConfigInvalid, match=r"not changed: group g has not read 1 messages .* 2 on of broker broker-b"
    ):
        await admin.topics.alter("T", read_queues=2, write_queues=2)
    assert {found.read_queues for found in (await admin.topics.describe("T")).brokers.values()} == {4}
    async with consuming(cluster, handler, name="again"):
        await until(lambda: len(handler.messages) == 2)
    await admin.topics.alter("T", read_queues=2, write_queues=2)
    assert {found.read_queues for found in (await admin.topics.describe("T")).brokers.values()} == {2}


async def test_members_that_broadcast_keep_no_queue(
    admin: AdminClient, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """A broker does not have their offsets, so it would seem that they have read nothing."""
    await admin.topics.create("T", 4)
    handler = Seen()
    broadcasting = consuming(cluster, handler, model=MessageModel.BROADCASTING, offset_directory=tmp_path)
    async with broadcasting, Producer("p", cluster.namesrv_address) as producer:
        await producer.send(Message("T", b"read"), queue=MessageQueue("T", "broker-b", 3))
        await until(lambda: handler.messages)
        await admin.topics.alter("T", read_queues=2, write_queues=2)


async def test_a_topic_stays_ordered(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """Brokers would reset the setting with their next registration, which brings the name servers' table."""
    assert cluster.namesrv is not None
    kv = cluster.namesrv.kv

    async def expect(ordered: bool, text: str | None) -> None:
        assert kv.get("ORDER_TOPIC_CONFIG", "T") == text
        for broker in cluster.brokers:
            await broker.topics.all_changed()
            assert broker._registrar is not None
            await broker._registrar.wait_registered()
            await broker.topics.all_changed()  # after the changes that the name server's response made
        settings = (await admin.topics.describe("T")).brokers.values()
        assert {one.ordered for one in settings} == {ordered}

    await admin.topics.create("T", 2, ordered=True)
    await expect(True, "broker-a:2;broker-b:2")
    await admin.topics.alter("T", read_queues=3, write_queues=3)
    await expect(True, "broker-a:3;broker-b:3")
    await admin.topics.alter("T", ordered=False)
    await expect(False, None)
    await admin.topics.alter("T", ordered=True)
    await expect(True, "broker-a:3;broker-b:3")
    await admin.topics.delete("T")
    assert kv.get("ORDER_TOPIC_CONFIG", "T") is None


async def test_a_deleted_topic_is_gone(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """A broker or a name server would keep it."""
    await admin.topics.create("T")
    await admin.topics.create("Stays")
    await admin.topics.delete("T")
    assert await admin.topics.list() == ("Stays",)
    assert [broker.topics.get("T") for broker in cluster.brokers] == [None, None]
    with pytest.raises(RouteNotFound):
        await admin.topics.describe("T")
    with pytest.raises(BrokersFailed, match=r"2 of 2 servers failed: .*reserved"):
        await admin.topics.delete("SELF_TEST_TOPIC")


async def test_a_group_reads_all_of_a_topic_that_is_created_again(
    admin: AdminClient, cluster: EmbeddedCluster
) -> None:
    """A group that is offline meanwhile would begin at the end: the topic's deletion removes its offsets."""
    await admin.topics.create("T", 2)
    handler = Seen()
    async with Producer("p", cluster.namesrv_address) as producer:
        queues = await producer.fetch_publish_message_queues("T")
        old = [(await producer.send(Message("T", b"old"), queue=queue)).message_id for queue in queues]
        async with consuming(cluster, handler, consume_from=ConsumeFrom.LAST_OFFSET):
            await until(lambda: len(handler.messages) == len(old))
        await admin.topics.delete("T")
        await admin.topics.create("T", 2)
        new = [(await producer.send(Message("T", b"new"), queue=queue)).message_id for queue in queues]
    async with consuming(cluster, handler, name="again", consume_from=ConsumeFrom.LAST_OFFSET):
        await until(lambda: len(handler.messages) == len(old) + len(new))
    assert {message.message_id for message in handler.messages} == {*old, *new}


async def test_a_topic_is_deleted_in_one_cluster_only(
    admin: AdminClient, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """Name servers delete the routes of all clusters: producers of another one could not send any more."""
    async with other_cluster(cluster, tmp_path):
        await admin.topics.create("T", 3)
        await admin.topics.delete("T", cluster=CLUSTER)
        found = await admin.topics.describe("T")
        assert found.brokers == {"other-a": TopicSettings(3, 3, BOTH, ordered=False)}
        async with Producer("p", cluster.namesrv_address) as producer:
            queues = await producer.fetch_publish_message_queues("T")
        assert {queue.broker_name for queue in queues} == {"other-a"}
        await admin.topics.delete("T", cluster=OTHER)
        assert await admin.topics.list() == ()


async def test_a_namespace_has_its_own_topics(cluster: EmbeddedCluster, admin: AdminClient) -> None:
    """A tenant would see or delete the topics of another."""
    await admin.topics.create("T", 1)
    async with AdminClient(cluster.namesrv_address, client=ClientConfig(namespace="tenant")) as tenant:
        assert await tenant.topics.list() == ()
        await tenant.topics.create("T", 2, ordered=True)
        assert await tenant.topics.list() == ("T",)
        assert await admin.topics.list() == ("T", "tenant%T")
        found = await tenant.topics.describe("T")
        assert found.name == "T"
        assert {queue.topic for queue in found.queues} == {"T"}
        async with consuming(cluster, Seen(), namespace="tenant"):
            assert (await tenant.topics.describe("T")).groups == ("g",)
        await tenant.topics.alter("T", read_queues=5)
        assert {one.read_queues for one in (await admin.topics.describe("T")).brokers.values()} == {1}
        await tenant.topics.delete("T")
    assert await admin.topics.list() == ("T",)


async def test_a_broker_that_is_offline_is_named(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """A change would silently miss a broker, or a query return a part."""
    await admin.topics.create("Kept", 2)
    async with missing_broker(cluster, "T"):
        with pytest.raises(BrokersFailed, match=r"1 of 3 servers failed: broker-z: ") as failed:
            await admin.topics.create("T")
        assert isinstance(failed.value.errors["broker-z"], ConnectFailed)
        assert failed.value.results == {"broker-a": None, "broker-b": None}
        assert [broker.topics.get("T") is not None for broker in cluster.brokers] == [True, True]
        for call in (
            admin.topics.describe("T"),
            admin.topics.alter("T", perm=BOTH),
            admin.topics.delete("T"),
        ):
            with pytest.raises(BrokersFailed, match="broker-z"):
                await call
        await admin.topics.alter("Kept", perm=Permission.READ)
        with pytest.raises(BrokersFailed, match=r"1 of 3 servers failed: broker-z: ") as failed:
            await admin.topics.create("Kept", 1)
        kept = TopicSettings(2, 2, Permission.READ, ordered=False)
        assert failed.value.results == {"broker-a": kept, "broker-b": kept}
    async with missing_broker(cluster, "Alone"):
        with pytest.raises(ConnectFailed):
            await admin.topics.describe("Alone")
    await admin.topics.create("T")  # repeated without the broker
    assert set((await admin.topics.describe("T")).brokers) == {"broker-a", "broker-b"}


async def test_a_broker_without_a_master_is_named(admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """A change would silently miss a broker whose master is being replaced."""
    async with missing_broker(cluster, broker_id=1):
        with pytest.raises(BrokersFailed, match="broker-z has no master now") as failed:
            await admin.topics.create("T")
        assert isinstance(failed.value.errors["broker-z"], RouteNotFound)


async def test_an_account_without_rights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator would not learn that the account lacks a right, or which broker says so."""
    async with Servers(tmp_path, monkeypatch) as servers:

        def client(key: str, secret: str) -> AdminClient:
            return AdminClient(
                str(servers.names),
                client=ClientConfig(credentials=Credentials(access_key=key, secret_key=secret)),
            )

        async with client("operator", "operator-secret") as admin:
            await admin.topics.create("Mine")
        async with client("my-account", "my-secret") as admin:
            for call in (
                admin.topics.create("Mine"),
                admin.topics.alter("Mine", read_queues=1),
                admin.topics.delete("Mine"),
                admin.topics.describe("Mine"),
            ):
                with pytest.raises(BrokerError, match="my-account") as refused:
                    await call
                assert refused.value.broker == servers.broker.config.name
        async with client("operator", "operator-secret") as admin:
            assert set((await admin.topics.describe("Mine")).queues.values()) == {(0, 0, None)}


async def test_every_name_server_forgets_a_topic(tmp_path: Path) -> None:
    """Clients of another name server would go on with a deleted topic, or with its order."""
    listen = ListenConfig(address=Address("tcp", "127.0.0.1", 0))
    servers = [NameServer(NamesrvConfig(listen=listen)) for _ in range(2)]
    async with AsyncExitStack() as stack:
        for server in servers:
            await server.start()
            stack.push_async_callback(server.close)
        addresses = ";".join(str(server.address) for server in servers)
        settings = {"namesrvAddr": addresses, "storePathRootDir": str(tmp_path), "listen": "127.0.0.1:0"}
        broker = Broker(load_broker_config(overrides=SETTINGS | settings))
        await broker.start()
        stack.push_async_callback(broker.close)
        admin = await stack.enter_async_context(AdminClient(addresses))

        def known() -> list[tuple[bool, str | None]]:
            return [
                (server.routes.route("T") is not None, server.kv.get("ORDER_TOPIC_CONFIG", "T"))
                for server in servers
            ]

        await admin.topics.create("T", 2, ordered=True)
        await until(lambda: known() == [(True, f"{broker.config.name}:2")] * 2)
        await admin.topics.delete("T")
        assert known() == [(False, None)] * 2


class BusyBroker:
    """An RPC hook that gives the statistics of a topic a rate."""

    def before_request(self, address: str, request: Command) -> None:
        """Do nothing."""

    def after_response(self, address: str, request: Command, response: Command) -> None:
        if request.code == RequestCode.VIEW_BROKER_STATS_DATA and response.code == ResponseCode.SUCCESS:
            found = BrokerStatsData.decode(response.body)
            found.stats_minute.tps = 2.5
            response.body = found.encode()


async def test_the_rate_of_a_topic_is_that_of_all_its_brokers(cluster: EmbeddedCluster) -> None:
    """A busy topic would seem to be unused, and be deleted."""
    config = ClientConfig(namesrv=cluster.namesrv_address, rpc_hooks=(BusyBroker(),))
    async with AdminClient(client=config) as admin, Producer("p", cluster.namesrv_address) as producer:
        await admin.topics.create("T", 1)
        for queue in await producer.fetch_publish_message_queues("T"):
            await producer.send(Message("T", b"x"), queue=queue)
        assert (await admin.topics.describe("T")).messages_per_second == 5.0
