"""/livez and /readyz: the probes of supervisors at name servers and brokers, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rocketpy import Message, Producer
from rocketpy.errors import ConfigInvalid
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.broker import consumer_services
from rocketpy_broker.broker.broker import Broker
from rocketpy_broker.config.file import load_broker_config, load_namesrv_config
from rocketpy_broker.metrics import http_server
from rocketpy_broker.metrics.catalog import STALLED
from rocketpy_broker.metrics.http_server import HttpServer
from rocketpy_broker.namesrv import NameServer
from rocketpy_broker.namesrv.route_table import RouteTable
from rocketpy_broker.store.files.disk import Disk, OsDisk
from tests.integration.ledger_group import LedgerGroup
from tests.interop.processes import free_port
from tests.unit.store.faulty_disk import FaultyDisk
from tests.waiting import LIMIT_S

T = TypeVar("T")


async def ask(server: HttpServer | None, request: str = "GET /readyz HTTP/1.1") -> tuple[int, str]:
    """Status and text."""
    assert server is not None
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(f"{request}\r\nHost: x\r\n\r\n".encode())
    async with asyncio.timeout(LIMIT_S):
        response = (await reader.read()).decode()
    writer.close()
    head, _, body = response.partition("\r\n\r\n")
    return int(head.split()[1]), body


async def until(look: Callable[[], Awaitable[T]]) -> T:
    """Call `look` until its result is true; return the result."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            if found := await look():
                return found
            await asyncio.sleep(0.01)


async def livez(server: HttpServer | None) -> int:
    return (await ask(server, "GET /livez HTTP/1.1"))[0]


@asynccontextmanager
async def name_server(tmp_path: Path, **changes: Any) -> AsyncIterator[NameServer]:
    given: dict[str, str | int] = {
        "listen": "127.0.0.1:0",
        "kvConfigPath": f"{tmp_path}/kv",
        "metricsPort": 0,
    }
    server = NameServer(replace(load_namesrv_config(None, given), **changes))
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def broker_of(tmp_path: Path, namesrv: str = "", disk: Disk | None = None, **settings: str) -> Broker:
    given = {
        "storePathRootDir": str(tmp_path / "store"),
        "listen": "127.0.0.1:0",
        "metricsPort": "0",
        **({"namesrvAddr": namesrv} if namesrv else {}),
        **settings,
    }
    return Broker(load_broker_config(None, given), disk=disk)


@asynccontextmanager
async def running(broker: Broker) -> AsyncIterator[Broker]:
    await broker.start()
    try:
        yield broker
    finally:
        with contextlib.suppress(Exception):  # the last flush, on disks that fail
            await broker.close()


async def test_a_broker_that_serves_is_ready_and_alive(tmp_path: Path) -> None:
    """A supervisor would restart, or never use, a broker that works."""
    async with name_server(tmp_path) as names, running(broker_of(tmp_path, str(names.address))) as broker:
        status, text = await ask(broker.http)
        assert (status, text.splitlines()[-1]) == (200, "ok")
        assert text.splitlines()[:5] == [
            "[+]serving ok",
            "[+]store ok",
            "[+]disk ok",
            "[+]registration ok",
            "[+]upkeep ok",
        ]
        assert await livez(broker.http) == 200
        assert await ask(broker.http, "HEAD /readyz HTTP/1.1") == (200, "")
        assert broker.http is not None
        address = broker.http.address
    with pytest.raises(OSError, match=r"refused|Connect"):
        await asyncio.open_connection(*address)


async def test_a_name_server_responds_to_probes(tmp_path: Path) -> None:
    """Supervisors could only monitor brokers."""
    async with name_server(tmp_path) as names:
        assert await ask(names.http) == (200, "[+]serving ok\n[+]tasks ok\n[+]upkeep ok\nok\n")
        assert await livez(names.http) == 200
        assert (await ask(names.http, "GET /metrics HTTP/1.1"))[0] == 404
        names.tasks.fail("a loop", ValueError("planted"))
        status, text = await ask(names.http)
        assert status == 503
        assert "ValueError('planted')" in text
        assert await livez(names.http) == 503


class Planted:
    """A function with a bug, until `is_fixed`."""

    is_fixed = False

    def __call__(self, *_: object) -> list[Any]:
        if not self.is_fixed:
            raise ValueError("planted")
        return []


async def test_a_bug_in_upkeep_stops_no_server_and_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One strange client would stop a broker again after each restart, or locks would never expire again."""
    monkeypatch.setattr(consumer_services, "_CLIENT_SWEEP_S", 0.001)
    async with name_server(tmp_path) as names, running(broker_of(tmp_path, str(names.address))) as broker:
        planted = Planted()
        monkeypatch.setattr(broker.consumers.locks, "drop_expired", planted)

        async def shows(problem: str) -> bool:
            return problem in (await ask(broker.http))[1]

        await until(
            lambda: shows("[-]upkeep failed: sweep of clients and locks of broker broker-a has failed")
        )
        await until(lambda: shows("2 times: ValueError: planted"))
        assert await livez(broker.http) == 200
        [stalled] = broker.health().stalled
        assert "ValueError: planted" in stalled
        assert broker.metrics is not None
        measured = {metric.name: values for metric, values in broker.metrics.collect_from_any_thread()}
        assert [count for _, count in measured[STALLED.name]] == [1]
        async with Producer("g", str(names.address)) as producer:
            await producer.send(Message("T", b"served"))
        planted.is_fixed = True
        await until(lambda: shows("[+]upkeep ok"))
        assert broker.health().stalled == ()
    assert len([one for one in caplog.records if one.exc_info is not None]) == 1


async def test_a_bug_in_the_upkeep_of_a_name_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent brokers would stay in routes for ever, after one strange registration."""
    async with name_server(tmp_path, scan_interval_ms=1) as names:
        planted = Planted()
        monkeypatch.setattr(RouteTable, "drop_inactive", planted)

        async def is_shown() -> bool:
            return "[-]upkeep failed: broker scan of the name server" in (await ask(names.http))[1]

        await until(is_shown)
        planted.is_fixed = True

        async def is_ready() -> bool:
            return (await ask(names.http))[0] == 200

        await until(is_ready)


async def test_a_broker_that_no_name_server_knows_is_alive_but_not_ready(tmp_path: Path) -> None:
    """A rolling update would continue although no client finds the broker, or a supervisor restart it."""
    async with name_server(tmp_path) as names:
        address = str(names.address)
        broker = broker_of(tmp_path, address)
        await broker.start()
    try:

        async def lost() -> str:
            status, text = await ask(broker.http)
            return text if status == 503 else ""

        text = await until(lost)
        assert "not registered at any name server: " in text
        assert address in text
        assert await livez(broker.http) == 200
    finally:
        await broker.close()


class _SlowStart(OsDisk):
    """A disk on which opening a store takes until `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def make_dir(self, path: Path) -> None:
        """See `Disk.make_dir`."""
        self.go.wait(LIMIT_S)
        super().make_dir(path)


async def test_a_broker_is_alive_and_not_ready_while_it_recovers(tmp_path: Path) -> None:
    """A long recovery would be killed and restarted, forever."""
    disk = _SlowStart()
    broker = broker_of(tmp_path, disk=disk)
    starting = asyncio.ensure_future(broker.start())
    try:

        async def started() -> bool:
            return broker.http is not None and broker.http.address[1] != 0

        await until(started)
        status, text = await ask(broker.http)
        assert (status, text.splitlines()[0]) == (503, "[-]serving failed: opening the store")
        assert await livez(broker.http) == 200
        assert (await ask(broker.http, "GET /metrics HTTP/1.1"))[0] == 404  # not yet
        disk.go.set()
        await starting
        assert (await ask(broker.http))[0] == 200
    finally:
        disk.go.set()
        await starting
        await broker.close()


async def test_a_failed_flush_is_neither_ready_nor_alive(tmp_path: Path) -> None:
    """No supervisor would restart the broker, although only a restart helps."""
    disk = FaultyDisk(only="fdatasync")
    async with (
        name_server(tmp_path) as names,
        running(broker_of(tmp_path, str(names.address), disk)) as broker,
    ):
        disk.fail_at, disk.fail_count = disk.calls + 1, 1000
        async with Producer("g", str(names.address)) as producer:
            await producer.send(Message("T", b"x"))
        await asyncio.wait_for(broker.wait_failed(), LIMIT_S)
        status, text = await ask(broker.http)
        assert status == 503
        assert "[-]store failed: " in text
        assert await livez(broker.http) == 503


class _StuckDisk(OsDisk):
    """A disk whose flushes block until `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()

    def fdatasync(self, handle: int) -> None:
        """See `Disk.fdatasync`."""
        self.go.wait(LIMIT_S)
        super().fdatasync(handle)


async def test_a_disk_that_hangs_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No probe would report that acknowledged messages stay unflushed."""
    monkeypatch.setattr("rocketpy_broker.broker.broker._FLUSH_S_MAX", 0.05)
    disk = _StuckDisk()
    async with (
        name_server(tmp_path) as names,
        running(broker_of(tmp_path, str(names.address), disk)) as broker,
    ):
        disk.go.clear()
        async with Producer("g", str(names.address)) as producer:
            await producer.send(Message("T", b"x"))

        async def hangs() -> bool:
            status, text = await ask(broker.http)
            return status == 503 and "[-]disk failed: a flush has not finished after" in text

        await until(hangs)
        assert await livez(broker.http) == 200
        disk.go.set()

        async def repaired() -> bool:
            return (await ask(broker.http))[0] == 200

        await until(repaired)


async def test_a_peer_without_a_majority_is_not_ready(tmp_path: Path) -> None:
    """A rolling update would stop the next peer while the group cannot elect a leader."""
    async with name_server(tmp_path) as names:
        group = LedgerGroup(tmp_path / "group", names, 3, 1000, 1000)
        try:
            alone = await group.start("n0", {"metricsPort": "0"})
            status, text = await ask(alone.http)
            assert status == 503
            assert "[-]dledger failed: no leader in term" in text
            others = [await group.start(name, {"metricsPort": "0"}) for name in ("n1", "n2")]

            async def all_ready() -> bool:
                return [(await ask(broker.http))[0] for broker in (alone, *others)] == [200] * 3

            await until(all_ready)
        finally:
            for broker in group.running.values():
                await broker.close()


# -- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /readyz", 400),
        ("\x16\x03\x01 hello", 400),
        ("POST /readyz HTTP/1.1", 405),
        ("GET http://x/readyz HTTP/1.1", 404),
        ("GET /readyz?verbose HTTP/1.0", 200),
        (f"GET /readyz HTTP/1.1\r\nX: {'y' * 9000}", 200),
        (f"GET /{'y' * 100_000} HTTP/1.1", 404),
    ],
)
async def test_odd_requests_get_responses(tmp_path: Path, request_line: str, status: int) -> None:
    """An invalid request would end the endpoint, or hold a connection."""
    async with name_server(tmp_path) as names:
        code, _ = await ask(names.http, request_line)
        assert code in (status, 431)  # 431: where the kernel handed over a part of it first
        assert (await ask(names.http))[0] == 200


async def test_a_head_without_end_is_rejected(tmp_path: Path) -> None:
    """A request head without an end could fill the memory."""
    async with name_server(tmp_path) as names:
        assert names.http is not None
        reader, writer = await asyncio.open_connection(*names.http.address)
        for _ in range(100):
            writer.write(b"x" * 1000)
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
        writer.close()


async def test_probes_get_responses_despite_slow_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor would restart a server because slow clients occupy the connections of its probes."""
    monkeypatch.setattr(http_server, "_REQUEST_S_MAX", 1.0)
    async with name_server(tmp_path) as names:
        assert names.http is not None
        slow = [await asyncio.open_connection(*names.http.address) for _ in range(200)]
        for _, writer in slow:
            writer.write(b"GET /readyz HTT")
        assert (await ask(names.http))[0] == 200
        ended = [asyncio.ensure_future(reader.read()) for reader, _ in slow]
        done, _ = await asyncio.wait(ended, timeout=LIMIT_S)  # 168 end at once, the others a second later
        assert len(done) == len(slow)
        for task, (_, writer) in zip(ended, slow, strict=True):
            task.exception()
            writer.close()


async def test_a_client_that_does_not_read_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each such client would hold a page in memory."""
    monkeypatch.setattr(http_server, "_REQUEST_S_MAX", 0.1)
    async with name_server(tmp_path) as names:
        assert names.http is not None
        names.http.pages["/big"] = lambda: http_server.Page("200 OK", bytes(50 << 20))
        reader, writer = await asyncio.open_connection(*names.http.address, limit=1)
        writer.write(b"GET /big HTTP/1.1\r\n\r\n")
        server = names.http

        async def gone() -> bool:
            return not server._connections

        await until(gone)
        writer.close()
        del reader


async def test_a_page_that_fails_is_an_error_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in a metric would look like an offline server, or stop the broker."""
    async with name_server(tmp_path) as names:
        assert names.http is not None

        def fails() -> http_server.Page:
            raise ConfigInvalid("planted")

        names.http.pages["/odd"] = fails
        assert (await ask(names.http, "GET /odd HTTP/1.1"))[0] == 500
        assert (await ask(names.http))[0] == 200
    assert "page /odd failed" in caplog.text


@pytest.mark.parametrize(
    ("file", "job"),
    [
        ("consumerOffset.json", "save of consumer offsets"),
        ("consumerOrderInfo.json", "save of the order of pops"),
        ("delayOffset.json", "save of delay offsets"),
    ],
)
async def test_a_state_file_that_cannot_be_saved_for_a_minute(tmp_path: Path, file: str, job: str) -> None:
    """Nobody would notice until the next restart delivers the messages of days again."""
    broker = broker_of(tmp_path, flushConsumerOffsetInterval="20", flushDelayOffsetInterval="20")
    blocker = tmp_path / "store" / "config" / f"{file}.tmp"  # a directory, where the save needs a file
    async with running(broker):
        blocker.mkdir()
        broker.consumers.offsets.commit("g", "T", 0, 7)
        broker.delivery.delay._saved = {1: -1}
        broker.consumers.order._is_changed = True
        consumers = broker.consumers
        jobs = {
            "consumerOffset.json": consumers.offsets.jobs,
            "consumerOrderInfo.json": consumers.order.jobs,
        }.get(file, broker._driver.jobs)

        async def failing() -> bool:
            return job in jobs.failing

        await until(failing)
        assert (await ask(broker.http))[0] == 200  # it may end by itself
        now_ms = jobs.clock_ms
        jobs.clock_ms = lambda: now_ms() + 61_000

        async def stalled() -> bool:
            return bool(broker.health().stalled)

        await until(stalled)
        (text,) = broker.health().stalled
        assert text.startswith(f"{job} has failed for 6")
        assert "Is a directory" in text or "not permitted" in text
        status, page = await ask(broker.http)
        assert status == 503
        assert f"[-]disk failed: {job} has failed for " in page
        assert await livez(broker.http) == 200
        blocker.rmdir()

        async def ready() -> bool:
            return (await ask(broker.http))[0] == 200

        await until(ready)
        assert broker.health().stalled == ()


async def test_a_slave_without_a_master_says_so_and_serves(tmp_path: Path) -> None:
    """Operators would see a healthy slave that copies nothing; or consumers lose it with its master."""
    broker = broker_of(tmp_path, brokerRole="SLAVE", brokerId="1")
    broker._sync.interval_ms = 20
    async with running(broker):
        jobs = broker._sync.jobs

        async def failing() -> bool:
            return bool(jobs.failing)

        await until(failing)
        now_ms = jobs.clock_ms
        jobs.clock_ms = lambda: now_ms() + 61_000

        async def stalled() -> bool:
            return bool(broker.health().stalled)

        await until(stalled)
        (text,) = broker.health().stalled
        assert text.startswith("copy of topics and offsets from the master has failed for ")
        assert (await ask(broker.http))[0] == 200


async def test_a_name_server_that_cannot_start_leaves_no_port_open() -> None:
    """A process that tries again would find its own port in use."""
    other = HttpServer("127.0.0.1", 0, Tasks("a server"))
    await other.start()
    given = {"listen": f"127.0.0.1:{other.address[1]}", "metricsPort": str(free_port())}
    try:
        with pytest.raises(OSError, match="in use"):
            await NameServer(load_namesrv_config(None, given)).start()
    finally:
        await other.close()
    server = NameServer(load_namesrv_config(None, given))
    await server.start()
    await server.close()
