"""Replication over sockets with one slow side: the memory for waiting data is bounded."""

import asyncio
import contextlib
import socket
from itertools import count

import pytest

from rocketpy.errors import ConnectionLost
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Address, ChannelOptions, connect_raw
from rocketpy_broker.replication.ha.client import _BUFFER_MAX, _MasterConnection
from rocketpy_broker.replication.ha.connected_slaves import ConnectedSlaves
from rocketpy_broker.replication.ha.master import MasterSession
from rocketpy_broker.replication.ha.server import HaServer
from rocketpy_broker.replication.ha.settings import HaSettings
from rocketpy_broker.replication.ha.wire import REPORT, Frame, FrameReader
from tests.unit.replication.ha.logs import MemoryLog
from tests.waiting import LIMIT_S, until

PIECE = bytes(range(256)) * 4096
PIECES = 64


async def start_master() -> tuple[MemoryLog, ConnectedSlaves, HaServer]:
    """The long log of a master, the slaves that it knows, and its HA port."""
    source = MemoryLog(PIECE * PIECES, segment_bytes=PIECES * len(PIECE))
    connected = ConnectedSlaves(behind_bytes_max=1 << 30)
    server = HaServer(source, HaSettings(), connected, lambda: None, Tasks("a broker"))
    await server.start(Address("tcp", "127.0.0.1", 0), ChannelOptions())
    return source, connected, server


def address_of(server: HaServer) -> Address:
    """The address at which the server listens."""
    assert server.address is not None
    return server.address


async def slow_slave(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A RocketMQ slave that reads nothing yet."""
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
    slow.connect((address.host, address.port))
    reader, writer = await asyncio.open_connection(sock=slow)
    writer.write(REPORT.pack(1))  # for 0 the master would send the last file only
    return reader, writer


async def stuck_link(connected: ConnectedSlaves) -> MasterSession:
    """The master's end of the only connection, once the sockets in between are full."""
    await until(lambda: connected.connections == 1)
    (session,) = connected._sessions
    still = count()
    last = -1
    while next(still) < 20:
        if session.next_offset != last:
            last, still = session.next_offset, count()
        await asyncio.sleep(0.01)
    return session


async def test_a_slave_that_is_busy_takes_no_whole_log_into_memory() -> None:
    """While a slave waits for its disk its master sends on: the slave would run out of memory, or hang."""

    async def send(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(PIECES):
            writer.write(PIECE)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(send, "127.0.0.1", 0)
    connection = _MasterConnection()
    host, port = server.sockets[0].getsockname()
    await connect_raw(Address("tcp", host, port), lambda: connection, None)
    transport = connection._transport
    assert transport is not None
    await until(lambda: not transport.is_reading())
    first = await connection.read(0)
    assert _BUFFER_MAX < len(first) < 2 * _BUFFER_MAX
    got = [first]
    while sum(map(len, got)) < PIECES * len(PIECE):
        got.append(await connection.read(20))
        assert 0 < len(got[-1]) < 2 * _BUFFER_MAX
    assert b"".join(got) == PIECE * PIECES
    connection.abort()
    server.close()
    await server.wait_closed()


async def test_a_slave_that_cannot_continue_gets_the_reason() -> None:
    """An operator would read that the master had closed the connection, and look for the reason there."""
    unseen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))

    def refuse(_data: bytes) -> None:
        raise ConnectionLost("the log here ends elsewhere")

    ended = asyncio.Event()

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"what comes")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(send, "127.0.0.1", 0)
    connection = _MasterConnection()
    connection.set_receiver(refuse)
    await connect_raw(Address("tcp", *server.sockets[0].getsockname()), lambda: connection, None)
    await until(ended.is_set)
    with pytest.raises(ConnectionLost, match="the log here ends elsewhere"):
        await connection.read(20)
    assert unseen == []
    server.close()
    await server.wait_closed()


async def test_a_master_sends_on_without_waiting_for_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave that was offline would get half a megabyte for each of its reports, or twice a second."""
    monkeypatch.setattr("rocketpy_broker.replication.ha.server._TICK_S", 3600)
    source, _, server = await start_master()

    def receive(fast: socket.socket) -> int:
        frames, size = FrameReader(), 0
        while size < source.max_offset - 1 and (data := fast.recv(4 << 20)):
            size += sum(len(frame.body or b"") for frame in frames.feed(data) if isinstance(frame, Frame))
        return size

    at = address_of(server)
    with socket.create_connection((at.host, at.port), timeout=LIMIT_S) as fast:
        fast.sendall(REPORT.pack(1))
        assert await asyncio.to_thread(receive, fast) == source.max_offset - 1
    await server.close()


async def test_a_master_waits_for_a_slow_slave_and_continues_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow slave would cost its master the memory for a whole log, or get a bit of it twice a second."""
    monkeypatch.setattr("rocketpy_broker.replication.ha.server._TICK_S", 3600)
    source, connected, server = await start_master()
    reader, writer = await slow_slave(address_of(server))
    session = await stuck_link(connected)
    assert session.next_offset < source.max_offset // 2
    frames, received = FrameReader(), bytearray()
    while len(received) < source.max_offset - 1:
        async with asyncio.timeout(LIMIT_S):
            data = await reader.read(1 << 20)
        assert data
        for frame in frames.feed(data):
            received += bytes(frame.body or b"")  # type: ignore[union-attr]  # only frames come here
    assert received == source.data[1:]
    writer.close()
    await server.close()


async def test_a_master_that_becomes_a_slave_sends_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow slave would copy a log whose end the new master may have cut."""
    monkeypatch.setattr("rocketpy_broker.replication.ha.server._CLOSE_WAIT_S", 3600)
    source, connected, server = await start_master()
    reader, writer = await slow_slave(address_of(server))
    session = await stuck_link(connected)
    sent_until = session.next_offset
    assert sent_until < source.max_offset
    server.disconnect()
    frames, received = FrameReader(), bytearray()
    async with asyncio.timeout(LIMIT_S):
        while data := await reader.read(1 << 20):
            for frame in frames.feed(data):
                received += bytes(frame.body or b"")  # type: ignore[union-attr]  # only frames come here
    assert received == source.data[1:sent_until]
    writer.close()
    await server.close()
