"""The contract of transports: the same tests run over TCP, TLS and memory."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import pytest
import trustme

from rocketpy.errors import (
    ConfigInvalid,
    ConnectFailed,
    ConnectionLost,
    Outcome,
    RequestTimeout,
    RocketError,
)
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.protocol.remoting.frame import CODEC_JSON, CODEC_MSGPACK, CODEC_ROCKETMQ
from rocketpy.transport import Address, Channel, ChannelOptions, Server, connect, register_transport, serve
from rocketpy.transport.base import host_limit
from tests.waiting import LIMIT_S

ECHO, SILENT, HOLD, RAISE, BUG, PUSH, SLOW = range(900, 907)
_names = itertools.count()


class Peer:
    """An endpoint that responds by code, and records its events."""

    def __init__(self) -> None:
        self.channels: list[Channel] = []
        self.held: list[tuple[Channel, Command]] = []
        self.seen: list[Command] = []
        self.closed: list[Exception | None] = []
        self.buffers = 0
        self.changed = asyncio.Condition()
        self._news = asyncio.Event()

    def channel_opened(self, channel: Channel) -> None:
        self.channels.append(channel)

    def handle(self, channel: Channel, request: Command) -> Command | bytes | None:
        self.seen.append(request)
        self._news.set()
        if request.code == ECHO:
            return request.reply(body=request.body)
        if request.code == RAISE:
            raise RocketError("the disk is made of cheese")
        if request.code == BUG:
            raise ZeroDivisionError
        if request.code == HOLD:
            self.held.append((channel, request))
        if request.code == SLOW:  # longer than the turn of a connection
            until = time.perf_counter() + 0.002
            while time.perf_counter() < until:
                pass
        return None

    def end_of_buffer(self) -> None:
        self.buffers += 1

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        self.closed.append(error)
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; it is checked after each event of this endpoint."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._news.clear()
                await self._news.wait()


class Rig(NamedTuple):
    """A server, and how to connect to it."""

    server: Server
    peer: Peer
    open: Callable[..., Awaitable[Channel]]


@functools.cache
def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    served, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(served)
    authority.configure_trust(client)
    return served, client


@pytest.fixture(params=["tcp", "tls", "memory"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with started(request.param, ChannelOptions()) as made:
        yield made


class started:  # noqa: N801 - used like a function
    """A served address of one scheme, closed at the end."""

    def __init__(self, scheme: str, options: ChannelOptions) -> None:
        self.scheme = scheme
        self.options = options

    async def __aenter__(self) -> Rig:
        served, client = tls_contexts() if self.scheme == "tls" else (None, None)
        address = {
            "tcp": "127.0.0.1:0",
            "tls": "tls://127.0.0.1:0",
            "memory": f"memory://contract-{next(_names)}",
        }[self.scheme]
        peer = Peer()
        options = dataclasses.replace(self.options, ssl=served)
        self.server = await serve(address, peer, options)

        async def open_channel(endpoint: Peer | None = None, **fields: object) -> Channel:
            options = dataclasses.replace(ChannelOptions(ssl=client), **fields)  # type: ignore[arg-type]
            return await connect(self.server.address, endpoint or Peer(), options)

        return Rig(self.server, peer, open_channel)

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()
        assert not self.server.channels


async def test_a_request_gets_a_response(rig: Rig) -> None:
    """No request would work."""
    channel = await rig.open()
    response = await channel.request(Command.request(ECHO, body=b"hello"), 5000)
    assert (response.code, response.body, response.is_response) == (0, b"hello", True)
    assert channel.in_flight == 0


async def test_addresses_are_reported(rig: Rig) -> None:
    """A broker could not identify its clients."""
    channel = await rig.open()
    await channel.request(Command.request(ECHO), 5000)
    assert rig.peer.channels[0].remote_address == channel.local_address
    assert channel.remote_address.endswith(str(rig.server.address).rpartition("/")[2])


async def test_requests_in_flight_share_writes_and_reads(rig: Rig) -> None:
    """Client and broker would lose most of their speed by one write for each request."""
    channel = await rig.open()
    futures = [channel.request(Command.request(ECHO, body=b"%d" % i), 5000) for i in range(200)]
    responses = await asyncio.gather(*futures)
    assert [int(response.body) for response in responses] == list(range(200))
    assert rig.peer.buffers < 20


@pytest.mark.parametrize("codec", [CODEC_JSON, CODEC_ROCKETMQ, CODEC_MSGPACK])
async def test_each_codec_gets_a_response_in_that_codec(rig: Rig, codec: int) -> None:
    """A client with another header codec would be silently unable to talk."""
    channel = await rig.open(codec=codec)
    for _ in range(2):
        response = await channel.request(Command.request(ECHO), 5000)
    assert response.codec == rig.peer.seen[-1].codec == codec


async def test_large_bodies_pass_in_both_directions(rig: Rig) -> None:
    """A message near the limit would stall once it no longer fits one socket buffer."""
    channel = await rig.open()
    body = bytes(range(256)) * 16 * 1024
    response = await channel.request(Command.request(ECHO, body=body), 20_000)
    assert response.body == body


async def test_oneway_is_handled_without_a_response(rig: Rig) -> None:
    """A response to a oneway request would be taken for that of a later one."""
    channel = await rig.open()
    channel.oneway(Command.request(ECHO))
    await channel.request(Command.request(ECHO), 5000)
    assert [request.is_oneway for request in rig.peer.seen] == [True, False]


async def test_the_server_asks_the_client(rig: Rig) -> None:
    """Brokers could not notify consumers or check transactions."""
    client = Peer()
    channel = await rig.open(client)
    await channel.request(Command.request(ECHO), 5000)
    response = await rig.peer.channels[0].request(Command.request(ECHO, body=b"back"), 5000)
    assert response.body == b"back"
    assert [request.body for request in client.seen] == [b"back"]


async def test_a_held_request_gets_its_response_later(rig: Rig) -> None:
    """Long polling and synchronous flush would be impossible."""
    channel = await rig.open()
    future = channel.request(Command.request(HOLD), 5000)
    await rig.peer.until(lambda: bool(rig.peer.held))
    held, request = rig.peer.held[0]
    held.reply(request.reply(body=b"now"))
    assert (await future).body == b"now"


async def test_a_timeout_ends_only_its_own_request(rig: Rig) -> None:
    """A silent peer would block its callers, or fail other requests, too."""
    channel = await rig.open()
    slow = channel.request(Command.request(SILENT), 30_000)
    with pytest.raises(RequestTimeout):
        await channel.request(Command.request(SILENT), 20)
    assert (await channel.request(Command.request(ECHO), 5000)).code == 0
    assert not slow.done()
    slow.cancel()


async def test_a_cancelled_request_does_not_affect_others(rig: Rig) -> None:
    """A cancelled send would break later sends."""
    channel = await rig.open()
    future = channel.request(Command.request(HOLD), 5000)
    await rig.peer.until(lambda: bool(rig.peer.held))
    future.cancel()
    held, request = rig.peer.held[0]
    held.reply(request.reply())
    assert (await channel.request(Command.request(ECHO), 5000)).code == 0


async def test_losing_the_connection_fails_requests_in_flight_at_once(rig: Rig) -> None:
    """Senders would wait for their timeout although the broker is known to be dead."""
    channel = await rig.open()
    futures = [channel.request(Command.request(HOLD), 60_000) for _ in range(3)]
    await rig.peer.until(lambda: len(rig.peer.held) == 3)
    rig.peer.channels[0].abort()
    for result in await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), LIMIT_S):
        assert isinstance(result, ConnectionLost)
    assert channel.is_closed


async def test_closing_notifies_both_ends(rig: Rig) -> None:
    """A broker would keep the state of disconnected clients."""
    client = Peer()
    channel = await rig.open(client)
    await channel.request(Command.request(ECHO), 5000)
    channel.close()
    await channel.wait_closed()
    await rig.peer.until(lambda: bool(rig.peer.closed))
    assert client.closed == [None]
    with pytest.raises(ConnectionLost) as caught:
        channel.request(Command.request(ECHO), 5000)
    assert caught.value.outcome is Outcome.NOT_SENT


async def test_bytes_written_before_close_arrive(rig: Rig) -> None:
    """The last oneway messages of a program would be lost."""
    channel = await rig.open()
    for _ in range(50):
        channel.oneway(Command.request(ECHO))
    channel.close()
    await rig.peer.until(lambda: bool(rig.peer.closed))
    assert len(rig.peer.seen) == 50


@pytest.mark.parametrize("ends", [Channel.close, Channel.abort])
async def test_oneway_requests_are_handled_after_their_client_has_gone(
    rig: Rig, ends: Callable[[Channel], None]
) -> None:
    """Oneway requests that wait for their turn when the connection ends would be lost."""
    channel = await rig.open()
    for _ in range(20):
        channel.oneway(Command.request(SLOW))
    channel.flush()
    await rig.peer.until(lambda: bool(rig.peer.seen))
    ends(channel)
    await rig.peer.until(lambda: bool(rig.peer.closed))
    assert len(rig.peer.seen) == 20
    await rig.server.close()


async def test_a_server_that_ends_a_connection_handles_no_waiting_requests(rig: Rig) -> None:
    """A peer that is disconnected for invalid data would keep the server busy."""
    channel = await rig.open()
    for _ in range(20):
        channel.oneway(Command.request(SLOW))
    await rig.peer.until(lambda: bool(rig.peer.seen))
    rig.peer.channels[0].abort()
    await rig.peer.until(lambda: bool(rig.peer.closed))
    assert len(rig.peer.seen) < 20


async def test_errors_of_a_handler_become_responses(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """One bad request would close the connection that others share, or never get a response."""
    channel = await rig.open()
    refused = await channel.request(Command.request(RAISE), 5000)
    assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, "the disk is made of cheese")
    broken = await channel.request(Command.request(BUG), 5000)
    assert broken.code == ResponseCode.SYSTEM_ERROR
    assert "ZeroDivisionError" not in (broken.remark or "")
    assert "ZeroDivisionError" in caplog.text


async def test_garbage_closes_only_its_own_connection(rig: Rig) -> None:
    """A port scanner would disturb all clients."""
    good, bad = await rig.open(), await rig.open()
    bad.write(b"GET / HTTP/1.1\r\n\r\n")
    await bad.wait_closed()
    assert (await good.request(Command.request(ECHO), 5000)).code == 0


@pytest.mark.parametrize("scheme", ["tcp", "tls", "memory"])
async def test_a_peer_that_does_not_read_is_disconnected(scheme: str) -> None:
    """One slow consumer would make the broker's memory grow without bound."""
    options = ChannelOptions(write_high_bytes=100_000, write_limit_bytes=3_000_000)
    async with started(scheme, options) as rig:
        channel = await rig.open()
        assert channel._transport is not None
        futures = [channel.request(Command.request(HOLD), 60_000) for _ in range(40)]
        await rig.peer.until(lambda: len(rig.peer.held) == 40)
        channel._transport.pause_reading()
        for held, request in rig.peer.held:
            held.reply(request.reply(body=bytes(1 << 20)))
        await rig.peer.until(lambda: bool(rig.peer.closed))
        assert isinstance(rig.peer.closed[0], ConnectionLost)
        if not channel.is_closed:
            channel._transport.resume_reading()
        results = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), LIMIT_S)
        assert any(isinstance(result, ConnectionLost) for result in results)


@pytest.mark.parametrize("scheme", ["tcp", "tls", "memory"])
async def test_too_many_open_requests_stop_reading_and_never_close(scheme: str) -> None:
    """A client that sends requests too fast would fill the memory, or lose its connection."""
    async with started(scheme, ChannelOptions(max_unanswered=10)) as rig:
        channel = await rig.open()
        first = [channel.request(Command.request(HOLD), 60_000) for _ in range(20)]
        await rig.peer.until(lambda: len(rig.peer.held) == 20)
        later = channel.request(Command.request(ECHO), 60_000)
        served = rig.peer.channels[0]
        assert served._transport is not None
        assert not served._transport.is_reading()
        for held, request in rig.peer.held:
            held.reply(request.reply())
        await asyncio.wait_for(asyncio.gather(*first, later), LIMIT_S)


@pytest.mark.parametrize("scheme", ["tcp", "tls", "memory"])
async def test_a_writer_waits_for_a_slow_reader(scheme: str) -> None:
    """A fast producer would buffer without bound in its own process."""
    async with started(scheme, ChannelOptions()) as rig:
        channel = await rig.open(write_high_bytes=10_000)
        await channel.request(Command.request(ECHO), 5000)
        served = rig.peer.channels[0]
        assert served._transport is not None
        served._transport.pause_reading()
        written = 0
        while channel.is_writable:
            channel.oneway(Command.request(ECHO, body=b"x" * 100_000))
            written += 100_000
            assert written < 50_000_000  # more than the buffers of both sockets hold
            await asyncio.sleep(0)
        waiting = asyncio.ensure_future(channel.drain())
        assert await asyncio.wait({waiting}, timeout=0) == (set(), {waiting})
        served._transport.resume_reading()
        await asyncio.wait_for(waiting, LIMIT_S)


@pytest.mark.parametrize("scheme", ["tcp", "tls", "memory"])
async def test_an_idle_connection_is_closed(scheme: str) -> None:
    """Dead clients would collect until no connection is left."""
    async with started(scheme, ChannelOptions(idle_timeout_ms=500)) as rig:
        idle = await rig.open()
        async with asyncio.timeout(LIMIT_S):
            await idle.wait_closed()


@pytest.mark.parametrize("scheme", ["tcp", "tls", "memory"])
async def test_a_connection_stuck_in_a_frame_is_closed(scheme: str) -> None:
    """Clients that send a byte from time to time could hold memory and a connection."""
    options = ChannelOptions(idle_timeout_ms=3_600_000, frame_timeout_ms=500)
    async with started(scheme, options) as rig:
        idle, stuck = await rig.open(), await rig.open()
        stuck.write(b"\x00\x00\x01\x00\x00\x00\x00\x10half a")
        async with asyncio.timeout(LIMIT_S):
            await stuck.wait_closed()
        assert (await idle.request(Command.request(ECHO), 5000)).code == 0


@pytest.mark.parametrize("scheme", ["tcp", "memory"])
async def test_one_connection_too_many_is_rejected(scheme: str) -> None:
    """A connection flood would exhaust the process's file descriptors."""
    async with started(scheme, ChannelOptions(max_connections=2)) as rig:
        kept = [await rig.open(), await rig.open()]
        assert [(await channel.request(Command.request(ECHO), 5000)).code for channel in kept] == [0, 0]
        refused = await rig.open()
        await asyncio.wait_for(refused.wait_closed(), LIMIT_S)
        assert [(await channel.request(Command.request(ECHO), 5000)).code for channel in kept] == [0, 0]


@pytest.mark.parametrize("scheme", ["tcp", "tls", "memory"])
async def test_a_client_connects_despite_idle_connections(scheme: str) -> None:
    """Silent connections would occupy all places for two minutes, so that clients are rejected."""
    async with started(scheme, ChannelOptions(max_connections=2)) as rig:
        idle, client, other = [await rig.open() for _ in range(3)]
        await asyncio.wait_for(idle.wait_closed(), LIMIT_S)
        for channel in (client, other):
            assert (await channel.request(Command.request(ECHO), 5000)).code == 0


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
async def test_one_host_cannot_take_all_connections(scheme: str) -> None:
    """One machine in a loop would leave no connection for the others."""
    async with started(scheme, ChannelOptions(max_connections_per_host=2)) as rig:
        kept = [await rig.open(), await rig.open()]
        with contextlib.suppress(ConnectFailed):
            refused = await rig.open()
            await asyncio.wait_for(refused.wait_closed(), LIMIT_S)
        assert [(await channel.request(Command.request(ECHO), 5000)).code for channel in kept] == [0, 0]
        assert len(rig.server.channels) == 2
        kept[0].close()
        await kept[0].wait_closed()
        await rig.peer.until(lambda: len(rig.server.channels) == 1)
        assert (await (await rig.open()).request(Command.request(ECHO), 5000)).code == 0


@pytest.mark.parametrize(("host", "limit"), [("127.0.0.1", None), ("[::1]", None), ("192.0.2.1", 1024)])
def test_connections_of_this_machine_are_not_limited(host: str, limit: int | None) -> None:
    """A test, or a proxy beside the broker, would be taken for a flood."""
    assert host_limit(host, ChannelOptions()) == limit


@pytest.mark.parametrize("scheme", ["tcp", "tls", "memory"])
async def test_a_header_above_the_limit_closes_the_connection(scheme: str) -> None:
    """A client could make a server decode headers of megabytes."""
    async with started(scheme, ChannelOptions(max_header_bytes=1000)) as rig:
        channel = await rig.open()
        big = Command.request(ECHO)
        big.ext = {"k": "v" * 2000}
        with pytest.raises(ConnectionLost):
            await channel.request(big, 5000)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "memory://nobody", "tls://127.0.0.1:1"])
async def test_a_missing_listener_is_a_typed_error(address: str) -> None:
    """Callers would have to know each transport's own errors."""
    with pytest.raises(ConnectFailed):
        await connect(address, Peer())


async def test_an_untrusted_certificate_is_rejected() -> None:
    """TLS without verification protects against no attacker."""
    served, _ = tls_contexts()
    server = await serve("tls://127.0.0.1:0", Peer(), ChannelOptions(ssl=served))
    with pytest.raises(ConnectFailed, match="certificate"):
        await connect(server.address, Peer())
    await server.close()


async def test_tls_cannot_be_served_without_a_certificate() -> None:
    """A port that should be encrypted would be plain, or use a public certificate."""
    with pytest.raises(ConfigInvalid, match="certificate"):
        await serve("tls://127.0.0.1:0", Peer())


async def test_a_memory_name_is_taken_once_and_freed() -> None:
    """One of two embedded brokers would receive the requests for the other."""
    first = await serve("memory://once", Peer())
    with pytest.raises(ConfigInvalid, match="in use"):
        await serve("memory://once", Peer())
    await first.close()
    await (await serve("memory://once", Peer())).close()


async def test_a_third_party_transport_is_used() -> None:
    """A transport such as QUIC or a proxy would need changes of the client."""
    from rocketpy.transport.memory import MemoryTransport  # noqa: PLC0415 - in place of a third party's

    register_transport("pigeon", MemoryTransport())
    with pytest.raises(ConfigInvalid, match="already"):
        register_transport("pigeon", MemoryTransport())
    server = await serve(Address("pigeon", "loft"), Peer())
    channel = await connect(Address("pigeon", "loft"), Peer())
    assert (await channel.request(Command.request(ECHO), 5000)).code == 0
    await server.close()


async def test_an_unknown_scheme_names_the_known_ones() -> None:
    """A typing error in an address would be reported as a network problem."""
    with pytest.raises(ConfigInvalid, match=r"memory, .*tcp, tls"):
        await connect("unknown://somewhere:1", Peer())
