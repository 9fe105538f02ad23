"""``rocketpy import``: sends an exported topic to a topic, and resumes after an interruption.

A queue of the archive goes to one queue of the topic, with one request at a time. So what is stored of it is
always a beginning of its file. The state that is saved every second names an offset of the target from which
on later messages are. After a kill, or when a request has failed, the messages there show how far the import
really is.
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

from rocketpy.cli.archives.files import (
    Archive,
    ImportedQueue,
    ImportState,
    Manifest,
    QueueFile,
    StoredMessage,
    read_messages,
    stored_messages,
)
from rocketpy.cli.archives.queue_reader import QueueRecords
from rocketpy.cli.archives.target import Receipt, TargetTopic
from rocketpy.cli.archives.transfer import run_all, saved_regularly
from rocketpy.cli.context import Options, Yes
from rocketpy.cli.progress import OnProgress, count_bar
from rocketpy.config import ConsumerConfig
from rocketpy.errors import ConfigInvalid, Retry, RocketError
from rocketpy.protocol.bodies import MessageQueue

log: Final = logging.getLogger("rocketpy.cli")

_READ_BYTES: Final = 4 << 20
_REQUEST_BYTES: Final = 1 << 19
"""Of the records of a request; larger ones are not faster."""
_RETRY_FOR_S: Final = 60.0
"""Time for which a queue that rejects messages is tried again."""
_PAUSE_S: Final = 1.0
"""Wait before reading the stored messages: the broker may still process a request of a lost connection."""

EXAMPLES: Final = """[bold]Examples[/bold]

[cyan]rocketpy import orders --topic Orders --profile staging[/cyan]  (again after an interruption)

[cyan]rocketpy import orders --topic Copy --yes --json[/cyan]"""


def import_(
    options: Options,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a complete export.")],
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic to send to.")],
    state: Annotated[
        str | None,
        typer.Option(
            "--state", metavar="NAME", help="Where DIR keeps how far the import is. Default: import-TOPIC."
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Send all messages of an export to a topic, which must exist.

    After an interruption of any kind, the same command resumes: no message is lost. It looks up what is
    stored, so none is sent twice, except for a request that a broker stores after that. Bodies, properties,
    flags and born times are kept, and the order in each queue; offsets and store times are new.
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
            f"; {importer.found:,} were stored by an interrupted import" if importer.found else "",
            f"; {importer.less_durable:,} not flushed or replicated in time" if importer.less_durable else "",
        ]
    )
    options.print_result(
        f"imported {count} into topic {topic}; {importer.sent:,} now, in {seconds:.1f} s{notes}",
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
    """An import of an archive into a topic.

    state_name: of the file that says how far it is. sent, found: the numbers of messages that this run has
    sent, and has found stored. less_durable: those sent with a status other than SEND_OK.
    """

    archive: Archive
    manifest: Manifest
    state_name: str
    topic: str
    cluster: str
    sent: int = 0
    found: int = 0
    less_durable: int = 0
    _saved: bytes = b""
    _saving: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, options: Options) -> None:
        """Import, or resume an import.

        Raises:
            ConfigInvalid: The state is of an import into something else.
            RouteNotFound: The topic does not exist.
            RocketError: A file is damaged, or a queue rejects messages.
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
        """Import several queues of the archive into one of the topic, one after the other."""
        for file in files:
            known = state.queues.get(file.file)
            if known is None:
                end = await target.max_offset(queue, of_master=True)
                known = state.queues[file.file] = ImportedQueue(
                    broker_name=queue.broker_name, queue_id=queue.queue_id, target_offset=end
                )
                await self._save(state)  # before the first message: a later run must find them all
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
        tries_until: float | None = None
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
                    tries_until = None
            except RocketError as error:
                now = time.monotonic()
                tries_until = tries_until or now + _RETRY_FOR_S
                if error.retry is Retry.NONE or now > tries_until:
                    raise
                log.warning("%s rejects messages, trying again: %s", self.queue, error)
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
        """Return the identities of the messages that the target has after the last known one."""
        await asyncio.sleep(_PAUSE_S)
        begin = self.known.target_offset
        end = await self.target.max_offset(self.queue, of_master=True)
        if end < begin:
            raise RocketError(
                f"{self.queue} ends at offset {end}, but an import has stored messages up to {begin}: the "
                "broker has lost messages, or is another one. Import into a new topic, with another --state"
            )
        found: list[int] = []
        async for part in QueueRecords(self.target, self.queue, begin, end).parts():
            found += [message.identity for message in stored_messages(part.data)]
        return iter(found)


def _assigned(
    files: Sequence[QueueFile], queues: Sequence[MessageQueue], state: ImportState
) -> dict[MessageQueue, list[QueueFile]]:
    """Return the files for each queue: as before; to the queue with the same name; else in turn."""
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
    """Divide messages into requests: those of one have the same born time and compression."""
    begin = size = 0
    for index, message in enumerate(messages):
        first = messages[begin]
        is_alike = (first.born_timestamp, first.sys_flag) == (message.born_timestamp, message.sys_flag)
        if index > begin and (not is_alike or size + message.size > _REQUEST_BYTES):
            yield messages[begin:index]
            begin, size = index, 0
        size += message.size
    yield messages[begin:]
