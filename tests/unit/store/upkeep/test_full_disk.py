"""On a full disk everything that was stored must stay readable, and expired files must still go."""

from __future__ import annotations

import errno
import logging
from contextlib import nullcontext
from pathlib import Path
from random import Random

import pytest

from rocketpy.errors import DiskFull
from rocketpy_broker.store import FlushConfig, IndexConfig, MessageStore, RetentionConfig
from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.upkeep.cleaner import Cleaner
from rocketpy_broker.store.upkeep.driver import StoreDriver
from tests.store_checks import check_store
from tests.unit.store.helpers import bodies, message, put, small_config

HOUR = 3_600_000


class FullDisk(OsDisk):
    """A disk without space for consume queues and index while `is_full`; the log's blocks are reserved."""

    def __init__(self) -> None:
        self.is_full = False
        self.refused = 0
        self.opened: dict[int, Path] = {}

    def _take_space(self, path: Path) -> None:
        if self.is_full and {"consumequeue", "index"} & set(path.parts):
            self.refused += 1
            raise OSError(errno.ENOSPC, "no space is left")

    def open(self, path: Path, *, create: bool = False) -> int:
        handle = super().open(path, create=create)
        self.opened[handle] = path
        return handle

    def close(self, handle: int) -> None:
        del self.opened[handle]
        super().close(handle)

    def create(self, path: Path, size: int) -> int:
        self._take_space(path)
        handle = super().create(path, size)
        self.opened[handle] = path
        return handle

    def pwrite(self, handle: int, data: bytes, position: int) -> None:
        self._take_space(self.opened[handle])
        super().pwrite(handle, data, position)


def opened(root: Path, disk: FullDisk, **changes: object) -> MessageStore:
    """A store on that disk whose first 30 messages are in its files."""
    settings = {"index": IndexConfig(slots=100, entries=40_000), **changes}
    store = MessageStore(small_config(root, **settings), disk=disk)
    store.open()
    put(store, *range(30))
    store.flush(thorough=True)
    return store


def fill(store: MessageStore, first: int, count: int, **where: object) -> None:
    """Store messages in runs of all sizes, both single messages and those encoded by column."""
    random, number = Random(1), first
    while number < first + count:
        run = min(random.choice((1, 3, 40)), first + count - number)
        put(store, *range(number, number + run), **where)
        number += run


def texts(first: int, end: int) -> list[bytes]:
    return [f"body {number}".encode() for number in range(first, end)]


def test_stored_messages_can_be_read(tmp_path: Path) -> None:
    """Consumers could not empty a broker whose disk is full: 848 of 4,998 messages were readable."""
    disk = FullDisk()
    store = opened(tmp_path, disk)
    disk.is_full = True
    fill(store, 30, 1000)
    fill(store, 0, 300, topic="New")  # a queue whose first file cannot be made
    assert store.dispatcher.waiting == 0
    assert disk.refused < 100  # the disk is not asked for its free space with every message
    before = disk.refused
    assert bodies(store) == texts(0, 1030)
    assert bodies(store, "New") == texts(0, 300)
    assert store.max_offset_in_queue("New", 0) == 300
    assert len(store.units("T", 0, 45, 10)) == 5  # units of one file, as if they were written
    found = store.query_message("T", "k900", 10, 0, 1 << 60)
    assert [store.look_message(0) is not None, len(found.records)] == [True, 1]
    for number in (3, 500, 1029):
        stored_ms = store.store_timestamp("T", 0, number)
        at = store.offset_by_time("T", 0, stored_ms)
        assert store.store_timestamp("T", 0, at) == stored_ms
    assert check_store(store).problems == []
    assert disk.refused == before, "reading wrote something"
    with pytest.raises(DiskFull, match="free space"):
        store.flush(thorough=True)
    disk.is_full = False
    store.flush(thorough=True)
    put(store, 2000)
    store.close()
    assert disk.opened == {}
    with MessageStore(store.config) as again:
        assert bodies(again) == [*texts(0, 1030), b"body 2000"]
        assert bodies(again, "New") == texts(0, 300)
        assert check_store(again).problems == []


def test_a_kill_on_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """Units that were only in memory would be missing after the restart."""
    disk = FullDisk()
    store = opened(tmp_path, disk)
    disk.is_full = True
    fill(store, 30, 500)
    store._is_open = False
    store._close_files()
    with MessageStore(store.config) as again:
        assert bodies(again) == texts(0, 530)
        assert check_store(again).problems == []


def test_an_index_that_cannot_grow_does_not_stop_the_queues(tmp_path: Path) -> None:
    """The next index file cannot be made: consumers would wait for a look-up table they do not use."""
    disk = FullDisk()
    store = opened(tmp_path, disk, index=IndexConfig(slots=100, entries=400))  # three entries a message
    arrived: list[int] = []
    store.set_arrival_listener(lambda arrivals: arrived.extend(arrivals.values()))
    disk.is_full = True
    for number in range(30, 300):
        store.append(message(number))
        store.write_out()
        if not store.dispatcher.is_stuck:
            with pytest.raises(DiskFull) if number == 133 else nullcontext():
                store.dispatch()
    assert bodies(store) == texts(0, 134)
    with pytest.raises(DiskFull):
        store.dispatch()
    assert bodies(store) == texts(0, 300)
    assert arrived[-1] == 300
    files = len(list((tmp_path / "index").iterdir()))
    with pytest.raises(DiskFull):
        store.dispatch()
    assert len(list((tmp_path / "index").iterdir())) == files
    disk.is_full = False
    store.dispatch()
    assert store.dispatcher.waiting == 0
    assert check_store(store).problems == []
    store.close()
    assert disk.opened == {}


def test_expired_files_go_from_a_full_disk(tmp_path: Path) -> None:
    """A broker whose disk is full would never get free space."""
    disk = FullDisk()
    store = opened(tmp_path, disk, retention=RetentionConfig(max_used_percent=0))
    fill(store, 30, 1500)
    store.flush(thorough=True)
    disk.is_full = True
    fill(store, 1530, 50)
    now = store.commit_log.files.mapped_files[-1].modified_ms() + 73 * HOUR
    count = len(store.commit_log.files.mapped_files)
    assert Cleaner(store, use=lambda _: 0.99).run(now) > 0
    kept = [file.path for file in store.commit_log.files.mapped_files]
    assert sorted((tmp_path / "commitlog").iterdir()) == kept
    assert len(kept) < count
    first = store.min_offset_in_queue("T", 0)
    assert 0 < first < 1530
    assert bodies(store) == texts(first, 1580)
    disk.is_full = False
    store.close()


async def test_a_lasting_trouble_is_logged_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """25 equal lines a second would fill the rest of the disk, and hide all other lines."""
    disk = FullDisk()
    flush = FlushConfig(consume_queue_interval_ms=5)
    driver = StoreDriver(MessageStore(small_config(tmp_path, flush=flush), disk=disk))
    await driver.start()
    disk.is_full = True
    number = 0
    while disk.refused < 50:
        driver.store.put_message(message(number))
        driver.schedule_dispatch()
        number += 1
        assert not await driver._stops_within(1)
    assert bodies(driver.store) == texts(0, driver.store.max_offset_in_queue("T", 0))
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(lines) == len({line.split(" failed")[0] for line in lines}) <= 3, lines
    disk.is_full = False
    await driver.close()
