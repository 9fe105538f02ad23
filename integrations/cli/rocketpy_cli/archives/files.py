"""The archive that ``rocketpy export`` writes: a directory with a file for each queue.

::

    manifest.json              the queues and the progress of the export: `Manifest`
    000-broker-a-0.records     the message records of queue 0 of broker-a, one after the other
    001-broker-a-1.records     ...
    import-Copy.json           the progress of an import into topic Copy: `ImportState`

Records have the format of the commit log and of pull responses: see `rocketpy.protocol.message.record`. So
RocketMQ's own MessageDecoder reads the files, too.

A JSON file is replaced atomically, after the data that it describes was flushed. Bytes beyond the `size` of a
queue file were written by a command that was killed; the next export truncates them.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from rocketpy.errors import ConfigInvalid, RecordCorrupt, RocketError
from rocketpy.protocol.message.properties import find
from rocketpy.protocol.message.record import MESSAGE_MAGIC, decode_all, head_fields

T = TypeVar("T", bound=msgspec.Struct)

FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
_SIZE: Final = head_fields("size")
_START: Final = head_fields("size", "magic", "queue_offset")
_UNIQUE_ID: Final = b"UNIQ_KEY"


class QueueFile(msgspec.Struct, kw_only=True):
    """A queue of an archive."""

    file: str
    """The name of its file."""
    broker_name: str
    """The broker of the queue."""
    queue_id: int
    """The id of the queue."""
    begin: int
    """The offset of the first message to export."""
    end: int
    """The offset after the last message to export."""
    next_offset: int
    """The offset of the next message to export."""
    size: int = 0
    """The bytes of all exported records in the file."""
    messages: int = 0
    """The number of exported messages."""
    missing: int = 0
    """The number of offsets below `next_offset` whose messages have expired or are damaged."""


class Manifest(msgspec.Struct, kw_only=True):
    """The contents of an archive."""

    format: int = FORMAT
    topic: str
    cluster: str
    """The cluster of the export, as `str(Cluster)`."""
    queues: list[QueueFile]

    @property
    def is_complete(self) -> bool:
        """Whether every queue was exported to its end."""
        return all(queue.next_offset >= queue.end for queue in self.queues)

    @property
    def messages(self) -> int:
        """The number of messages."""
        return sum(queue.messages for queue in self.queues)

    @property
    def size(self) -> int:
        """The bytes of all records."""
        return sum(queue.size for queue in self.queues)

    @property
    def missing(self) -> int:
        """The number of offsets without a message."""
        return sum(queue.missing for queue in self.queues)


class ImportedQueue(msgspec.Struct, kw_only=True):
    """The progress of the import of one queue file."""

    broker_name: str
    """The broker of the target queue."""
    queue_id: int
    """The id of the target queue."""
    target_offset: int
    """An offset of the target queue. Messages of the file beyond `size` that are stored already have this
    offset or a higher one."""
    size: int = 0
    """The bytes of the file whose messages are known to be stored."""
    messages: int = 0
    """The number of these messages."""


class ImportState(msgspec.Struct, kw_only=True):
    """The progress of an import."""

    format: int = FORMAT
    topic: str
    cluster: str
    queues: dict[str, ImportedQueue]
    """By the name of the queue file."""


class Archive:
    """A directory with exported messages, which one command uses at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory: Final = directory

    def __str__(self) -> str:
        return str(self.directory)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold an exclusive lock on the directory; Windows has none. Raises ConfigInvalid if it is locked."""
        with (self.directory / ".lock").open("w") as lock:
            with contextlib.suppress(ModuleNotFoundError):  # Windows
                import fcntl  # noqa: PLC0415

                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise ConfigInvalid(f"{self} is in use by another export or import") from None
            yield

    def manifest(self) -> Manifest | None:
        """Return the manifest; None for a directory without an export. Raises ConfigInvalid."""
        found = self.load(_MANIFEST, Manifest)
        if found is not None:
            for queue in found.queues:
                if queue.file != Path(queue.file).name:
                    raise ConfigInvalid(f"{self}/{_MANIFEST}: {queue.file!r} is not the name of a file")
        return found

    def save_manifest(self, data: bytes) -> None:
        """Replace the manifest atomically and durably. data: the encoded manifest."""
        self.save(_MANIFEST, data)

    def load(self, name: str, kind: type[T]) -> T | None:
        """Return the decoded JSON file; None if it does not exist. Raises ConfigInvalid if it is invalid."""
        path = self.directory / name
        try:
            found = msgspec.json.decode(path.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise ConfigInvalid(f"{path} was not written by rocketpy: {error}") from None
        if (version := getattr(found, "format", FORMAT)) != FORMAT:
            raise ConfigInvalid(f"{path} has format {version}; this version of rocketpy reads {FORMAT}")
        return found

    def save(self, name: str, data: bytes) -> None:
        """Replace a JSON file atomically and durably."""
        path = self.directory / name
        new = path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(msgspec.json.format(data) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        with contextlib.suppress(PermissionError):  # Windows opens no directories
            directory = os.open(self.directory, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def path(self, queue: QueueFile) -> Path:
        """Return the file of a queue."""
        return self.directory / queue.file


def file_name(index: int, broker_name: str, queue_id: int) -> str:
    """Return the name of a queue's file.

    The index makes it unique: two broker names may differ only in characters that are replaced.
    """
    return f"{index:03d}-{re.sub('[^A-Za-z0-9_.-]', '_', broker_name)}-{queue_id}.records"


class Part(NamedTuple):
    """Consecutive records of a queue."""

    data: bytes
    messages: int
    """Their number."""
    next_offset: int
    """The queue offset after them."""


def count_records(data: bytes, begin: int, end: int) -> int:
    """Return the number of records in a pull response for the offsets from `begin` to before `end`.

    Raises:
        RecordCorrupt: The data is not a sequence of records, or they have other offsets.
    """
    position, count, before = 0, 0, begin - 1
    unpack, limit = _START.unpack_from, len(data) - _START.size
    while position <= limit:
        size, magic, offset = unpack(data, position)
        if magic != MESSAGE_MAGIC or size < _START.size or not before < offset < end:
            break
        before = offset
        position += size
        count += 1
    if position != len(data):
        raise RecordCorrupt(position, f"no record for an offset above {before} and below {end}")
    return count


class StoredMessage(NamedTuple):
    """The parts of a record that a copy of the message keeps."""

    flag: int
    """The user's flag."""
    body: bytes
    """The body as it is stored, perhaps compressed."""
    properties: bytes
    """The encoded properties."""
    sys_flag: int
    """The sysFlag; some of its bits say how the body is compressed."""
    born_timestamp: int
    """When the message was created, in ms since 1970."""
    size: int
    """The length of its record, in bytes."""

    @property
    def identity(self) -> int:
        """A hash that copies of a message share, to recognize them. It is valid within this process only."""
        unique_id = find(self.properties, _UNIQUE_ID)
        return hash((unique_id, self.body, self.flag, self.born_timestamp))


def stored_messages(data: bytes) -> list[StoredMessage]:
    """Return the messages of whole records. Raises RecordCorrupt, also if the CRC of a body is wrong."""
    return [
        StoredMessage(
            record.flag, record.body, record.properties, record.sys_flag, record.born_timestamp, record.size
        )
        for record in decode_all(data)
    ]


def read_messages(path: Path, position: int, end: int, count_bytes: int) -> list[StoredMessage]:
    """Read messages of a queue file, at least one.

    Args:
        path: The file.
        position: Where to begin; before `end`.
        end: The size of the file's records.
        count_bytes: About how many bytes to read.

    Raises:
        RocketError: The file is damaged, or shorter than the manifest says.
        OSError: It cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        file.seek(position)
        data = _read(file, min(count_bytes, end - position))
        whole = _whole_records(data)
        if whole == 0 and len(data) >= _SIZE.size:  # the first record is longer than `count_bytes`
            (size,) = _SIZE.unpack_from(data)
            if len(data) < size <= end - position:
                data += _read(file, size - len(data))
                whole = _whole_records(data)
    try:
        found = stored_messages(data[:whole])
    except RecordCorrupt as error:
        raise _damaged(path, position + error.offset, error.reason) from None
    if not found:
        raise _damaged(path, position, "no whole record")
    return found


def _damaged(path: Path, position: int, reason: str) -> RocketError:
    return RocketError(f"{path} is damaged at byte {position}: {reason}; export the topic again")


def _read(file: io.FileIO, size: int) -> bytes:
    """Read exactly `size` bytes, or up to the end of the file."""
    parts: list[bytes] = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _whole_records(data: bytes) -> int:
    """Return the length of the whole records at the start of the data."""
    position, unpack, limit = 0, _START.unpack_from, len(data) - _START.size
    while position <= limit:
        size, magic, _ = unpack(data, position)
        if magic != MESSAGE_MAGIC or size < _START.size or position + size > len(data):
            break
        position += size
    return position
