"""All consume queues of a store, which are loaded, written, flushed and closed together.

A store may have more queues than a process may have open files, so files are closed again while their queues
are not used.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final

from rocketpy.errors import StoreError
from rocketpy_broker.store.config import ConsumeQueueConfig
from rocketpy_broker.store.files.disk import Disk, lacks_descriptors
from rocketpy_broker.store.log.flush import FlushPlan, PlanLimits
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import Deletion
from rocketpy_broker.store.log.messages import QueueTable, check_topic
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue, PutTotals
from rocketpy_broker.store.queue.queue_checksums import FileChecksum

_CLOSED_MAX: Final = 256
"""Maximum number of files that are closed at once."""
CHECKSUM_BYTES_MAX: Final = 256 << 20
"""Maximum bytes of consume queue files that a start or stop reads for checksums: 13 million units."""


@dataclass(frozen=True, slots=True)
class _DroppedQueue:
    """A removed queue."""

    delete: Deletion
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a thread deletes the files."""


class ConsumeQueueTable:
    """All consume queues of a store. A queue is created by its first message."""

    def __init__(self, disk: Disk, directory: Path, config: ConsumeQueueConfig) -> None:
        self._disk = disk
        self.directory = directory
        self._config = config
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._changed: dict[ConsumeQueue, None] = {}
        """Queues with changes since their last flush, so that a flush does not visit thousands of others."""
        self._opened: dict[MappedFile, None] = {}
        self._dropped: dict[tuple[str, int], _DroppedQueue] = {}
        """Removed queues whose files are not deleted yet; a new queue of the same name would use them."""
        self._is_synced = False
        """Whether the entry of the directory was synced since the start, after it was created."""
        self.puts: dict[str, PutTotals] = {}
        """Counters of stored messages by topic, including queues that were deleted."""

    def load(self) -> None:
        """Load the queues of the directory: topic/queue id/files. Raises StoreDamaged, StoreError."""
        for topic in self._disk.list_dir(self.directory):
            if not self._disk.is_dir(self.directory / topic):
                continue
            for name in self._disk.list_dir(self.directory / topic):
                if name.isdigit():
                    queue = self.get_or_add(topic, int(name))
                    queue.files.load()
                    self._changed[queue] = None  # `load` may have extended a file, which must be flushed

    def get_or_add(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue; create it if it does not exist.

        Raises TopicInvalid; StoreError if the files of a removed queue of this name cannot be deleted.
        """
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            check_topic(topic, queue_id)
            self._delete_dropped((topic, queue_id))
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
        """Yield the checksums of the queues' files, the newest file of each queue first.

        Files without a known checksum are read, up to `CHECKSUM_BYTES_MAX` bytes in total.
        """
        read = 0
        for queue, file in _newest_first(self.queues.values()):
            checksum = queue.checksum_of(file, may_read=read + file.wrote <= CHECKSUM_BYTES_MAX)
            if checksum is not None:
                yield checksum
            if queue.checksums.get(file.start) is None:
                read += file.wrote
            file.close_idle()

    def max_physical_offset(self) -> int:
        """Return the commit log offset just after the newest record in any queue; -1 without queues."""
        return max((queue.max_physical_offset for queue in self.queues.values()), default=-1)

    def fill(self, table: QueueTable, log_min_offset: int) -> None:
        """Set the next offsets in `table`, and the minimum offsets of all queues, after recovery.

        Source: RocketMQ recoverTopicQueueTable.
        """
        for key, queue in self.queues.items():
            table[key].next_offset = queue.next_offset
            queue.correct_min_offset(log_min_offset)
            queue.files.close_idle()

    def close_idle(self, *, all_files: bool = False) -> int:
        """Close flushed files until their next use, if more than `handles_max` are open, or all.

        Looks at no more than `_CLOSED_MAX` files, and returns the number of closed ones.
        """
        excess = len(self._opened) - (0 if all_files else self._config.handles_max)
        closed = 0
        for file in list(itertools.islice(self._opened, _CLOSED_MAX)) if excess > 0 else ():
            if not file.close_idle():
                closed += 1
                if closed == excess:
                    break
            else:  # the next call looks at the others first
                self._opened[file] = self._opened.pop(file)
        return closed

    def rewrite_unflushed(self, dispatched_offset: int, flush: Callable[[FlushPlan], None]) -> None:
        """Write and flush again the units of records from this commit log offset on.

        At most `handles_max` files are written before a flush. Unflushed files stay open, and there may be
        more queues than the process may have open files. Raises FlushFailed, StoreError.
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

    def _adopt_file(self, queue: ConsumeQueue, file: MappedFile) -> None:
        """Add a file to its queue, or close it if the queue was deleted or already has the file."""
        if self._has(queue):
            queue.files.adopt_preallocated(file)
        else:
            file.close()

    def _has(self, queue: ConsumeQueue) -> bool:
        """Whether a queue was not deleted."""
        return self.queues.get((queue.topic, queue.queue_id)) is queue

    def flush_plans(self, limits: PlanLimits) -> Iterator[FlushPlan]:
        """Write the units of all changed queues, and yield plans that flush them. Raises StoreError.

        The caller runs and finishes each plan before the next one. An empty plan is an opportunity to do
        other work. Queues that change meanwhile wait for the next flush.
        """
        for _ in range(0, len(self._opened), _CLOSED_MAX):  # others may open files again meanwhile
            if not self.close_idle():
                break
            yield FlushPlan()
        # A part opens the files of its queues, and creates those of the next part.
        files_max = max(1, self._config.handles_max // 2)
        # A queue with an open file needs no descriptor, and a flushed file can be closed.
        waiting = deque(sorted(self._changed, key=attrgetter("is_closed")))
        ready: deque[ConsumeQueue] = deque()
        while waiting or ready:
            plan = FlushPlan()
            while ready and self._add_to(plan, ready) and not limits.is_over():
                pass
            made: list[tuple[ConsumeQueue, MappedFile]] = []
            if not ready:
                count = min(limits.queues_max, files_max, len(waiting))
                ready.extend(waiting.popleft() for _ in range(count))
                making = [queue for queue in ready if queue.needs_file]
                if making:
                    plan.before.append(partial(_make_files, making, made))
            yield plan
            for queue, file in made:
                self._adopt_file(queue, file)
            self.close_idle()

    def _add_to(self, plan: FlushPlan, ready: deque[ConsumeQueue]) -> bool:
        """Write the units of the first queue in `ready`, and add it to a plan.

        Returns False if the plan must be run before it is tried again. Raises StoreError.
        """
        queue = ready[0]
        if self._has(queue):
            try:
                queue.write_out()
            except StoreError as error:
                # The plan must be run: its queues are no longer in `_changed`. It may free a descriptor, too.
                if not plan.is_empty or (lacks_descriptors(error) and self.close_idle(all_files=True)):
                    return False
                raise
            plan.add(queue.files)
            if plan.directories and not self._is_synced:
                plan.directories[self.directory.parent] = None
                self._is_synced = True
            if not queue.has_pending:
                self._changed.pop(queue, None)
        ready.popleft()
        return True

    def remove(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Remove and return a queue, which the caller destroys; None if there is none."""
        queue = self.queues.pop((topic, queue_id), None)
        if queue is not None:
            self._changed.pop(queue, None)
        return queue

    def drop(self, topic: str, queue_id: int) -> Deletion | None:
        """Remove a queue; return what deletes its files, None if there is no queue.

        It deletes nothing once a new queue of this name exists, which deletes them first.
        """
        queue = self.remove(topic, queue_id)
        if queue is None:
            return None
        key = topic, queue_id
        self._dropped[key] = _DroppedQueue(queue.abandon())
        return partial(self._delete_dropped, key)

    def _delete_dropped(self, key: tuple[str, int]) -> None:
        """Delete the files of a removed queue, unless that is done. Safe in a thread. Raises StoreError."""
        dropped = self._dropped.get(key)
        if dropped is None:
            return
        with dropped.lock:
            if self._dropped.get(key) is dropped:
                dropped.delete()
                del self._dropped[key]

    def clear(self) -> None:
        """Remove all queues, which the caller has destroyed."""
        self.queues.clear()
        self._changed.clear()

    def close(self) -> None:
        """Close all files."""
        for queue in self.queues.values():
            queue.files.close()


def _newest_first(queues: Iterable[ConsumeQueue]) -> list[tuple[ConsumeQueue, MappedFile]]:
    """Return all files with units: the newest file of each queue, then the second newest, and so on."""
    ranked = [
        (rank, queue, file)
        for queue in queues
        for rank, file in enumerate(reversed(queue.files.mapped_files))
        if file.wrote
    ]
    return [(queue, file) for _, queue, file in sorted(ranked, key=lambda entry: entry[0])]


def _make_files(queues: Iterable[ConsumeQueue], made: list[tuple[ConsumeQueue, MappedFile]]) -> None:
    """Create the next files of queues; stop at the first error. Safe in a thread."""
    with contextlib.suppress(StoreError):  # `write_out` tries it again, and raises the error
        for queue in queues:
            made.append((queue, queue.make_file()))  # noqa: PERF401 - files before an error must be adopted
