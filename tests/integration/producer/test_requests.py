"""Transactions and request-reply over real sockets, with several brokers or producers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    create_reply_message,
)
from rocketpy.errors import ClientClosed
from rocketpy_broker.embedded import EmbeddedCluster
from tests.mqproducer.place import BROKER_SETTINGS, Place
from tests.waiting import LIMIT_S

COMMIT, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN


def commits(own: bytes) -> Callable[[MessageExt], LocalTransactionState]:
    """A check that commits the message with this body, and does not know others."""
    return lambda half: COMMIT if half.body == own else UNKNOWN


@pytest.mark.parametrize("transport", ["tcp", "memory"])
async def test_a_reply_succeeds_through_any_broker(transport: Literal["tcp", "memory"]) -> None:
    """Half of the replies would first be sent to a broker that does not know the requester, and be late."""
    async with (
        EmbeddedCluster(brokers=2, transport=transport) as cluster,
        Producer("asking", cluster.namesrv_address) as asking,
        Producer("replier", cluster.namesrv_address, client=ClientConfig(instance_name="other")) as replier,
    ):
        place = Place(cluster.namesrv_address)
        queues = await place.made(asking, "Questions")
        only_a = [queue for queue in queues if queue.broker_name == "broker-a"]
        assert len(only_a) < len(queues)
        futures = [asking.request_nowait(Message("Questions", b"%d" % n), queue=only_a[0]) for n in range(8)]
        requests = await place.read("Questions", 8)
        through = set()
        for request in requests:
            result = await replier.send(create_reply_message(request, b"re: " + request.body))
            through.add(result.queue.broker_name)
        assert through == {"broker-a", "broker-b"}
        replies = await asyncio.gather(*futures)
        assert [reply.body for reply in replies] == [b"re: %d" % n for n in range(8)]


async def test_a_restarted_producer_checks_an_old_transaction() -> None:
    """A transaction that was open when its process died would stay open."""
    asked: list[str | None] = []

    def check(half: MessageExt) -> LocalTransactionState:
        asked.append(half.transaction_id)
        return COMMIT

    async with EmbeddedCluster(settings=BROKER_SETTINGS) as cluster:
        place = Place(cluster.namesrv_address)
        async with Producer("restarted", cluster.namesrv_address) as first:
            await place.made(first, "Orders")
            left_open = await first.send_in_transaction(
                Message("Orders", b"open"), local_transaction=lambda _: UNKNOWN, check=lambda _: UNKNOWN
            )
        second = Producer("restarted", cluster.namesrv_address)
        second.check_transactions(check)
        async with second:
            (seen,) = await place.read("Orders", 1)
    assert seen.message_id == left_open.message_id
    assert asked == [left_open.transaction_id]


async def test_two_producers_of_one_client() -> None:
    """One producer would get the transaction checks of the other, or its close end the other's replies."""
    async with (
        EmbeddedCluster(settings=BROKER_SETTINGS) as cluster,
        Producer("one", cluster.namesrv_address) as one,
        PullConsumer("reading", cluster.namesrv_address),
    ):
        place = Place(cluster.namesrv_address)
        await place.made(one, "Shared")
        async with Producer("two", cluster.namesrv_address) as two:
            for producer, body in ((one, b"1"), (two, b"2")):
                producer.check_transactions(commits(body))
                await producer.send_in_transaction(
                    Message("Shared", body), local_transaction=lambda _: UNKNOWN
                )
            assert {message.body for message in await place.read("Shared", 2)} == {b"1", b"2"}
        async with place.replier("Shared"):
            assert (
                await one.request(Message("Shared", b"still there?"), timeout_ms=10_000)
            ).body == b"re: still there?"


async def test_requests_of_clients_that_do_not_run() -> None:
    """A request before the start or after the close would wait for a response instead of raising."""
    admin = AdminClient("127.0.0.1:9")
    with pytest.raises(ClientClosed, match="was not started"):
        await admin.create_topic("T")
    producer = Producer("g", "127.0.0.1:9")
    with pytest.raises(ClientClosed, match="not started"):
        await producer.request(Message("T", b"x"))
    with pytest.raises(ClientClosed, match="not started"):
        await producer.send_in_transaction(Message("T", b"x"), local_transaction=lambda _: COMMIT)
    async with EmbeddedCluster() as cluster:
        async with AdminClient(cluster.namesrv_address) as admin:
            assert admin.health().ok
        with pytest.raises(ClientClosed, match="is closed"):
            await admin.create_topic("T")


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_check_closes_its_producer(blocking: bool) -> None:
    """The result of the check would be lost, and the message wait until another producer is asked."""
    async with EmbeddedCluster(settings=BROKER_SETTINGS) as cluster:
        place = Place(cluster.namesrv_address)
        async with Producer("others", cluster.namesrv_address) as other:
            await place.made(other, "Orders")
        own_connections = ClientConfig(instance_name="closing")
        producer = Producer("closing", cluster.namesrv_address, client=own_connections)
        loop = asyncio.get_running_loop()

        async def check(_: MessageExt) -> LocalTransactionState:
            await producer.close()
            return COMMIT

        def check_on_thread(_: MessageExt) -> LocalTransactionState:
            asyncio.run_coroutine_threadsafe(producer.close(), loop).result(LIMIT_S)
            return COMMIT

        def checked(half: MessageExt) -> Awaitable[LocalTransactionState]:
            return asyncio.to_thread(check_on_thread, half)

        await producer.start()
        await producer.send_in_transaction(
            Message("Orders", b"open"),
            local_transaction=lambda _: UNKNOWN,
            check=checked if blocking else check,
        )
        (seen,) = await place.read("Orders", 1)
        assert seen.body == b"open"
        await producer.close()
