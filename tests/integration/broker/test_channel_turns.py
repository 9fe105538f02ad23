"""Requests of one connection take turns with those of others, and wait while their client does not read."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from rocketpy.errors import InvariantError
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy.transport import Channel, ChannelOptions, Server, serve
from tests.integration.raw_client import RawClient
from tests.waiting import LIMIT_S, until

SLOW, LARGE, PING, HUGE, HELD, KEPT = 1, 2, 3, 4, 5, 6
SLOW_S = 0.02
LARGE_BYTES = 1 << 20
KEPT_BODY = os.urandom(12 << 20)
"""A response that is encoded once, as a broker's table of topics is."""


class Handlers:
    """Slow requests, requests with large responses, and a ping. order: the codes as they were handled."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.moved = asyncio.Event()

    def channel_opened(self, channel: Channel) -> None:
        """Part of Endpoint."""

    def handle(self, channel: Channel, request: Command) -> Command | None:
        """Part of Endpoint."""
        self.order.append(request.code)
        self.moved.set()
        if request.code in (SLOW, HELD):
            time.sleep(SLOW_S)  # blocks the event loop
        if request.code == HELD:
            channel.exclude_from_unanswered()
            return None
        if request.code == KEPT:
            return request.reply(body=KEPT_BODY)
        if request.code == LARGE:
            return request.reply(body=bytes(LARGE_BYTES))
        return request.reply(body=bytes((16 << 20) if request.code == HUGE else 0))

    def end_of_buffer(self) -> None:
        """Part of Endpoint."""

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        """Part of Endpoint."""


@pytest.fixture
async def handlers() -> Handlers:
    """The endpoint of the server."""
    return Handlers()


@pytest.fixture
async def server(handlers: Handlers) -> AsyncIterator[Server]:
    """A server on a real port."""
    running = await serve("127.0.0.1:0", handlers, ChannelOptions(write_limit_bytes=8 << 20))
    yield running
    await running.close()


def frames(code: int, count: int) -> bytes:
    """This many requests; their opaques are 0, 1, 2, …"""
    requests = [Command.request(code) for _ in range(count)]
    for opaque, request in enumerate(requests):
        request.opaque = opaque
    return b"".join(map(encode_command, requests))


def end(client: RawClient, *, resets: bool) -> None:
    """End a connection at once; unread bytes at its server remain there. resets: with RST instead of FIN."""
    if resets:
        linger = struct.pack("ii", 1, 0)
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    client.writer.transport.abort()


async def test_slow_requests_of_one_buffer_let_others_in_between(server: Server, handlers: Handlers) -> None:
    """16 KB of pipelined requests for the state of a large topic blocked all clients for 150 s."""
    async with await RawClient.open(server.address) as hog, await RawClient.open(server.address) as other:
        await other.call(PING)
        hog.writer.write(frames(SLOW, 60))
        await handlers.moved.wait()
        await other.call(PING)
        assert handlers.order.count(SLOW) < 30
        responses = [await hog.next() for _ in range(60)]
        assert [response.opaque for response in responses] == list(range(60))
        assert (await hog.call(PING)).code == 0


async def test_a_client_waits_for_few_of_many_connections_with_slow_requests(
    server: Server, handlers: Handlers
) -> None:
    """A request of another client waited for one turn of each connection."""
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(await RawClient.open(server.address))
        hogs = [await stack.enter_async_context(await RawClient.open(server.address)) for _ in range(10)]
        await other.call(PING)
        for hog in hogs:
            hog.writer.write(frames(SLOW, 6))
        while handlers.order.count(SLOW) < 10:  # each connection's first; its others wait
            handlers.moved.clear()
            await handlers.moved.wait()
        before = len(handlers.order)
        await other.call(PING)
        assert handlers.order.index(PING, before) - before <= 3
        for hog in hogs:
            assert [(await hog.next()).opaque for _ in range(6)] == list(range(6))


async def test_slow_requests_that_are_held_let_others_in_between(server: Server, handlers: Handlers) -> None:
    """Eight pulls with a thousand tags each had one turn of 10 ms, since none of them gets a response."""
    async with await RawClient.open(server.address) as hog, await RawClient.open(server.address) as other:
        await other.call(PING)
        hog.writer.write(frames(HELD, 15))
        await handlers.moved.wait()
        await other.call(PING)
        assert handlers.order.count(HELD) < 15


async def test_large_responses_are_made_as_their_peer_reads_them(server: Server, handlers: Handlers) -> None:
    """One client made the server hold 1.7 GB of responses that it did not read."""
    async with await RawClient.open(server.address) as hog, await RawClient.open(server.address) as other:
        hog.writer.write(frames(LARGE, 100))
        await hog.writer.drain()
        while not handlers.order:
            handlers.moved.clear()
            await handlers.moved.wait()
        for _ in range(20):
            await other.call(PING)
        assert handlers.order.count(LARGE) < 40  # what fits into the sockets' buffers, with a margin
        (held,) = (channel for channel in server.channels if not channel.is_writable)
        assert held._transport is not None
        assert held._transport.get_write_buffer_size() <= 2 * LARGE_BYTES
        responses = [await hog.next() for _ in range(100)]
        assert [response.opaque for response in responses] == list(range(100))
        assert {len(response.body) for response in responses} == {LARGE_BYTES}


async def test_a_large_response_is_copied_at_most_once(server: Server, handlers: Handlers) -> None:
    """Each copy of a broker's table of 12,000 topics blocked all clients for 2 ms."""
    async with await RawClient.open(str(server.address)) as client, asyncio.timeout(LIMIT_S):
        tracemalloc.start()
        try:
            client.writer.write(frames(KEPT, 1))
            await handlers.moved.wait()
            await asyncio.sleep(0)  # the response is sent at the end of this turn
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1.5 * len(KEPT_BODY)  # the bytes that the socket has no room for
        assert (await client.next()).body == KEPT_BODY


async def test_requests_that_wait_for_their_turn_are_counted(handlers: Handlers) -> None:
    """8,192 clients that do not read could keep 9 GB of requests, which the limits did not see."""
    budget = ChannelOptions().memory_budget()
    server = await serve("127.0.0.1:0", handlers, ChannelOptions(), memory=budget)
    try:
        async with await RawClient.open(server.address) as hog, await RawClient.open(server.address) as other:
            hog.writer.write(frames(LARGE, 100))
            await hog.writer.drain()
            while not budget.by_kind()["requests"]:
                await other.call(PING)
            (held,) = (channel for channel in server.channels if channel._backlog)
            assert budget.by_kind()["requests"] >= 100 * len(held._backlog)
            assert len([await hog.next() for _ in range(100)]) == 100
            assert (await hog.call(PING)).code == 0
            assert budget.by_kind()["requests"] == 0
    finally:
        await server.close()


@pytest.mark.parametrize("how", ["closed", "reset"])
async def test_requests_that_arrived_are_handled_though_their_peer_is_gone(
    handlers: Handlers, how: str
) -> None:
    """Oneway messages of the Go client, which are requests without FLAG_ONEWAY, would be lost at its end."""
    server = await serve("127.0.0.1:0", handlers, ChannelOptions(kept_codes=frozenset({SLOW})))
    try:
        client = await RawClient.open(server.address)
        client.writer.write(frames(SLOW, 3) + frames(PING, 3))
        async with asyncio.timeout(LIMIT_S):
            await handlers.moved.wait()  # the server reads nothing while the others wait for their turn
            client.writer.write(frames(SLOW, 1) + frames(PING, 200) + frames(SLOW, 1))
            await client.writer.drain()
        end(client, resets=how == "reset")
        await until(lambda: not server.channels)
    finally:
        await server.close()
    assert handlers.order.count(SLOW) == 5
    if how == "reset":
        assert PING not in handlers.order  # no client waits for the response


async def test_what_follows_an_invalid_frame_of_a_gone_peer_is_dropped(handlers: Handlers) -> None:
    """Where the next request begins is unknown, so bytes of a body could be handled as one."""
    server = await serve("127.0.0.1:0", handlers, ChannelOptions(kept_codes=frozenset({SLOW})))
    try:
        client = await RawClient.open(server.address)
        client.writer.write(frames(SLOW, 3))
        async with asyncio.timeout(LIMIT_S):
            await handlers.moved.wait()
            client.writer.write(b"\xff" * 8 + frames(SLOW, 1))
            await client.writer.drain()
        end(client, resets=True)
        await until(lambda: not server.channels)
    finally:
        await server.close()
    assert handlers.order == [SLOW] * 3


async def test_a_failed_connection_ends_at_once(handlers: Handlers) -> None:
    """The server would go on to handle requests on a connection whose state cannot be trusted."""

    def fail() -> None:
        raise InvariantError("a planted one")

    handlers.end_of_buffer = fail  # type: ignore[method-assign]
    server = await serve("127.0.0.1:0", handlers, ChannelOptions(kept_codes=frozenset({SLOW})))
    try:
        async with await RawClient.open(server.address) as client:
            client.writer.write(frames(SLOW, 100))
            assert await client.reader.read(1 << 20) == b""
            await until(lambda: not server.channels)
    finally:
        await server.close()
    assert handlers.order == [SLOW]


async def test_a_response_larger_than_a_frame_is_rejected(server: Server) -> None:
    """The peer would close the connection, and all that is in flight on it would fail."""
    async with await RawClient.open(server.address) as client:
        response = await client.call(HUGE)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert "16777216 bytes" in (response.remark or "")
        assert (await client.call(RequestCode.HEART_BEAT)).code == 0


@pytest.mark.parametrize("limits", [{"max_header_bytes": 16 << 20}, {"max_frame_bytes": 4096}])
async def test_small_limits_of_received_bytes_reject_no_response(
    handlers: Handlers, limits: dict[str, int]
) -> None:
    """A consumer could not respond to requests of brokers, from which it receives large headers."""
    server = await serve("127.0.0.1:0", handlers, ChannelOptions(**limits))  # type: ignore[arg-type] # from a dict
    try:
        async with await RawClient.open(server.address) as client:
            response = await client.call(LARGE)
            assert (response.code, len(response.body)) == (0, LARGE_BYTES)
    finally:
        await server.close()
