"""The file `lock`, which keeps a second process, or a Java broker, from using the store."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from rocketpy.errors import StoreLocked
from rocketpy_broker.store.files.disk import Disk, disk_errors

_TEXT = b"lock"


class StoreLock:
    """The lock of a store directory, held until `release` or the end of the process.

    A POSIX lock does not exclude its own process, so the class has a set of the locks of this process.
    """

    _held: ClassVar[set[Path]] = set()

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path
        self._key = path.parent.resolve() / path.name
        self._handle = -1

    def acquire(self) -> None:
        """Acquire the lock. Raises StoreError, and StoreLocked with the holder."""
        if self._key in self._held:
            raise StoreLocked(
                f"{self.path.parent} is already open in this process; close it, or use another directory"
            )
        with disk_errors("lock", self.path):
            handle = self._disk.open(self.path, create=True)
            holder = self._disk.lock(handle)
            if holder is not None:
                self._disk.close(handle)
                raise StoreLocked(self._in_use(holder))
            self._disk.pwrite(handle, _TEXT, 0)
        self._handle = handle
        self._held.add(self._key)

    def _in_use(self, holder: int) -> str:
        who = f"process {holder}" if holder else "another process"
        return f"{self.path.parent} is in use by {who}; stop it, or give this broker another store directory"

    def release(self) -> None:
        """Release the lock; the file stays."""
        if self._handle >= 0:
            self._disk.close(self._handle)
            self._handle = -1
            self._held.discard(self._key)
