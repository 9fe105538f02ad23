"""One process a store: the file `lock`, locked as Java's broker locks it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from rocketpy.errors import StoreLocked
from rocketpy_broker.store.files.disk import Disk, disk_errors

_TEXT = b"lock"


class StoreLock:
    """Holds a store directory until `release`. The system lets go of it when the process ends.

    A POSIX lock does not keep out its own process, so what this process holds is remembered here.
    """

    _held: ClassVar[set[Path]] = set()

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path
        self._key = path.parent.resolve() / path.name
        self._handle = -1

    def acquire(self) -> None:
        """Take the lock. Raises StoreLocked naming its holder, StoreError."""
        if self._key in self._held:
            raise StoreLocked(f"{self.path.parent} is open in this process already")
        with disk_errors("lock", self.path):
            handle = self._disk.open(self.path, create=True)
            holder = self._disk.lock(handle)
            if holder is not None:
                self._disk.close(handle)
                raise StoreLocked(self._refusal(holder))
            self._disk.pwrite(handle, _TEXT, 0)
        self._handle = handle
        self._held.add(self._key)

    def _refusal(self, holder: int) -> str:
        who = f"process {holder}" if holder else "another process"
        return f"{self.path.parent} is in use by {who}; stop it, or give this broker another store directory"

    def release(self) -> None:
        """Release the lock; the file stays."""
        if self._handle >= 0:
            self._disk.close(self._handle)
            self._handle = -1
            self._held.discard(self._key)
