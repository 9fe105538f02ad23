"""admin.brokers: the brokers of a cluster, their state, settings, permissions and statistics."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rocketpy import AdminClient, ClientConfig, Message, Producer
from rocketpy.admin import BrokerStatistic, DrainProgress, ProducerMember
from rocketpy.errors import BrokerError, BrokersFailed, ConfigInvalid, ConnectFailed, RouteNotFound
from rocketpy.protocol.bodies import KVTable
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.client.admin.admin_place import missing_broker
from tests.integration.sdk_groups import SETTINGS
from tests.integration.server.test_live_config import ALLOWED, servers
from tests.mqproducer.place import eventually
from tests.waiting import until


async def test_all_brokers_are_listed() -> None:
    """An operator would miss a slave, or take a broker for running that is not."""
    async with (
        EmbeddedCluster(brokers=2, slaves=1, settings=SETTINGS) as cluster,
        AdminClient(cluster.namesrv_address) as admin,
    ):
        found = await admin.brokers.list()
        assert [(one.cluster, one.name, one.broker_id) for one in found] == [
            ("DefaultCluster", name, number) for name in ("broker-a", "broker-b") for number in (0, 1)
        ]
        assert {one.address for one in found} == {str(broker.address) for broker in cluster.brokers}
        assert {one.version for one in found} == {"V4_6_0"}
        assert all(one.error is None and (one.in_per_second or 0) >= 0 for one in found)
        assert await admin.brokers.list("DefaultCluster") == found
        with pytest.raises(ConfigInvalid, match="DefaultCluster"):
            await admin.brokers.list("Nowhere")


class RuntimeOf5x:
    """An RPC hook that gives the runtime info of a broker the names of 5.x."""

    def before_request(self, address: str, request: Command) -> None:
        """Do nothing."""

    def after_response(self, address: str, request: Command, response: Command) -> None:
        if request.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            table = KVTable.decode(response.body).table
            del table["getTransferedTps"]
            response.body = KVTable(table=table | {"getTransferredTps": "7.5 1.0 0.5"}).encode()


async def test_rates_of_newer_brokers_are_read(cluster: EmbeddedCluster) -> None:
    """Brokers of 5.x, which renamed the key, would seem to deliver nothing."""
    config = ClientConfig(namesrv=cluster.namesrv_address, rpc_hooks=(RuntimeOf5x(),))
    async with AdminClient(client=config) as admin:
        (broker,) = await admin.brokers.list()
    assert broker.out_per_second == 7.5


async def test_a_broker_that_does_not_respond_is_listed(cluster: EmbeddedCluster) -> None:
    """One dead broker would hide all others from an operator."""
    async with missing_broker(cluster), AdminClient(cluster.namesrv_address) as admin:
        found = await admin.brokers.list()
        assert [(one.name, one.version) for one in found] == [("broker-a", "V4_6_0"), ("broker-z", None)]
        assert isinstance(found[1].error, ConnectFailed)
        with pytest.raises(BrokersFailed) as failure:
            await admin.brokers.clean_expired_queues()
        assert set(failure.value.errors) == {"broker-z"}
        assert set(failure.value.results) == {"broker-a"}


async def test_state_settings_and_statistics(cluster: EmbeddedCluster, producer: Producer) -> None:
    """An operator would see the state of another broker, or none."""
    address = str(cluster.brokers[0].address)
    for _ in range(3):
        await producer.send(Message("T", b"x"))
    async with AdminClient(cluster.namesrv_address) as admin:

        async def counted() -> bool | None:
            return (await admin.brokers.runtime(address))["msgPutTotalTodayNow"] == "3" or None

        assert await eventually(counted)
        assert (await admin.brokers.config(address))["brokerName"] == "broker-a"
        await admin.brokers.stats(address, "TOPIC_PUT_NUMS", "T")  # counted from the first sample on
        for _ in range(2):
            await producer.send(Message("T", b"x"))

        async def sampled() -> BrokerStatistic | None:
            stats = await admin.brokers.stats(address, "TOPIC_PUT_NUMS", "T")
            return stats if {period.total for period in stats} == {2} else None

        assert (await eventually(sampled)).minute.per_second > 0
        with pytest.raises(BrokerError, match="not exist"):
            await admin.brokers.stats(address, "TOPIC_PUT_NUMS", "Nowhere")
        with pytest.raises(BrokerError, match="remoteConfigUpdateEnable"):
            await admin.brokers.set_config(address, {"fileReservedTime": "48"})
        with pytest.raises(ConnectFailed):
            await admin.brokers.runtime("127.0.0.1:1")


@pytest.mark.parametrize("namespace", ["", "tenant"])
async def test_producers_are_listed(namespace: str) -> None:
    """An operator could not tell which applications still send."""
    client = ClientConfig(namespace=namespace, heartbeat_ms=50)
    async with (
        EmbeddedCluster(brokers=2, settings=SETTINGS) as cluster,
        AdminClient(cluster.namesrv_address, client=client) as admin,
    ):
        assert await admin.brokers.producers("shop") == ()
        async with Producer("shop", cluster.namesrv_address, client=client) as producer:
            await producer.create_topic("T", 1)
            await producer.send(Message("T", b"x"))

            async def all_known() -> ProducerMember | None:
                found = await admin.brokers.producers("shop")
                return found[0] if found and len(found[0].brokers) == 2 else None

            member = await eventually(all_known)
            assert (member.language, member.version) == ("PYTHON", "4.6.0")
            assert member.brokers == ("broker-a", "broker-b")
        async with missing_broker(cluster):
            with pytest.raises(BrokersFailed):
                await admin.brokers.producers("shop")


async def test_settings_are_changed(tmp_path: Path) -> None:
    """A change would be lost, or a value with special characters arrive as another one."""
    async with servers(tmp_path, ALLOWED) as (names, broker), AdminClient(str(names.address)) as admin:
        address = str(broker.address)
        await admin.brokers.set_config(address, {"fileReservedTime": "48", "deleteWhen": "04; 16"})
        found = await admin.brokers.config(address)
        assert (found["fileReservedTime"], found["deleteWhen"]) == ("48", "04; 16")
        with pytest.raises(BrokerError, match="cannot be changed"):
            await admin.brokers.set_config(address, {"storePathRootDir": "/x"})


async def test_a_broker_is_hidden_from_producers() -> None:
    """Producers would go on to send to a broker that is to be stopped."""
    async with (
        EmbeddedCluster(brokers=2, settings=SETTINGS) as cluster,
        AdminClient(cluster.namesrv_address) as admin,
    ):
        await admin.create_topic("T", 1)
        assert await admin.brokers.wipe_write_permission("broker-a") > 1
        queues = await admin.fetch_publish_message_queues("T")
        assert {queue.broker_name for queue in queues} == {"broker-b"}
        assert await admin.brokers.add_write_permission("broker-a") > 1
        queues = await admin.fetch_publish_message_queues("T")
        assert {queue.broker_name for queue in queues} == {"broker-a", "broker-b"}
        assert await admin.brokers.wipe_write_permission("nobody") == 0


async def test_a_drain_waits_for_producers_and_slaves() -> None:
    """A broker would be stopped while producers still send to it, or before its slave has all messages."""
    stale = ClientConfig(route_refresh_ms=3_600_000)
    async with (
        EmbeddedCluster(brokers=2, slaves=1, settings=SETTINGS) as cluster,
        AdminClient(cluster.namesrv_address) as admin,
        Producer("p", cluster.namesrv_address, client=stale) as producer,
    ):
        await admin.create_topic("T", 1)
        (queue,) = [
            q for q in await producer.fetch_publish_message_queues("T") if q.broker_name == "broker-a"
        ]
        await admin.topics.create("Both", 1)
        plan = await admin.brokers.plan_drain("broker-a")
        assert (plan.cluster, plan.topics, plan.unmovable_topics) == ("DefaultCluster", ("Both", "T"), ())
        (slave,) = plan.slaves
        assert (len(await admin.fetch_publish_message_queues("T")), plan.is_elected) == (2, False)
        steps: list[DrainProgress] = []
        draining = asyncio.create_task(
            admin.brokers.drain("broker-a", wait_ms=0, quiet_ms=1000, on_progress=steps.append)
        )
        while sum(step.stored for step in steps) < 100:
            await producer.send(Message("T", b"x"), queue=queue)
        assert not draining.done()
        assert {q.broker_name for q in await admin.fetch_publish_message_queues("T")} == {"broker-b"}
        assert await draining == plan
        assert steps[-1].per_second == 0
        ends = {
            (await admin.brokers.runtime(address))["commitLogMaxOffset"] for address in (plan.address, slave)
        }
        assert len(ends) == 1
        with pytest.raises(RouteNotFound, match=r"no master of broker c; .* broker-a, broker-b"):
            await admin.brokers.plan_drain("c")


async def test_a_drain_counts_on_no_hidden_broker() -> None:
    """After one broker another would be hidden, and sends fail."""
    async with (
        EmbeddedCluster(brokers=2, settings=SETTINGS) as cluster,
        AdminClient(cluster.namesrv_address) as admin,
    ):
        await admin.topics.create("Both", 1)
        await admin.create_topic("Alone", 1, key="broker-a")
        plan = await admin.brokers.plan_drain("broker-a")
        assert (plan.topics, plan.unmovable_topics, plan.is_hidden) == (("Both",), ("Alone",), False)
        await admin.brokers.wipe_write_permission("broker-a")
        assert await admin.brokers.plan_drain("broker-a") == plan._replace(is_hidden=True)
        other = await admin.brokers.plan_drain("broker-b")
        assert (other.topics, other.unmovable_topics, other.is_hidden) == ((), ("Both",), False)


async def test_a_drain_names_what_cannot_move(cluster: EmbeddedCluster) -> None:
    """The only broker would be hidden, and every send fail."""
    async with AdminClient(cluster.namesrv_address) as admin:
        assert (await admin.brokers.plan_drain("broker-a")).unmovable_topics == ("T",)
        with pytest.raises(RouteNotFound, match="was not hidden"):
            await admin.brokers.drain("broker-a")
        assert await admin.fetch_publish_message_queues("T")


async def test_unused_queues_are_deleted(cluster: EmbeddedCluster, producer: Producer) -> None:
    """The files of deleted topics would stay until their messages expire."""
    await producer.send(Message("T", b"x"))
    store = cluster.brokers[0].store
    await until(lambda: store.max_offset_in_queue("T", 0) >= 0)
    async with AdminClient(cluster.namesrv_address) as admin:
        await admin.brokers.clean_expired_queues()
        await admin.brokers.clean_unused_topics("DefaultCluster")
        assert any(key[0] == "T" for key in store.queues.queues)
        with pytest.raises(ConfigInvalid):
            await admin.brokers.clean_unused_topics("Nowhere")
