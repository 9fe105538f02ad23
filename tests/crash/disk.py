"""A disk in memory that computes what a crash leaves of its files.

Files consist of sectors of 512 bytes. The disk keeps each content of a sector since the last `fdatasync`:
power loss leaves any one of them. Names are kept per directory, with every change since the last `fsync_dir`.

The model:

- a killed process loses no written data; a `pwrite` in progress leaves a prefix of any length;
- power loss removes any of the unflushed sectors, lengths and names; sectors and renames are atomic;
- a failing `fdatasync` drops the data that it should have written: a second one succeeds and writes nothing;
- disks that lose flushed data are not modelled here, but in `damage`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

SECTOR = 512
_ZEROS = bytes(SECTOR)


class Crash(BaseException):
    """The process has ended: no code may catch this and continue."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A call that changes the disk. data, position: of a pwrite."""

    kind: str
    path: str
    data: bytes = b""
    position: int = 0


@dataclass(slots=True)
class _File:
    owner: object
    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unflushed: list[tuple[int, bytes]] = field(default_factory=list)
    """Each write since the last flush, oldest first: its first sector, and the content of all its sectors."""
    modified_ms: int = 0
    inode: int = 0

    def copy(self, owner: object) -> _File:
        return _File(
            owner,
            bytearray(self.data),
            bytearray(self.durable),
            list(self.unflushed),
            self.modified_ms,
            self.inode,
        )


@dataclass(slots=True)
class _Directory:
    owner: object
    names: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)
    unflushed: list[dict[str, int | None]] = field(default_factory=list)
    """Changes since the last flush: name -> inode, None where it was deleted; each is one step."""

    def copy(self, owner: object) -> _Directory:
        return _Directory(owner, dict(self.names), dict(self.durable), list(self.unflushed))

    def change(self, step: dict[str, int | None]) -> None:
        self.unflushed.append(step)
        _apply(self.names, step)


def _apply(names: dict[str, int], step: dict[str, int | None]) -> None:
    for name, inode in step.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


class RecordingDisk:
    """`rocketpy_broker.store.files.disk.Disk` in memory; not for threads.

    before: called before every change of the disk; it may read or copy the disk, or raise `Crash` or OSError.
    clock: ms since 1970, for modification times.
    """

    def __init__(self, clock: Callable[[], int] = lambda: 0) -> None:
        self._token = object()
        self._clock = clock
        self._nodes: dict[int, _File | _Directory] = {0: _Directory(self._token)}
        self._next_inode = 1
        self._handles: dict[int, int] = {}
        self._next_handle = 1
        self.before: Callable[[Operation], None] | None = None
        self.calls = 0

    # -- images ----------------------------------------------------------------------------------

    def copy(self) -> RecordingDisk:
        """This disk after a kill: it has all written data, flushed or not."""
        now = self._clock()
        image = RecordingDisk(lambda: now)
        image._nodes = dict(self._nodes)
        image._next_inode = self._next_inode
        self._token = object()  # marks nodes shared with the copy, which neither disk may change
        return image

    def torn(self, operation: Operation, length: int) -> RecordingDisk:
        """Like `copy`, with the first `length` bytes of a pwrite in progress."""
        image = self.copy()
        handle = image.open(Path(operation.path))
        image.pwrite(handle, operation.data[:length], operation.position)
        return image

    def after_power_loss(self, random: Random | None, operation: Operation | None = None) -> RecordingDisk:
        """This disk after power loss. random: chooses the unflushed data that survive; None: all are lost.

        operation: a pwrite in progress, parts of which may survive, too.
        """
        source = self
        if random is not None and operation is not None and operation.kind == "pwrite":
            source = self.torn(operation, len(operation.data))
        now = self._clock()
        image = RecordingDisk(lambda: now)
        image._next_inode = source._next_inode
        share = random.choice((0.1, 0.5, 0.9)) if random is not None else 0.0
        reachable = [0]
        while reachable:
            inode = reachable.pop()
            node = source._nodes[inode]
            if isinstance(node, _File):
                data = _survivor(node, random, share)
                image._nodes[inode] = _File(image._token, data, bytearray(data), [], node.modified_ms, inode)
                continue
            names = dict(node.durable)
            for step in node.unflushed:
                if random is not None and random.random() < share:
                    _apply(names, step)
            image._nodes[inode] = _Directory(image._token, names, dict(names))
            reachable += names.values()
        return image

    def files(self, below: str = "") -> dict[str, bytes]:
        """Every file's content by path."""
        found: dict[str, bytes] = {}
        pending: list[tuple[str, int]] = [("", 0)]
        while pending:
            path, inode = pending.pop()
            node = self._nodes[inode]
            if isinstance(node, _Directory):
                pending += [(f"{path}/{name}", child) for name, child in node.names.items()]
            elif path.startswith(below):
                found[path] = bytes(node.data)
        return dict(sorted(found.items()))

    def put_file(self, path: Path, data: bytes) -> None:
        """Create a file with flushed content, replacing an existing one."""
        self.make_dir(path.parent)
        handle = self.open(path, create=True)
        inode = self._handles[handle]
        self._nodes[inode] = _File(self._token, bytearray(data), bytearray(data), [], self._clock(), inode)
        self.make_durable()

    def make_durable(self) -> None:
        """Make all files and directories durable."""
        for inode in list(self._nodes):
            node = self._own(inode)
            node.unflushed.clear()
            if isinstance(node, _File):
                node.durable = bytearray(node.data)
            else:
                node.durable = dict(node.names)

    # -- inside ----------------------------------------------------------------------------------

    def _own(self, inode: int) -> _File | _Directory:
        node = self._nodes[inode]
        if node.owner is not self._token:
            node = self._nodes[inode] = node.copy(self._token)
        return node

    def _file(self, handle: int) -> _File:
        node = self._own(self._handles[handle])
        assert isinstance(node, _File)
        return node

    def _directory(self, inode: int) -> _Directory:
        node = self._own(inode)
        assert isinstance(node, _Directory)
        return node

    def _find(self, path: Path | str) -> int | None:
        inode = 0
        for name in path.parts[1:] if isinstance(path, Path) else filter(None, path.split("/")):
            node = self._nodes[inode]
            if isinstance(node, _File):
                return None
            found = node.names.get(name)
            if found is None:
                return None
            inode = found
        return inode

    def _need(self, path: Path) -> int:
        inode = self._find(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return inode

    def _step(self, kind: str, path: str, data: bytes = b"", position: int = 0) -> None:
        self.calls += 1
        if self.before is not None:
            self.before(Operation(kind, path, data, position))

    def _path(self, handle: int) -> str:
        return self._paths[handle]

    @property
    def _paths(self) -> dict[int, str]:
        paths: dict[int, str] = self.__dict__.setdefault("_path_by_handle", {})
        return paths

    def _add(self, path: Path, node: _File | _Directory) -> int:
        inode = self._next_inode
        self._next_inode += 1
        self._nodes[inode] = node
        self._directory(self._need(path.parent)).change({path.name: inode})
        return inode

    # -- the protocol ----------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> int:
        inode = self._find(path)
        if inode is None:
            if not create:
                self._need(path)
            self._step("create", str(path))
            self._need(path.parent)
            node = _File(self._token, modified_ms=self._clock())
            inode = node.inode = self._add(path, node)
        handle = self._next_handle
        self._next_handle += 1
        self._handles[handle] = inode
        self._paths[handle] = str(path)
        return handle

    def create(self, path: Path, size: int) -> int:
        """Create a file in two steps, as without O_TMPFILE: recovery must handle a crash between them."""
        handle = self.open(path, create=True)
        self.extend(handle, size)
        return handle

    def close(self, handle: int) -> None:
        del self._handles[handle]
        del self._paths[handle]

    def size(self, path: Path) -> int:
        node = self._nodes[self._need(path)]
        assert isinstance(node, _File)
        return len(node.data)

    def is_at(self, handle: int, path: Path) -> bool:
        return self.exists(path) and self._handles[handle] == self._need(path)

    def modified_ms(self, path: Path) -> int:
        node = self._nodes[self._need(path)]
        assert isinstance(node, _File)
        return node.modified_ms

    def extend(self, handle: int, size: int) -> None:
        if size == len(self._file(handle).data):
            return
        self._step("extend", self._path(handle))
        file = self._file(handle)
        file.data.extend(bytes(size - len(file.data)))

    def preallocate(self, handle: int, position: int, length: int) -> None:
        self._step("preallocate", self._path(handle))

    def pwrite(self, handle: int, data: bytes, position: int) -> None:
        self._step("pwrite", self._path(handle), bytes(data), position)
        self._write(handle, data, position)

    def _write(self, handle: int, data: bytes, position: int) -> None:
        file = self._file(handle)
        content = file.data
        end = position + len(data)
        if end > len(content):
            content.extend(bytes(end - len(content)))
        content[position:end] = data
        sector = position // SECTOR
        with memoryview(content) as view:
            file.unflushed.append((sector, bytes(view[sector * SECTOR : -(-end // SECTOR) * SECTOR])))
        file.modified_ms = self._clock()

    def fail_pwrite(self, operation: Operation, length: int) -> None:
        """Write the first bytes of a pwrite that is about to fail."""
        handle = next(handle for handle, path in self._paths.items() if path == operation.path)
        self._write(handle, operation.data[:length], operation.position)

    def fail_fdatasync(self, operation: Operation) -> None:
        """Drop the data of an fdatasync that is about to fail; they are never written."""
        handle = next(handle for handle, path in self._paths.items() if path == operation.path)
        self._file(handle).unflushed.clear()

    def pread(self, handle: int, size: int, position: int) -> bytes:
        node = self._nodes[self._handles[handle]]
        assert isinstance(node, _File)
        return bytes(node.data[position : position + size])

    def next_data(self, handle: int, position: int) -> int | None:
        node = self._nodes[self._handles[handle]]
        assert isinstance(node, _File)
        end = len(node.data)
        at = position
        while at < end and _is_hole(node, at):
            at += SECTOR
        return None if at >= end else max(position, at - SECTOR)

    def next_hole(self, handle: int, position: int) -> int:
        node = self._nodes[self._handles[handle]]
        assert isinstance(node, _File)
        end, at = len(node.data), position
        while at < end and not _is_hole(node, at):
            at += SECTOR - at % SECTOR
        return min(at, end)

    def fdatasync(self, handle: int) -> None:
        self._step("fdatasync", self._path(handle))
        file = self._file(handle)
        file.durable.extend(bytes(len(file.data) - len(file.durable)))
        with memoryview(file.data) as data, memoryview(file.durable) as durable:
            for sector, written in file.unflushed:
                start = sector * SECTOR
                end = start + len(written)
                durable[start:end] = data[start:end]
        file.unflushed.clear()

    def fsync_dir(self, path: Path) -> None:
        self._step("fsync_dir", str(path))
        directory = self._directory(self._need(path))
        directory.durable = dict(directory.names)
        directory.unflushed.clear()

    def make_dir(self, path: Path) -> None:
        if self._find(path) is not None:
            return
        if path.parent != path:
            self.make_dir(path.parent)
        self._step("make_dir", str(path))
        self._add(path, _Directory(self._token))

    def list_dir(self, path: Path) -> list[str]:
        inode = self._find(path)
        if inode is None:
            return []
        node = self._nodes[inode]
        assert isinstance(node, _Directory)
        return sorted(node.names)

    def is_dir(self, path: Path) -> bool:
        inode = self._find(path)
        return inode is not None and isinstance(self._nodes[inode], _Directory)

    def exists(self, path: Path) -> bool:
        return self._find(path) is not None

    def rename(self, old: Path, new: Path) -> None:
        inode = self._need(old)
        self._step("rename", str(new))
        assert old.parent == new.parent, "the store renames within a directory"
        self._directory(self._need(old.parent)).change({old.name: None, new.name: inode})

    def unlink(self, path: Path) -> None:
        if self._find(path) is None:
            return
        self._step("unlink", str(path))
        self._directory(self._need(path.parent)).change({path.name: None})

    def remove_dir(self, path: Path) -> None:
        inode = self._find(path)
        if inode is None or self._directory(inode).names:
            return
        self._step("remove_dir", str(path))
        self._directory(self._need(path.parent)).change({path.name: None})

    def lock(self, handle: int) -> int | None:
        return None


def _is_hole(file: _File, at: int) -> bool:
    """Whether a sector was never written. Zeros that were written over data are not a hole."""
    zeros = _ZEROS[: len(file.data) - at]
    return file.data.startswith(zeros, at) and not file.durable[at : at + SECTOR].strip(b"\0")


def _survivor(file: _File, random: Random | None, share: float) -> bytearray:
    """A file's content after power loss."""
    data = bytearray(file.durable)
    if random is None:
        return data
    if len(file.data) > len(data) and (random.random() < share):
        data.extend(bytes(len(file.data) - len(data)))
    sectors: dict[int, list[bytes]] = {}
    for first, written in file.unflushed:
        for number, start in enumerate(range(0, len(written), SECTOR), first):
            sectors.setdefault(number, []).append(written[start : start + SECTOR])
    for sector, versions in sectors.items():
        if random.random() < share:
            version = versions[-1] if random.random() < 0.7 else random.choice(versions)
            start = sector * SECTOR
            if len(data) < start:
                data.extend(bytes(start - len(data)))
            data[start : start + len(version)] = version
    return data
