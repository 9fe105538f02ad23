"""SIGTERM to real servers: nothing acknowledged is lost, and the process ends within its bound."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from rocketpy import Message, Producer
from rocketpy.errors import RocketError
from rocketpy.protocol.message.record import decode_all
from rocketpy_broker.config.file import load_broker_config
from rocketpy_broker.store import MessageStore
from tests.integration.processes import start, stop
from tests.interop.processes import free_port
from tests.waiting import LIMIT_S

SIZES = {"mappedFileSizeCommitLog": "1048576", "mappedFileSizeConsumeQueue": "20000"}
STORE = [option for key, value in SIZES.items() for option in ("--set", f"{key}={value}")]

LAST_FLUSH = "stopping: the last flush of the store"
HANGING = """
import os, sys, time
from rocketpy_broker.cli import main

def hang(call):
    real = getattr(os, call)
    def hanging(*given):
        while os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        return real(*given)
    setattr(os, call, hanging)

hang(sys.argv[2])
sys.exit(main(sys.argv[3:]))
"""
"""A server whose disk calls block while a file exists, as on a disconnected network disk."""


@asynccontextmanager
async def hanging_broker(tmp_path: Path, call: str, *arguments: str) -> AsyncIterator[tuple[Process, Path]]:
    """A broker that has stored a message, and the file that makes `call` hang. It is killed at the end."""
    marker = tmp_path / "hang"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HANGING, str(marker), call, "broker", "--listen", "127.0.0.1:0",
        "--store", str(tmp_path / "store"), *STORE, *arguments, stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        assert b" ready at " in await process.stdout.readline()
    try:
        yield process, marker
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def probe(port: int, path: str) -> tuple[int, str]:
    """Status and text of a probe."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    response = (await reader.read()).decode()
    writer.close()
    return int(response.split()[1]), response.partition("\r\n\r\n")[2]


async def until_last_flush(port: int) -> None:
    """Wait until a broker that stops has begun its last flush."""
    async with asyncio.timeout(LIMIT_S):
        while LAST_FLUSH not in (await probe(port, "/readyz"))[1]:
            pass


def bodies(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    """The messages of a queue."""
    found: list[bytes] = []
    while body := store.get_message(topic, queue_id, len(found), 32).body:
        found += [record.body for record in decode_all(body)]
    return found


async def ended(process: Process) -> tuple[int | None, str]:
    async with asyncio.timeout(LIMIT_S):
        _, errors = await process.communicate()
    return process.returncode, errors.decode()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_sigterm_under_load_loses_nothing_acknowledged(tmp_path: Path, flush: str) -> None:
    """Each restart for an update would lose acknowledged messages."""
    namesrv, namesrv_address = await start("namesrv", "--listen", "127.0.0.1:0")
    broker, _ = await start(
        "broker", "--listen", "127.0.0.1:0", "--namesrv", namesrv_address, "--store", str(tmp_path / "store"),
        *STORE, "--set", f"flushDiskType={flush}", "--stop-timeout", "60",
    )  # fmt: skip
    acknowledged: set[bytes] = set()
    stopping = asyncio.Event()

    async def send(producer: Producer, number: int) -> None:
        sent = 0
        while not stopping.is_set():
            body = b"%d-%d" % (number, sent)
            sent += 1
            with suppress(RocketError):  # the disk is busy, or the broker stops
                await producer.send(Message("T", body))
                acknowledged.add(body)

    async with Producer("g", namesrv_address) as producer:
        await producer.create_topic("T", 4)
        async with asyncio.TaskGroup() as group:
            for number in range(16):
                group.create_task(send(producer, number))
            while len(acknowledged) < 500:  # noqa: ASYNC110 - the senders have no event in common
                await asyncio.sleep(0.01)
            before = len(acknowledged)
            broker.send_signal(signal.SIGTERM)
            try:
                status, errors = await ended(broker)
            finally:
                stopping.set()
    assert status == 0, errors
    assert len(acknowledged) >= before
    assert await stop(namesrv) == 0
    store = MessageStore(load_broker_config(None, {"storePathRootDir": f"{tmp_path}/store", **SIZES}).store)
    report = store.open()
    try:
        assert report.clean
        found = {body for queue_id in range(4) for body in bodies(store, "T", queue_id)}
    finally:
        store.close()
    assert acknowledged - found == set()


@pytest.mark.parametrize("call", ["fdatasync", "pwrite"])
async def test_a_hanging_disk_does_not_prevent_the_end(tmp_path: Path, call: str) -> None:
    """A supervisor would wait for a process that cannot end. pwrite blocks the event loop, too."""
    async with hanging_broker(tmp_path, call, "--stop-timeout", "1") as (process, marker):
        marker.touch()
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        status, errors = await ended(process)
        assert status == 3
        assert time.monotonic() - begin >= 1
        (line,) = [line for line in errors.splitlines() if "not stopped cleanly" in line]
        assert "the stop took 1 s" in line
        assert "stopping: " in line


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """An operator in a hurry would have to look for kill -9."""
    port = free_port()
    arguments = ("--stop-timeout", "3600", "--set", f"metricsPort={port}")
    async with hanging_broker(tmp_path, "fdatasync", *arguments) as (process, marker):
        assert (await probe(port, "/readyz"))[0] == 200
        marker.touch()
        process.send_signal(signal.SIGTERM)
        await until_last_flush(port)
        assert (await probe(port, "/readyz"))[0] == 503
        assert (await probe(port, "/livez"))[0] == 200  # supervisors must not kill it during the stop
        ending = asyncio.ensure_future(ended(process))
        while not ending.done():  # those of the first half second count as repetitions
            process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.1)
        status, errors = await ending
        assert status == 3
        assert f"received SIGINT during the stop. Its last step was: {LAST_FLUSH}" in errors


@pytest.mark.parametrize("server", ["namesrv", "broker", "dev"])
async def test_two_signals_at_once_are_one_stop(tmp_path: Path, server: str) -> None:
    """`timeout 60 rocketpy-broker …` would leave a store to recover: GNU timeout sends its signal twice."""
    options = ["--listen", "127.0.0.1:0"]
    if server == "broker":
        options += ["--store", str(tmp_path), *STORE]
    process, _ = await start(server, *options)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)  # the kernel would drop a second SIGTERM while the first is pending
    status, errors = await ended(process)
    assert (status, "not stopped cleanly" in errors) == (0, False), errors


async def test_a_disk_that_recovers_within_the_bound_is_waited_for(tmp_path: Path) -> None:
    """A slow flush during the stop would make the next start recover the store."""
    port = free_port()
    arguments = ("--stop-timeout", "3600", "--set", f"metricsPort={port}")
    async with hanging_broker(tmp_path, "fdatasync", *arguments) as (process, marker):
        marker.touch()
        process.send_signal(signal.SIGTERM)
        await until_last_flush(port)
        assert process.returncode is None
        marker.unlink()
        status, errors = await ended(process)
        assert (status, "not stopped cleanly" in errors) == (0, False)


@pytest.mark.parametrize("is_abstract", [False, True])
async def test_systemd_is_notified_of_start_and_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_abstract: bool
) -> None:
    """Units that need the broker would start before it recovered its store."""
    path = f"@rocketpy-{tmp_path.name}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(f"\0{path[1:]}" if is_abstract else path)
        notified.settimeout(LIMIT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        process, _ = await start("namesrv", "--listen", "127.0.0.1:0")
        assert await asyncio.to_thread(notified.recv, 100) == b"READY=1"
        assert await stop(process) == 0
        assert await asyncio.to_thread(notified.recv, 100) == b"STOPPING=1"
