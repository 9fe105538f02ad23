"""docs/operations/backup.md: its commands copy a stopped and a running broker, and restore both."""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpy import Message, Producer, SendResult
from rocketpy_broker.store.config import CommitLogConfig, ConsumeQueueConfig, StoreConfig
from rocketpy_broker.store.message_store import MessageStore
from tests.integration.processes import COMMAND, start, stop
from tests.integration.server.test_service_stop import bodies
from tests.interop.processes import free_broker_port
from tests.waiting import LIMIT_S, until
from tools.import_map import ROOT

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs/operations/backup.md").read_text("utf-8")
FILE_BYTES = 1 << 20
SETTINGS = ("--set", f"mappedFileSizeCommitLog={FILE_BYTES}", "--set", "mappedFileSizeConsumeQueue=20000")
SENDS = 20


def commands(heading: str, places: dict[str, str]) -> list[str]:
    """The lines of a section's console block, with paths and addresses replaced by `places`."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    [block] = re.findall(r"^```console\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    for written, real in places.items():
        block = block.replace(written, real)
    return [line.removeprefix("$ ") for line in block.splitlines()]


async def run(lines: list[str]) -> str:
    """Run commands in a shell, which must all succeed; return what they print."""
    process = await asyncio.create_subprocess_exec(
        "bash", "-euo", "pipefail", "-c", "\n".join(lines), stdout=PIPE, stderr=STDOUT
    )
    async with asyncio.timeout(LIMIT_S):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


class Cluster:
    """A name server, and a broker whose store is copied; both are processes."""

    def __init__(self, folder: Path) -> None:
        self.places = {
            "/var/lib/rocketmq": str(folder / "store"), "/backup": str(folder / "backup"),
            "/tmp/rocketmq-try": str(folder / "try"), "broker.conf": str(folder / "broker.conf"),  # noqa: S108
            "rocketpy-broker ": f"{sys.executable} -m rocketpy_broker.cli ",
        }  # fmt: skip
        self.store, self.backup = folder / "store", folder / "backup"
        port = free_broker_port()
        (folder / "broker.conf").write_text(f"brokerName=b1\nlistenPort={port}\n")
        self.backup.mkdir()
        self.processes: list[Process] = []

    async def open(self) -> None:
        process, self.namesrv = await start("namesrv", "--listen", "127.0.0.1:0")
        self.processes.append(process)
        self.places["127.0.0.1:9876"] = self.namesrv
        await self.open_broker()

    async def open_broker(self) -> None:
        """Start a broker with the restore section's last line."""
        line = commands("Restore", self.places)[-1].removeprefix(f"{' '.join(COMMAND)} ")
        process, _ = await start(*line.split(), *SETTINGS)
        self.processes.append(process)

    async def close(self) -> None:
        for process in reversed(self.processes):
            if process.returncode is None:
                assert await stop(process) == 0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    await made.open()
    yield made
    await made.close()


def stored_config(root: Path) -> StoreConfig:
    return StoreConfig(
        root=root,
        commit_log=CommitLogConfig(segment_bytes=FILE_BYTES),
        consume_queue=ConsumeQueueConfig(segment_bytes=20000),
    )


def log_bytes(root: Path) -> bytes:
    """The commit log of a store that no broker has open, without what follows its last record."""
    with MessageStore(stored_config(root)) as store:
        end = store.commit_log.max_offset
    return b"".join(file.read_bytes() for file in sorted((root / "commitlog").iterdir()))[:end]


async def send(producer: Producer, count: int) -> list[tuple[bytes, SendResult]]:
    sent = [Message("Orders", b"%030d" % number, keys=[str(number)]) for number in range(count)]
    results = await asyncio.gather(*map(producer.send, sent))
    return [(message.body, result) for message, result in zip(sent, results, strict=True)]


def assert_has(root: Path, sent: list[tuple[bytes, SendResult]]) -> None:
    """Check that the store has each message at its offset."""
    with MessageStore(stored_config(root)) as store:
        queues = {number: bodies(store, "Orders", number) for number in {r.queue.queue_id for _, r in sent}}
    for body, result in sent:
        assert queues[result.queue.queue_id][result.queue_offset] == body


async def test_a_stopped_broker(cluster: Cluster) -> None:
    """The backup of the documentation could not be restored."""
    async with Producer("g", cluster.namesrv) as producer:
        sent = await send(producer, 200)
    await run(commands("Copy a stopped broker", cluster.places))
    assert await cluster.processes.pop().wait() == 0
    copy = cluster.backup / "rocketmq"
    files = {path.relative_to(cluster.store) for path in cluster.store.rglob("*") if path.is_file()}
    assert {path.relative_to(copy) for path in copy.rglob("*") if path.is_file()} == files
    for path in files:
        assert (cluster.store / path).read_bytes() == (copy / path).read_bytes(), path
    assert '"stoppedCleanly": true' in await run(commands("Test a backup", cluster.places))
    await run(commands("Restore", cluster.places)[:-1])
    await cluster.open_broker()
    async with Producer("g", cluster.namesrv) as producer:
        sent += await send(producer, 20)
    assert await stop(cluster.processes.pop()) == 0
    assert_has(cluster.store, sent)


async def test_a_running_broker_under_load(cluster: Cluster) -> None:
    """A copy of a store that is written to would lack messages that were stored before, or not open."""
    lines = commands("Copy a running broker", cluster.places)
    during: list[tuple[bytes, SendResult]] = []
    async with Producer("g", cluster.namesrv) as producer:
        before = await send(producer, 2000)
        copying = True

        async def go_on() -> None:
            while copying:
                during.extend(await send(producer, SENDS))

        sending = asyncio.create_task(go_on())
        # Messages arrive while the queues and the log are copied.
        for line in lines[:-1]:
            before += during
            during.clear()
            await until(lambda: len(during) >= SENDS)
            await run([line])
        copying = False
        await sending
    assert await stop(cluster.processes.pop()) == 0
    assert "not stopped cleanly" in await run(lines[-1:])
    whole = log_bytes(cluster.store)
    copy = {"/backup/rocketmq": str(cluster.backup / "running"), "/var/lib/rocketmq": str(cluster.store)}
    await run(commands("Restore", copy)[:-1])
    await cluster.open_broker()
    assert await stop(cluster.processes.pop()) == 0
    restored = log_bytes(cluster.store)
    assert whole.startswith(restored)
    assert_has(cluster.store, before)
