"""A real disk with calls that fail as a test plans."""

from __future__ import annotations

import errno
from pathlib import Path

from rocketpy_broker.store.files.disk import OsDisk

CHANGES = (
    "create",
    "extend",
    "preallocate",
    "pwrite",
    "fdatasync",
    "fsync_dir",
    "make_dir",
    "rename",
    "unlink",
)


class FaultyDisk(OsDisk):
    """Counts the calls that change the disk, and lets some of them fail.

    fail_at: number of the first call that fails, from 1 on; 0 never. fail_count: how many fail from there.
    only: fail, and count, just this kind of call. A failing pwrite writes half first.
    """

    def __init__(
        self, fail_at: int = 0, *, fail_count: int = 1, code: int = errno.ENOSPC, only: str = ""
    ) -> None:
        self.fail_at = fail_at
        self.fail_count = fail_count
        self.code = code
        self.only = only
        self.calls = 0
        self.failed: list[str] = []

    def _count(self, kind: str) -> bool:
        if self.only and kind != self.only:
            return False
        self.calls += 1
        if self.fail_at and self.fail_at <= self.calls < self.fail_at + self.fail_count:
            self.failed.append(kind)
            return True
        return False

    def _step(self, kind: str) -> None:
        if self._count(kind):
            raise OSError(self.code, f"planned failure of {kind}")

    def open(self, path: Path, *, create: bool = False) -> int:
        if create and not path.exists():
            self._step("create")
        return super().open(path, create=create)

    def create(self, path: Path, size: int) -> int:
        if not path.exists():
            self._step("create")
        return super().create(path, size)

    def extend(self, handle: int, size: int) -> None:
        self._step("extend")
        super().extend(handle, size)

    def preallocate(self, handle: int, position: int, length: int) -> None:
        self._step("preallocate")
        super().preallocate(handle, position, length)

    def pwrite(self, handle: int, data: bytes, position: int) -> None:
        if self._count("pwrite"):
            super().pwrite(handle, data[: len(data) // 2], position)
            raise OSError(self.code, "planned failure of pwrite")
        super().pwrite(handle, data, position)

    def fdatasync(self, handle: int) -> None:
        self._step("fdatasync")
        super().fdatasync(handle)

    def fsync_dir(self, path: Path) -> None:
        self._step("fsync_dir")
        super().fsync_dir(path)

    def make_dir(self, path: Path) -> None:
        if not path.exists():
            self._step("make_dir")
        super().make_dir(path)

    def rename(self, old: Path, new: Path) -> None:
        self._step("rename")
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        if path.exists():
            self._step("unlink")
        super().unlink(path)


class UnreadableDisk(OsDisk):
    """A real disk that cannot read the files whose path contains `unreadable`; empty for none."""

    unreadable = ""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}

    def open(self, path: Path, *, create: bool = False) -> int:
        handle = super().open(path, create=create)
        self._paths[handle] = str(path)
        return handle

    def create(self, path: Path, size: int) -> int:
        handle = super().create(path, size)
        self._paths[handle] = str(path)
        return handle

    def pread(self, handle: int, size: int, position: int) -> bytes:
        if self.unreadable and self.unreadable in self._paths.get(handle, ""):
            raise OSError(errno.EIO, "planned failure of pread")
        return super().pread(handle, size, position)
