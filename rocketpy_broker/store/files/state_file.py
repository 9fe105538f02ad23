"""Small files that are replaced atomically: topics.json, consumerOffset.json, …, each with a `.bak`.

After an interrupted save, the file has either the old or the new content. The previous content is saved as
`<name>.bak`, as in 4.6.0.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sized
from functools import partial
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from rocketpy.errors import RemoteProtocolError, StoreDamaged
from rocketpy.protocol.bodies import Body
from rocketpy.runtime.tasks import subtask
from rocketpy_broker.store.files.disk import Disk, disk_errors, store_error

logger = logging.getLogger("rocketpy_broker.store.state_file")

_PART_ENTRIES: Final = 1000
_COPIED_ENTRIES: Final = 2000
"""Entries of a table that are copied before others have a turn."""
_YIELD_S: Final = 0.0002

T = TypeVar("T")


def format_table(wrapper: Body, field: str) -> bytes:
    """Return the indented JSON text of a table. Call it in a thread.

    field: name of the wrapper's field that holds the entries. The function sleeps after each thousand entries
    to let the event loop run. One call of the encoder for all entries would hold the GIL for 20 ms.
    """
    parts = []
    for part in formatted_parts(wrapper, field):
        parts.append(part)
        time.sleep(_YIELD_S)
    return b"".join(parts)


def formatted_parts(wrapper: Body, field: str) -> Iterator[bytes]:
    """Yield the text of `format_table` in parts of at most a thousand entries."""
    table = getattr(wrapper, field)
    if not table:
        yield msgspec.json.format(wrapper.encode(), indent=2)
        return
    frame = msgspec.structs.replace(wrapper, **{field: {"": 0}})
    head, tail = msgspec.json.format(frame.encode(), indent=2).split(b'    "": 0')
    entries = list(table.items())
    yield head
    for first in range(0, len(entries), _PART_ENTRIES):
        part = msgspec.json.format(
            msgspec.json.encode(dict(entries[first : first + _PART_ENTRIES])), indent=2
        )
        yield (b",\n  " if first else b"  ") + part[2:-2].replace(b"\n", b"\n  ")
    yield tail


def save_state(disk: Disk, path: Path, data: bytes) -> None:
    """Replace the content of a file atomically and durably. Raises DiskFull, StoreError."""
    with disk_errors("save", path):
        if not disk.exists(path.parent):
            disk.make_dir(path.parent)
            disk.fsync_dir(path.parent.parent)
        if disk.exists(path):
            _replace(disk, path.with_name(path.name + ".bak"), read_file(disk, path))
        _replace(disk, path, data)
        disk.fsync_dir(path.parent)


async def save_state_in_thread(disk: Disk, path: Path, data: bytes) -> None:
    """Run `save_state` in a thread; see `save_in_thread`. Raises DiskFull, StoreError."""
    await save_in_thread(partial(save_state, disk, path, data))


async def keys_in_parts(table: Mapping[str, Sized]) -> AsyncIterator[str]:
    """Yield the keys of a table that others may change meanwhile; they have turns in between.

    For copies of a table that a thread encodes. Only keys are yielded that the table still has.
    """
    entries = 0
    for key in list(table):
        if key in table:
            entries += len(table[key])
            yield key
        if entries >= _COPIED_ENTRIES:
            entries = 0
            await asyncio.sleep(0)


async def save_in_thread(save: Callable[[], None]) -> None:
    """Run `save` in a thread. Raises its errors.

    A cancelled caller still waits for the end of the save, so that it cannot overwrite a later one.
    """
    saving = subtask(asyncio.to_thread(save), "save")
    try:
        await asyncio.shield(saving)
    except asyncio.CancelledError:
        await asyncio.wait({saving})
        if not saving.cancelled() and (error := saving.exception()) is not None:
            logger.error("%s", error)
        raise


class LoadedState(NamedTuple, Generic[T]):
    """The content of a state file."""

    value: T | None
    """None if there is neither a file nor a `.bak`."""
    is_older: bool = False
    """Whether it is that of the `.bak`, so that the changes of the last save are missing."""


def load_state(disk: Disk, path: Path, decode: Callable[[bytes], T]) -> LoadedState[T]:
    """Return the decoded file, or its decoded `.bak` if the file is missing or cannot be decoded.

    decode: raises ValueError or RemoteProtocolError for invalid content. A file that cannot be decoded is
    renamed to `<name>.damaged` if its `.bak` is used, which the next save would replace by it otherwise.
    Raises StoreDamaged if none of the existing files can be decoded: starting empty would lose the state.
    """
    undecodable: list[str] = []
    for candidate in (path, path.with_name(path.name + ".bak")):
        if not disk.exists(candidate):
            continue
        try:
            value = decode(read_file(disk, candidate))
            if undecodable:
                disk.rename(path, path.with_name(path.name + ".damaged"))
            # The rename may not be durable yet; callers must not act on content that power loss could undo.
            disk.fsync_dir(path.parent)
        except OSError as error:
            raise store_error("read", candidate, error) from error
        except (ValueError, RemoteProtocolError) as error:
            undecodable.append(f"{candidate}: {error}")
            continue
        if candidate != path:
            reason = (
                f"{undecodable[0]}; it is now {path.name}.damaged" if undecodable else f"{path} is missing"
            )
            logger.warning("using the older %s, since %s", candidate, reason)
        return LoadedState(value, is_older=candidate != path)
    if undecodable:
        raise StoreDamaged(f"cannot read {'; '.join(undecodable)}; restore one of them from a copy")
    return LoadedState(None)


def read_file(disk: Disk, path: Path) -> bytes:
    """Return the content of a small file. Raises OSError."""
    handle = disk.open(path)
    try:
        return disk.pread(handle, disk.size(path), 0)
    finally:
        disk.close(handle)


def _replace(disk: Disk, path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    disk.unlink(temporary)
    handle = disk.open(temporary, create=True)
    try:
        disk.pwrite(handle, data, 0)
        disk.fdatasync(handle)
    finally:
        disk.close(handle)
    disk.rename(temporary, path)


def replace_file(path: Path, text: str, encoding: str = "utf-8") -> None:
    """Replace a small file atomically and durably, keeping its mode. Raises OSError.

    Only this user can read the temporary file, since it may contain secrets.
    """
    path = path.resolve()  # replace the target of a symbolic link, not the link
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding=encoding) as file:
            if path.exists():
                os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)  # noqa: PTH105 - the pair of mkstemp
    except BaseException:  # also a cancelled task must not leave the temporary file
        Path(name).unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
