"""The store driver: periodic work, flushes, preallocation, and failures that stop the store."""

from __future__ import annotations

import asyncio
import errno
import itertools
import threading
import time
from pathlib import Path

import pytest

from rocketpy.errors import FlushFailed, StoreError
from rocketpy_broker.store import (
    CommitLogConfig,
    ConsumeQueueConfig,
    FlushConfig,
    FlushDiskType,
    MessageStore,
)
from rocketpy_broker.store.files.checkpoint import CHECKPOINT_BYTES, Checkpoint
from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue
from rocketpy_broker.store.queue.dispatch import Arrivals
from rocketpy_broker.store.upkeep.driver import StoreDriver
from tests.background import Bug, assert_logged, kill
from tests.turns import Turns
from tests.unit.store.faulty_disk import FaultyDisk
from tests.unit.store.helpers import bodies, message, small_config
from tests.waiting import LIMIT_S, until


async def test_messages_are_flushed_and_dispatched_periodically(tmp_path: Path) -> None:
    """An idle broker would keep messages in memory, where power loss and consumers miss them."""
    flush = FlushConfig(commit_log_interval_ms=5, consume_queue_interval_ms=10)
    store = MessageStore(small_config(tmp_path, flush=flush))
    driver = StoreDriver(store)
    assert (await driver.start()).clean
    store.put_message(message(1))
    driver.schedule_dispatch()
    driver.schedule_dispatch()
    assert store.dispatcher.waiting == 1
    await until(lambda: store.dispatcher.waiting == 0)
    assert store.max_offset_in_queue("T", 0) == 1
    await until(lambda: store.flushed_offset == store.max_physical_offset)
    await until(lambda: store.checkpoint.dispatched_offset == store.max_physical_offset)
    health = driver.health()
    assert (health.failure, health.dispatch_waiting, health.unflushed_bytes) == (None, 0, 0)
    assert health.flushes >= 1
    await driver.close()
    again = MessageStore(small_config(tmp_path))
    assert again.open().clean
    assert bodies(again) == [b"body 1"]
    again.close()


async def test_dispatch_is_not_put_off_while_many_records_wait(tmp_path: Path) -> None:
    """Under load, waiting for the timer would let the queues fall behind by a buffer's worth each time."""
    store = MessageStore(small_config(tmp_path))
    driver = StoreDriver(store)
    await driver.start()
    store.put_message(message(1))
    driver.schedule_dispatch()
    for number in range(300):
        store.put_message(message(number))
    driver.schedule_dispatch()
    await asyncio.sleep(0)
    assert store.dispatcher.waiting == 0
    await driver.close()


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_dispatch_is_not_put_off_for_a_message_that_is_awaited(tmp_path: Path, place: int) -> None:
    """A long-polling consumer would get its message late when other messages arrived with it."""
    store = MessageStore(small_config(tmp_path))
    driver = StoreDriver(store)
    await driver.start()
    driver.polled_queues = {("T", 7)}
    for number in range(3):
        store.put_message(message(number, queue_id=7 if number == place else 1))
    driver.schedule_dispatch(delay_s=3600)
    await asyncio.sleep(0)
    assert store.dispatcher.waiting == 0
    store.put_message(message(3, queue_id=1))
    driver.schedule_dispatch(delay_s=3600)
    await asyncio.sleep(0)
    assert store.dispatcher.waiting == 1
    store.put_message(message(4, queue_id=7))
    driver.schedule_dispatch(delay_s=3600)
    await asyncio.sleep(0)
    assert store.dispatcher.waiting == 0
    await driver.close()


class GatedDisk(OsDisk):
    """Files of the log are made, or the checkpoint is written, only while the gate is open."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = 0

    def _pass(self, kind: str) -> None:
        if kind == self.kind:
            self.waiting += 1
            assert self.gate.wait(20)
            self.waiting -= 1

    def create(self, path: Path, size: int) -> int:
        """See `Disk`."""
        if path.parent.name == "commitlog":
            self._pass("log file")
        return super().create(path, size)

    def pwrite(self, handle: int, data: bytes, position: int) -> None:
        """See `Disk`."""
        if len(data) == CHECKPOINT_BYTES:
            self._pass("checkpoint")
        super().pwrite(handle, data, position)


@pytest.mark.parametrize("kind", ["log file", "checkpoint"])
async def test_a_pause_waits_for_the_threads_at_work(tmp_path: Path, kind: str) -> None:
    """A slave would cut its log while a thread makes the next file, or notes how far the log is flushed."""
    disk = GatedDisk(kind)
    config = small_config(tmp_path, flush=FlushConfig(commit_log_interval_ms=60_000))
    store = MessageStore(config, disk=disk)
    driver = StoreDriver(store)
    await driver.start()
    store.put_message(message(0))  # makes the first file, on the loop's thread
    disk.gate.clear()
    while kind == "log file" and store.max_physical_offset < 60_000:
        store.put_message(message(0, body=b"x" * 1000))
        driver.schedule_dispatch()
        await asyncio.sleep(0)
    store.put_message(message(1))
    await driver.flush()
    await until(lambda: disk.waiting > 0)
    paused: list[int] = []

    async def pause() -> None:
        async with driver.paused():
            paused.append(disk.waiting)

    pausing = asyncio.create_task(pause())
    for _ in range(5):
        await asyncio.sleep(0)
    disk.gate.set()
    await pausing
    assert paused == [0]
    await driver.close()


async def test_next_file_is_ready_before_it_is_needed(tmp_path: Path) -> None:
    """Every gigabyte the broker would stop while a file is made."""
    store = MessageStore(small_config(tmp_path))
    driver = StoreDriver(store)
    await driver.start()
    while store.max_physical_offset < 60_000:
        store.put_message(message(0, body=b"x" * 1000))
        driver.schedule_dispatch()
        await asyncio.sleep(0)
    files = store.commit_log.files
    assert isinstance(files, MappedFileQueue)
    await until(lambda: files.preallocated is not None)
    assert (tmp_path / "commitlog" / f"{65536:020d}").stat().st_size == 65536
    await driver.close()
    assert not (tmp_path / "commitlog" / f"{65536:020d}").exists()


async def test_a_failed_flush_stops_the_store_with_its_reason(tmp_path: Path) -> None:
    """A broker whose disk fails would continue to acknowledge messages."""
    disk = FaultyDisk(only="fdatasync", code=errno.EIO)
    store = MessageStore(small_config(tmp_path), disk=disk)
    failures: list[StoreError] = []
    driver = StoreDriver(store, on_failure=failures.append)
    await driver.start()
    store.put_message(message(1))
    disk.calls, disk.fail_at = 0, 1
    with pytest.raises(FlushFailed):
        await driver.flush()
    assert len(failures) == 1
    assert "flush failed" in str(driver.health().failure)
    with pytest.raises(FlushFailed):
        await driver.flush()
    await driver.close()


@pytest.mark.parametrize("kind", ["removed", "replaced", "unmounted"])
async def test_a_log_whose_file_is_gone_stops_the_store(tmp_path: Path, kind: str) -> None:
    """A broker would acknowledge messages that the next start does not find, for example without its disk."""
    driver, failures = await _start(tmp_path)
    store = driver.store
    store.put_message(message(1))
    await driver.flush()
    path = store.commit_log.files.mapped_files[-1].path
    match kind:
        case "removed":
            path.unlink()
        case "replaced":
            copy = tmp_path / "copy"
            copy.write_bytes(path.read_bytes())
            copy.rename(path)
        case "unmounted":
            path.parent.rename(tmp_path / "elsewhere")
    await until(lambda: bool(failures))
    assert f"{path} was removed or replaced while the broker runs" in str(driver.health().failure)
    with pytest.raises(StoreError, match="rejects messages"):
        store.put_message(message(2))
    await driver.close()


async def test_a_write_that_cannot_be_undone_is_reported_like_a_failed_flush(tmp_path: Path) -> None:
    """The broker would reject every message without reporting that it must be restarted."""
    disk = FaultyDisk(only="pwrite", code=errno.EIO)
    store = MessageStore(small_config(tmp_path), disk=disk)
    failures: list[StoreError] = []
    driver = StoreDriver(store, on_failure=failures.append)
    await driver.start()
    disk.fail_at, disk.fail_count = disk.calls + 1, 2
    with pytest.raises(StoreError, match="planned failure"):
        store.put_message(message(1))
    assert driver.health().failure is not None
    await until(lambda: bool(failures))
    assert str(failures[0]) == driver.health().failure
    await driver.close()
    assert len(failures) == 1


async def test_sync_flush_shows_only_flushed_messages(tmp_path: Path) -> None:
    """Consumers would get messages that power loss removes, or not get flushed ones."""
    flush = FlushConfig(
        disk_type=FlushDiskType.SYNC_FLUSH, commit_log_interval_ms=60_000, consume_queue_interval_ms=60_000
    )
    store = MessageStore(small_config(tmp_path, flush=flush))
    driver = StoreDriver(store)
    await driver.start()
    store.put_message(message(1))
    store.dispatch()
    assert store.max_offset_in_queue("T", 0) == 0
    arrivals: list[Arrivals] = []
    store.set_arrival_listener(arrivals.append)
    await driver.flush()
    await until(lambda: bool(arrivals))
    assert arrivals == [{("T", 0): 1}]
    assert store.max_offset_in_queue("T", 0) == 1
    await driver.close()


async def test_the_flushed_mark_follows_every_flush(tmp_path: Path) -> None:
    """Damage to a message acknowledged a moment ago would pass for a torn tail, and be cut."""
    flush = FlushConfig(
        disk_type=FlushDiskType.SYNC_FLUSH, commit_log_interval_ms=60_000, consume_queue_interval_ms=60_000
    )
    store = MessageStore(small_config(tmp_path, flush=flush))
    driver = StoreDriver(store)
    await driver.start()
    for number in range(3):
        store.put_message(message(number))
        flushed = await driver.flush()
        assert flushed == store.max_physical_offset
        checkpoint = tmp_path / "checkpoint"
        await until(lambda: Checkpoint.decode(checkpoint.read_bytes()).flushed_offset == flushed)  # noqa: B023
    await driver.close()


@pytest.mark.parametrize(
    ("pages", "thorough_ms", "flushed"),
    [(0, 60_000, True), (4, 60_000, False), (4, 1, True), (1, 60_000, True)],
)
async def test_few_pages_are_flushed_after_the_thorough_interval(
    tmp_path: Path, pages: int, thorough_ms: int, *, flushed: bool
) -> None:
    """The setting flushCommitLogLeastPages would save no flush, or keep the last messages from the disk."""
    flush = FlushConfig(
        commit_log_interval_ms=1,
        commit_log_least_pages=pages,
        commit_log_thorough_ms=thorough_ms,
        consume_queue_interval_ms=60_000,
    )
    store = MessageStore(small_config(tmp_path, flush=flush))
    driver = StoreDriver(store)
    await driver.start()
    store.put_message(message(1))
    await driver.flush()
    await driver.flush()  # after one that the driver has perhaps started by itself
    store.put_message(message(2, body=bytes(4096 * 3 // 2)))
    if flushed:
        await until(lambda: store.flushed_offset == store.max_physical_offset)
    else:
        await asyncio.sleep(0.05)  # fifty intervals
        assert driver.health().unflushed_bytes > 4096
        store.put_message(message(3, body=bytes(3 * 4096)))
        await until(lambda: store.flushed_offset == store.max_physical_offset)
    await driver.close()


async def test_start_that_fails_leaves_nothing_running(tmp_path: Path) -> None:
    """A broker that could not open its store would hang at exit."""
    first = MessageStore(small_config(tmp_path))
    first.open()
    driver = StoreDriver(MessageStore(small_config(tmp_path)))
    with pytest.raises(StoreError, match="open in this process"):
        await driver.start()
    await driver.close()
    first.close()


async def test_failed_preallocation_delays_neither_appends_nor_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A nearly full disk would stop a broker that still has space, or keep it from stopping."""
    monkeypatch.setattr("rocketpy_broker.store.upkeep.driver._RETRY_S", 2 * LIMIT_S)
    disk = FaultyDisk(only="preallocate")
    config = small_config(tmp_path, commit_log=CommitLogConfig(segment_bytes=65536, reserve_bytes=4096))
    store = MessageStore(config, disk=disk)
    driver = StoreDriver(store)
    await driver.start()
    store.put_message(message(0))
    disk.fail_at, disk.fail_count = disk.calls + 1, 10_000
    expected = [b"body 0", *(b"%d" % number * 500 for number in range(10, 30))]
    for body in expected[1:]:
        store.put_message(message(0, body=body))
        driver.schedule_dispatch()
        await asyncio.sleep(0)
    await until(lambda: bool(disk.failed))
    assert driver.health().failure is None
    assert bodies(store) == expected
    async with asyncio.timeout(LIMIT_S):
        await driver.close()
    with MessageStore(config) as again:
        assert bodies(again) == expected


LOOPS = ["flush of the log", "flush of all files", "retention", "monitor"]


async def _start(tmp_path: Path, disk: FaultyDisk | None = None) -> tuple[StoreDriver, list[StoreError]]:
    """A driven store, and the failures reported to its owner."""
    failures: list[StoreError] = []
    flush = FlushConfig(commit_log_interval_ms=5, consume_queue_interval_ms=10)
    driver = StoreDriver(
        MessageStore(small_config(tmp_path, flush=flush), disk=disk), on_failure=failures.append
    )
    await driver.start()
    return driver, failures


async def _has_failed(driver: StoreDriver, failures: list[StoreError]) -> None:
    """Wait for a failure: it is reported once, shown by the health, and final; the store still closes."""
    await until(lambda: bool(failures))
    store = driver.store
    assert failures == [store.failure]
    assert driver.health().failure == str(store.failure)
    with pytest.raises(StoreError, match="rejects messages"):
        store.put_message(message(2))
    with pytest.raises(FlushFailed):
        await driver.flush()
    async with asyncio.timeout(LIMIT_S):
        await driver.close()
    again = MessageStore(store.config)
    assert not again.open().clean  # it is not locked any more; nothing was claimed of what is not flushed
    again.close()


@pytest.mark.parametrize("name", LOOPS)
async def test_a_task_that_ends_unexpectedly_fails_the_store(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing would be flushed or deleted any more, and the store look well."""
    driver, failures = await _start(tmp_path)
    driver.store.put_message(message(1))
    await asyncio.sleep(0)
    await kill(name, driver.tasks)
    await until(lambda: driver.tasks.failure is not None)
    assert_logged(driver.tasks.failure, caplog)
    await _has_failed(driver, failures)


@pytest.mark.parametrize(
    "method",
    [
        "preallocate_ahead",
        "adopt_preallocated",
        "needs_preallocation",
        "dispatch",
        "mark_flushed",
        "sample",
    ],
)
async def test_work_that_ends_unexpectedly_fails_the_store(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages would stay unread or a next file never be made, and the store look well."""
    driver, failures = await _start(tmp_path)

    def fails(*_args: object) -> None:
        raise Bug

    if "preallocat" in method:
        monkeypatch.setattr(driver.store, "needs_preallocation", lambda: True)
    with monkeypatch.context() as patch:
        patch.setattr(driver.store.overload_detector if method == "sample" else driver.store, method, fails)
        driver.store.put_message(message(1))
        driver.schedule_dispatch()
        await until(lambda: bool(failures))
    await _has_failed(driver, failures)


@pytest.mark.parametrize("method", ["plan_flush", "run_flush", "finish_flush"])
async def test_a_flush_that_fails_in_an_unknown_way_is_final(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both flush tasks would end, so that nothing is flushed while sends are still acknowledged."""
    driver, failures = await _start(tmp_path)
    real = getattr(driver.store, method)

    def fails(*args: object, **_kwargs: object) -> object:
        if len(args) == 2:  # `finish_flush` of a flush that failed
            return real(*args)
        raise ValueError("not an OSError")

    monkeypatch.setattr(driver.store, method, fails)
    driver.store.put_message(message(1))
    await until(lambda: bool(failures))
    monkeypatch.undo()
    assert isinstance(failures[0], FlushFailed)
    assert "not an OSError" in str(failures[0])
    assert any(record.exc_info and "unexpected error in a flush" in record.msg for record in caplog.records)
    await _has_failed(driver, failures)


async def test_a_disk_call_that_fails_in_an_unknown_way_is_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush would be repeated, and succeed without having written anything."""
    disk = FaultyDisk()
    driver, failures = await _start(tmp_path, disk)

    def fails(*_args: object) -> None:
        raise ValueError("embedded null byte")

    monkeypatch.setattr(disk, "fdatasync", fails)
    driver.store.put_message(message(1))
    await until(lambda: bool(failures))
    monkeypatch.undo()
    await _has_failed(driver, failures)


async def test_files_are_closed_and_unlocked_even_if_closing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store would stay locked until the process ends."""
    driver, _ = await _start(tmp_path)
    real = driver.store.queues.close

    def fails() -> None:
        real()
        raise Bug

    monkeypatch.setattr(driver.store.queues, "close", fails)
    with pytest.raises(Bug):
        await driver.close()
    again = MessageStore(driver.store.config)
    again.open()
    again.close()


class FewDescriptors(OsDisk):
    """Opens queue files while fewer than `limit` files are open. Notes flushes and their threads."""

    def __init__(self, limit: int = 60) -> None:
        self.limit = limit
        self.names: dict[int, str] = {}
        self.flushed: list[str] = []
        self.loop_thread = threading.get_ident()
        self.in_loop: list[str] = []

    def _opened(self, handle: int, path: Path) -> int:
        self.names[handle] = path.parent.parent.parent.name
        return handle

    def _check(self, path: Path) -> None:
        if len(self.names) >= self.limit and "consumequeue" in path.parts:
            raise OSError(errno.EMFILE, "Too many open files")

    def open(self, path: Path, *, create: bool = False) -> int:
        """See `Disk`."""
        self._check(path)
        return self._opened(super().open(path, create=create), path)

    def create(self, path: Path, size: int) -> int:
        """See `Disk`."""
        self._check(path)
        return self._opened(super().create(path, size), path)

    def close(self, handle: int) -> None:
        """See `Disk`."""
        del self.names[handle]
        super().close(handle)

    def fdatasync(self, handle: int) -> None:
        """See `Disk`."""
        self.flushed.append(self.names[handle])
        if threading.get_ident() == self.loop_thread:
            self.in_loop.append(self.names[handle])
        super().fdatasync(handle)


async def test_the_loop_flushes_no_queue(tmp_path: Path) -> None:
    """With 20,000 queues, a broker served no client while it flushed and closed their files."""
    disk = FewDescriptors()
    flush = FlushConfig(commit_log_interval_ms=60_000, consume_queue_interval_ms=20)
    queues = ConsumeQueueConfig(handles_max=30, pending_bytes_max=20)
    store = MessageStore(small_config(tmp_path, flush=flush, consume_queue=queues), disk=disk)
    driver = StoreDriver(store)
    await driver.start()
    for number in range(600):
        store.put_message(message(number, queue_id=number % 200))
        store.dispatch()
    assert len(disk.names) >= 60, "the queues need more files than there are"
    await until(lambda: store.checkpoint.dispatched_offset == store.max_physical_offset)
    assert disk.in_loop == []
    assert disk.flushed.count("consumequeue") >= 200
    await driver.close()
    again = MessageStore(small_config(tmp_path, consume_queue=queues))
    assert again.open().clean
    assert [again.max_offset_in_queue("T", queue_id) for queue_id in range(200)] == [3] * 200
    again.close()


class SlowDisk(OsDisk):
    """Flushes of consume queues take 1 ms. times: of these, in seconds."""

    def __init__(self) -> None:
        self.queue_handles: set[int] = set()
        self.times: list[float] = []

    def create(self, path: Path, size: int) -> int:
        """See `Disk`."""
        handle = super().create(path, size)
        if "consumequeue" in path.parts:
            self.queue_handles.add(handle)
        return handle

    def fdatasync(self, handle: int) -> None:
        """See `Disk`."""
        super().fdatasync(handle)
        if handle in self.queue_handles:
            time.sleep(0.001)
            self.times.append(time.monotonic())


async def test_flushes_of_queues_take_a_small_part_of_the_time(tmp_path: Path) -> None:
    """With 20,000 queues, flushes took a third of the broker's processor time."""
    disk = SlowDisk()
    flush = FlushConfig(consume_queue_interval_ms=1)
    store = MessageStore(small_config(tmp_path, flush=flush), disk=disk)
    driver = StoreDriver(store)
    await driver.start()
    for _ in range(2):
        for queue_id in range(4):
            store.put_message(message(1, queue_id=queue_id))
        await driver.flush()
        store.dispatch()
        await until(lambda: store.checkpoint.dispatched_offset == store.max_physical_offset)
    await driver.close()
    pauses = sorted(after - before for before, after in itertools.pairwise(disk.times[:8]))
    assert pauses[-1] > 100 * 0.001, "the second flush came too early"


async def test_a_flush_of_many_queues_lets_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends that wait for a flush, and all clients, would wait until 20,000 queues are flushed."""
    disk = FewDescriptors(limit=2000)
    flush = FlushConfig(commit_log_interval_ms=60_000, consume_queue_interval_ms=60_000)
    store = MessageStore(small_config(tmp_path, flush=flush), disk=disk)
    driver = StoreDriver(store)
    await driver.start()
    for number in range(1000):
        store.put_message(message(number, queue_id=number))
    store.dispatch()
    writes = Turns(ConsumeQueue.write_out)
    monkeypatch.setattr(ConsumeQueue, "write_out", lambda queue: writes(queue))  # noqa: PLW0108 - a method
    flushing = asyncio.create_task(driver._flush_thoroughly())
    await until_flushed(disk, 20)
    store.put_message(message(1000))
    before = len(disk.flushed)
    await driver.flush()
    assert len(disk.flushed) - before <= 300
    assert not flushing.done()
    await flushing
    writes.stop()
    assert writes.total >= 1000
    assert writes.longest <= 256
    await driver.close()


class DeletingDisk(OsDisk):
    """Notes the threads that delete something in a consume queue. Deletions of topic T wait for `gate`."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.gate = threading.Event()

    def _note(self, path: Path) -> None:
        if "consumequeue" in path.parts:
            self.threads.append(threading.get_ident())
            if "T" in path.parts and threading.get_ident() != threading.main_thread().ident:
                assert self.gate.wait(LIMIT_S)

    def unlink(self, path: Path) -> None:
        """See `Disk`."""
        self._note(path)
        super().unlink(path)

    def remove_dir(self, path: Path) -> None:
        """See `Disk`."""
        self._note(path)
        super().remove_dir(path)


async def test_the_loop_deletes_no_queue(tmp_path: Path) -> None:
    """After the deletion of 5,000 topics, a broker served no client until all files were deleted."""
    disk = DeletingDisk()
    store = MessageStore(small_config(tmp_path), disk=disk)
    driver = StoreDriver(store)
    await driver.start()
    for number in range(100):
        store.put_message(message(number, topic=f"T{number % 5}", queue_id=number))
    store.put_message(message(100, topic="Stays"))
    store.dispatch()
    store.flush(thorough=True)
    assert await driver.drop_queues(lambda queue: queue.topic != "Stays") == 100
    assert threading.get_ident() not in disk.threads
    assert len(disk.threads) >= 200
    assert set(store.queues.queues) == {("Stays", 0)}
    assert not list((tmp_path / "consumequeue").glob("T*/*"))
    await driver.close()


async def test_a_queue_is_created_again_while_its_files_are_deleted(tmp_path: Path) -> None:
    """The deletion would remove the files of the new queue, or their old units would be read."""
    disk = DeletingDisk()
    store = MessageStore(small_config(tmp_path), disk=disk)
    driver = StoreDriver(store)
    await driver.start()
    for number in range(40):
        store.put_message(message(number, topic="A" if number < 20 else "T", queue_id=number))
    store.dispatch()
    store.flush(thorough=True)
    dropping = asyncio.create_task(driver.drop_queues(lambda queue: bool(queue.topic)))
    await until(lambda: not store.queues.queues and len(disk.threads) > 40)
    store.put_message(message(1, topic="T", queue_id=39))
    store.dispatch()
    store.flush(thorough=True)
    disk.gate.set()
    await dropping
    assert bodies(store, "T", 39) == [b"body 1"]
    await driver.close()
    again = MessageStore(small_config(tmp_path))
    assert again.open().clean
    assert bodies(again, "T", 39) == [b"body 1"]
    again.close()


async def until_flushed(disk: FewDescriptors, count: int) -> None:
    """Wait until queues were flushed."""
    while disk.flushed.count("consumequeue") < count:  # noqa: ASYNC110 - a thread flushes them
        await asyncio.sleep(0)
