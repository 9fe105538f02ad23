"""How clients start: with a name server that responds, and without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Outcome,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
    SendStatus,
    sync,
)
from rocketpy.errors import ConnectFailed, RequestTimeout, TransportError
from rocketpy_broker import EmbeddedCluster
from tests.integration.sdk_groups import FIRST
from tests.integration.sdk_peers import Names, Peer
from tests.waiting import LIMIT_S, until


async def handle(_message: MessageExt) -> None:
    """Handle nothing."""


KINDS: dict[str, Callable[[ClientConfig], Any]] = {
    "Producer": lambda client: Producer("g", client=client),
    "PushConsumer": lambda client: PushConsumer("g", None, handle, client=client),
    "LitePullConsumer": lambda client: LitePullConsumer("g", client=client),
    "PullConsumer": lambda client: PullConsumer("g", client=client),
    "AdminClient": lambda client: AdminClient(client=client),
}
SYNC_KINDS: dict[str, Callable[[ClientConfig], Any]] = {
    "Producer": lambda client: sync.Producer("g", client=client),
    "PushConsumer": lambda client: sync.PushConsumer("g", None, handle, client=client),
    "LitePullConsumer": lambda client: sync.LitePullConsumer("g", client=client),
    "PullConsumer": lambda client: sync.PullConsumer("g", client=client),
    "AdminClient": lambda client: sync.AdminClient(client=client),
}


async def nobody() -> str:
    """An address at which nothing listens."""
    async with Peer() as gone:
        return gone.address


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
async def test_without_a_name_server_start_fails(kind: Callable[[ClientConfig], Any]) -> None:
    """A program with a wrong address would start, and fail at its first message."""
    address = await nobody()
    client = kind(ClientConfig(namesrv=address))
    for _ in range(2):  # a failed start may be repeated
        with pytest.raises(ConnectFailed, match=f"^name server {address} cannot be reached") as caught:
            await client.start()
        assert caught.value.outcome is Outcome.NOT_SENT
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1
    async with EmbeddedCluster(namesrv=address), client:
        assert client.health().ok


@pytest.mark.parametrize("kind", SYNC_KINDS.values(), ids=SYNC_KINDS)
async def test_blocking_clients_do_the_same(kind: Callable[[ClientConfig], Any]) -> None:
    """A blocking program with a wrong address would start, and fail at its first message."""
    address = await nobody()
    client = kind(ClientConfig(namesrv=address))
    with pytest.raises(ConnectFailed, match=f"^name server {address} cannot be reached"):
        await asyncio.to_thread(client.start)
    async with EmbeddedCluster(namesrv=address):
        await asyncio.to_thread(client.start)
        assert await asyncio.to_thread(lambda: client.health().ok)
        await asyncio.to_thread(client.close)
    without = kind(ClientConfig(namesrv=address))
    without.start(wait=False)
    without.close()


async def test_a_silent_name_server_delays_a_start_only_until_the_timeout() -> None:
    """A name server that hangs would delay a start for as long as its connection lasts."""
    assert ClientConfig().request_timeout_ms == 3000
    async with Names() as names:
        names.script = lambda _channel, _request: None
        config = ClientConfig(namesrv=names.address, request_timeout_ms=100)
        with pytest.raises(RequestTimeout) as caught:
            await Producer("g", client=config).start()
        text = f"name server {names.address} did not respond within 100 ms; check that it is a name server"
        assert str(caught.value) == text


async def test_the_next_name_server_is_used_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three name servers that hangs would keep clients from starting."""
    async with Names() as silent, Names() as good:
        silent.script = lambda _channel, _request: None
        monkeypatch.setattr("random.randrange", lambda _: 0)  # begin with the first
        config = ClientConfig(namesrv=f"{silent.address};{good.address}", request_timeout_ms=2000)
        async with Producer("g", client=config) as producer:
            assert producer.health().namesrv == good.address
        assert silent.seen


async def test_a_start_without_waiting_continues_in_the_background() -> None:
    """Services that start in any order would have to be restarted."""
    address = await nobody()
    handled: asyncio.Queue[bytes] = asyncio.Queue()

    async def put(message: MessageExt) -> None:
        handled.put_nowait(message.body)

    client = ClientConfig(namesrv=address, request_timeout_ms=2000)
    config = PushConfig(consume_from=FIRST, rebalance_interval_ms=200)
    producer = Producer("g", client=client)
    consumer = PushConsumer("c", None, put, config=config, client=client)
    consumer.subscribe("T")
    reader = LitePullConsumer("l", client=client)
    await reader.assign([MessageQueue("T", "broker-a", 0)])
    async with asyncio.timeout(LIMIT_S):
        for one in (producer, consumer, reader):
            await one.start(wait=False)
        assert producer.health().client_id.startswith("127.0.0.1@")
        await until(lambda: not producer.health().ok)  # nothing responds, and health() reports it
    async with EmbeddedCluster(namesrv=address), asyncio.timeout(LIMIT_S):
        async with AdminClient(address) as admin:
            await admin.create_topic("T", 1)
        sent = await producer.send(Message("T", b"x"), timeout_ms=60_000)
        assert sent.status is SendStatus.SEND_OK
        assert await handled.get() == b"x"
        await until(lambda: bool(reader.assignment))
        assert producer.health().ok
        for one in (reader, consumer, producer):
            await one.close()


async def test_assign_replaces_the_queues_of_a_running_start() -> None:
    """A consumer would read its earlier queues in addition to those assigned last."""
    async with EmbeddedCluster() as cluster, AdminClient(cluster.namesrv_address) as admin:
        for topic in ("T", "U"):
            await admin.create_topic(topic, 1)
        first, last = [MessageQueue(topic, "broker-a", 0) for topic in ("T", "U")]
        reader = LitePullConsumer("l", cluster.namesrv_address)
        await reader.assign([first])
        await reader.start(wait=False)
        (taking,) = [task for task in asyncio.all_tasks() if task.get_name() == "assign"]
        await asyncio.sleep(0)  # it requests the route
        assert not taking.done()
        await reader.assign([last])
        await taking
        assert reader.assignment == (last,)
        await reader.close()


async def test_clients_that_do_not_wait_have_unique_ids() -> None:
    """Pods, each with pid 1, would count as one member of a group, and some queues have no reader."""
    async with Names() as names:
        client = ClientConfig(namesrv=names.address, instance_name="pod")
        waiting = Producer("g", client=client)
        async with waiting:
            known = waiting.health().client_id
        for host, is_known in (("127.0.0.1", True), ("no-such-host.invalid", False)):
            ids = set()
            for _ in range(2):
                client = replace(client, namesrv=f"{host}:{names.address.split(':')[1]}")
                producer = Producer("g", client=client)
                await producer.start(wait=False)
                ids.add(producer.health().client_id)
                await producer.close()
            assert (ids == {known}) is is_known
            assert len(ids) == (1 if is_known else 2)


async def test_a_broker_in_place_of_a_name_server_is_reported() -> None:
    """A common mistake would be reported as a missing route, or not at all."""
    async with EmbeddedCluster() as cluster:
        address = str(cluster.brokers[0].address)
        with pytest.raises(TransportError) as caught:
            await Producer("g", address).start()
        assert str(caught.value).startswith(f"{address} is a broker, not a name server")
        async with Producer("g", f"{address};{cluster.namesrv_address}") as producer:
            assert (await producer.send(Message("T", b"x"))).status is SendStatus.SEND_OK
        producer = Producer("g", address)
        await producer.start(wait=False)
        with pytest.raises(TransportError) as caught:
            await producer.send(Message("T", b"x"))
        await producer.close()
        assert f"{address} is a broker, not a name server" in str(caught.value)
