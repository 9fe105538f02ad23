"""A broker on a full file system keeps acknowledged messages, and consumers get all of them."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpy import Message, Producer, ProducerConfig, RetryConfig, SendResult
from rocketpy.errors import BrokerError
from rocketpy_broker.embedded import EmbeddedCluster
from rocketpy_broker.store.busy import Reason
from tests.integration.sdk_groups import Seen, consuming
from tests.waiting import until

BODY = b"x" * 1000
SETTINGS = {
    "mappedFileSizeCommitLog": str(2 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "400000",
    "flushDiskType": "SYNC_FLUSH",
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m,nr_inodes=300", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


def fill(path: Path) -> None:
    """Write until the file system is full."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


async def send_until_refused(producer: Producer, sent: list[bytes], most: int) -> str:
    """Send messages, 100 at a time; return the reason of the first rejection, or "" after `most`."""
    for first in range(len(sent), len(sent) + most, 100):
        bodies = [b"%d " % number + BODY for number in range(first, first + 100)]
        results = await asyncio.gather(
            *(producer.send(Message("T", body)) for body in bodies), return_exceptions=True
        )
        sent += [body for body, result in zip(bodies, results, strict=True) if isinstance(result, SendResult)]
        refused = [result for result in results if isinstance(result, BaseException)]
        if refused:
            return str(refused[0])
    return ""


async def consumed(cluster: EmbeddedCluster, count: int, group: str = "g") -> list[bytes]:
    """The messages of a group, once there are `count`."""
    seen = Seen()
    async with consuming(cluster, seen, group=group):
        await seen.until(count)
    return sorted(seen.bodies)


def log_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "commitlog").iterdir())


@pytest.mark.parametrize("refuses", [True, False])
async def test_all_that_was_acknowledged_is_consumed(
    small_disk: Path, caplog: pytest.LogCaptureFixture, *, refuses: bool
) -> None:
    """If other files fill the disk, messages would be deleted at 85 %, or be stored and not readable.

    Without the rejection at 90 %, the log continues in its preallocated blocks.
    """
    root, other = small_disk / "store", small_disk / "other"
    settings = {**SETTINGS, "cleanResourceInterval": "50"}
    if not refuses:
        settings["rocketmq.broker.diskSpaceWarningLevelRatio"] = "1.0"
    sent: list[bytes] = []
    producer_config = ProducerConfig(batching=False, retry=RetryConfig(times=0))
    async with (
        EmbeddedCluster(root, settings=settings) as cluster,
        Producer("senders", cluster.namesrv_address, config=producer_config) as producer,
    ):
        store = cluster.brokers[0].store
        while log_bytes(root) < 6 << 20:  # three files
            assert not await send_until_refused(producer, sent, 500)
        fill(other)
        if refuses:
            await until(lambda: store.disk_full is not None)
        reason = await send_until_refused(producer, sent, 100_000)
        # The first check may come while the other file grows.
        assert ("% full, above 90%" if refuses else "No space left") in reason
        assert store.min_physical_offset == 0
        assert await consumed(cluster, len(sent)) == sorted(sent)
        other.unlink()
        await until(lambda: store.disk_full is None)
        await producer.send(Message("T", b"last"))
        sent.append(b"last")
    async with EmbeddedCluster(root, settings=settings) as cluster:
        assert await consumed(cluster, 1) == [b"last"]
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) <= 10, errors


async def test_forced_deletion_is_the_operators_choice(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator who chose RocketMQ's behaviour would not get it, or not learn its cost."""
    root = small_disk / "store"
    settings = {
        **SETTINGS,
        "cleanResourceInterval": "50",
        "flushIntervalConsumeQueue": "10",  # retention deletes flushed files only
        "cleanFileForciblyEnable": "true",
    }
    sent: list[bytes] = []
    async with (
        EmbeddedCluster(root, settings=settings) as cluster,
        Producer("senders", cluster.namesrv_address) as producer,
    ):
        store = cluster.brokers[0].store
        while log_bytes(root) < 6 << 20:
            assert not await send_until_refused(producer, sent, 500)
        assert not store.min_physical_offset
        await until(lambda: store.checkpoint.dispatched_offset == store.max_physical_offset)
        fill(small_disk / "other")
        await until(lambda: store.min_physical_offset > 0)
        lost = store.stats.forced_messages
        assert len(await consumed(cluster, len(sent) - lost)) == len(sent) - lost
    texts = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any(f"{lost} messages of 4 queues" in text and "before fileReservedTime" in text for text in texts)


def use_all_inodes(directory: Path) -> list[Path]:
    """Create empty files until the file system has no inode left; return them."""
    found: list[Path] = []
    try:
        while True:
            path = directory / f"file{len(found)}"
            path.touch()
            found.append(path)
    except OSError:
        return found


@pytest.mark.parametrize("lacks", ["bytes", "inodes"])
async def test_a_broker_starts_on_a_full_disk(small_disk: Path, lacks: str) -> None:
    """After a restart nobody could read the messages, until an operator found something to delete."""
    root = small_disk / "store"
    settings = {**SETTINGS, "cleanResourceInterval": "50"}
    config = ProducerConfig(retry=RetryConfig(times=0))
    async with (
        EmbeddedCluster(root, settings=settings) as cluster,
        Producer("senders", cluster.namesrv_address) as producer,
    ):
        await producer.send(Message("T", b"first"))
        assert await consumed(cluster, 1) == [b"first"]
    (small_disk / "other").touch()
    others = use_all_inodes(small_disk) if lacks == "inodes" else []
    fill(small_disk / "other")
    async with EmbeddedCluster(root, settings=settings) as cluster:
        store = cluster.brokers[0].store
        assert await consumed(cluster, 1, "another") == [b"first"]
        await until(lambda: store.rejection(Reason.NOT_MARKED) or store.disk_full)
        async with Producer("senders", cluster.namesrv_address, config=config) as producer:
            with pytest.raises(BrokerError, match=r"No space left|% full, above 90%"):
                await producer.send(Message("T", b"refused"))
            for path in (small_disk / "other", *others):
                path.unlink()
            await until(lambda: store.rejection(Reason.NOT_MARKED) is None and store.disk_full is None)
            assert (root / "abort").exists()
            await producer.send(Message("T", b"second"))
        assert await consumed(cluster, 2, "third") == [b"first", b"second"]
