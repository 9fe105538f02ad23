"""Transactions, delays, requests and ids of rocketpy, with RocketMQ's clients and tools on the other side."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from rocketpy import LocalTransactionState, Message, Producer, ProducerConfig
from tests.interop.cluster import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import ALL_VERSIONS, OUR_SDK, Side, serve
from tests.mqproducer.place import BROKER_SETTINGS, Place

pytestmark = pytest.mark.interop

COMMIT, ROLLBACK, UNKNOWN = (
    LocalTransactionState.COMMIT,
    LocalTransactionState.ROLLBACK,
    LocalTransactionState.UNKNOWN,
)


@pytest.fixture(scope="module", params=[*OUR_SDK, *ALL_VERSIONS], ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One running pair of servers for each pairing."""
    side: Side = request.param
    with serve(side, peer, tmp_path_factory.mktemp("features"), conf=BROKER_SETTINGS) as running:
        yield running


def producer(servers: Cluster) -> Producer:
    """A producer for these servers, which may be slow to send their first responses."""
    config = ProducerConfig(send_timeout_ms=15_000)
    return Producer("interop_features", servers.namesrv.address, config=config)


async def test_java_reads_transactions_and_delays(servers: Cluster) -> None:
    """A Java consumer would get rolled-back messages, or miss committed, checked or delayed ones."""
    topic, place = servers.topic("deferred"), Place(servers.namesrv.address)
    async with producer(servers) as sender:
        ends = {b"committed": COMMIT, b"rolled back": ROLLBACK, b"checked": UNKNOWN}
        # A slow broker may check a transaction before its end arrives; the check has the same result.
        sender.check_transactions(lambda half: {**ends, b"checked": COMMIT}[half.body])
        await place.made(sender, topic)
        for body, state in ends.items():

            async def local(_half: Message, state: LocalTransactionState = state) -> LocalTransactionState:
                return state

            await sender.send_in_transaction(Message(topic, body, keys="tx"), local_transaction=local)
        await sender.send(Message(topic, b"delayed", delay_level=1))
        await place.read(topic, 3, timeout_s=90)
    theirs = {bytes.fromhex(one["body"]): one for one in await asyncio.to_thread(servers.pull_all, topic)}
    assert set(theirs) == {b"committed", b"checked", b"delayed"}
    assert theirs[b"committed"]["sysFlag"] & 8
    assert theirs[b"committed"]["keys"] == "tx"
    assert theirs[b"delayed"]["properties"]["DELAY"] == "1"


async def test_mqadmin_finds_messages(servers: Cluster) -> None:
    """An operator of the cluster could not find a message by its key or either of its ids."""
    topic, place = servers.topic("found"), Place(servers.namesrv.address)
    async with producer(servers) as sender:
        result = await sender.send(Message(topic, b"look", keys="order-42", tags="paid"))
        await place.read(topic, 1)
    looks = {
        result.message_id: ("queryMsgByKey", "-t", topic, "-k", "order-42"),
        "order-42": ("queryMsgByUniqueKey", "-t", topic, "-i", result.message_id),
        "[order-42]": ("queryMsgById", "-i", result.offset_message_id),
    }
    for text, look in looks.items():
        await asyncio.to_thread(servers.admin_shows, text, *look)


async def test_java_gets_replies_of_rocketpy(servers: Cluster) -> None:
    """A Java requester would never get the reply of a Python replier."""
    topic, place = servers.topic("java_asks"), Place(servers.namesrv.address)
    async with producer(servers) as sender:
        await place.made(sender, topic)
    steps = [{"topic": topic, "body": f"question {n}".encode().hex()} for n in range(5)]
    async with place.replier(topic):
        results = await asyncio.to_thread(servers.drive, "Rpc", *steps)
    assert [bytes.fromhex(result["body"]) for result in results] == [b"re: question %d" % n for n in range(5)]


async def test_rocketpy_gets_replies_of_java(servers: Cluster) -> None:
    """A Python requester would never get the reply of a Java replier."""
    topic, place = servers.topic("we_ask"), Place(servers.namesrv.address)
    arguments = (servers.namesrv.address, "interop_replier", topic)
    async with producer(servers) as sender:
        await place.made(sender, topic)
        with servers.peer.running("Rpc", *arguments, home=servers.run / f"replier-{topic}"):
            bodies = [b"question %d" % n for n in range(5)]
            replies = await asyncio.gather(
                *[sender.request(Message(topic, body), timeout_ms=40_000) for body in bodies]
            )
    assert [reply.body for reply in replies] == [b"re: " + body for body in bodies]
