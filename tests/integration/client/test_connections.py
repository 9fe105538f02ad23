"""Connections that end right after they were opened, as while a broker restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from rocketpy.client.connections import ConnectionPool, PeerConnection
from rocketpy.client.instance import ClientInstance
from rocketpy.client.name_servers import NameServers
from rocketpy.config import ClientConfig
from rocketpy.errors import ConnectionLost, Outcome, Retry, RouteNotFound
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import ChannelOptions
from tests.integration.sdk_peers import Names, Peer, cut

QUESTION = RequestCode.GET_MAX_OFFSET


@asynccontextmanager
async def pool_with(opened: Callable[[PeerConnection], None]) -> AsyncIterator[ConnectionPool]:
    tasks = Tasks("a client")
    pool = ConnectionPool(tasks, ChannelOptions(), opened)
    try:
        yield pool
    finally:
        await tasks.close()
        await pool.close()


async def test_a_connection_that_ended_is_lost_not_closed() -> None:
    """The user would take it for a usage error, and not retry."""
    async with Peer() as peer, pool_with(cut(1)) as pool:
        with pytest.raises(ConnectionLost) as caught:
            await pool.get(peer.address).request(Command.request(QUESTION), 5000)
        assert caught.value.outcome is Outcome.NOT_SENT
        assert caught.value.retry is not Retry.NONE
        assert not peer.seen
        response = await pool.get(peer.address).request(Command.request(QUESTION), 5000)
        assert response.code == ResponseCode.SUCCESS


async def test_a_topic_that_one_name_server_lacks_is_requested_at_the_next() -> None:
    """With a name server that was just started, sends would fail though the others know the topic."""
    async with Names() as empty, Names(T={"b": "127.0.0.1:1"}) as full, pool_with(lambda _: None) as pool:
        servers = NameServers((empty.address, full.address), pool, 5000)
        found = await servers.route("T")
        assert [data.broker_name for data in found.broker_datas] == ["b"]
        assert len(empty.requests(RequestCode.GET_ROUTEINTO_BY_TOPIC)) == 1
        with pytest.raises(RouteNotFound, match="U"):
            await servers.route("U")


async def test_requests_that_fail_together_continue_together() -> None:
    """With one of two name servers down, every second topic of a start would have no route."""
    async with Peer() as gone:
        address = gone.address
    async with Peer() as there, pool_with(lambda _: None) as pool:
        servers = NameServers((address, there.address), pool, 5000)
        responses = await asyncio.gather(
            *[servers.request(RequestCode.GET_ROUTEINTO_BY_TOPIC) for _ in range(4)]
        )
        assert {response.code for response in responses} == {ResponseCode.SUCCESS}
        assert servers.current.address == there.address


@pytest.mark.parametrize("first", [0, 1])
async def test_a_client_id_has_the_local_address_of_the_route_to_any_name_server(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members in containers, each with pid 1, would share one client id, and some queues have no reader.

    This happened to those that started while one name server was offline: their ids had loopback's address.
    """
    monkeypatch.setattr("random.randrange", lambda _: first)
    async with Peer() as gone:
        address = gone.address
    there = Peer()
    try:
        await there.start("[::1]:0")
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    client = await ClientInstance.acquire(ClientConfig(namesrv=f"{address};{there.address}"))
    try:
        assert client.client_id.partition("@")[0] == "::1"
    finally:
        await client.release()
        await there.close()


async def test_a_read_is_repeated_after_a_lost_connection() -> None:
    """A consumer or a Spark task would fail because of a broker that restarted and is back."""
    client = await ClientInstance.acquire(ClientConfig(namesrv="127.0.0.1:1"), wait=False)
    try:
        client.connections.opened = cut(1)
        async with Peer() as peer:
            response = await client.request(peer.address, Command.request(QUESTION), 5000)
            assert response.code == ResponseCode.SUCCESS
            assert len(peer.seen) == 1
    finally:
        await client.release()
