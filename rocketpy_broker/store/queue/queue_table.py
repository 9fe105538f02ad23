"""The consume queues of a store: loaded, written out, verified and closed together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from rocketpy.errors import StoreError
from rocketpy_broker.store.config import ConsumeQueueConfig
from rocketpy_broker.store.files.disk import Disk, lacks_descriptors
from rocketpy_broker.store.log.flush import FlushPlan
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.messages import QueueTable, check_topic
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue, PutTotals
from rocketpy_broker.store.queue.queue_checksums import FileChecksum

CHECKSUM_BYTES_MAX: Final = 256 << 20
"""Bytes of consume queues, the newest, whose checksums a start verifies: 13 million messages."""


class ConsumeQueueTable:
    """All consume queues of a store, made when first written to."""

    def __init__(self, disk: Disk, directory: Path, config: ConsumeQueueConfig) -> None:
        self._disk = disk
        self.directory = directory
        self._config = config
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._changed: dict[ConsumeQueue, None] = {}
        """Queues that a flush has to look at; a broker may have many thousands of others."""
        self._opened: dict[MappedFile, None] = {}
        self.puts: dict[str, PutTotals] = {}
        """Totals of stored messages by topic, including queues that were deleted."""

    def load(self) -> None:
        """Take over what is in the directory: topic/queue id/files. Raises StoreDamaged, StoreError."""
        for topic in self._disk.list_dir(self.directory):
            if not self._disk.is_dir(self.directory / topic):
                continue
            for name in self._disk.list_dir(self.directory / topic):
                if name.isdigit():
                    queue = self.get_or_add(topic, int(name))
                    queue.files.load()
                    self._changed[queue] = None  # a file that was too short has to be flushed

    def get_or_add(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, a new one when there is none. Raises TopicInvalid."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            check_topic(topic, queue_id)
            queue = self.queues[topic, queue_id] = ConsumeQueue(
                self._disk,
                self.directory,
                topic,
                queue_id,
                self._config.segment_bytes,
                pending_bytes_max=self._config.pending_bytes_max,
                puts=self.puts.setdefault(topic, PutTotals()),
                changed=self._changed,
                opened=self._opened,
            )
        return queue

    def checksums(self) -> Iterator[FileChecksum]:
        """Checksums of the queues' files, the newest file of each queue first.

        Files without a known checksum are read, at most `CHECKSUM_BYTES_MAX` bytes of them.
        """
        read = 0
        for queue, file in _newest_first(self.queues.values()):
            one = queue.checksum_of(file, may_read=read + file.wrote <= CHECKSUM_BYTES_MAX)
            if one is not None:
                yield one
            if queue.checksums.get(file.start) is None:
                read += file.wrote
            file.close_idle()

    def max_physical_offset(self) -> int:
        """Just after the newest record in any queue, -1 without queues."""
        return max((queue.max_physical_offset for queue in self.queues.values()), default=-1)

    def fill(self, table: QueueTable, log_min_offset: int) -> None:
        """Set the next offset of every queue, and the queues' min offsets, after recovery.

        Source: RocketMQ recoverTopicQueueTable.
        """
        for key, queue in self.queues.items():
            table[key].next_offset = queue.next_offset
            queue.correct_min_offset(log_min_offset)
            queue.files.close_idle()

    def close_idle(self) -> None:
        """Close files until they are needed again, if more than `handles_max` are open.

        To be called now and then; what is not flushed stays open.
        """
        if len(self._opened) > self._config.handles_max:
            for file in list(self._opened):
                file.close_idle()

    def rewrite_unflushed(self, dispatched_offset: int, flush: Callable[[FlushPlan], None]) -> None:
        """Write and flush again what queues hold of records at or after that commit log offset.

        Some at a time: what is not flushed stays open, and a store may have more queues than a process may
        have files. Raises FlushFailed, StoreError.
        """
        plan = FlushPlan()
        for queue in self.queues.values():
            queue.rewrite_unflushed(dispatched_offset)
            plan.add(queue.files)
            if len(plan.targets) >= self._config.handles_max:
                flush(plan)
                for files in plan.queues:
                    files.close_idle()
                plan = FlushPlan()
        flush(plan)

    def without_file(self) -> list[ConsumeQueue]:
        """Return the queues whose units wait for a file that is not there yet."""
        return [queue for queue in self._changed if queue.needs_file]

    def adopt_file(self, queue: ConsumeQueue, file: MappedFile) -> None:
        """Take a file that was made for a queue; it is closed where that is gone or has it already."""
        if self.queues.get((queue.topic, queue.queue_id)) is queue:
            queue.files.adopt_preallocated(file)
        else:
            file.close()

    def write_out(self, close_files: Callable[[], None], *, new_files: bool = True) -> bool:
        """Write what queues keep in memory; returns whether that is all. Raises DiskFull, StoreError.

        close_files: flushes and closes files of queues, since no descriptor is left to open another one.
        new_files: False leaves queues as they are whose units wait for a file, see `without_file`.
        """
        is_all = True
        for queue in list(self._changed):
            if queue.needs_file and not new_files:
                is_all = False
                continue
            try:
                queue.write_out()
            except StoreError as error:
                if not lacks_descriptors(error):
                    raise
                close_files()
                queue.write_out()
        return is_all

    def remove(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Remove a queue, which the caller destroys; None when there is none."""
        queue = self.queues.pop((topic, queue_id), None)
        if queue is not None:
            self._changed.pop(queue, None)
        return queue

    def clear(self) -> None:
        """Forget all queues, which are destroyed."""
        self.queues.clear()
        self._changed.clear()

    def plan_flush(self, plan: FlushPlan) -> None:
        """Add what has changed since the last plan. A plan that is not finished is the end of the store."""
        for queue in list(self._changed):
            plan.add(queue.files)
            if not queue.has_pending:
                del self._changed[queue]

    def close(self) -> None:
        """Close all files."""
        for queue in self.queues.values():
            queue.files.close()


def _newest_first(queues: Iterable[ConsumeQueue]) -> list[tuple[ConsumeQueue, MappedFile]]:
    placed = [
        (depth, queue, file)
        for queue in queues
        for depth, file in enumerate(reversed(queue.files.mapped_files))
        if file.wrote
    ]
    return [(queue, file) for _, queue, file in sorted(placed, key=lambda place: place[0])]


def make_files(queues: Iterable[ConsumeQueue]) -> list[tuple[ConsumeQueue, MappedFile]]:
    """Make the next files of queues, until one cannot be made: for a thread; see `adopt_file`."""
    made: list[tuple[ConsumeQueue, MappedFile]] = []
    with contextlib.suppress(StoreError):  # `write_out` meets the same trouble, and raises it
        for queue in queues:
            made.append((queue, queue.make_file()))  # noqa: PERF401 - those before a failure are kept
    return made
