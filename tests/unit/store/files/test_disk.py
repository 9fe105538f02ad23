"""Disk calls that end early, fail, or meet another thread, and how new files get their names."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from rocketpy.errors import DiskFull, InvariantError, StoreError
from rocketpy_broker.store.files.disk import OsDisk, store_error
from rocketpy_broker.store.index.index_file import IndexFile
from rocketpy_broker.store.log.mapped_file import MappedFile


def test_short_writes_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record would be half written and yet acknowledged."""
    disk = OsDisk()
    handle = disk.open(tmp_path / "f", create=True)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data[:3]), at))
    disk.pwrite(handle, b"0123456789", 5)
    monkeypatch.undo()
    assert disk.pread(handle, 100, 5) == b"0123456789"
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(OSError, match="0 of 4"):
        disk.pwrite(handle, b"4444", 0)
    monkeypatch.undo()
    disk.close(handle)


def test_short_reads_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record would look torn."""
    disk = OsDisk()
    (tmp_path / "f").write_bytes(b"0123456789")
    handle = disk.open(tmp_path / "f")
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real(fd, min(size, 4), at))
    assert disk.pread(handle, 9, 0) == b"012345678"
    assert disk.pread(handle, 99, 2) == b"23456789"
    monkeypatch.undo()
    disk.close(handle)


def test_files_never_shrink(tmp_path: Path) -> None:
    """A store file that is cut short would lose messages that are being read."""
    disk = OsDisk()
    handle = disk.open(tmp_path / "f", create=True)
    disk.extend(handle, 100)
    with pytest.raises(InvariantError, match="must not shrink"):
        disk.extend(handle, 99)
    assert disk.size(tmp_path / "f") == 100
    disk.close(handle)


def test_holes_are_skipped(tmp_path: Path) -> None:
    """Looking for damage after the log's end would read a gigabyte of nothing."""
    disk = OsDisk()
    handle = disk.open(tmp_path / "f", create=True)
    disk.extend(handle, 8 << 20)
    found = disk.next_data(handle, 0)
    assert found in {None, 0}  # 0: this file system cannot tell
    disk.pwrite(handle, b"x", 5 << 20)
    at = disk.next_data(handle, 0)
    assert at is not None
    assert at <= 5 << 20
    assert 5 << 20 < disk.next_hole(handle, 5 << 20) <= 8 << 20
    disk.close(handle)


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StoreError)]
)
def test_errors_name_the_call_and_the_file(code: int, kind: type[StoreError]) -> None:
    """An operator would not know which disk is full."""
    error = store_error("write 5 bytes at 7 of", Path("/store/f"), OSError(code, os.strerror(code)))
    assert type(error) is kind
    assert f"cannot write 5 bytes at 7 of /store/f: {os.strerror(code)} (errno {code})" in str(error)


def test_missing_files_are_no_errors(tmp_path: Path) -> None:
    """A recovery that is interrupted and repeated would fail because of its first run."""
    disk: Any = OsDisk()
    disk.unlink(tmp_path / "none")
    disk.remove_dir(tmp_path / "none")
    assert disk.list_dir(tmp_path / "none") == []
    disk.make_dir(tmp_path / "a" / "b")
    disk.make_dir(tmp_path / "a" / "b")
    disk.remove_dir(tmp_path / "a")
    assert disk.is_dir(tmp_path / "a" / "b")


@pytest.mark.parametrize("make", ["log file", "index file"])
def test_a_store_file_has_its_name_only_at_full_length(tmp_path: Path, make: str) -> None:
    """A killed broker would leave an empty file, and RocketMQ would refuse the store."""
    seen: list[list[Path]] = []

    class Watched(OsDisk):
        def extend(self, handle: int, size: int) -> None:
            seen.append(list(tmp_path.iterdir()))  # what a kill before this call would leave
            super().extend(handle, size)

    if make == "log file":
        file = MappedFile(Watched(), str(tmp_path), 0, 1000)
        file.create()
        file.close()
    else:
        index = IndexFile(Watched(), tmp_path / "20261122233428650", 10, 40)
        index.create(None)
        index.close()
    assert seen == [[]]
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size == (1000 if make == "log file" else index.size)


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL])
def test_files_are_made_where_no_file_is_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """On a file system without O_TMPFILE the broker could make no store."""
    real = os.open

    def refusing(path: Any, flags: int, *more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(code, os.strerror(code))
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", refusing)
    disk = OsDisk()
    handle = disk.create(tmp_path / "f", 100)
    disk.pwrite(handle, b"here", 0)
    disk.close(handle)
    handle = disk.create(tmp_path / "f", 200)  # one that a crash left too short is extended
    assert disk.pread(handle, 300, 0) == b"here" + bytes(196)
    disk.close(handle)


def test_two_creations_of_one_file_share_it(tmp_path: Path) -> None:
    """A broker failed for good where its loop needed the file that a thread preallocated just then."""

    class Raced(OsDisk):
        def extend(self, handle: int, size: int) -> None:
            if not path.exists():  # the thread is faster by a moment
                other = OsDisk().create(path, size)
                os.pwrite(other, b"written", 0)
                os.close(other)
            super().extend(handle, size)

    path = tmp_path / "f"
    handle = Raced().create(path, 4096)
    assert os.pread(handle, 7, 0) == b"written"
    assert os.fstat(handle).st_size == 4096
    os.close(handle)


def test_a_failed_creation_leaves_no_file_and_no_handle(tmp_path: Path) -> None:
    """A full disk would leave files of no length, or use up the file descriptors of the process."""

    class Full(OsDisk):
        def extend(self, handle: int, size: int) -> None:
            raise OSError(errno.ENOSPC, "no space")

    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="no space"):
        Full().create(tmp_path / "f", 100)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert list(tmp_path.iterdir()) == []


def test_only_the_user_of_the_broker_can_read_a_new_store(tmp_path: Path) -> None:
    """Every user of the machine could read all messages of a broker that was started by hand."""
    before = os.umask(0o022)
    try:
        OsDisk().make_dir(tmp_path / "data" / "store" / "commitlog")
    finally:
        os.umask(before)
    created = [tmp_path / "data", tmp_path / "data" / "store", tmp_path / "data" / "store" / "commitlog"]
    assert [path.stat().st_mode & 0o777 for path in created] == [0o700] * 3


def test_the_mode_of_an_existing_directory_is_kept(tmp_path: Path) -> None:
    """An operator's group that reads backups would be locked out at the next start."""
    tmp_path.chmod(0o750)
    OsDisk().make_dir(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o750
