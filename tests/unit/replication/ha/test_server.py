"""A master's HA port, on a socket."""

import asyncio
import contextlib
import logging
import socket
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Address, ChannelOptions
from rocketpy_broker.replication.ha.connected_slaves import ConnectedSlaves
from rocketpy_broker.replication.ha.server import HaServer
from rocketpy_broker.replication.ha.settings import HaSettings
from rocketpy_broker.replication.ha.wire import CONTROL, REPORT
from tests.unit.replication.ha.logs import MemoryLog
from tests.waiting import LIMIT_S, until, until_collected

KNOWN = "a secret"


@asynccontextmanager
async def served(settings: HaSettings) -> AsyncIterator[tuple[HaServer, Address]]:
    """An HA port with an empty log behind it."""
    connected = ConnectedSlaves(behind_bytes_max=1 << 30)
    source = MemoryLog(b"", segment_bytes=1 << 20)
    server = HaServer(source, settings, connected, lambda: None, Tasks("a broker"))
    await server.start(Address("tcp", "127.0.0.1", 0), ChannelOptions())
    assert server.address is not None
    try:
        yield server, server.address
    finally:
        await server.close()


async def is_ended(connection: socket.socket) -> bool:
    """Wait until the master closes a connection; earlier bytes do not matter."""
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(LIMIT_S):
        with contextlib.suppress(ConnectionError):
            while await loop.sock_recv(connection, 4096):
                pass
    return True


@pytest.mark.parametrize("message", [b"", bytes(7), REPORT.pack(CONTROL)])
async def test_a_connection_that_does_not_join_is_closed(
    message: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that starts to join and never finishes would hold a connection forever."""
    monkeypatch.setattr("rocketpy_broker.replication.ha.server._TICK_S", 0.02)
    async with served(HaSettings(handshake_timeout_ms=50, secret=KNOWN)) as (_, address):
        with socket.create_connection((address.host, address.port)) as idle:
            idle.sendall(message)
            assert await is_ended(idle)


@pytest.mark.parametrize(
    ("wanted", "shown", "rejects_certificate"),
    [
        ({"a", "b"}, {"a"}, False),
        ({"a", "b"}, {"b", "x"}, False),
        ({"a", "b"}, {"a", "b"}, False),
        ({"a", "b"}, {"x"}, True),
        ({"a", "b"}, set(), True),
        (set(), {"x"}, False),
        (set(), set(), False),
    ],
)
def test_a_certificate_must_have_one_of_the_names(
    wanted: set[str], shown: set[str], *, rejects_certificate: bool
) -> None:
    """Each owner of a certificate of the same authority, as clients have, could copy every message."""
    server = HaServer(
        MemoryLog(), HaSettings(), ConnectedSlaves(behind_bytes_max=1), lambda: None, Tasks("a broker"),
        allowed_names=frozenset(wanted),
    )  # fmt: skip
    assert server.rejects_certificate(frozenset(shown)) is rejects_certificate


async def test_acknowledgements_of_slaves_are_reported_at_once() -> None:
    """A SYNC_MASTER would let each of its senders wait for the timeout."""
    acked = asyncio.Event()
    connected = ConnectedSlaves(behind_bytes_max=1 << 30)
    server = HaServer(MemoryLog(bytes(100)), HaSettings(), connected, acked.set, Tasks("a broker"))
    await server.start(Address("tcp", "127.0.0.1", 0), ChannelOptions())
    assert server.address is not None
    with socket.create_connection((server.address.host, server.address.port)) as slave:
        slave.sendall(REPORT.pack(1))
        async with asyncio.timeout(LIMIT_S):
            await acked.wait()
        acked.clear()
        slave.sendall(REPORT.pack(60))
        async with asyncio.timeout(LIMIT_S):
            await acked.wait()
        assert connected.acked == 60
        (state,) = connected.states(100)
        assert (state.address, state.lag_bytes) == (f"127.0.0.1:{slave.getsockname()[1]}", 40)
    await until(lambda: connected.connections == 0)
    assert not connected.is_slave_ok(60)
    await server.close()


async def test_a_slave_that_waits_gets_written_bytes_at_once() -> None:
    """SYNC_MASTER: a single producer would wait for one more turn of the master's loop with each message."""
    log = MemoryLog(bytes(100))
    server = HaServer(log, HaSettings(), ConnectedSlaves(behind_bytes_max=1), lambda: None, Tasks("a broker"))
    await server.start(Address("tcp", "127.0.0.1", 0), ChannelOptions())
    assert server.address is not None
    with socket.create_connection((server.address.host, server.address.port)) as slave:
        slave.sendall(REPORT.pack(100))
        await until(lambda: server.connected.acked == 100)
        slave.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            slave.recv(4096)  # a heartbeat
        log.data += b"first"
        server.send_written()
        assert slave.recv(4096).endswith(b"first")
        for data in (b"second", b"third"):  # not yet: the first one is on its way
            log.data += data
            server.send_written()
            with pytest.raises(BlockingIOError):
                slave.recv(4096)
        async with asyncio.timeout(LIMIT_S):
            received = await asyncio.get_running_loop().sock_recv(slave, 4096)
        assert received.endswith(b"secondthird")
    await server.close()


async def test_a_closed_port_leaves_nothing_behind() -> None:
    """The port's timer would run as long as the broker, with one more for each change of roles."""
    async with served(HaSettings()) as (server, _):
        closed = weakref.ref(server)
        await server.close()
        del server
    await until_collected(closed)


async def test_the_oldest_stranger_gives_way() -> None:
    """Silent connections could use up the file descriptors of a master."""
    async with served(HaSettings()) as (server, address):
        with contextlib.ExitStack() as opened:
            first, *others = [
                opened.enter_context(socket.create_connection((address.host, address.port)))
                for _ in range(257)
            ]
            assert await is_ended(first)
            others[-1].sendall(REPORT.pack(0))
            await until(lambda: server.connected.connections == 1)


async def test_a_slave_does_not_give_way_to_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that anyone can open would disconnect the slaves."""
    monkeypatch.setattr("rocketpy_broker.replication.ha.server._UNJOINED_MAX", 4)
    async with served(HaSettings()) as (server, address):
        with contextlib.ExitStack() as opened:

            def connect() -> socket.socket:
                return opened.enter_context(socket.create_connection((address.host, address.port)))

            connect().sendall(REPORT.pack(0))
            await until(lambda: server.connected.connections == 1)
            first, *_ = [connect() for _ in range(5)]
            assert await is_ended(first)
            assert server.connected.connections == 1


async def test_ended_connections_do_not_count() -> None:
    """Connections that ended long ago would count as pending, and be closed again when the role changes."""
    async with served(HaSettings()) as (server, address):
        for _ in range(3):
            with socket.create_connection((address.host, address.port)):
                await until(lambda: list(server._unjoined))
            await until(lambda: not list(server._unjoined))


async def test_a_slave_that_hangs_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hanging slave would occupy a socket and a buffer: after 64, no slave is accepted."""
    monkeypatch.setattr("rocketpy_broker.replication.ha.server._TICK_S", 0.02)
    monkeypatch.setattr("rocketpy_broker.replication.ha.server._CLOSE_WAIT_S", 0.1)
    source = MemoryLog(bytes(32 << 20), segment_bytes=64 << 20)
    connected = ConnectedSlaves(behind_bytes_max=1 << 30)
    server = HaServer(
        source,
        HaSettings(silence_ms=300, heartbeat_ms=100),
        connected,
        lambda: None,
        Tasks("a broker"),
    )
    await server.start(Address("tcp", "127.0.0.1", 0), ChannelOptions())
    assert server.address is not None
    with socket.create_connection((server.address.host, server.address.port)) as hanging:
        hanging.sendall(REPORT.pack(1))
        await until(lambda: bool(connected.states(source.max_offset)))
        await until(lambda: not connected.states(source.max_offset))
    await server.close()


async def test_warnings_about_one_host_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    """A slave that always reports another wrong offset could fill the disk of its master with warnings."""
    caplog.set_level(logging.INFO)
    async with served(HaSettings()) as (_, address):
        for offset in range(1000, 1030):
            with socket.create_connection((address.host, address.port)) as stranger:
                stranger.sendall(REPORT.pack(offset))
                assert await is_ended(stranger)
    lines = [record.getMessage() for record in caplog.records if "HA connection" in record.getMessage()]
    assert len(lines) == 1
