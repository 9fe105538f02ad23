"""Defects of the store, each without one rule: the sweep must detect each of them.

A defect is a context manager that patches the store, like a careless change would.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from rocketpy.errors import StoreError
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.files.checkpoint import Checkpoint, CheckpointFile
from rocketpy_broker.store.files.disk import store_error
from rocketpy_broker.store.index.index_service import IndexService
from rocketpy_broker.store.log.commit_log import CommitLog
from rocketpy_broker.store.log.flush import FlushPlan, PlanLimits
from rocketpy_broker.store.log.log_scan import LogScan
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue
from rocketpy_broker.store.log.messages import LogPiece
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue
from rocketpy_broker.store.recovery.recovery import Recovery
from tests.crash.disk import RecordingDisk

Defect = Callable[[], contextlib.AbstractContextManager[Any]]
DEFECTS: dict[str, tuple[Defect, str]] = {}
"""By name: the patch, and the workload that must detect it ("faults" for failing calls)."""


def defect(workload: str) -> Callable[[Callable[[], Iterator[None]]], Defect]:
    """Registers a patch under its function's name."""

    def register(function: Callable[[], Iterator[None]]) -> Defect:
        manager = contextlib.contextmanager(function)
        DEFECTS[function.__name__] = manager, workload
        return manager

    return register


@defect("faults")
def fsync_failure_swallowed() -> Iterator[None]:
    """4.6.0 logs the failure and continues (#2706)."""
    original = FlushPlan.run

    def run(self: FlushPlan, disk: Any, checkpoint_file: Any) -> None:
        with contextlib.suppress(StoreError):
            original(self, disk, checkpoint_file)

    with patch.object(FlushPlan, "run", run):
        yield


@defect("parts")
def checkpoint_states_what_is_written_at_the_end_of_the_flush() -> Iterator[None]:
    """Units that arrived between the parts count as flushed."""
    original = MessageStore.thorough_plans

    def thorough_plans(self: MessageStore, limits: PlanLimits | None = None) -> Iterator[FlushPlan]:
        for plan in original(self, limits):
            if plan.checkpoint is not None:
                plan.checkpoint = self._next_checkpoint(FlushPlan()) or plan.checkpoint
            yield plan

    with patch.object(MessageStore, "thorough_plans", thorough_plans):
        yield


@defect("retention")
def checkpoint_forgets_deleted_files() -> Iterator[None]:
    """The checkpoint of a flush names files that retention has deleted meanwhile."""

    def save(self: CheckpointFile, checkpoint: Checkpoint) -> None:
        with self._lock:
            self._content = dataclasses.replace(checkpoint)
            self._write(self._content)

    with patch.object(CheckpointFile, "save", save):
        yield


@defect("runs")
def flushed_mark_moved_to_what_is_written_now() -> Iterator[None]:
    """Messages that arrived during the flush count as flushed."""

    def finish(self: FlushPlan) -> None:
        for target in self.targets:
            target.file.flushed = target.file.wrote
            target.file.flushed_changes = target.file.changes
        self.release()

    with patch.object(FlushPlan, "finish", finish):
        yield


@defect("runs")
def dispatched_beyond_the_flushed_point() -> Iterator[None]:
    """Consumers read messages that power loss removes (#8239)."""
    with patch.object(MessageStore, "dispatch", lambda self: self.dispatcher.run(None)):
        yield


@defect("single")
def checkpoint_says_written_for_flushed() -> Iterator[None]:
    """The mark is ahead of the flush, so recovery rejects a store after power loss."""
    original = MessageStore._next_checkpoint

    def next_checkpoint(self: MessageStore, plan: FlushPlan) -> Checkpoint | None:
        found = original(self, plan)
        if found is not None:
            self.checkpoint_file.save(found)
        return found

    with patch.object(MessageStore, "_next_checkpoint", next_checkpoint):
        yield


@defect("single")
def clean_stop_claimed_before_the_last_flush() -> Iterator[None]:
    """A crash in the middle of a stop looks like a clean stop."""
    original = MessageStore._stop_cleanly

    def stop(self: MessageStore) -> None:
        self.checkpoint.log_end = self.commit_log.max_offset
        self.checkpoint_file.save(self.checkpoint)
        self.disk.unlink(self._abort_path)
        self.disk.fsync_dir(self.config.root)
        original(self)

    with patch.object(MessageStore, "_stop_cleanly", stop):
        yield


@defect("file-roll")
def torn_record_accepted() -> Iterator[None]:
    """Lengths are trusted, and the CRC is not checked."""
    original = LogScan.__init__

    def make(self: LogScan, *args: Any, **kwargs: Any) -> None:
        kwargs["check_crc"] = False
        kwargs.pop("bulk", None)
        original(self, *args, **kwargs)

    with patch.object(LogScan, "__init__", make):
        yield


@defect("file-roll")
def bytes_behind_the_cut_not_wiped() -> Iterator[None]:
    """4.6.0 moves its position only: a longer log brings the old records back (QUIRKS 48)."""
    original = MappedFileQueue.truncate

    def truncate(self: MappedFileQueue, offset: int, *, erase: bool = True) -> int:
        return original(self, offset, erase=False)

    with (
        patch.object(MappedFileQueue, "truncate", truncate),
        patch.object(MappedFile, "rewrite_zeros", lambda self: None),
    ):
        yield


@defect("faults")
def queue_offset_not_rolled_back() -> Iterator[None]:
    """A refused message leaves a hole in its queue (#6570)."""
    original = CommitLog._roll_back

    def undo(self: CommitLog, parts: Any) -> None:
        self._first_offsets = {}
        original(self, parts)

    with patch.object(CommitLog, "_roll_back", undo):
        yield


@defect("faults")
def refused_run_not_wiped() -> Iterator[None]:
    """The bytes of a failed write return."""
    with patch.object(MappedFile, "erase", lambda self, position, until=None: 0):
        yield


@defect("file-roll")
def blank_record_missing_at_the_files_end() -> Iterator[None]:
    """The offset of the first record in the next file is unknown."""
    original = CommitLog.write_out

    def write_out(self: CommitLog) -> list[LogPiece]:
        self._sealed = [(file, piece, b"") for file, piece, _ in self._sealed]
        return original(self)

    with patch.object(CommitLog, "write_out", write_out):
        yield


@defect("index")
def index_not_rebuilt_after_an_unclean_stop() -> Iterator[None]:
    """The content of the files is not checked."""
    original = IndexService.load

    def load(self: IndexService, **kwargs: Any) -> bool:
        kwargs.update(clean=True, progress=None)
        original(self, **kwargs)
        return True

    with patch.object(IndexService, "load", load):
        yield


@defect("file-roll")
def recovery_starts_one_file_late() -> Iterator[None]:
    """Records at the end of the previous file are in no queue (#1434)."""
    original = Recovery._scan_start

    def scan_start(self: Recovery, *args: Any, **kwargs: Any) -> int:
        start = original(self, *args, **kwargs)
        file = self._files.find(start)
        last = self._files.mapped_files[-1]
        return file.end if file is not None and file is not last else start

    with patch.object(Recovery, "_scan_start", scan_start):
        yield


@defect("single")
def consume_queue_not_cut() -> Iterator[None]:
    """Units point to records that do not exist."""
    with (
        patch.object(ConsumeQueue, "truncate", lambda self, offset: None),
        patch.object(Recovery, "_check_last_unit", _trusting),
    ):
        yield


def _trusting(self: Recovery, queue: ConsumeQueue, report: Any) -> None:
    unit = queue.unit(queue.next_offset - 1) if queue.next_offset else None
    queue.max_physical_offset = unit[0] + unit[1] if unit is not None else -1


@defect("single")
def short_write_ignored() -> Iterator[None]:
    """The disk wrote half of a large write and reported it."""
    original = RecordingDisk.pwrite

    def pwrite(self: RecordingDisk, handle: int, data: bytes, position: int) -> None:
        original(self, handle, data[:256] if "/commitlog/" in self._path(handle) else data, position)

    with patch.object(RecordingDisk, "pwrite", pwrite):
        yield


@defect("file-roll")
def directory_not_flushed() -> Iterator[None]:
    """The file is durable, its name is not."""
    with patch.object(MappedFileQueue, "unsynced_directories", lambda self: []):
        yield


@defect("single")
def recovered_log_not_flushed() -> Iterator[None]:
    """Pages of a killed process count as durable."""
    with patch.object(MappedFileQueue, "mark_unflushed", lambda self, mapped_files: None):
        yield


@defect("state-files")
def state_file_written_in_place() -> Iterator[None]:
    """A crash leaves half of it (#5905)."""

    def save(disk: Any, path: Any, data: bytes) -> None:
        try:
            disk.make_dir(path.parent)
            handle = disk.open(path, create=True)
            disk.pwrite(handle, data, 0)
            disk.fdatasync(handle)
            disk.close(handle)
        except OSError as error:
            raise store_error("save", path, error) from error

    with patch("tests.crash.workloads.save_state", save):
        yield


@defect("faults")
def recovered_tail_not_written_again() -> Iterator[None]:
    """The page cache has a tail that a failed flush dropped, and that never reaches the disk."""
    with patch.object(MappedFileQueue, "rewrite", lambda self, offset: None):
        yield


@defect("queue-roll")
def torn_unit_accepted() -> Iterator[None]:
    """The last unit's tags code may be cut off: consumers that ask for a tag never get the message."""
    original = Recovery._is_record_of

    def is_record_of(self: Recovery, *args: Any, **kwargs: Any) -> bool:
        kwargs["check_code"] = False
        return original(self, *args, **kwargs)

    with patch.object(Recovery, "_is_record_of", is_record_of):
        yield
