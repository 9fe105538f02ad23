"""Few file descriptors: servers divide them, and a flood of connections does not make them unreachable."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import resource
import socket
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rocketpy.errors import ConfigInvalid
from rocketpy_broker.broker.open_files import (
    fit_open_files_limit,
    open_files_limit,
    raise_open_files_limit,
    share_open_files,
)
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.store import StoreConfig
from rocketpy_broker.store.files.disk import OsDisk, spare_descriptors
from tests.integration.broker.test_broker import send
from tests.integration.processes import COMMAND
from tests.integration.raw_client import RawClient
from tests.integration.small import SMALL
from tests.waiting import LIMIT_S, until

FLOOD = 1500


@asynccontextmanager
async def limited(
    limit: int, store: Path, more: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Process, str, Path]]:
    """A broker's process with this limit of open files, its address and its log. more: settings."""
    log = store / "stderr.txt"
    given = SMALL | {"flushDiskType": "SYNC_FLUSH"} | dict(more or {})
    settings = [f"--set={key}={value}" for key, value in given.items()]

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    with log.open("w") as errors:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "broker", "--listen=127.0.0.1:0", f"--store={store / 'store'}", *settings,
            stdout=PIPE, stderr=errors, preexec_fn=lower,
        )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        line = (await process.stdout.readline()).decode()
    assert " ready at " in line, log.read_text()
    try:
        yield process, line.split()[-1], log
    finally:
        process.terminate()
        async with asyncio.timeout(LIMIT_S):
            await process.communicate()
    assert process.returncode == 0


def flood(address: str, sockets: list[socket.socket], count: int, said: bytes = b"") -> None:
    """Open connections, most of which are not served."""
    host, _, port = address.rpartition(":")
    for _ in range(count):
        one = socket.socket()
        one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            one.connect((host, int(port)))
        sockets.append(one)
        if said:
            with contextlib.suppress(OSError):
                one.send(said)


def open_files(process: Process) -> int:
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


async def served(address: str, body: bytes) -> None:
    """Wait until a new client is served while others hold most descriptors."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(ConnectionError):
                async with await RawClient.open(address) as client:
                    assert (await send(client, body)).code == 0
                    return


@pytest.mark.parametrize("limit", [64, 1024])
async def test_a_flood_of_connections_leaves_descriptors_for_others(limit: int, tmp_path: Path) -> None:
    """At 1,024 descriptors 2,649 tracebacks were logged in seconds; at 64 the broker never recovered."""
    async with limited(limit, tmp_path) as (process, address, log):
        async with await RawClient.open(address) as good:
            assert (await send(good, b"before")).code == 0
            crowd: list[socket.socket] = []
            try:
                for number in range(10):
                    flood(address, crowd, FLOOD // 10, b"\0\0" if number % 2 else b"")
                    assert (
                        await send(good, bytes(200_000))
                    ).code == 0  # log files are filled and created meanwhile
                    await served(address, b"one more")
                assert open_files(process) < limit
            finally:
                for one in crowd:
                    one.close()
            for _ in range(10):
                await served(address, b"afterwards")
            assert (await send(good, b"after")).code == 0
        text = log.read_text()
    assert "Traceback" not in text, text[:4000]
    assert len(text.splitlines()) < 30, text[:4000]
    assert len(re.findall("limit of open files is", text)) == 1
    assert f"{share_open_files(limit).connections} connections instead of maxConnections=8192" in text


async def test_more_new_queues_than_descriptors_are_flushed(tmp_path: Path) -> None:
    """At 64 descriptors 55 new topics ended the flushes of queues, new connections and the clean stop."""
    async with limited(64, tmp_path, {"autoCreateTopicEnable": "true"}) as (_, address, _log):
        async with await RawClient.open(address) as client, asyncio.timeout(LIMIT_S):
            for number in range(200):
                while (await send(client, b"m", topic=f"New{number}")).code:
                    pass  # until there is a descriptor for the table of topics, too
        files = tmp_path / "store" / "consumequeue"
        await until(lambda: len(list(files.glob("New*/0/*"))) == 200)
        await served(address, b"afterwards")


def test_descriptors_of_the_store_are_reserved() -> None:
    """Connections would use descriptors that a flush needs, or a large limit change the defaults."""
    for limit in (64, 100, 256, 1024, 4096, 20_000, 1 << 20):
        shares = share_open_files(limit)
        assert shares.connections >= 10
        assert shares.connections * 3 // 2 + 2 * shares.queue_files + 32 <= limit
    assert share_open_files(20_000).connections >= 8192
    assert share_open_files(20_000).queue_files == 512
    with pytest.raises(ConfigInvalid, match="limit of open files is 40"):
        share_open_files(40)


def test_the_store_opens_files_when_no_descriptor_is_left(tmp_path: Path) -> None:
    """A flush without a descriptor would fail, and a failed flush stops the broker.

    New files of queues used the last one, so that the flush of their directory failed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    disk, taken = OsDisk(), []
    spare_descriptors.hold()
    try:
        used = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 10, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        handle = disk.create(tmp_path / "one", 100)
        disk.fsync_dir(tmp_path)
        disk.close(disk.open(tmp_path / "one"))
        disk.close(handle)
        with pytest.raises(OSError, match="Too many open files"):
            taken.extend(disk.create(tmp_path / str(number), 100) for number in itertools.count())
        disk.fsync_dir(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)
        spare_descriptors.release()


def test_the_limit_of_this_process_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server would accept more connections than it has descriptors, or refuse to start."""
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (1000, resource.RLIM_INFINITY))
    assert open_files_limit() == 1000
    config = BrokerConfig(store=StoreConfig(root=tmp_path))
    assert fit_open_files_limit(config).listen.options.max_connections == (share_open_files(1000).connections)
    asked: list[tuple[int, int]] = []

    def refuse(_kind: int, limits: tuple[int, int]) -> None:
        asked.append(limits)
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_open_files_limit()  # which is not required
    assert asked == [(1 << 20, resource.RLIM_INFINITY)]
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (resource.RLIM_INFINITY,) * 2)
    assert open_files_limit() == 1 << 20
