"""Offset stores: keep a group's offsets in brokers or, when broadcasting, in a file.

Source: RocketMQ 4.6 RemoteBrokerOffsetStore, LocalFileOffsetStore.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from rocketpy.consumer.config import MemberConfig, MessageModel
from rocketpy.consumer.fetch.consumer_api import ConsumerApi
from rocketpy.errors import ConfigInvalid, RemoteProtocolError, RocketError
from rocketpy.protocol.bodies import MessageQueue, OffsetSerializeWrapper
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.transport import Channel

log: Final = logging.getLogger("rocketpy.consumer")


class OffsetStore(Protocol):
    """Keeps the offset of the next message of each queue."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the stored offset; None when there is none. Raises RocketError if it cannot be read."""

    async def write(
        self, offsets: Mapping[MessageQueue, int], *, again: bool = False
    ) -> RocketError | OSError | None:
        """Store offsets. A failure is logged and returned; None for success.

        again: also those that were stored already.
        """


class _Sent(NamedTuple):
    """The last commit of a queue."""

    offset: int
    channel: Channel | None
    is_repeated: bool
    """Whether the one before was the same."""


class BrokerOffsets:
    """Stores offsets in the brokers; in a slave while its master is unavailable.

    An unchanged offset is not sent a third time over the same connection, unless `again` is set. The second
    time repairs what a broker of RocketMQ lost when two members made their first commits together (see
    `ConsumerApi.commit`). Over a new connection the offset is sent again: a broker that was restarted, or its
    successor, may have an older one.

    pulls_commit: whether pulls carry offsets, too. RocketMQ's broker handles pulls and commits in different
    threads, so an earlier pull may overwrite a commit. With `again`, a second commit follows the response.
    """

    def __init__(self, api: ConsumerApi, *, pulls_commit: bool) -> None:
        self._api = api
        self._pulls_commit = pulls_commit
        self._sent: dict[MessageQueue, _Sent] = {}
        self._limited_log = RateLimitedLog(log)

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the committed offset."""
        self._sent.pop(queue, None)
        return await self._api.committed_offset(queue)

    async def write(
        self, offsets: Mapping[MessageQueue, int], *, again: bool = False
    ) -> RocketError | OSError | None:
        """Commit offsets."""
        error = await self._write_all(offsets, again=again)
        if error is None and again and self._pulls_commit:
            error = await self._write_all(offsets, again=True)
        return error

    async def _write_all(self, offsets: Mapping[MessageQueue, int], *, again: bool) -> RocketError | None:
        writes = (self._write(queue, offset, again=again) for queue, offset in offsets.items())
        return next(filter(None, await asyncio.gather(*writes)), None)

    async def _write(self, queue: MessageQueue, offset: int, *, again: bool) -> RocketError | None:
        client = self._api.client
        try:
            address, _ = await client.routes.find_broker(queue.topic, queue.broker_name)
            channel = client.connections.get(address).channel
            if not again and channel is not None and self._sent.get(queue) == (offset, channel, True):
                return None
            channel = await self._api.commit(queue, offset)
            last = self._sent.get(queue)
            is_repeated = last is not None and last[:2] == (offset, channel)
            self._sent[queue] = _Sent(offset, channel, is_repeated)
        except RocketError as error:
            self._limited_log.warning(
                f"{type(error).__name__} {queue.broker_name}",
                "offset %d of %s was not stored: %s",
                offset,
                queue,
                error,
            )
            return error
        return None


class LocalOffsets:
    """Stores offsets in a local file, in the format of Java's clients.

    file: the previous version is kept with the suffix .bak, and used if the file cannot be read. A write
    keeps the offsets of other queues.
    """

    def __init__(self, file: Path) -> None:
        self._file: Final = file
        self._offsets: dict[MessageQueue, int] | None = None
        self._text = b""
        """The content of the file when it was read or written; empty for none."""
        self._lock = asyncio.Lock()
        self._limited_log = RateLimitedLog(log)

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the stored offset. Raises ConfigInvalid when there are files, but none can be read."""
        async with self._lock:
            return (await self._loaded()).get(queue)

    async def write(
        self, offsets: Mapping[MessageQueue, int], *, again: bool = False
    ) -> RocketError | OSError | None:
        """Write offsets to the file."""
        async with self._lock:
            try:
                known = await self._loaded()
                new = known | dict(offsets)
                if new != known:
                    text = OffsetSerializeWrapper(offset_table=new).encode()
                    await asyncio.to_thread(self._replace, text)
                    self._offsets = new  # only after success: the next write stores them again
            except (OSError, RocketError) as error:
                self._limited_log.error(
                    type(error).__name__, "offsets were not written to %s: %s", self._file, error
                )
                return error
        return None

    def _replace(self, text: bytes) -> None:
        with contextlib.suppress(OSError):
            if self._text and self._file.read_bytes() != self._text:
                self._limited_log.warning(
                    "shared",
                    "another process writes %s, too: after a restart one of them skips or repeats messages. "
                    "Give each process of a broadcasting group on this machine its own instance_name",
                    self._file,
                )
        _replace_file(self._file, text)
        self._text = text

    async def _loaded(self) -> dict[MessageQueue, int]:
        if self._offsets is None:
            self._offsets = await asyncio.to_thread(self._load)
        return self._offsets

    def _load(self) -> dict[MessageQueue, int]:
        failed: OSError | RemoteProtocolError | None = None
        for file in (self._file, _backup_of(self._file)):
            try:
                text = file.read_bytes()
                offsets = OffsetSerializeWrapper.decode(text).offset_table
            except FileNotFoundError:
                continue
            except (OSError, RemoteProtocolError) as error:
                failed = failed or error
                continue
            if file == self._file:
                self._text = text
            else:
                self._report_backup(file, failed)
            return offsets
        if failed is not None:
            raise ConfigInvalid(
                f"neither {self._file} nor its backup can be read: {failed}. Restore one of them, or delete "
                "both to begin without stored offsets"
            ) from failed
        return {}

    def _report_backup(self, backup: Path, failed: OSError | RemoteProtocolError | None) -> None:
        """Log that older offsets are used. Keep a damaged file, which would replace the backup otherwise."""
        if isinstance(failed, RemoteProtocolError):
            with contextlib.suppress(OSError):
                self._file.replace(self._file.with_name(self._file.name + ".damaged"))
        reason = "is missing" if failed is None else f"cannot be read ({failed})"
        log.error(
            "%s %s; using the older offsets of %s: messages since then are delivered again",
            self._file, reason, backup,
        )  # fmt: skip


def offset_store(api: ConsumerApi, config: MemberConfig, group: str, *, pulls_commit: bool) -> OffsetStore:
    """Return the store for a member. group: without its namespace. pulls_commit: see `BrokerOffsets`."""
    if config.model is not MessageModel.BROADCASTING:
        return BrokerOffsets(api, pulls_commit=pulls_commit)
    # Not the default client id, which has the process id: offsets must survive a restart. As in Java.
    address = api.client.client_id.partition("@")[0]
    name = f"{address}@{api.client.config.instance_name or 'DEFAULT'}"
    return LocalOffsets(local_offsets_file(config.offset_directory, name, group))


def local_offsets_file(directory: Path | None, client_name: str, group: str) -> Path:
    """Return the path that Java's clients use. client_name: ``ip@instance``."""
    root = directory or Path.home() / ".rocketmq_offsets"
    return root / client_name / group / "offsets.json"


def _backup_of(file: Path) -> Path:
    return file.with_name(file.name + ".bak")


def _replace_file(file: Path, data: bytes) -> None:
    """Replace a file so that a crash leaves the old or the new version; the old one is the backup."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(file.name + ".tmp")
    with new.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    with contextlib.suppress(FileNotFoundError):
        file.replace(_backup_of(file))
    new.replace(file)
    with contextlib.suppress(PermissionError):  # Windows cannot open directories
        directory = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
