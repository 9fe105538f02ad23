"""Retention must never take a message before its time, the file being written, or one being read."""

from __future__ import annotations

import asyncio
import errno
import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from rocketpy.errors import ConfigInvalid, DiskFull, StoreError
from rocketpy_broker.store import FlushConfig, IndexConfig, MessageStore, RetentionConfig
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue
from rocketpy_broker.store.queue.queue_reader import GetMessageStatus
from rocketpy_broker.store.upkeep.cleaner import (
    Cleaner,
    DiskUse,
    FileAge,
    count_below,
    count_expired,
    decide,
    disk_use,
    is_hour_of,
)
from rocketpy_broker.store.upkeep.driver import StoreDriver
from tests.store_checks import check_store
from tests.turns import Turns
from tests.unit.store.faulty_disk import FaultyDisk
from tests.unit.store.helpers import bodies, drop_queues, message, put, small_config
from tests.waiting import until

HOUR = 3_600_000
CONFIG = RetentionConfig()
FORCED = RetentionConfig(clean_forcibly=True)
EMPTY = DiskUse(0.1, 0.1)


def at_hour(hour: int) -> int:
    """A time in this hour of the local day, in ms."""
    return int(time.mktime((2026, 11, 21, hour, 30, 0, 0, 0, -1)) * 1000)


def test_hours_of_delete_when() -> None:
    """Files would be deleted at another hour than configured, or a wrong setting would be accepted."""
    assert is_hour_of("04", at_hour(4))
    assert not is_hour_of("04", at_hour(5))
    assert is_hour_of("04; 16", at_hour(16))
    for text in ("24", "", "²", "4" * 5000, "-1", "٣"):
        with pytest.raises(ConfigInvalid, match="deleteWhen"):
            RetentionConfig(delete_when=text)


@pytest.mark.parametrize(
    ("used", "reason", "is_forced", "reject"),
    [
        (0.75, "", False, False),
        (0.76, "76% full", False, False),
        (0.86, "86% full", True, False),
        (0.91, "91% full", True, True),
        (-1.0, "unknown", False, False),
    ],
)
def test_watermarks(used: float, reason: str, *, is_forced: bool, reject: bool) -> None:
    """A full disk without retention stops the broker; early retention loses messages."""
    for use in (DiskUse(used, 0.0), DiskUse(0.0, used)):
        decision = decide(FORCED, use, at_hour(12))
        assert reason in decision.reason
        assert bool(reason) == bool(decision.reason)
        assert (decision.is_forced, decision.reject_writes) == (is_forced, reject)
        by_default = decide(CONFIG, use, at_hour(12))
        assert (by_default.is_forced, by_default.reject_writes) == (False, reject)
    assert decide(CONFIG, EMPTY, at_hour(4)).reason


def test_which_files_expire() -> None:
    """A file would be deleted before its time, or while a consumer reads it."""
    now = 1000 * HOUR
    old, new = FileAge(now - 72 * HOUR), FileAge(now - 72 * HOUR + 1)
    assert count_expired(CONFIG, [old, old, new, old], now, is_forced=False) == 2
    assert count_expired(CONFIG, [old, old, new, old], now, is_forced=True) == 4
    assert count_expired(CONFIG, [old] * 30, now, is_forced=False) == 10
    assert count_expired(CONFIG, [], now, is_forced=True) == 0
    read = FileAge(old.written_ms, 119_999)
    assert count_expired(CONFIG, [old, read, old], now, is_forced=True) == 1
    assert count_expired(CONFIG, [old, FileAge(old.written_ms, 120_000), old], now, is_forced=True) == 3
    assert count_below([10, 20, 30], 20) == 1
    assert count_below([], 20) == 0


class Disks:
    """How full all disks are, as a test sets it."""

    def __init__(self) -> None:
        self.used = 0.1

    def __call__(self, path: Path) -> float:
        return self.used


def filled(root: Path, **changes: Any) -> tuple[MessageStore, Disks, Cleaner]:
    """A store of several log, queue and index files."""
    store = MessageStore(small_config(root, index=IndexConfig(slots=100, entries=400), **changes))
    store.open()
    for number in range(1500):
        put(store, number, queue_id=number % 2)
    store.flush(thorough=True)
    disks = Disks()
    return store, disks, Cleaner(store, use=disks)


def later(store: MessageStore) -> int:
    """A time 73 or 75 hours after the newest file was written, outside the hour of deleteWhen, in ms."""
    written = store.commit_log.files.mapped_files[-1].modified_ms()
    now = written + 73 * HOUR
    return now if not is_hour_of("04", now) else now + 2 * HOUR


def test_retention_deletes_old_files_and_their_entries(tmp_path: Path) -> None:
    """QUIRKS 50: a queue keeps units below the log's start, and its min offset is computed."""
    store, disks, cleaner = filled(tmp_path)
    files, now = store.commit_log.files, later(store)
    count = len(files.mapped_files)
    assert count > 3
    assert cleaner.run(now) == 0  # not the hour, and room enough
    assert store.min_offset_in_queue("T", 0) == 0
    assert store.index is not None
    queue_files, index_files = len(store.queues.queues["T", 0].files.mapped_files), len(store.index.files)
    disks.used = 0.8
    assert cleaner.run(now) > count - 1
    assert len(files.mapped_files) == 1
    assert len(store.queues.queues["T", 0].files.mapped_files) < queue_files
    assert len(store.index.files) < index_files
    start = store.min_physical_offset
    assert start == files.mapped_files[0].start > 0
    assert {int(path.name) for path in (tmp_path / "commitlog").iterdir()} >= {start}
    for queue_id in (0, 1):
        first = store.min_offset_in_queue("T", queue_id)
        assert first > 0
        assert store.physical_offset("T", queue_id, first) >= start
        assert store.physical_offset("T", queue_id, first - 1) < start
        assert store.get_message("T", queue_id, 0, 1).status is GetMessageStatus.OFFSET_TOO_SMALL
        assert bodies(store, "T", queue_id)[-1] == f"body {1498 + queue_id}".encode()
    assert check_store(store).problems == []
    left = bodies(store)
    store.close()
    with MessageStore(store.config) as again:
        assert bodies(again) == left
        assert check_store(again).problems == []


def test_an_administrator_does_not_wait_for_the_hour(tmp_path: Path) -> None:
    """DeleteExpiredCommitLog would free nothing, or files that have not expired, or go on the next day."""
    store, _, cleaner = filled(tmp_path)
    files, now = store.commit_log.files, later(store)
    young = files.mapped_files[-1].modified_ms() + 1000
    cleaner.is_requested = True
    assert cleaner.run(young) == 0
    assert not cleaner.is_requested
    cleaner.is_requested = True
    assert cleaner.run(now) > 0
    assert len(files.mapped_files) == 1
    cleaner.run(now)
    assert not cleaner.is_requested
    store.close()


def test_expired_files_that_are_needed_are_deleted_later(tmp_path: Path) -> None:
    """Timers in them would be lost. By force they are deleted, as files that have not expired."""
    config = RetentionConfig(clean_forcibly=True)
    store, disks, cleaner = filled(tmp_path, retention=config)
    files, now = store.commit_log.files, later(store)
    count, disks.used, cleaner.is_requested = len(files.mapped_files), 0.8, True
    cleaner.keeps_expired = lambda: True
    assert cleaner.run(now) == 0
    assert len(files.mapped_files) == count
    assert cleaner.is_requested
    disks.used = 0.86
    cleaner.run(now)
    assert store.stats.forced_messages > 0
    assert len(files.mapped_files) < count
    store.close()


def test_young_files_stay_however_full_the_disk(tmp_path: Path) -> None:
    """Acknowledged messages that were not read would be deleted because of other files on the disk."""
    store, disks, cleaner = filled(tmp_path)
    files = store.commit_log.files
    count, left = len(files.mapped_files), bodies(store)
    now = files.mapped_files[-1].modified_ms() + 1000
    for disks.used in (0.84, 0.86, 0.91, 0.99):
        assert cleaner.run(now) == 0
    assert (len(files.mapped_files), bodies(store)) == (count, left)
    assert store.stats.forced_messages == 0
    store.close()


def test_forced_deletion_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An operator who configured RocketMQ's behaviour would not learn which messages were deleted."""
    store, disks, cleaner = filled(tmp_path, retention=FORCED)
    files = store.commit_log.files
    now = files.mapped_files[-1].modified_ms() + 1000
    disks.used = 0.84
    assert cleaner.run(now) == 0
    disks.used = 0.86
    count = len(files.mapped_files)
    assert cleaner.run(now) > 0
    assert len(files.mapped_files) == 1
    lost = [store.min_offset_in_queue("T", queue_id) for queue_id in (0, 1)]
    assert store.stats.forced_messages == sum(lost) > 0
    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    for part in (
        f"{count - 1} commit log files",
        f"offsets 0 to {files.min_offset - 1}",
        f"{sum(lost)} messages",
        f"T/0 0 to {lost[0] - 1}",
        f"T/1 0 to {lost[1] - 1}",
        "86% full",
        "cleanFileForciblyEnable",
    ):
        assert part in warning.getMessage()
    caplog.clear()
    for _ in range(2):
        assert cleaner.run(now) == 0
    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "and no file can be deleted" in warning.getMessage()
    store.close()


def test_expired_files_are_no_forced_deletion(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The alert would go off for messages that had their whole time."""
    store, disks, cleaner = filled(tmp_path, retention=FORCED)
    disks.used = 0.86
    assert cleaner.run(later(store)) > 0
    assert store.stats.forced_messages == 0
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    store.close()


def test_a_full_disk_rejects_messages_until_there_is_room(tmp_path: Path) -> None:
    """A full disk would fail the store, or sends would be rejected after it has space again."""
    store, disks, cleaner = filled(tmp_path)
    disks.used = 0.95
    cleaner.run(later(store))
    with pytest.raises(DiskFull, match="95% full"):
        store.append(message(1))
    assert store.failure is None
    assert bodies(store)
    disks.used = 0.5
    cleaner.run(later(store))
    put(store, 2000)
    assert bodies(store)[-1] == b"body 2000"
    store.close()


def test_a_file_being_read_stays_for_the_grace_and_can_be_read_to_its_end(tmp_path: Path) -> None:
    """A consumer would lose the file that it is reading, or a slow one would keep the disk full."""
    store, disks, cleaner = filled(tmp_path)
    files, now = store.commit_log.files, later(store)
    disks.used = 0.8
    held = files.mapped_files[1]
    held.hold()
    content = held.read(0, 1000)
    cleaner.run(now)
    assert files.mapped_files[0] is held
    cleaner.run(now + 119_000)
    assert files.mapped_files[0] is held
    cleaner.run(now + 120_000)
    assert files.mapped_files[0] is not held
    assert not held.path.exists()
    assert held.read(0, 1000) == content
    held.release()
    store.close()


def test_queues_of_deleted_topics(tmp_path: Path) -> None:
    """The queues of a deleted topic would stay on the disk, or its offsets would be assigned twice."""
    store, _, _ = filled(tmp_path)
    put(store, 1, topic="Gone")
    assert drop_queues(store, lambda queue: queue.topic == "Gone") == 1
    assert not (tmp_path / "consumequeue" / "Gone" / "0").exists()
    assert store.max_offset_in_queue("Gone", 0) == 0
    put(store, 3, topic="Gone")
    assert store.min_offset_in_queue("Gone", 0) == 1
    assert bodies(store, "Gone") == [b"body 3"]
    store.close()


async def test_the_driver_cleans(tmp_path: Path) -> None:
    """The disk would become full, and the broker refuse messages, with expired files on it."""
    retention = RetentionConfig(reserved_hours=0, max_used_percent=0, interval_ms=5, file_pause_ms=1)
    store, _, _ = filled(tmp_path)
    store.close()
    again = MessageStore(small_config(tmp_path, retention=retention))
    driver = StoreDriver(again)
    await driver.start()
    await until(lambda: len(list((tmp_path / "commitlog").iterdir())) == 1)
    assert again.min_physical_offset > 0
    await driver.close()


async def test_others_run_while_many_queues_are_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker with 20,000 queues searched all their files at once, each time that the log began later."""
    store = MessageStore(small_config(tmp_path))
    driver = StoreDriver(store)
    await driver.start()
    for number in range(300):
        put(store, number, queue_id=number)
    loop, times = asyncio.get_running_loop(), itertools.count()
    searches = Turns(ConsumeQueue.correct_min_offset)
    monkeypatch.setattr(ConsumeQueue, "correct_min_offset", lambda *args: searches(*args))  # noqa: PLW0108
    with monkeypatch.context() as patch:
        patch.setattr(loop, "time", lambda: next(times) / 1000)  # each queue takes 1 ms
        await driver.clean()
    searches.stop()
    assert searches.total == 300
    assert searches.longest <= 10
    await driver.close()


def test_how_full_a_disk_is(tmp_path: Path) -> None:
    """Retention would fail, or delete files, where the use of a disk is unknown."""
    assert 0 < disk_use(tmp_path) < 1
    assert disk_use(tmp_path / "missing") == -1
    assert disk_use(Path("/proc")) == -1  # a file system without blocks


@pytest.mark.parametrize(("kind", "count"), [("unlink", 2), ("fdatasync", 1)])
async def test_a_file_that_could_not_be_deleted_is_deleted_later(
    kind: str, count: int, tmp_path: Path
) -> None:
    """Such a file would stay until the next start, so a full disk would stay full."""
    store, _, _ = filled(tmp_path)
    store.close()
    disk = FaultyDisk(only=kind, code=errno.EIO)
    retention = RetentionConfig(reserved_hours=0, max_used_percent=0, interval_ms=3_600_000)
    flush = FlushConfig(commit_log_interval_ms=3_600_000, consume_queue_interval_ms=3_600_000)
    again = MessageStore(small_config(tmp_path, retention=retention, flush=flush), disk=disk)
    driver = StoreDriver(again)
    await driver.start()
    driver.cleaner.on_deletion = lambda: None  # a flush of all files could meet the planned failure instead
    disk.fail_at, disk.fail_count = disk.calls + 1, count
    with pytest.raises(StoreError, match="planned failure"):
        await driver.clean()
    while await driver.clean():
        pass
    kept = [file.path.name for file in again.commit_log.files.mapped_files]
    assert sorted(path.name for path in (tmp_path / "commitlog").iterdir()) == kept
    await driver.close()


@pytest.mark.parametrize("field", ["flushed_offset", "dispatched_offset"])
def test_files_that_may_not_be_flushed_stay(tmp_path: Path, field: str) -> None:
    """Power loss would leave queues that point after the end of a log that lost its records."""
    store, disks, cleaner = filled(tmp_path)
    files = store.commit_log.files
    second = files.mapped_files[1]
    setattr(store.checkpoint, field, second.end)
    disks.used = 0.8
    cleaner.run(later(store))
    assert files.mapped_files[0].start == second.end
    setattr(store.checkpoint, field, files.mapped_files[0].end - 1)
    assert cleaner.run(later(store)) == 0
    assert files.mapped_files[0].start == second.end
    store.close()
