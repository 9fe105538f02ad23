"""A slave's side of the connection: received data, and pauses while no master accepts it."""

import asyncio
import errno
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Address, ChannelOptions
from rocketpy_broker.replication.ha.client import HaClient, HaClientState
from rocketpy_broker.replication.ha.connected_slaves import ConnectedSlaves
from rocketpy_broker.replication.ha.log import EpochFile, StoreSource
from rocketpy_broker.replication.ha.server import HaServer
from rocketpy_broker.replication.ha.settings import HaSettings
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.config import FlushConfig, FlushDiskType
from rocketpy_broker.store.files.disk import Disk, OsDisk
from rocketpy_broker.store.upkeep.driver import StoreDriver
from tests.unit.replication.ha.logs import MemoryLog
from tests.unit.store.helpers import put, small_config
from tests.waiting import LIMIT_S, until, until_collected

MEMORY = Address("memory", "ha-master")
HOUR_MS = 3_600_000
BURST = 200
"""Messages of 2000 bytes, which a slave gets all at once over memory."""


@asynccontextmanager
async def following(
    root: Path,
    address: Address,
    settings: HaSettings,
    *,
    on_copied: Callable[[], None] = lambda: None,
    flush: FlushConfig | None = None,
    disk: Disk | None = None,
) -> AsyncIterator[HaClient]:
    """A slave with an empty store that does not reconnect before the test has failed."""
    store = MessageStore(small_config(root, flush=flush or FlushConfig()), disk=disk or OsDisk())
    driver = StoreDriver(store)
    await driver.start()
    client = HaClient(
        driver, EpochFile(store.disk, root / "haEpochs.json"), settings, Tasks("a broker"),
        name="b", broker_id=1, reconnect_ms=round(2000 * LIMIT_S), on_copied=on_copied,
    )  # fmt: skip
    client.set_master(address)
    client.start()
    try:
        yield client
    finally:
        async with asyncio.timeout(LIMIT_S):
            await client.close()
        await driver.close()


class Master:
    """A store and its HA port."""

    def __init__(self, store: MessageStore, settings: HaSettings) -> None:
        self.store = store
        self.connected = ConnectedSlaves(behind_bytes_max=1 << 30)
        source = StoreSource(store, EpochFile(store.disk, store.config.root / "haEpochs.json"))
        self.server = HaServer(source, settings, self.connected, lambda: None, Tasks("a broker"))

    def put(self, count: int) -> None:
        """Store messages, and schedule their transfer to the slave."""
        put(self.store, *range(count), body=bytes(2000))
        self.server.send_written()

    def has_sent_all_to(self, slave: HaClient) -> bool:
        """Whether the slave has the whole log."""
        return slave.driver.store.max_physical_offset == self.store.max_physical_offset

    async def sends_all_to(self, slave: HaClient) -> None:
        """Wait until the slave has the whole log."""
        await until(lambda: self.has_sent_all_to(slave))


@asynccontextmanager
async def leading(root: Path, settings: HaSettings | None = None) -> AsyncIterator[Master]:
    """A master. Over memory://, the frames of one iteration of the loop arrive together."""
    settings = settings or HaSettings()
    with MessageStore(small_config(root)) as store:
        master = Master(store, settings)
        await master.server.start(MEMORY, ChannelOptions())
        try:
            yield master
        finally:
            await master.server.close()


async def copying(slave: HaClient) -> None:
    """Wait until a slave and its master have agreed where to begin."""
    await until(lambda: slave.state is HaClientState.COPIES)


async def test_a_slave_waits_before_it_reconnects(tmp_path: Path) -> None:
    """A slave would connect thousands of times a second to a master that drops it, or seem to copy."""
    came: list[asyncio.StreamWriter] = []

    async def drop(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer)
        writer.close()

    server = await asyncio.start_server(drop, "127.0.0.1", 0)
    async with following(tmp_path, Address("tcp", *server.sockets[0].getsockname()), HaSettings()) as slave:
        await until(lambda: slave.problem != "")
        assert slave.state is HaClientState.WAITS
        await asyncio.sleep(0.2)  # for what must not happen
        assert len(came) == 1
    server.close()
    await server.wait_closed()


async def test_a_slave_joins_as_soon_as_it_is_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time it connects, senders that wait for a slave would wait a fifth of a second longer."""
    monkeypatch.setattr("rocketpy_broker.replication.ha.client._TICK_S", 2 * LIMIT_S)
    async with leading(tmp_path / "master"), following(tmp_path / "slave", MEMORY, HaSettings()) as slave:
        await copying(slave)


async def test_a_slave_follows_a_new_master_immediately(tmp_path: Path) -> None:
    """After a promotion, the other slaves would copy nothing until they reconnect."""
    async with (
        leading(tmp_path / "master"),
        following(tmp_path / "slave", Address("memory", "nobody"), HaSettings()) as slave,
    ):
        await until(lambda: slave.problem != "")
        slave.set_master(MEMORY)
        await copying(slave)


async def test_a_slave_over_the_limit_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of connections could make a master read its log for each."""
    monkeypatch.setattr("rocketpy_broker.replication.ha.server._SLAVES_MAX", 1)
    async with (
        leading(tmp_path / "master") as master,
        following(tmp_path / "slave", MEMORY, HaSettings()) as slave,
    ):
        await copying(slave)
        async with following(tmp_path / "other", MEMORY, HaSettings()) as other:
            await until(lambda: other.problem != "")
            assert other.state is HaClientState.WAITS
            assert (slave.state, master.connected.connections) == (HaClientState.COPIES, 1)


async def test_a_rejected_slave_reports_it_while_it_waits(tmp_path: Path) -> None:
    """An operator would believe that the slave only waits for its master, and do nothing."""
    connected = ConnectedSlaves(behind_bytes_max=1 << 30)
    server = HaServer(
        MemoryLog(),
        HaSettings(secret="theirs"),
        connected,
        lambda: None,
        Tasks("a broker"),
    )
    await server.start(Address("tcp", "127.0.0.1", 0), ChannelOptions())
    assert server.address is not None
    async with following(tmp_path, server.address, HaSettings(secret="ours")) as slave:
        await until(lambda: slave.problem != "")
        assert slave.state is HaClientState.REFUSED
    await server.close()


async def test_a_slave_that_is_rejected_never_seems_to_copy(tmp_path: Path) -> None:
    """At each attempt to connect, the status would say that it copies, and its problem would be forgotten."""
    seen: list[HaClientState] = []

    def look() -> None:
        seen.append(slave.state)

    async with (
        leading(tmp_path / "master", HaSettings(secret="theirs")),
        following(tmp_path / "slave", MEMORY, HaSettings(secret="ours"), on_copied=look) as slave,
    ):
        await until(lambda: slave.problem != "")
        assert slave.state is HaClientState.REFUSED
        assert seen == [HaClientState.CONNECTS]  # when it has the hello message of the master


async def test_a_slave_reports_new_records(tmp_path: Path) -> None:
    """Consumers that wait at a slave, and slaves of a slave, would get messages later than they could."""
    copied = asyncio.Event()
    async with (
        leading(tmp_path / "master") as master,
        following(tmp_path / "slave", MEMORY, HaSettings(), on_copied=copied.set) as slave,
    ):
        await copying(slave)
        copied.clear()
        master.put(1)
        async with asyncio.timeout(LIMIT_S):
            await copied.wait()
        assert master.has_sent_all_to(slave)


async def test_a_burst_is_dispatched_without_further_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers of a slave would not get the messages of a burst before the next frame of its master."""
    monkeypatch.setattr("rocketpy_broker.replication.ha.client._BACKLOG_INTERVAL_S", 0)
    async with (
        leading(tmp_path / "master") as master,
        following(tmp_path / "slave", MEMORY, HaSettings()) as slave,
    ):
        await copying(slave)
        await until(lambda: slave._backlog_handle is None)
        master.put(BURST)
        store = slave.driver.store
        await until(lambda: master.has_sent_all_to(slave) and store.dispatch_behind_bytes == 0)
        assert store.max_offset_in_queue("T", 0) == BURST


async def test_a_burst_is_dispatched_soon_after_it(tmp_path: Path) -> None:
    """Consumers of a slave would get the messages of each burst a second later than they could."""
    loop = asyncio.get_running_loop()
    waits: list[float] = []

    def look() -> None:
        if isinstance(slave._backlog_handle, asyncio.TimerHandle):
            waits.append(slave._backlog_handle.when() - loop.time())

    def copied() -> None:
        loop.call_soon(look)

    async with (
        leading(tmp_path / "master") as master,
        following(tmp_path / "slave", MEMORY, HaSettings(), on_copied=copied) as slave,
    ):
        await copying(slave)
        master.put(BURST)
        await until(lambda: master.has_sent_all_to(slave) and bool(waits))
    assert max(waits) < 0.1


async def test_a_closed_slave_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece of a burst would set a timer, and all but one would use the store after it was closed."""
    monkeypatch.setattr("rocketpy_broker.replication.ha.client._BACKLOG_INTERVAL_S", 3600)
    async with leading(tmp_path / "master") as master:
        async with following(tmp_path / "slave", MEMORY, HaSettings()) as slave:
            await copying(slave)
            for _ in range(3):
                master.put(BURST)
                await master.sends_all_to(slave)
            assert slave._backlog.size > 0
            closed = weakref.ref(slave)
        del slave
    await until_collected(closed)


class UnreadableDisk(OsDisk):
    """A real disk whose reads fail while `fails` is positive, each time one less."""

    fails = 0

    def pread(self, handle: int, size: int, position: int) -> bytes:
        if self.fails:
            self.fails -= 1
            raise OSError(errno.EIO, "planned failure of pread")
        return super().pread(handle, size, position)


async def test_a_burst_is_dispatched_after_a_disk_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One failed read would hide the messages of a burst until the next frame of the master."""
    monkeypatch.setattr("rocketpy_broker.replication.ha.client._RETRY_S", 0)
    monkeypatch.setattr("rocketpy_broker.replication.ha.client._BACKLOG_INTERVAL_S", 3600)
    quiet = HaSettings(heartbeat_ms=HOUR_MS, silence_ms=2 * HOUR_MS)  # no frame comes after the burst
    disk = UnreadableDisk()
    async with (
        leading(tmp_path / "master", quiet) as master,
        following(tmp_path / "slave", MEMORY, quiet, disk=disk) as slave,
    ):
        await copying(slave)
        store = slave.driver.store
        master.put(BURST)
        await master.sends_all_to(slave)
        assert slave._backlog_handle is not None
        slave._backlog_handle.cancel()
        slave._backlog.check_burst()  # which is over
        disk.fails = 2
        slave._schedule_backlog(0)
        await until(lambda: store.dispatch_behind_bytes == 0)
        assert disk.fails == 0
        assert store.max_offset_in_queue("T", 0) == BURST
    assert caplog.text.count("copied messages cannot be dispatched") == 2


async def test_a_slave_that_stops_flushes_what_it_dispatches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SYNC_FLUSH only flushed records are dispatched: a slave with a backlog would never stop."""
    monkeypatch.setattr("rocketpy_broker.replication.ha.client._BACKLOG_INTERVAL_S", 3600)
    monkeypatch.setattr("rocketpy_broker.store.replica.backlog._PIECE_BYTES", 8192)
    monkeypatch.setattr("rocketpy_broker.store.replica.backlog._WAITING_MAX", 10)
    flush = FlushConfig(
        disk_type=FlushDiskType.SYNC_FLUSH, commit_log_interval_ms=HOUR_MS, consume_queue_interval_ms=HOUR_MS
    )
    async with (
        leading(tmp_path / "master") as master,
        following(tmp_path / "slave", MEMORY, HaSettings(), flush=flush) as slave,
    ):
        await copying(slave)
        master.put(BURST)
        await master.sends_all_to(slave)
        assert slave._backlog.size > 0
        async with asyncio.timeout(LIMIT_S):
            await slave.close()
        assert slave._backlog.size == 0


async def test_a_slave_flushes_on_a_machine_that_runs_for_years(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave would close its connection at each flush, and its master would wait for the timeout."""
    loop = asyncio.get_running_loop()
    since_boot = loop.time
    monkeypatch.setattr(loop, "time", lambda: since_boot() + 1e9)
    async with (
        leading(tmp_path / "master", HaSettings(wants_flushed=True)) as master,
        following(tmp_path / "slave", MEMORY, HaSettings()) as slave,
    ):
        await copying(slave)
        for _ in range(3):
            master.put(1)
            await until(lambda: master.connected.acked == master.store.max_physical_offset)
        assert slave.problem == ""


async def test_a_flush_is_reported_immediately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With SYNC_FLUSH, each send would wait until the slave reports at its next interval."""
    monkeypatch.setattr("rocketpy_broker.replication.ha.client._TICK_S", 2 * LIMIT_S)
    settings = HaSettings(wants_flushed=True, heartbeat_ms=round(2000 * LIMIT_S))
    async with (
        leading(tmp_path / "master", settings) as master,
        following(tmp_path / "slave", MEMORY, settings) as slave,
    ):
        await copying(slave)
        master.put(1)
        await until(lambda: master.connected.acked == master.store.max_physical_offset)


async def test_data_received_during_a_disk_wait_is_kept(tmp_path: Path) -> None:
    """A slave with a busy disk would drop a piece of the log, and start over each time it connects."""
    async with leading(tmp_path / "master") as master:
        master.put(4 * BURST)  # more than one frame
        async with following(tmp_path / "slave", MEMORY, HaSettings()) as slave:

            async def keep_busy() -> None:
                while not master.has_sent_all_to(slave):
                    async with slave.driver.paused():
                        for _ in range(50):
                            await asyncio.sleep(0)

            async with asyncio.timeout(LIMIT_S):
                await keep_busy()
            assert slave.problem == ""
