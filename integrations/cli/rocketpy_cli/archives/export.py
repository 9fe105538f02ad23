"""``rocketpy export``: writes all messages of a topic to files, and resumes after an interruption."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import msgspec
import typer

from rocketpy.admin.reader import ToolsConsumer
from rocketpy.config import ConsumerConfig
from rocketpy.consumer import PullConsumer
from rocketpy.errors import ConfigInvalid, RocketError
from rocketpy.protocol.bodies import MessageQueue
from rocketpy_cli.archives.files import Archive, Manifest, QueueFile, file_name
from rocketpy_cli.archives.queue_reader import QueueRecords
from rocketpy_cli.archives.transfer import run_all, saved_regularly
from rocketpy_cli.context import Options
from rocketpy_cli.progress import OnProgress, count_bar

_CONCURRENCY: Final = 4
"""Queues that are read at the same time. More would wait for the same connections, and hold more memory."""

EXAMPLES: Final = """[bold]Examples[/bold]

[cyan]rocketpy export Orders --to orders[/cyan]  (into the directory orders; repeat it after an interruption)

[cyan]rocketpy import orders --topic Orders --profile staging[/cyan]"""


def export(
    options: Options,
    topic: Annotated[str, typer.Argument(help="The topic.")],
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="A new directory, or one of an interrupted export.")
    ],
) -> None:
    """Write all messages that a topic has now to files, as brokers store them.

    After an interruption of any kind, the same command resumes: no message is lost or written twice. The
    export commits no offsets and does not disturb consumers.
    """
    to.mkdir(parents=True, exist_ok=True)
    archive = Archive(to)
    with archive.locked():
        started = time.monotonic()
        exporter = Exporter(archive, topic, str(options.cluster))
        manifest = options.run(exporter.run(options), topic=topic)
        seconds = time.monotonic() - started
    missing = f", {manifest.missing:,} expired or damaged" if manifest.missing else ""
    options.print_result(
        f"exported topic {topic} to {to}: {manifest.messages:,} messages{missing}, {manifest.size:,} bytes; "
        f"{exporter.exported:,} messages in this run, {seconds:.1f} s",
        {
            "topic": topic,
            "directory": str(to),
            "messages": manifest.messages,
            "missing": manifest.missing,
            "bytes": manifest.size,
            "exported_now": exporter.exported,
            "seconds": round(seconds, 3),
        },
    )


class Exporter:
    """The export of a topic into an archive."""

    def __init__(self, archive: Archive, topic: str, cluster: str) -> None:
        self._archive = archive
        self._topic = topic
        self._cluster = cluster
        self._files: list[BinaryIO] = []
        self._saved = b""
        self._slots = asyncio.Semaphore(_CONCURRENCY)
        self.exported: int = 0
        """The number of messages that this run has written."""

    async def run(self, options: Options) -> Manifest:
        """Export, or resume an export; return the manifest of the complete archive.

        Raises:
            ConfigInvalid: The directory has another export, or other files.
            RocketError: A queue cannot be read.
            OSError: A file cannot be written.
        """
        config = ConsumerConfig(suspend=False)
        async with ToolsConsumer(client=options.cluster.client, config=config) as consumer:
            manifest = self._archive.manifest()
            if manifest is None:
                manifest = await self._begin(consumer)
            if (manifest.topic, manifest.cluster) != (self._topic, self._cluster):
                raise ConfigInvalid(
                    f"{self._archive} has an export of topic {manifest.topic} at {manifest.cluster}; "
                    "choose another directory"
                )
            total = sum(queue.end - queue.begin for queue in manifest.queues)
            done = sum(queue.next_offset - queue.begin for queue in manifest.queues)
            with count_bar(total, done, hidden=options.as_json) as progress:
                await self._export_queues(consumer, manifest, progress)
        return manifest

    async def _begin(self, consumer: PullConsumer) -> Manifest:
        """Save and return the manifest of a new export: each queue is exported up to its present end.

        Raises ConfigInvalid if the directory is not empty.
        """
        if any(path.name != ".lock" for path in self._archive.directory.iterdir()):
            raise ConfigInvalid(f"{self._archive} is neither empty nor an export; choose a new directory")
        queues: list[QueueFile] = []
        for index, queue in enumerate(await consumer.fetch_queues(self._topic)):
            name, number = queue.broker_name, queue.queue_id
            begin = await consumer.min_offset(queue)
            end = max(begin, await consumer.max_offset(queue, of_master=True))
            queues.append(
                QueueFile(
                    file=file_name(index, name, number),
                    broker_name=name,
                    queue_id=number,
                    begin=begin,
                    end=end,
                    next_offset=begin,
                )
            )
        manifest = Manifest(topic=self._topic, cluster=self._cluster, queues=queues)
        await asyncio.to_thread(self._archive.save_manifest, msgspec.json.encode(manifest))
        return manifest

    async def _export_queues(self, consumer: PullConsumer, manifest: Manifest, progress: OnProgress) -> None:
        """Export each queue from its `next_offset` to its `end`; save the manifest every second."""

        async def save() -> None:
            await self._save(manifest)

        try:
            for queue in manifest.queues:
                self._files.append(_open_truncated(self._archive.path(queue), queue.size))
            async with saved_regularly(save):
                await run_all(
                    self._export_queue(consumer, queue, file, progress)
                    for queue, file in zip(manifest.queues, self._files, strict=True)
                )
        finally:
            for file in self._files:
                file.close()

    async def _export_queue(
        self, consumer: PullConsumer, queue: QueueFile, file: BinaryIO, progress: OnProgress
    ) -> None:
        name = MessageQueue(self._topic, queue.broker_name, queue.queue_id)
        async with self._slots:
            records = QueueRecords(consumer, name, queue.next_offset, queue.end)
            missing = queue.missing
            async for part in records.parts():
                file.write(part.data)
                progress(part.next_offset - queue.next_offset)
                # No await between the write and these updates: a save sees all of them, or none.
                queue.next_offset = part.next_offset
                queue.size += len(part.data)
                queue.messages += part.messages
                queue.missing = missing + records.missing
                self.exported += part.messages
            queue.next_offset, queue.missing = queue.end, missing + records.missing

    async def _save(self, manifest: Manifest) -> None:
        """Flush the queue files; then save the manifest that counts what they contain."""
        data = msgspec.json.encode(manifest)
        if data != self._saved:
            await asyncio.to_thread(_flush, self._files)
            await asyncio.to_thread(self._archive.save_manifest, data)
            self._saved = data


def _open_truncated(path: Path, size: int) -> BinaryIO:
    """Open a queue file; truncate what a killed command wrote after its last save. Raises RocketError."""
    file = path.open("ab")
    found = os.fstat(file.fileno()).st_size
    if found < size:
        file.close()
        raise RocketError(f"{path} has {found} bytes, but {size} were written: export to a new directory")
    file.truncate(size)
    return file


def _flush(files: Sequence[BinaryIO]) -> None:
    for file in files:
        file.flush()
        os.fsync(file.fileno())
