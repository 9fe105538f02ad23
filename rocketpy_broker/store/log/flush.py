"""A flush in three steps: the store's thread plans it, any thread runs it, the store's thread finishes it.

A plan covers the bytes that were written when it was made. The flushed offsets advance once all of them are
durable. A failed flush is final: the kernel may have dropped the pages, so a later success proves nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rocketpy.errors import FlushFailed, StoreError
from rocketpy_broker.store.files.checkpoint import Checkpoint, CheckpointFile
from rocketpy_broker.store.files.disk import Disk
from rocketpy_broker.store.index.index_file import IndexFile
from rocketpy_broker.store.log.mapped_file_queue import FlushTarget, MappedFileQueue

logger = logging.getLogger("rocketpy_broker.store.flush")


@dataclass(slots=True)
class FlushPlan:
    """The files that one flush covers."""

    before: list[Callable[[], object]] = field(default_factory=list)
    """Called first, in the same thread: creates files that the next plan needs."""
    queues: list[MappedFileQueue] = field(default_factory=list)
    targets: list[FlushTarget] = field(default_factory=list)
    directories: dict[Path, None] = field(default_factory=dict)
    """Directories to sync, in this order; the dict serves as an ordered set."""
    index_files: list[IndexFile] = field(default_factory=list)
    index_entries: IndexFile | None = None
    """The index file being written: its entries are flushed, not its slots."""
    checkpoint: Checkpoint | None = None
    """Saved once all else is durable."""
    log_timestamp: int = 0
    """Store timestamp (ms) of the newest commit log record that this flush covers; 0 if it covers none."""

    @property
    def is_empty(self) -> bool:
        """Whether the plan covers nothing."""
        return not (
            self.before
            or self.targets
            or self.directories
            or self.index_files
            or self.index_entries
            or self.checkpoint
        )

    def add(self, files: MappedFileQueue) -> None:
        """Plan to flush what was written to these files so far."""
        self.queues.append(files)
        self.targets.extend(files.unflushed())
        directories = files.unsynced_directories()
        if directories:
            self.directories.update(dict.fromkeys(directories))
            files.directories_synced()

    def run(self, disk: Disk, checkpoint_file: CheckpointFile) -> None:
        """Flush the files, then save the checkpoint. Blocks; one plan at a time. Raises FlushFailed."""
        try:
            for work in self.before:
                work()
            for directory in self.directories:
                _sync_directory(disk, directory)
            for target in self.targets:
                disk.fdatasync(target.file.handle)
            for file in self.index_files:
                file.write_slots()
            if self.index_entries is not None:
                self.index_entries.sync()
            if self.checkpoint is not None:
                checkpoint_file.save(self.checkpoint)
        except Exception as error:  # any failure is final: it is unknown what is durable
            raise flush_failure(error) from error

    def finish(self) -> None:
        """Advance the flushed offsets after `run` has succeeded."""
        for target in self.targets:
            file = target.file
            # At most the current end of the log, which may have been truncated during the flush.
            file.flushed = max(file.flushed, min(target.until, file.wrote))
            file.flushed_changes = max(file.flushed_changes, target.changes)
        self.release()

    def release(self) -> None:
        """Allow the files of the plan to be closed again."""
        for target in self.targets:
            target.file.release()
        self.targets = []


@dataclass(slots=True)
class PlanLimits:
    """Limits of each plan of a thorough flush, which may take minutes in total."""

    queues_max: int = 256
    """Maximum number of queues."""
    is_over: Callable[[], bool] = lambda: False
    """Returns whether planning has taken long enough."""


class Flushable(Protocol):
    """A store whose files are flushed by plans."""

    def run_flush(self, plan: FlushPlan) -> None:
        """Run a plan. Blocks; safe in a thread, one plan at a time. Raises FlushFailed."""

    def finish_flush(self, plan: FlushPlan, error: FlushFailed | None = None) -> None:
        """Record that a plan was run, or has failed. Call it in the thread that made the plan."""


def flush_now(store: Flushable, plan: FlushPlan) -> None:
    """Run and finish a plan in this thread. Raises FlushFailed.

    Any other exception, such as KeyboardInterrupt, makes the flush fail too, and is raised again.
    """
    try:
        store.run_flush(plan)
    except BaseException as error:  # after any exception it is unknown what is durable
        failure = flush_failure(error)
        store.finish_flush(plan, failure)
        if not isinstance(error, Exception):
            raise
        raise failure from failure.__cause__
    store.finish_flush(plan)


def flush_failure(error: BaseException) -> FlushFailed:
    """Return the FlushFailed for any error of a flush. Errors of unexpected types are logged."""
    if isinstance(error, FlushFailed):
        return error
    if not isinstance(error, OSError | StoreError):
        logger.error("unexpected error in a flush", exc_info=error)
    failure = FlushFailed(
        f"flush failed: {str(error) or repr(error)}. "
        "The store rejects all messages; check the disk, then restart the broker for recovery"
    )
    failure.__cause__ = error
    return failure


def _sync_directory(disk: Disk, directory: Path) -> None:
    """Make the entries of a directory durable, unless it was deleted together with its topic."""
    try:
        if disk.is_dir(directory):
            disk.fsync_dir(directory)
    except FileNotFoundError:
        if disk.is_dir(directory):
            raise
