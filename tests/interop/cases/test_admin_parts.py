"""The admin client's messages, dead letters, brokers, name servers and accounts with RocketMQ's servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    ConsumeFrom,
    Later,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
)
from rocketpy.admin import ProducerMember, QueryResult, TrackState
from rocketpy.errors import BrokerError, Outcome, RequestTimeout, RocketError
from tests.interop.cluster import Cluster, only_broker
from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer
from tests.interop.sides import NEWER, OPERATOR, OPERATOR_ACL, OUR_SDK, Side, serve
from tests.mqproducer.place import eventually

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module", params=[OUR_SDK[0], *NEWER], ids=lambda side: side.direction)
def side(request: pytest.FixtureRequest) -> Side:
    """A pairing with servers of one version."""
    found: Side = request.param
    return found


@pytest.fixture(scope="module")
def servers(side: Side, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One running pair of servers for each version."""
    with serve(side, peer, tmp_path_factory.mktemp("admin")) as running:
        yield running


def queue_of(servers: Cluster, topic: str) -> MessageQueue:
    return MessageQueue(topic, str(servers.broker.conf["brokerName"]), 0)


async def send(servers: Cluster, topic: str, count: int) -> None:
    """Send messages with keys, one after the other, to the only queue of a topic."""
    config = ProducerConfig(send_timeout_ms=15_000, batching=False)
    async with Producer("admin_senders", servers.namesrv.address, config=config) as producer:
        await producer.create_topic(topic, 1)
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number, tags="t", keys=[f"k{number}"]))


async def test_messages_are_found(servers: Cluster) -> None:
    """An operator would find another message than the wanted one, or none."""
    topic = servers.topic("found")
    await send(servers, topic, 8)
    async with AdminClient(servers.namesrv.address) as admin:

        async def all_messages() -> list[MessageExt] | None:
            found = [message async for message in admin.messages.by_time(topic)]
            return found if len(found) == 8 else None

        messages = await eventually(all_messages)  # a broker dispatches after its response
        assert [message.body for message in messages] == [b"%d" % number for number in range(8)]
        three = messages[3]

        async def by_key() -> QueryResult | None:
            found = await admin.messages.by_key(topic, "k3")
            return found if found.messages else None

        found = [
            *(await eventually(by_key)).messages,
            await admin.messages.by_id(three.offset_message_id),
            await admin.messages.by_unique_id(topic, three.message_id),
            await admin.messages.by_offset(queue_of(servers, topic), 3),
        ]
        assert [message.body for message in found] == [b"3"] * 4
        later = [one async for one in admin.messages.by_time(topic, three.store_timestamp)]
        assert [one.body for one in later] == [
            one.body for one in messages if one.store_timestamp >= three.store_timestamp
        ]
        early = [one async for one in admin.messages.by_time(topic, 0, three.store_timestamp)]
        assert [one.body for one in early] == [
            one.body for one in messages if one.store_timestamp <= three.store_timestamp
        ]
        part = [one async for one in admin.messages.of_queue(queue_of(servers, topic), 2, 5)]
        assert [one.body for one in part] == [b"2", b"3", b"4"]
        with pytest.raises(BrokerError, match="has no message at offset 8; its offsets: 0 to 7"):
            await admin.messages.by_offset(queue_of(servers, topic), 8)
        with pytest.raises(BrokerError):
            await admin.messages.by_unique_id(topic, "7F0000010002E3C7A4B10000000000FF")


async def test_consumers_of_a_message_and_dead_letters(servers: Cluster) -> None:
    """An operator would not learn who has handled a message, or could not have it handled again."""
    topic, group = servers.topic("tracked"), servers.topic("admin_group")
    await send(servers, topic, 3)
    seen: list[MessageExt] = []
    fails = True

    async def handle(message: MessageExt) -> Later | None:
        seen.append(message)
        return Later(delay_level=-1) if fails else None

    config = PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET, persist_interval_ms=100)
    consumer = PushConsumer(group, servers.namesrv.address, handle, config=config)
    consumer.subscribe(topic)
    async with AdminClient(servers.namesrv.address) as admin, consumer:

        async def has_letters() -> bool | None:
            return len((await admin.dead_letters.fetch(group)).messages) == 3 or None

        assert await eventually(has_letters, 60)
        message = await admin.messages.by_offset(queue_of(servers, topic), 1)

        async def is_consumed() -> bool | None:
            tracks = {track.group: track for track in await admin.messages.consumers_of(message)}
            return (group in tracks and tracks[group].state is TrackState.CONSUMED) or None

        assert await eventually(is_consumed)
        fails = False
        delivery = await admin.messages.deliver(message, group, consumer.member.client.client_id)
        assert delivery.status == "CR_SUCCESS"
        assert seen[-1].body == b"1"
        with pytest.raises(BrokerError, match="not online"):
            await admin.messages.deliver(message, group, "nobody@1")
        assert group in await admin.dead_letters.groups()
        letters = [letter async for letter in admin.dead_letters.read(group)]
        assert {letter.body for letter in letters} == {b"0", b"1", b"2"}
        before = len(seen)
        done = await admin.dead_letters.resend_all(group)
        assert (done.resent, done.damaged) == (3, ())

        async def arrived() -> bool | None:
            return len(seen) >= before + 3 or None

        assert await eventually(arrived, 60)
        assert {one.body for one in seen[before:]} == {b"0", b"1", b"2"}
        assert (await admin.dead_letters.resend_all(group, offsets=done.next_offsets)).resent == 0


async def test_dead_letters_of_an_orderly_group(servers: Cluster, side: Side) -> None:
    """Brokers of 5.x make them dead letters again while members have locks, and report success."""
    topic, group = servers.topic("in_order"), servers.topic("orderly_group")
    await send(servers, topic, 1)
    seen: list[MessageExt] = []

    async def handle(message: MessageExt) -> Later | None:
        seen.append(message)
        return Later(suspend_ms=10) if len(seen) == 1 else None

    def consumer() -> PushConsumer:
        config = PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET, orderly=True, max_reconsume_times=0)
        made = PushConsumer(group, servers.namesrv.address, handle, config=config)
        made.subscribe(topic)
        return made

    async with AdminClient(servers.namesrv.address) as admin:

        async def letters() -> int:
            return len((await admin.dead_letters.fetch(group)).messages)

        async def handled_again() -> bool | None:
            return len(seen) == 2 or None

        async with consumer():

            async def has_letter() -> bool | None:
                return await letters() == 1 or None

            assert await eventually(has_letter, 60)
            if side.version.startswith("5."):
                with pytest.raises(RocketError, match="Close the group's consumers") as failed:
                    await admin.dead_letters.resend_all(group)
                assert failed.value.outcome is Outcome.STORED
                assert await letters() == 2
            else:
                assert (await admin.dead_letters.resend_all(group)).resent == 1
                assert await eventually(handled_again, 60)
        if side.version.startswith("5."):
            letter = (await admin.dead_letters.fetch(group)).messages[0]
            await admin.dead_letters.resend(letter)
            async with consumer():
                assert await eventually(handled_again, 60)
        assert {message.body for message in seen} == {b"0"}


async def test_producers_are_listed(servers: Cluster) -> None:
    """An operator could not tell which applications still send."""
    client = ClientConfig(namesrv=servers.namesrv.address, heartbeat_ms=100)
    async with AdminClient(servers.namesrv.address) as admin, Producer("shop", client=client) as producer:
        topic = servers.topic("produced")
        await producer.create_topic(topic, 1)
        await producer.send(Message(topic, b"x"), timeout_ms=15_000)

        async def is_known() -> ProducerMember | None:
            return next(iter(await admin.brokers.producers("shop")), None)

        member = await eventually(is_known)
        assert (member.client_id, member.language) == (producer._running_client().client_id, "PYTHON")
        assert member.brokers == (str(servers.broker.conf["brokerName"]),)


async def test_name_servers_keep_settings(servers: Cluster) -> None:
    """An operator's settings would not arrive, or arrive changed."""
    async with AdminClient(servers.namesrv.address) as admin:
        names = admin.name_servers
        assert await names.get("SPACE", "key") is None
        assert await names.namespace("NOWHERE") == {}
        await names.put("SPACE", "key", "a = b; ü")
        assert await names.get("SPACE", "key") == "a = b; ü"
        assert await names.namespace("SPACE") == {"key": "a = b; ü"}
        await names.delete("SPACE", "key")
        assert await names.get("SPACE", "key") is None
        (before,) = (await names.config()).values()
        assert before["orderMessageEnable"] == "false"
        await names.set_config({"orderMessageEnable": "true"})
        (after,) = (await names.config()).values()
        assert after["orderMessageEnable"] == "true"


async def test_brokers_are_shown_and_changed(servers: Cluster, side: Side) -> None:
    """An operator would see the state of no broker, or could not take one out of service."""
    topic, address = servers.topic("hidden"), servers.broker.address
    await send(servers, topic, 1)
    name = str(servers.broker.conf["brokerName"])
    async with AdminClient(servers.namesrv.address) as admin:
        broker = await only_broker(admin)
        assert (broker.name, broker.broker_id, broker.address) == (name, 0, address)
        assert (broker.version or "").startswith("V" + side.version.replace(".", "_"))
        assert int((await admin.brokers.runtime(address))["bootTimestamp"]) > 0
        assert (await admin.brokers.config(address))["brokerName"] == name
        await admin.brokers.set_config(address, {"fileReservedTime": "48", "deleteWhen": "04;16"})
        config = await admin.brokers.config(address)
        assert (config["fileReservedTime"], config["deleteWhen"]) == ("48", "04;16")
        await admin.brokers.stats(address, "TOPIC_PUT_NUMS", topic)
        assert await admin.brokers.producers("nobody") == ()
        await admin.brokers.clean_expired_queues()
        await admin.brokers.clean_unused_topics()
        assert await admin.brokers.wipe_write_permission(name) > 0
        assert await admin.fetch_publish_message_queues(topic) == ()
        if side.version != DEFAULT_VERSION:
            assert await admin.brokers.add_write_permission(name) > 0
            assert len(await admin.fetch_publish_message_queues(topic)) == 1
        else:
            with pytest.raises(RequestTimeout):  # 4.6.0 does not respond to unknown requests
                await admin.brokers.add_write_permission(name)


# RocketMQ 5.3 has ACL 2.0, with other accounts.
@pytest.mark.parametrize("side", [OUR_SDK[0], NEWER[0]], ids=lambda side: side.direction)
async def test_accounts_are_managed(peer: JavaPeer, tmp_path: Path, side: Side) -> None:
    """An operator could not give an application its rights, or take them away."""
    conf = tmp_path / "java-broker" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(OPERATOR_ACL)
    with serve(side, peer, tmp_path, conf={"aclEnable": "true"}) as servers:
        name = str(servers.broker.conf["brokerName"])
        client = ClientConfig(namesrv=servers.namesrv.address, credentials=OPERATOR)
        async with AdminClient(client=client) as admin:
            before = (await admin.accounts.versions())[name]
            await admin.accounts.put(
                "newcomer", "fresh-secret", topic_perms={"News": "PUB"}, group_perms={"g": "SUB"}
            )
            rules = (await admin.accounts.list())[name]
            assert set(rules.accounts) == {"operator", "newcomer"}
            newcomer = rules.accounts["newcomer"]
            assert (newcomer.topic_perms, newcomer.group_perms) == ({"News": "PUB"}, {"g": "SUB"})
            assert (newcomer.admin, rules.accounts["operator"].admin) == (False, True)
            assert "secret" not in repr(rules)
            await admin.accounts.set_white_addresses(["10.10.1.1", "192.168.0.*"])
            rules = (await admin.accounts.list())[name]
            assert rules.white_addresses == ["10.10.1.1", "192.168.0.*"]
            await admin.accounts.delete("newcomer")
            assert set((await admin.accounts.list())[name].accounts) == {"operator"}
            if side.version == DEFAULT_VERSION:  # 4.9.7 reports a version for each of its files
                assert (await admin.accounts.versions())[name] != before
