"""The recording disk itself: a sweep with a disk that keeps too much or too little proves nothing."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.crash.disk import SECTOR, Operation, RecordingDisk

FILE = Path("/store/file")


@pytest.fixture
def disk() -> RecordingDisk:
    """A disk with an empty, durable file."""
    made = RecordingDisk()
    made.put_file(FILE, b"")
    return made


def test_power_loss_removes_only_unflushed_data(disk: RecordingDisk) -> None:
    """A sweep would accept the loss of a message that was flushed."""
    handle = disk.open(FILE)
    disk.pwrite(handle, b"a" * SECTOR, 0)
    disk.fdatasync(handle)
    disk.pwrite(handle, b"b" * SECTOR, SECTOR)
    assert disk.copy().files()[str(FILE)] == b"a" * SECTOR + b"b" * SECTOR
    assert disk.after_power_loss(None).files()[str(FILE)] == b"a" * SECTOR
    seen = {disk.after_power_loss(Random(seed)).files()[str(FILE)] for seed in range(50)}
    grown = (b"", bytes(SECTOR), b"b" * SECTOR)  # the new length may survive without the bytes
    assert seen == {b"a" * SECTOR + end for end in grown}


def test_any_content_since_the_last_flush_may_remain(disk: RecordingDisk) -> None:
    """Bytes that were written and erased could return, and no sweep would detect it."""
    handle = disk.open(FILE)
    for content in (b"one", b"two", b"\0\0\0"):
        disk.pwrite(handle, content, 0)
    seen = {disk.after_power_loss(Random(seed)).files()[str(FILE)] for seed in range(80)}
    assert seen == {b"", b"one", b"two", b"\0\0\0"}


def test_names_are_durable_once_their_directory_is_flushed(disk: RecordingDisk) -> None:
    """A sweep would not detect that a durable file is lost without its name."""
    other = FILE.with_name("other")
    disk.fdatasync(disk.open(other, create=True))
    disk.rename(FILE, FILE.with_name("renamed"))
    assert list(disk.after_power_loss(None).files()) == [str(FILE)]
    disk.fsync_dir(FILE.parent)
    assert list(disk.after_power_loss(None).files()) == ["/store/other", "/store/renamed"]


def test_a_failed_flush_drops_its_data(disk: RecordingDisk) -> None:
    """A store that repeats a failed flush and trusts the result would pass."""
    handle = disk.open(FILE)
    disk.pwrite(handle, b"lost", 0)
    operations: list[Operation] = []
    disk.before = operations.append
    disk.fdatasync(handle)
    disk.before = None
    disk.pwrite(handle, b"lost", 0)
    disk.fail_fdatasync(operations[0])
    disk.fdatasync(handle)
    assert disk.after_power_loss(None).files()[str(FILE)] == b"lost"
    disk.pwrite(handle, b"gone", 0)
    disk.fail_fdatasync(operations[0])
    disk.fdatasync(handle)
    assert disk.after_power_loss(None).files()[str(FILE)] == b"lost"
    assert disk.copy().files()[str(FILE)] == b"gone", "it stays in the page cache"


def test_copies_do_not_share_later_writes(disk: RecordingDisk) -> None:
    """The recovery of a copy would change the disk of the store that is crashed next."""
    image = disk.copy()
    image.pwrite(image.open(FILE), b"image", 0)
    disk.pwrite(disk.open(FILE), b"disk", 0)
    assert (disk.files()[str(FILE)], image.files()[str(FILE)]) == (b"disk", b"image")
    assert disk.after_power_loss(None).files()[str(FILE)] == b""
