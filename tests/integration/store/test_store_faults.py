"""Full disks and failing flushes: acknowledged messages stay, and rejected ones do not exist."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from rocketpy.errors import DiskFull, FlushFailed, StoreError
from rocketpy_broker.store import MessageStore
from tests.store_checks import check_store
from tests.unit.store.faulty_disk import FaultyDisk
from tests.unit.store.helpers import bodies, kill, message, put, small_config

RUNS, RUN = 24, 5


class Fates:
    """The outcomes of a workload's messages."""

    def __init__(self) -> None:
        self.acknowledged: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.unknown: set[bytes] = set()


def work(store: MessageStore, fates: Fates) -> None:
    """Send runs of messages to two queues, flushing now and then."""
    for run in range(RUNS):
        placed: list[bytes] = []
        for position in range(RUN):
            text = f"{run}.{position} ".encode() * (60 + 30 * position)
            try:
                store.append(message(run * RUN + position, queue_id=position % 2, body=text))
                placed.append(text)
            except StoreError:
                fates.refused.add(text)
        try:
            store.write_out()
            fates.acknowledged.update(placed)
        except StoreError:
            (fates.refused if store.failure is None else fates.unknown).update(placed)
        try:
            store.dispatch()
            if run % 4 == 3:
                store.flush(thorough=True)
        except StoreError:
            continue


def check_after(root: Path, fates: Fates, note: str) -> None:
    store = MessageStore(small_config(root))
    store.open()
    found = bodies(store, queue_id=0) + bodies(store, queue_id=1)
    assert len(found) == len(set(found)), note
    assert fates.acknowledged <= set(found), note
    assert set(found) <= fates.acknowledged | fates.unknown, note
    assert check_store(store).problems == [], note
    put(store, 9999)
    assert bodies(store)[-1] == b"body 9999", note
    store.close()


def changes_of_one_run(root: Path) -> int:
    disk = FaultyDisk()
    store = MessageStore(small_config(root), disk=disk)
    store.open()
    work(store, Fates())
    store.close()
    shutil.rmtree(root)
    return disk.calls


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("how_many", [1, 1000])
def test_any_failing_disk_call_loses_nothing_that_was_acknowledged(
    tmp_path: Path, code: int, how_many: int, step: int
) -> None:
    """A disk that is full for a moment, or from then on, would lose or invent messages."""
    total = changes_of_one_run(tmp_path / "count")
    for fail_at in range(1, total + 1, step if how_many == 1 else 3 * step):
        root = tmp_path / str(fail_at)
        disk = FaultyDisk(fail_at, fail_count=how_many, code=code)
        store = MessageStore(small_config(root), disk=disk)
        fates = Fates()
        try:
            store.open()
            work(store, fates)
            store.close()
        except StoreError:
            kill(store)
        check_after(root, fates, f"call {fail_at} of {total}: {disk.failed[:1]}")
        shutil.rmtree(root)


def test_rejected_run_gives_its_offsets_back(tmp_path: Path) -> None:
    """After a full disk the next message would leave a gap in its queue, or in the log."""
    disk = FaultyDisk(only="pwrite")
    store = MessageStore(small_config(tmp_path), disk=disk)
    store.open()
    put(store, 1, 2)
    end = store.max_physical_offset
    disk.calls, disk.fail_at = 0, 1
    first = store.append(message(3))
    store.append(message(4, queue_id=1))
    with pytest.raises(DiskFull, match="free space"):
        store.write_out()
    assert store.max_physical_offset == end
    assert (first.physical_offset, first.queue_offset) == (end, 2)
    receipt = store.put_message(message(5))
    assert (receipt.physical_offset, receipt.queue_offset) == (end, 2)
    assert store.put_message(message(6, queue_id=1)).queue_offset == 0
    store.dispatch()
    kill(store)
    store = MessageStore(small_config(tmp_path))
    store.open()
    assert bodies(store) == [b"body 1", b"body 2", b"body 5"]
    assert bodies(store, queue_id=1) == [b"body 6"]
    store.close()


def test_rejected_run_across_a_file_end_is_undone(tmp_path: Path) -> None:
    """A run that needs a new file on a full disk would leave a gap in the log."""
    disk = FaultyDisk(only="pwrite")
    store = MessageStore(small_config(tmp_path), disk=disk)
    store.open()
    put(store, *range(350))
    assert len(store.commit_log.files.mapped_files) == 1
    for number in range(150):
        store.append(message(1000 + number))
    disk.calls, disk.fail_at = 0, 2  # the write to the first file succeeds, that to the second fails
    with pytest.raises(DiskFull):
        store.write_out()
    assert len(store.commit_log.files.mapped_files) == 1
    put(store, 2000)
    assert store.max_offset_in_queue("T", 0) == 351
    kill(store)
    store = MessageStore(small_config(tmp_path))
    store.open()
    assert bodies(store)[-2:] == [b"body 349", b"body 2000"]
    assert check_store(store).problems == []
    store.close()


def test_failed_flush_is_final(tmp_path: Path) -> None:
    """A broker would acknowledge messages that the disk has dropped."""
    disk = FaultyDisk(only="fdatasync", code=errno.EIO)
    store = MessageStore(small_config(tmp_path), disk=disk)
    store.open()
    put(store, 1)
    flushed = store.flushed_offset
    disk.calls, disk.fail_at = 0, 1
    with pytest.raises(FlushFailed, match="restart"):
        store.flush()
    assert store.flushed_offset == flushed
    with pytest.raises(FlushFailed, match="rejects messages"):
        store.put_message(message(2))
    with pytest.raises(FlushFailed):  # this one would succeed, and write nothing
        store.flush()
    assert store.flushed_offset == flushed
    store.close()
    assert (tmp_path / "abort").exists()
    again = MessageStore(small_config(tmp_path))
    assert not again.open().clean
    assert bodies(again) == [b"body 1"]
    again.close()
