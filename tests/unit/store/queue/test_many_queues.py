"""A broker with thousands of queues must not run out of file handles, nor read megabytes of holes."""

from __future__ import annotations

import gc
from pathlib import Path

from rocketpy_broker.store import ConsumeQueueConfig, MessageStore
from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.log.flush import flush_now
from rocketpy_broker.store.message_store import finish
from rocketpy_broker.store.upkeep.cleaner import Cleaner
from tests.store_checks import check_store
from tests.unit.store.helpers import bodies, kill, put, small_config

QUEUES = 100


class CountingDisk(OsDisk):
    """Counts handles and bytes read."""

    def __init__(self) -> None:
        self.open_now = 0
        self.open_most = 0
        self.read = 0

    def open(self, path: Path, *, create: bool = False) -> int:
        return self._counted(super().open(path, create=create))

    def create(self, path: Path, size: int) -> int:
        return self._counted(super().create(path, size))

    def _counted(self, handle: int) -> int:
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        return handle

    def close(self, handle: int) -> None:
        self.open_now -= 1
        super().close(handle)

    def pread(self, handle: int, size: int, position: int) -> bytes:
        self.read += size
        return super().pread(handle, size, position)


def test_handles_and_bytes_of_a_start(tmp_path: Path) -> None:
    """A broker with thousands of queues could not start, or would read for minutes."""
    config = small_config(tmp_path, consume_queue=ConsumeQueueConfig(handles_max=10))
    disk = CountingDisk()
    store = MessageStore(config, disk=disk)
    store.open()
    for number in range(2 * QUEUES):
        put(store, number, queue_id=number % QUEUES)
    store.flush(thorough=True)
    assert disk.open_now < 20
    for number in range(200, 200 + QUEUES):
        put(store, number, queue_id=number % QUEUES)
    assert bodies(store, queue_id=7) == [b"body 7", b"body 107", b"body 207"]
    store.close()
    assert disk.open_now == 0
    store = MessageStore(config, disk=disk)
    disk.read = 0
    store.open()
    assert disk.open_now < 20
    assert disk.read < QUEUES * 200_000
    assert check_store(store).problems == []
    kill(store)
    store = MessageStore(config, disk=disk)
    disk.read = disk.open_most = 0
    store.open()
    assert disk.open_most < 40
    assert disk.read < QUEUES * 200_000
    store.flush(thorough=True)
    assert check_store(store).problems == []
    store.close()


def test_the_garbage_collector_scans_few_objects_of_a_queue(tmp_path: Path) -> None:
    """It scanned 16 per queue; with 20,000 queues a full collection stopped the event loop for 89 ms."""
    with MessageStore(small_config(tmp_path)) as store:
        put(store, 0, queue_id=QUEUES)
        store.flush(thorough=True)
        before = scanned_objects()
        for number in range(2 * QUEUES):
            put(store, number, topic=f"T{number % 10}", queue_id=number % QUEUES)
            if number % QUEUES == 0:
                store.flush(thorough=True)
        store.dispatch()  # some units are in memory, others in files
        assert scanned_objects() - before < 2.5 * QUEUES


def scanned_objects() -> int:
    gc.collect()
    return len(gc.get_objects())


def test_reading_many_queues_keeps_few_files_open(tmp_path: Path) -> None:
    """Consumers of thousands of idle queues would use up the broker's file descriptors."""
    config = small_config(tmp_path, consume_queue=ConsumeQueueConfig(handles_max=10))
    disk = CountingDisk()
    with MessageStore(config, disk=disk) as store:
        for number in range(QUEUES):
            put(store, number, queue_id=number)
        store.flush(thorough=True)
        for number in range(QUEUES):
            assert bodies(store, queue_id=number) == [b"body %d" % number]
        assert disk.open_now > QUEUES
        store.flush(thorough=True)
        assert disk.open_now < 20


def test_reading_a_long_log_keeps_its_two_newest_files_open(tmp_path: Path) -> None:
    """A thread that reserves space in a file would lose it when the log continues in the next file."""
    config = small_config(tmp_path, consume_queue=ConsumeQueueConfig(handles_max=3))
    with MessageStore(config) as store:
        put(store, *range(100), body=bytes(4000))
        store.flush(thorough=True)
        mapped_files = store.commit_log.files.mapped_files
        assert len(bodies(store)) == 100
        assert [file.is_open for file in mapped_files] == [True] * 7
        store.flush(thorough=True)
        assert [file.is_open for file in mapped_files] == [False] * 5 + [True] * 2


def test_retention_closes_the_queues_that_it_looks_at(tmp_path: Path) -> None:
    """Each check for a new start of the log would need a handle for each queue."""
    config = small_config(tmp_path, consume_queue=ConsumeQueueConfig(handles_max=10))
    disk = CountingDisk()
    store = MessageStore(config, disk=disk)
    store.open()
    for number in range(QUEUES):
        put(store, number, queue_id=number)
    store.flush(thorough=True)
    cleaner = Cleaner(store)
    disk.open_most = 0
    finish(cleaner.choose(cleaner.measure(), store.clock()))
    assert 0 < disk.open_most < 20
    store.close()


def test_a_flush_looks_at_changed_queues_only(tmp_path: Path) -> None:
    """Each second, a flush would block a broker with 10,000 idle queues for 40 ms."""
    store = MessageStore(small_config(tmp_path))
    store.open()
    for number in range(QUEUES):
        put(store, number, queue_id=number)
    store.flush(thorough=True)
    put(store, QUEUES, queue_id=7)
    put(store, QUEUES + 1, queue_id=9)
    flushed: list[str] = []
    for plan in store.thorough_plans():
        flushed += [files.directory.name for files in plan.queues]
        flush_now(store, plan)
    assert flushed == ["commitlog", "7", "9"]
    assert all(plan.is_empty for plan in store.thorough_plans())
    store.close()


def test_an_expired_file_is_closed_before_a_thread_deletes_it(tmp_path: Path) -> None:
    """`close_idle` would close its descriptor a second time, which may belong to another file by then."""
    queues = ConsumeQueueConfig(segment_bytes=1000, handles_max=1)
    store = MessageStore(small_config(tmp_path, consume_queue=queues))
    store.open()
    for number in range(120):
        put(store, number)
    store.flush(thorough=True)
    queue = store.queues.queues["T", 0]
    expired = list(queue.take_expired(store.max_physical_offset))
    assert len(expired) == 2
    assert not any(file.is_open for file in expired)
    assert not any(file in file.opened for file in expired)
    assert any(plan.directories for plan in store.thorough_plans()), "the directory is synced"
    store.queues.close()
