"""``rocketpy import``: sends an exported topic to a topic, and resumes after an interruption.

Each queue file of the archive is sent to one queue of the topic, one request at a time. So the stored
messages are always the first ones of the file. The state is saved every second, and has an offset of
the target queue. All messages that are sent after the save get this offset or a higher one. After a kill or
a failed request, the import reads the target from that offset on to find out which messages are stored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from rocketpy.config import ConsumerConfig
from rocketpy.errors import ConfigInvalid, Retry, RocketError
from rocketpy.protocol.bodies import MessageQueue
from rocketpy_cli.archives.files import (
    Archive,
    ImportedQueue,
    ImportState,
    Manifest,
    QueueFile,
    StoredMessage,
    read_messages,
    stored_messages,
)
from rocketpy_cli.archives.queue_reader import QueueRecords
from rocketpy_cli.archives.target import Receipt, TargetTopic
from rocketpy_cli.archives.transfer import run_all, saved_regularly
from rocketpy_cli.context import Options, Yes
from rocketpy_cli.progress import OnProgress, count_bar

log: Final = logging.getLogger("rocketpy.cli")

_READ_BYTES: Final = 4 << 20
_REQUEST_BYTES: Final = 1 << 19
"""Maximum bytes of the records in a request, unless one is larger. Larger requests are not faster."""
_RETRY_FOR_S: Final = 60.0
"""For how long a failing request is retried."""
_PAUSE_S: Final = 1.0
"""Wait before the target is read: the broker may still be processing a request of a lost connection."""

EXAMPLES: Final = """[bold]Examples[/bold]

[cyan]rocketpy import orders --topic Orders --profile staging[/cyan]  (repeat it after an interruption)

[cyan]rocketpy import orders --topic Copy --yes --json[/cyan]"""


def import_(
    options: Options,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a complete export.")],
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic to send to.")],
    state: Annotated[
        str | None,
        typer.Option(
            "--state", metavar="NAME", help="Name of the progress file in DIR. Default: import-TOPIC."
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Send all messages of an export to a topic, which must exist.

    After an interruption of any kind, the same command resumes: no message is lost. It first looks up which
    messages are stored. So a message is sent twice only if a broker stores an old request after this look-up.
    Bodies, properties, flags, born times and the order in each queue are kept. Offsets and store times are
    new.
    """
    archive = Archive(directory)
    if not directory.is_dir() or (manifest := archive.manifest()) is None:
        raise ConfigInvalid(
            f"{directory} has no export: write one with rocketpy export TOPIC --to {directory}"
        )
    if not manifest.is_complete:
        raise ConfigInvalid(f"{directory} is not complete: repeat rocketpy export {manifest.topic} first")
    name = f"{state or f'import-{topic}'}.json"
    if name != Path(name).name:
        raise ConfigInvalid(f"--state {state!r} is not a plain name")
    count = f"{manifest.messages:,} messages"
    options.confirm(f"import {count} of topic {manifest.topic} into topic {topic}", yes=yes)
    with archive.locked():
        started = time.monotonic()
        importer = Importer(archive, manifest, name, topic, str(options.cluster))
        options.run(importer.run(options))
        seconds = time.monotonic() - started
    notes = "".join(
        [
            f"; {importer.found:,} were already stored" if importer.found else "",
            f"; {importer.less_durable:,} not flushed or replicated in time" if importer.less_durable else "",
        ]
    )
    options.print_result(
        f"imported {count} into topic {topic}; {importer.sent:,} sent in this run, {seconds:.1f} s{notes}",
        {
            "topic": topic,
            "messages": manifest.messages,
            "sent_now": importer.sent,
            "found": importer.found,
            "not_send_ok": importer.less_durable,
            "seconds": round(seconds, 3),
        },
    )


@dataclass(eq=False)
class Importer:
    """The import of an archive into a topic."""

    archive: Archive
    manifest: Manifest
    state_name: str
    """The name of the progress file."""
    topic: str
    cluster: str
    sent: int = 0
    """The number of messages that this run has sent."""
    found: int = 0
    """The number that it has found stored."""
    less_durable: int = 0
    """The number that it sent with another status than SEND_OK."""
    _saved: bytes = b""
    _saving: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, options: Options) -> None:
        """Import, or resume an import.

        Raises:
            ConfigInvalid: The progress file belongs to an import into another topic or cluster.
            RouteNotFound: The topic does not exist.
            RocketError: A file is damaged, or sending to a queue fails for a minute.
        """
        state = self._load_state()
        config = ConsumerConfig(suspend=False)
        async with TargetTopic(self.topic, client=options.cluster.client, config=config) as target:
            sources = _assigned(self.manifest.queues, await target.queues(), state)
            done = sum(queue.messages for queue in state.queues.values())

            async def save() -> None:
                await self._save(state)

            with count_bar(self.manifest.messages, done, hidden=options.as_json) as progress:
                async with saved_regularly(save):
                    await run_all(
                        self._import_all(target, queue, files, state, progress)
                        for queue, files in sources.items()
                    )

    def _load_state(self) -> ImportState:
        state = self.archive.load(self.state_name, ImportState)
        if state is None:
            return ImportState(topic=self.topic, cluster=self.cluster, queues={})
        if (state.topic, state.cluster) != (self.topic, self.cluster):
            raise ConfigInvalid(
                f"{self.archive}/{self.state_name} is the state of an import into topic {state.topic} at "
                f"{state.cluster}; choose another name with --state"
            )
        return state

    async def _save(self, state: ImportState) -> None:
        async with self._saving:
            data = msgspec.json.encode(state)
            if data != self._saved:
                await asyncio.to_thread(self.archive.save, self.state_name, data)
                self._saved = data

    async def _import_all(
        self,
        target: TargetTopic,
        queue: MessageQueue,
        files: Sequence[QueueFile],
        state: ImportState,
        progress: OnProgress,
    ) -> None:
        """Import several queue files into one queue of the topic, one after the other."""
        for file in files:
            known = state.queues.get(file.file)
            if known is None:
                end = await target.max_offset(queue, of_master=True)
                known = state.queues[file.file] = ImportedQueue(
                    broker_name=queue.broker_name, queue_id=queue.queue_id, target_offset=end
                )
                await self._save(state)  # before the first send: a later run must find all stored messages
                is_resumed = False
            else:
                is_resumed = True
            work = _QueueImport(self, target, queue, known, progress)
            await work.run(self.archive.path(file), file.size, is_resumed=is_resumed)


@dataclass(eq=False)
class _QueueImport:
    """The import of one file into one queue."""

    importer: Importer
    target: TargetTopic
    queue: MessageQueue
    known: ImportedQueue
    progress: OnProgress

    async def run(self, path: Path, size: int, *, is_resumed: bool) -> None:
        known = self.known
        stored: Iterator[int] | None = None
        if is_resumed and known.size < size:
            stored = await self._stored()
        while known.size < size:
            messages = read_messages(path, known.size, size, _READ_BYTES)
            if stored is not None:
                count = self._skip(messages, stored)
                if count == len(messages):
                    continue
                messages, stored = messages[count:], None
            for request in _requests(messages):
                await self._send(request)

    async def _send(self, messages: Sequence[StoredMessage]) -> None:
        """Send messages until all are stored."""
        retry_until: float | None = None
        is_unknown = False
        while messages:
            try:
                if is_unknown:
                    messages = messages[self._skip(messages, await self._stored()) :]
                    is_unknown = False
                else:
                    receipt = await self.target.send(self.queue, messages)
                    self._sent(messages[: receipt.stored], receipt)
                    messages = messages[receipt.stored :]
                    retry_until = None
            except RocketError as error:
                now = time.monotonic()
                retry_until = retry_until or now + _RETRY_FOR_S
                if error.retry is Retry.NONE or now > retry_until:
                    raise
                log.warning("sending to %s failed; retrying: %s", self.queue, error)
                is_unknown = True

    def _sent(self, messages: Sequence[StoredMessage], receipt: Receipt) -> None:
        self.known.target_offset = receipt.next_offset
        self._count(messages)
        self.importer.sent += len(messages)
        self.importer.less_durable += 0 if receipt.is_durable else len(messages)

    def _skip(self, messages: Sequence[StoredMessage], stored: Iterator[int]) -> int:
        """Count the messages at the beginning that are stored, and return their number."""
        count = 0
        for message in messages:
            if message.identity not in stored:  # advances the iterator up to the message
                break
            count += 1
        self._count(messages[:count])
        self.importer.found += count
        return count

    def _count(self, messages: Sequence[StoredMessage]) -> None:
        self.known.size += sum([message.size for message in messages])
        self.known.messages += len(messages)
        self.progress(len(messages))

    async def _stored(self) -> Iterator[int]:
        """Return the identities of the messages that are stored at `target_offset` or after it."""
        await asyncio.sleep(_PAUSE_S)
        begin = self.known.target_offset
        end = await self.target.max_offset(self.queue, of_master=True)
        if end < begin:
            raise RocketError(
                f"{self.queue} ends at offset {end}, but an import has stored messages up to {begin}: the "
                "broker has lost messages, or is not the same. Import into a new topic, with another --state"
            )
        found: list[int] = []
        async for part in QueueRecords(self.target, self.queue, begin, end).parts():
            found += [message.identity for message in stored_messages(part.data)]
        return iter(found)


def _assigned(
    files: Sequence[QueueFile], queues: Sequence[MessageQueue], state: ImportState
) -> dict[MessageQueue, list[QueueFile]]:
    """Return the files for each queue of the topic.

    A file goes to the queue of the earlier run, else to the queue with the same broker and id. The other
    files are spread round-robin.
    """
    named = {(queue.broker_name, queue.queue_id): queue for queue in queues}
    assigned: dict[MessageQueue, list[QueueFile]] = {}
    for index, file in enumerate(files):
        known = state.queues.get(file.file)
        if known is not None:
            queue = MessageQueue(queues[0].topic, known.broker_name, known.queue_id)
        else:
            queue = named.get((file.broker_name, file.queue_id)) or queues[index % len(queues)]
        assigned.setdefault(queue, []).append(file)
    return assigned


def _requests(messages: Sequence[StoredMessage]) -> Iterator[Sequence[StoredMessage]]:
    """Split messages into requests. The messages of a request have the same born time and sysFlag."""
    begin = size = 0
    for index, message in enumerate(messages):
        first = messages[begin]
        is_similar = (first.born_timestamp, first.sys_flag) == (message.born_timestamp, message.sys_flag)
        if index > begin and (not is_similar or size + message.size > _REQUEST_BYTES):
            yield messages[begin:index]
            begin, size = index, 0
        size += message.size
    yield messages[begin:]
