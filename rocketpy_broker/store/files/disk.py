"""The file system calls of the store's data files.

Every system call that changes these files goes through a `Disk`. So a test can record the calls, stop at any
of them, and create the files that a crash would leave. `replace_file` (for configuration files) and
read-only inspection call the file system directly. The store survives:

- a process that is killed between any two calls, or during a `pwrite`, which may write a prefix;
- power loss: bytes written since the last `fdatasync` of a file may survive completely, in part or not at
  all, in any order; a directory entry may be missing until `fsync_dir`;
- ENOSPC and EIO from any call; an `fdatasync` that fails and drops the dirty pages.

Any other damage, such as flipped bits in flushed data or missing files, stops the start with an error: see
`recovery`. Files are not memory-mapped, since truncating a mapped file kills the process with SIGBUS.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol, TypeVar

from rocketpy.errors import DiskFull, StoreError, ensure

T = TypeVar("T")

_OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
_SPARES = 8
_DIRECTORY_SPARES = 2
"""Spares that only flushes of directories use. Without one a flush fails for good; a file can wait."""
_DIRECTORY_MODE: Final = 0o700
"""Of created directories: only the broker's user can read messages. The mode of existing ones is kept."""


class SpareDescriptors:
    """File descriptors that this process reserves for the store.

    One is closed when the store opens a file and the process has no other. Otherwise a flush could fail
    because connections use all descriptors; such a failure is final, and stops the broker.
    """

    def __init__(self) -> None:
        self._spares: list[int] = []
        self._holders = 0

    def hold(self) -> None:
        """Reserve descriptors, for one broker. Each call needs a `release`."""
        self._holders += 1
        self.refill()

    def release(self) -> None:
        """Undo one `hold`. The last `release` closes the reserved descriptors."""
        self._holders -= 1
        while not self._holders and self._spares:
            os.close(self._spares.pop())

    def refill(self) -> None:
        """Reserve missing descriptors, if the process has any left. May be called from any thread."""
        while self._holders and len(self._spares) < _SPARES:
            try:
                self._spares.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return

    def open(self, open_one: Callable[[], T], *, keep: int = _DIRECTORY_SPARES) -> T:
        """Call `open_one`; if no descriptor is left, close a reserved one and try again. Raises OSError.

        keep: number of reserved descriptors that remain for others.
        """
        while True:
            try:
                return open_one()
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR or len(self._spares) <= keep:
                    raise
                os.close(self._spares.pop())


spare_descriptors: Final = SpareDescriptors()
"""The reserved descriptors of this process."""

# Errors of open(2) when the kernel or the file system does not support O_TMPFILE.
_NO_UNNAMED_FILES = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})
# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")


def _open_unnamed(directory: Path) -> int | None:
    """Open a file without a name (O_TMPFILE); return None if the system lacks these files or /proc."""
    if not hasattr(os, "O_TMPFILE") or not Path("/proc/self/fd").is_dir():
        return None
    try:
        return os.open(directory, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno in _NO_UNNAMED_FILES:
            return None
        raise


def store_error(action: str, path: Path, error: OSError) -> StoreError:
    """Return the `StoreError` for a failed disk call; `DiskFull` if space or quota is exhausted.

    action: a verb for the text "cannot <action> <path>".
    """
    text = f"cannot {action} {path}: {error.strerror or error} (errno {error.errno})"
    if error.errno in _OUT_OF_SPACE:
        return DiskFull(f"{text}; free space on this file system or move the store")
    return StoreError(text)


@contextmanager
def disk_errors(action: str, path: Path) -> Iterator[None]:
    """Convert an OSError of the block with `store_error`. Takes 1 µs, so do not use it in hot paths."""
    try:
        yield
    except OSError as error:
        raise store_error(action, path, error) from error


def lacks_descriptors(error: StoreError) -> bool:
    """Whether a disk call failed because this process, or the system, has too many files open."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _NO_DESCRIPTOR


class Disk(Protocol):
    """The file system calls of the store. Handles are file descriptors; errors are `OSError`.

    `pwrite`, `pread` and `fdatasync` may be called from any thread, the rest from the store's own.
    """

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open a file for reading and writing. create: create it if it is missing."""

    def create(self, path: Path, size: int) -> int:
        """Create and open a sparse file of `size` bytes; extend a file that exists.

        If the system supports it, a new file gets its name only once it has its length. RocketMQ rejects a
        store with a file that is too short, and a killed process must not leave such a file.
        """

    def close(self, handle: int) -> None:
        """Close the handle. Nothing becomes durable."""

    def size(self, path: Path) -> int:
        """Return the length of the file, including holes."""

    def modified_ms(self, path: Path) -> int:
        """Return the time of the last write, in ms since 1970."""

    def is_at(self, handle: int, path: Path) -> bool:
        """Whether an open file is the one at this path, so that it was not removed or replaced."""

    def extend(self, handle: int, size: int) -> None:
        """Extend the file to `size` bytes without reserving blocks."""

    def preallocate(self, handle: int, position: int, length: int) -> None:
        """Reserve blocks for a range, so that writes there cannot run out of space."""

    def pwrite(self, handle: int, data: bytes, position: int) -> None:
        """Write all of `data` at `position`. When it fails, any part may have been written."""

    def pread(self, handle: int, size: int, position: int) -> bytes:
        """Return `size` bytes at `position`; fewer only at the end of the file."""

    def next_data(self, handle: int, position: int) -> int | None:
        """Return the first position at or after `position` that may have non-zero bytes; None without one."""

    def next_hole(self, handle: int, position: int) -> int:
        """Return the end of the data at `position`, where a hole starts."""

    def fdatasync(self, handle: int) -> None:
        """Make the bytes and the length of the file durable."""

    def fsync_dir(self, path: Path) -> None:
        """Make the entries of a directory durable."""

    def make_dir(self, path: Path) -> None:
        """Create a directory and its missing parents; no error if it exists."""

    def list_dir(self, path: Path) -> list[str]:
        """Return the sorted names in a directory; none if it does not exist."""

    def is_dir(self, path: Path) -> bool:
        """Whether the path is a directory."""

    def exists(self, path: Path) -> bool:
        """Whether the path exists."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file atomically, replacing an existing file."""

    def unlink(self, path: Path) -> None:
        """Remove a file; no error if it does not exist."""

    def remove_dir(self, path: Path) -> None:
        """Remove a directory if it is empty; no error if it is not or does not exist."""

    def lock(self, handle: int) -> int | None:
        """Lock the first byte for this process, as Java's FileChannel.tryLock(0, 1) does.

        Returns None if this process has the lock now, otherwise the process id of its holder; 0 if unknown.
        """


class OsDisk(Disk):
    """The files of the operating system."""

    def open(self, path: Path, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return spare_descriptors.open(lambda: os.open(path, flags, 0o644))

    def create(self, path: Path, size: int) -> int:
        unnamed = None if path.exists() else spare_descriptors.open(lambda: _open_unnamed(path.parent))
        handle = self.open(path, create=True) if unnamed is None else unnamed
        try:
            self.extend(handle, size)
            if unnamed is not None:
                # /proc/self/fd/N is a symbolic link; with src_dir_fd, Python makes linkat follow it.
                os.link(f"/proc/self/fd/{handle}", path, src_dir_fd=handle, follow_symlinks=True)
        except FileExistsError:  # a preallocating thread was faster
            os.close(handle)
            return self.create(path, size)
        except OSError:
            os.close(handle)
            raise
        return handle

    def close(self, handle: int) -> None:
        os.close(handle)
        spare_descriptors.refill()

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def is_at(self, handle: int, path: Path) -> bool:
        """See `Disk`."""
        try:
            return os.path.samestat(path.stat(), os.fstat(handle))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def extend(self, handle: int, size: int) -> None:
        present = os.fstat(handle).st_size
        ensure(size >= present, f"a store file of {present} bytes must not shrink to {size}")
        os.ftruncate(handle, size)

    def preallocate(self, handle: int, position: int, length: int) -> None:
        os.posix_fallocate(handle, position, length)

    def pwrite(self, handle: int, data: bytes, position: int) -> None:
        written = os.pwrite(handle, data, position)
        if written == len(data):
            return
        rest = memoryview(data)
        while written < len(data):
            step = os.pwrite(handle, rest[written:], position + written)
            if step == 0:
                raise OSError(errno.EIO, f"wrote {written} of {len(data)} bytes, then nothing")
            written += step

    def pread(self, handle: int, size: int, position: int) -> bytes:
        data = os.pread(handle, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(handle, size - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def next_data(self, handle: int, position: int) -> int | None:
        try:
            return os.lseek(handle, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno == errno.EINVAL:  # the file system does not support it
                return position
            raise

    def next_hole(self, handle: int, position: int) -> int:
        try:
            return os.lseek(handle, position, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return os.fstat(handle).st_size
            raise

    def fdatasync(self, handle: int) -> None:
        os.fdatasync(handle)

    def fsync_dir(self, path: Path) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        handle = spare_descriptors.open(lambda: os.open(path, flags), keep=0)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
            spare_descriptors.refill()

    def make_dir(self, path: Path) -> None:
        try:
            path.mkdir(_DIRECTORY_MODE, exist_ok=True)
        except FileNotFoundError:
            self.make_dir(path.parent)  # mkdir(parents=True) would give the parents the default mode
            path.mkdir(_DIRECTORY_MODE, exist_ok=True)

    def list_dir(self, path: Path) -> list[str]:
        try:
            return sorted(entry.name for entry in path.iterdir())
        except FileNotFoundError:
            return []

    def is_dir(self, path: Path) -> bool:
        return path.is_dir()

    def exists(self, path: Path) -> bool:
        return path.exists()

    def rename(self, old: Path, new: Path) -> None:
        old.replace(new)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_dir(self, path: Path) -> None:
        try:
            path.rmdir()
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTEMPTY}:
                raise

    def lock(self, handle: int) -> int | None:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                return _lock_holder(handle) or 0
            raise
        return None


def lock_holder(path: Path) -> int | None:
    """Return the process id of a lock's holder, 0 if unknown, None if it is free. Raises OSError.

    The lock is not acquired.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _lock_holder(handle)
    finally:
        os.close(handle)


def _lock_holder(handle: int) -> int | None:
    wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    try:
        found = fcntl.fcntl(handle, fcntl.F_GETLK, wanted)
    except OSError:
        return 0
    kind, _, _, _, pid = _FLOCK.unpack(found)
    return None if kind == fcntl.F_UNLCK else int(pid)


def make_durable_dir(disk: Disk, directory: Path) -> None:
    """Create a directory and its missing parents durably. Raises DiskFull, StoreError."""
    with disk_errors("make directory", directory):
        missing = [path for path in (directory, *directory.parents) if not disk.is_dir(path)]
        disk.make_dir(directory)
        for path in reversed(missing):
            disk.fsync_dir(path.parent)


Clock = Callable[[], int]
"""Returns the wall-clock time in ms since 1970, which may jump forwards or backwards."""


def system_clock() -> int:
    """Return the time of the machine in ms since 1970."""
    return time.time_ns() // 1_000_000
