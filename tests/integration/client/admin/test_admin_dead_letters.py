"""admin.dead_letters: dead letters of all groups are listed, read by time, and resent in bulk."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from rocketpy import AdminClient, ClientConfig, Later, Message, MessageExt, Producer
from rocketpy.admin import Permission, ResendProgress
from rocketpy.errors import BrokerError, GroupInvalid, RouteNotFound
from rocketpy.protocol.bodies import TopicConfig
from rocketpy.protocol.codes import ResponseCode
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.consumer.test_dead_letters import dead
from tests.integration.sdk_groups import SETTINGS, Seen, consuming
from tests.waiting import until


async def read(admin: AdminClient, group: str = "g", **limits: int) -> list[MessageExt]:
    return [message async for message in admin.dead_letters.read(group, **limits)]


@pytest.mark.parametrize("namespace", ["", "tenant"])
async def test_groups_with_dead_letters_are_listed_and_read(namespace: str) -> None:
    """An operator would not learn of messages that a group gave up, or see those of other tenants."""
    client = ClientConfig(namespace=namespace)
    async with EmbeddedCluster(brokers=2, settings=SETTINGS) as cluster:
        await dead(cluster, 7, namespace=namespace)
        async with AdminClient(cluster.namesrv_address, client=client) as admin:
            await until_listed(admin)
            assert await admin.dead_letters.groups() == ("g",)
            found = await read(admin)
            assert len({message.message_id for message in found}) == 7
            assert {message.topic for message in found} == {"%DLQ%g"}
            times = sorted(message.store_timestamp for message in found)
            between = await read(admin, begin_ms=times[2], end_ms=times[4])
            assert {message.message_id for message in between} == {
                message.message_id for message in found if times[2] <= message.store_timestamp <= times[4]
            }
            assert await read(admin, end_ms=times[0] - 1) == []
            assert await read(admin, "nobody") == []
            with pytest.raises(GroupInvalid):
                await read(admin, "a b")
        async with AdminClient(
            cluster.namesrv_address, client=ClientConfig(namespace="stranger")
        ) as stranger:
            assert await stranger.dead_letters.groups() == ()


async def until_listed(admin: AdminClient) -> None:
    async with asyncio.timeout(10):
        while not await admin.dead_letters.groups():  # noqa: ASYNC110 - registrations have no event here
            await asyncio.sleep(0.01)


async def test_all_dead_letters_are_sent_again_once() -> None:
    """Messages that fail again would be resent forever, or an operator could not see the progress."""
    async with EmbeddedCluster(brokers=2, settings=SETTINGS) as cluster:
        await dead(cluster, 9)
        async with AdminClient(cluster.namesrv_address) as admin:
            fails = Seen(lambda _: Later(delay_level=-1))
            steps: list[ResendProgress] = []
            async with consuming(cluster, fails):
                done = await admin.dead_letters.resend_all("g", on_progress=steps.append)
                assert (done.resent, done.skipped, done.damaged) == (9, 0, ())
                assert [step.resent for step in steps] == list(range(1, 10))
                await fails.until(9)

                def letters() -> int:
                    return sum(broker.store.max_offset_in_queue("%DLQ%g", 0) for broker in cluster.brokers)

                await until(lambda: letters() == 18)
            rest = await admin.dead_letters.resend_all("g", offsets=done.next_offsets, wanted=lambda _: False)
            assert (rest.resent, rest.skipped) == (0, 9)


async def test_counting_dead_letters_changes_nothing() -> None:
    """Reading the counts would change the permission of a topic."""
    async with EmbeddedCluster(settings=SETTINGS) as cluster, AdminClient(cluster.namesrv_address) as admin:
        await admin.topics.create("%DLQ%g", 1, perm=Permission.WRITE)
        async with Producer("p", cluster.namesrv_address) as producer:
            await producer.send(Message("%DLQ%g", b"one"))
        assert await admin.dead_letters.count("g") == 1
        assert await admin.dead_letters.count("nobody") == 0
        with pytest.raises(BrokerError) as refused:
            await admin.dead_letters.fetch("g", make_readable=False)
        assert refused.value.code == ResponseCode.NO_PERMISSION
        (settings,) = (await admin.topics.describe("%DLQ%g")).brokers.values()
        assert settings.perm == Permission.WRITE
        assert [message.body for message in (await admin.dead_letters.fetch("g")).messages] == [b"one"]


async def test_dead_letters_are_made_readable_only() -> None:
    """Reading dead letters would undo other changes of their topic."""
    async with EmbeddedCluster(settings=SETTINGS) as cluster, AdminClient(cluster.namesrv_address) as admin:
        topics = cluster.brokers[0].topics
        config = TopicConfig(
            topic_name="%DLQ%g",
            read_queue_nums=3,
            write_queue_nums=2,
            perm=Permission.WRITE.value,
            topic_filter_type="MULTI_TAG",
            topic_sys_flag=1,
        )
        await topics.update(config)
        async with Producer("p", cluster.namesrv_address) as producer:
            await producer.send(Message("%DLQ%g", b"one"))
        config.topic_sys_flag = 2  # the name server does not know it yet
        assert [message.body for message in (await admin.dead_letters.fetch("g")).messages] == [b"one"]
        both = (Permission.READ | Permission.WRITE).value
        assert topics.get("%DLQ%g") == msgspec.structs.replace(config, perm=both)


class Stop(Exception):
    """Raised by a progress callback to end the call."""


async def test_a_resend_continues_where_it_stopped() -> None:
    """After an error, an operator would have to resend all dead letters, or would miss some."""
    async with EmbeddedCluster(brokers=2, settings=SETTINGS) as cluster:
        sent = await dead(cluster, 9)
        async with AdminClient(cluster.namesrv_address) as admin:
            last: list[ResendProgress] = []

            def stop(progress: ResendProgress) -> None:
                last.append(progress)
                if progress.resent + progress.skipped == 6:
                    raise Stop

            def wanted(message: MessageExt) -> bool:
                return message.properties["n"] != "3"

            with pytest.raises(Stop):
                await admin.dead_letters.resend_all("g", wanted=wanted, on_progress=stop)
            rest = await admin.dead_letters.resend_all("g", wanted=wanted, offsets=last[-1].next_offsets)
            assert last[-1].resent + rest.resent == 8
            assert last[-1].skipped + rest.skipped == 1
            seen = Seen()
            async with consuming(cluster, seen):
                await seen.until(8)
            assert seen.bodies.total() == 8
            assert {message.properties["n"] for message in seen.messages} == {
                message.properties["n"] for message in sent
            } - {"3"}


async def test_dead_letters_without_a_master_are_not_sent() -> None:
    """A slave would be asked to change a topic, or to store a message, and dead letters seem lost."""
    async with EmbeddedCluster(slaves=1, settings=SETTINGS) as cluster:
        gives_up = Seen(lambda _: Later(delay_level=-1))
        async with (
            AdminClient(cluster.namesrv_address) as admin,
            Producer("p", cluster.namesrv_address) as producer,
        ):
            await admin.create_topic("T")
            await producer.send(Message("T", b"x"))
            async with consuming(cluster, gives_up):
                await gives_up.until(1)
                stores = [broker.store for broker in cluster.brokers]
                await until(lambda: all(store.max_offset_in_queue("%DLQ%g", 0) == 1 for store in stores))
            found = await read(admin)
            assert len(found) == 1
            await cluster.brokers[0].close()
            with pytest.raises((RouteNotFound, BrokerError)):
                await read(admin)
            with pytest.raises(RouteNotFound):
                await admin.dead_letters.resend(found[0])
