"""A thorough flush in parts: the checkpoint never states more than is flushed, or less than was stated."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from rocketpy.errors import StoreError
from rocketpy_broker.store import (
    ConsumeQueueConfig,
    FlushConfig,
    FlushDiskType,
    MessageStore,
    RetentionConfig,
)
from rocketpy_broker.store.files.checkpoint import Checkpoint
from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.index.index_file import IndexFile
from rocketpy_broker.store.log.flush import PlanLimits, flush_now
from rocketpy_broker.store.upkeep.cleaner import Cleaner
from rocketpy_broker.store.upkeep.driver import StoreDriver
from tests.unit.store.helpers import bodies, kill, message, put, small_config
from tests.waiting import until

MANUAL = FlushConfig(commit_log_interval_ms=60_000, consume_queue_interval_ms=60_000)


class NotingDisk(OsDisk):
    """Notes which files are flushed, and creates no file below one directory."""

    def __init__(self) -> None:
        self.paths: dict[int, Path] = {}
        self.flushed: list[str] = []
        self.full = ""
        self.room = 1 << 20

    def _opened(self, handle: int, path: Path) -> int:
        self.paths[handle] = path
        return handle

    def open(self, path: Path, *, create: bool = False) -> int:
        """See `Disk`."""
        return self._opened(super().open(path, create=create), path)

    def create(self, path: Path, size: int) -> int:
        """See `Disk`."""
        if self.full and path.parent.name == self.full:
            raise OSError(errno.ENOSPC, "planned failure")
        return self._opened(super().create(path, size), path)

    def close(self, handle: int) -> None:
        """See `Disk`."""
        self.paths.pop(handle, None)
        super().close(handle)

    def fdatasync(self, handle: int) -> None:
        """See `Disk`."""
        if handle in self.paths:
            path = self.paths[handle]
            self.flushed.append(f"{path.parent.parent.name}/{path.parent.name}")
        super().fdatasync(handle)


def saved(root: Path) -> Checkpoint:
    """The checkpoint in the file."""
    return Checkpoint.decode((root / "checkpoint").read_bytes())


def test_queues_of_a_part_are_flushed_if_another_one_cannot_be_written(tmp_path: Path) -> None:
    """The next checkpoint stated that these queues are flushed, but no flush included them."""
    disk = NotingDisk()
    store = MessageStore(small_config(tmp_path, flush=MANUAL), disk=disk)
    store.open()
    for queue_id in range(3):
        put(store, queue_id, queue_id=queue_id)
    disk.full = "1"
    with pytest.raises(StoreError):
        store.flush(thorough=True)
    disk.full = ""
    assert not any(
        file.is_held for queue in store.queues.queues.values() for file in queue.files.mapped_files
    )
    store.flush(thorough=True)
    assert saved(tmp_path).dispatched_offset == store.max_physical_offset
    assert {"T/0", "T/1", "T/2"} <= set(disk.flushed)
    store.close()


async def test_the_index_is_flushed_before_the_checkpoint_of_a_flushed_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a log that is flushed already, the part that flushes the index seemed to be empty."""
    synced: list[int] = []
    sync = IndexFile.sync

    def note(file: IndexFile) -> None:
        synced.append(file.next_entry)
        sync(file)

    monkeypatch.setattr(IndexFile, "sync", note)
    driver = StoreDriver(MessageStore(small_config(tmp_path, flush=MANUAL)))
    store = driver.store
    await driver.start()
    for number in range(3):
        put(store, number)
        await driver.flush()
        await driver._flush_thoroughly()
        assert store.index is not None
        progress = saved(tmp_path).progress
        assert progress is not None
        assert progress.index_entries == store.index.files[-1].next_entry == synced[-1]
    await driver.close()


def test_a_checkpoint_does_not_forget_what_was_saved_while_its_parts_ran(tmp_path: Path) -> None:
    """A killed broker did not start again: the checkpoint named log files that retention had deleted."""
    retention = RetentionConfig(reserved_hours=0)
    store = MessageStore(small_config(tmp_path, flush=MANUAL, retention=retention))
    store.open()
    for number in range(200):
        put(store, number, queue_id=number % 3, body=bytes(1000))
    store.flush(thorough=True)
    put(store, 201)
    plans = store.thorough_plans(PlanLimits(1))
    flush_now(store, next(plans))
    assert Cleaner(store, use=lambda _: 0.8).run(store.clock() + 1000) > 0
    assert store.min_physical_offset > 0
    put(store, 1000)
    store.flush()
    store.mark_flushed()
    for plan in plans:
        flush_now(store, plan)
    assert saved(tmp_path).min_offset == store.min_physical_offset
    assert saved(tmp_path).flushed_offset == store.flushed_offset
    kept = bodies(store)
    kill(store)
    with MessageStore(small_config(tmp_path)) as again:
        assert bodies(again) == kept


async def test_flushes_proceed_while_readers_open_files(tmp_path: Path) -> None:
    """The flush of queues waited until no file was opened while it closed others, perhaps forever."""
    queues = ConsumeQueueConfig(segment_bytes=1000, handles_max=4)
    driver = StoreDriver(MessageStore(small_config(tmp_path, flush=MANUAL, consume_queue=queues)))
    store = driver.store
    await driver.start()
    for number in range(8):
        put(store, number, queue_id=number)
    await driver._flush_thoroughly()
    flushing = True

    async def read() -> None:
        while flushing:
            for queue_id in range(8):
                assert store.get_message("T", queue_id, 0, 1).body
            await asyncio.sleep(0)

    reading = asyncio.create_task(read())
    put(store, 8)
    thorough = asyncio.create_task(driver._flush_thoroughly())
    await until(thorough.done)
    flushing = False
    await reading
    assert saved(tmp_path).dispatched_offset == store.max_physical_offset
    await driver.close()


async def test_consumers_see_messages_that_a_thorough_flush_has_flushed(tmp_path: Path) -> None:
    """With SYNC_FLUSH, dispatch waits for the flush, and nothing called it again afterwards."""
    flush = FlushConfig(
        disk_type=FlushDiskType.SYNC_FLUSH, commit_log_interval_ms=60_000, consume_queue_interval_ms=60_000
    )
    driver = StoreDriver(MessageStore(small_config(tmp_path, flush=flush)))
    store = driver.store
    await driver.start()
    store.put_message(message(1))
    store.dispatch()
    assert store.dispatcher.waiting == 1
    await driver._flush_thoroughly()
    await until(lambda: store.dispatcher.waiting == 0)
    await driver.close()
