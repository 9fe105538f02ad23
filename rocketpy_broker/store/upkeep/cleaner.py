"""Retention: decides which files have expired, removes them from the store, and deletes them in any thread.

A pass starts at the hours of `delete_when`, or when the disk is fuller than `max_used_percent`. It deletes
the oldest commit log files that were last written longer ago than `reserved_hours`. Above `refuse_percent`
the store rejects messages until there is space. With `clean_forcibly`, which is off by default, the oldest
files are deleted at any age while the disk is fuller than `clean_percent`. Files of consume queues and index
are deleted once all their entries point below the start of the commit log. The file being written is never
deleted.

A file is first removed from the list of files, so that no reader finds it, and then deleted. A flush that
holds it open can finish. Commit log files are deleted first: after a crash, readers skip units and index
entries that point below the start of the log.

Source: RocketMQ DefaultMessageStore CleanCommitLogService, MappedFileQueue deleteExpiredFileByTime.
Differs: in 4.6.0 `clean_forcibly` is on by default, so a full disk deletes messages that were never read.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rocketpy.errors import DiskFull
from rocketpy_broker.store.busy import Reason
from rocketpy_broker.store.config import RetentionConfig
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import Deletion
from rocketpy_broker.store.message_store import MessageStore, finish

logger = logging.getLogger("rocketpy_broker.store.cleaner")

_NAMED_QUEUES_MAX = 20


class DiskUse(NamedTuple):
    """Disk usage of the file systems of commit log and consume queues, from 0 to 1; -1 if unknown."""

    log: float
    queues: float


class FileAge(NamedTuple):
    """Age of a commit log file."""

    written_ms: int
    """Time of its last write, in ms since 1970."""
    held_ms: int | None = None
    """For how long flushes have held it open; None if none does."""


@dataclass(frozen=True, slots=True)
class CleanDecision:
    """What one pass does."""

    reason: str
    """Why files are deleted, for the log; empty if none are."""
    is_forced: bool
    """Whether files are deleted at any age."""
    reject_writes: bool
    """Whether messages are rejected, because the disk is nearly full."""


def is_hour_of(delete_when: str, now_ms: int) -> bool:
    """Whether it is one of the hours of `deleteWhen`, such as "04" or "04;16", in local time."""
    hour = time.localtime(now_ms / 1000).tm_hour
    return any(part.strip().isdigit() and int(part) == hour for part in delete_when.split(";"))


def decide(
    config: RetentionConfig, use: DiskUse, now_ms: int, *, is_requested: bool = False
) -> CleanDecision:
    """Decide whether to delete files at any age, expired files, or none, and whether to reject messages.

    is_requested: an administrator wants expired files to be deleted.
    """
    fullest = 100 * max(use)
    is_forced = config.clean_forcibly and fullest > config.clean_percent
    reason = ""
    if is_forced:
        reason = f"the disk is {fullest:.0f}% full, above {config.clean_percent}%"
    elif fullest > config.max_used_percent:
        reason = f"the disk is {fullest:.0f}% full, the limit is {config.max_used_percent}%"
    elif min(use) < 0:
        reason = "the usage of the disk is unknown"
    elif is_hour_of(config.delete_when, now_ms):
        reason = f"it is the hour of deleteWhen={config.delete_when}"
    elif is_requested:
        reason = "an administrator requested it"
    return CleanDecision(reason, is_forced, reject_writes=fullest > config.refuse_percent)


def count_expired(config: RetentionConfig, files: Sequence[FileAge], now_ms: int, *, is_forced: bool) -> int:
    """Return how many of the oldest files may be deleted. is_forced: at any age.

    files: all but the newest one, oldest first. A file that a flush holds open is kept for up to `grace_ms`.
    Meanwhile all later files are kept too, since a log has no gaps.
    """
    limit = now_ms - config.reserved_ms
    count = 0
    for file in files[: config.batch_files_max]:
        if not is_forced and file.written_ms > limit:
            break
        if file.held_ms is not None and file.held_ms < config.grace_ms:
            break
        count += 1
    return count


def count_below(ends: Sequence[int], offset: int) -> int:
    """Return how many of the oldest index files only point below a commit log offset.

    ends: physical offset of the newest record of each file but the last, oldest first.
    """
    count = 0
    for end in ends:
        if end >= offset:
            break
        count += 1
    return count


def disk_use(path: Path) -> float:
    """Return the disk usage of the file system of `path`, from 0 to 1; -1 if unknown."""
    try:
        state = os.statvfs(path)
    except OSError:
        return -1.0
    return (state.f_blocks - state.f_bfree) / state.f_blocks if state.f_blocks else -1.0


class Cleaner:
    """Retention of one store. use: returns the disk usage of a file system, from 0 to 1; -1 if unknown."""

    def __init__(self, store: MessageStore, *, use: Callable[[Path], float] = disk_use) -> None:
        self._store = store
        self._config = store.config.retention
        self._use = use
        self._held_since: dict[int, int] = {}
        self._queues_cleaned_at = -1
        self.is_requested = False
        """Whether expired files are deleted at any hour, until there are none."""
        self.on_deletion: Callable[[], None] = lambda: None
        """Called by each pass that deletes files of the log, if any have expired."""
        self.keeps_expired: Callable[[], bool] = lambda: False
        """Whether expired files are kept, unless by force, because messages in them must be stored again."""
        self._is_stuck = False
        """Whether files of any age should be deleted but none can be. A change to True is logged."""
        self._chosen: list[Deletion] = []
        """Deletions of removed files that `choose` has not returned, because it failed."""

    def measure(self) -> DiskUse:
        """Return the disk usage. Blocks; safe in a thread."""
        config = self._store.config
        queues = config.consume_queue_directory
        return DiskUse(
            self._use(config.commit_log_directory), self._use(queues if queues.exists() else config.root)
        )

    def choose(self, use: DiskUse, now_ms: int) -> Generator[None, None, list[Deletion]]:
        """Remove expired files from the store; return the steps that delete them, to be run in this order.

        It yields after each queue, since a broker may have many thousands. Call
        `MessageStore.persist_min_offset` before the first deletion. Raises StoreError when a file cannot be
        read; then the next call also returns the steps of this call.
        """
        decision = decide(self._config, use, now_ms, is_requested=self.is_requested)
        self._reject_if_full(decision, use)
        if decision.reason:
            self.on_deletion()
            yield from self._choose_log_files(decision, now_ms)
        yield from self._take_queue_and_index_files()
        steps, self._chosen = self._chosen, []
        return steps

    def run(self, now_ms: int) -> int:
        """Run a whole pass in this thread; return the number of its steps. Raises StoreError."""
        steps = finish(self.choose(self.measure(), now_ms))
        if steps:
            self._store.persist_min_offset()
        for step in steps:
            step()
        return len(steps)

    def _reject_if_full(self, decision: CleanDecision, use: DiskUse) -> None:
        store = self._store
        if decision.reject_writes == (store.disk_full is not None):
            return
        percent = f"{100 * max(use):.0f}%"
        if decision.reject_writes:
            limit = self._config.refuse_percent
            full = DiskFull(f"the disk is {percent} full, above {limit}%; free space or add a disk")
            store.reject(Reason.DISK_FULL, full)
            logger.error("messages are rejected: %s", full)
        else:
            store.reject(Reason.DISK_FULL, None)
            logger.warning("messages are accepted again: the disk is %s full", percent)

    # -- the commit log --------------------------------------------------------------------------

    def _choose_log_files(self, decision: CleanDecision, now_ms: int) -> Iterator[None]:
        files = self._store.commit_log.files
        # Only files below the checkpoint may be deleted: after power loss, recovery expects all others.
        checkpoint = self._store.checkpoint
        flushed = min(checkpoint.flushed_offset, checkpoint.dispatched_offset)
        old = [file for file in files.mapped_files[:-1] if file.end <= flushed]
        ages = [self._age(file, now_ms) for file in old[: self._config.batch_files_max]]
        count = count_expired(self._config, ages, now_ms, is_forced=False)
        self.is_requested = self.is_requested and count > 0
        if count and self.keeps_expired():
            logger.warning("%d expired commit log files are kept: timers in them must be stored again", count)
            count = 0
        forced = 0
        if decision.is_forced:
            forced = count_expired(self._config, ages, now_ms, is_forced=True) - count
        if count:
            logger.info(
                "deleting %d commit log files from %s on: %s",
                count, files.mapped_files[0].path.name, decision.reason,
            )  # fmt: skip
            self._take_log(count)
        if forced:
            yield from self._force(forced, decision)
        if decision.is_forced and not (count or forced) and not self._is_stuck:
            logger.warning("%s, and no file can be deleted; free space or add a disk", decision.reason)
        self._is_stuck = decision.is_forced and not (count or forced)

    def _take_log(self, count: int) -> None:
        mapped_files = [self._store.commit_log.files.take_first() for _ in range(count)]
        for file in mapped_files:
            self._held_since.pop(file.start, None)
        mapped_files += self._store.commit_log.take_expired_side_files()
        self._chosen += [self._store.persist_min_offset, *(file.delete for file in mapped_files)]

    def _force(self, count: int, decision: CleanDecision) -> Iterator[None]:
        """Remove files that have not expired, and log the messages that are lost."""
        yield from self._take_queue_and_index_files()
        begin = self._store.commit_log.min_offset
        firsts = {}
        for queue in list(self._store.queues.queues.values()):
            firsts[queue] = queue.first_at(begin)
            queue.files.close_idle()
            yield
        self._take_log(count)
        yield from self._take_queue_and_index_files()
        end = self._store.commit_log.min_offset
        lost: list[tuple[str, int]] = []
        for queue, first in firsts.items():
            after = queue.first_at(end)
            queue.files.close_idle()
            if after > first:
                lost.append((f"{queue.topic}/{queue.queue_id} {first} to {after - 1}", after - first))
            yield
        messages = sum(number for _, number in lost)
        self._store.stats.forced_messages += messages
        logger.warning(
            "%s: deleting %d commit log files with offsets %d to %d before fileReservedTime=%d hours, with "
            "%d messages of %d queues (%s%s). Free space or add a disk; cleanFileForciblyEnable=false keeps "
            "unexpired messages and rejects sends instead",
            decision.reason, count, begin, end - 1, self._config.reserved_hours, messages, len(lost),
            ", ".join(text for text, _ in lost[:_NAMED_QUEUES_MAX]),
            ", ..." if len(lost) > _NAMED_QUEUES_MAX else "",
        )  # fmt: skip

    def _age(self, file: MappedFile, now_ms: int) -> FileAge:
        if not file.is_held:
            self._held_since.pop(file.start, None)
            return FileAge(file.modified_ms())
        since = self._held_since.setdefault(file.start, now_ms)
        return FileAge(file.modified_ms(), now_ms - since)

    # -- consume queues and index ----------------------------------------------------------------

    def _take_queue_and_index_files(self) -> Iterator[None]:
        """Remove queue and index files that only point below the start of the log, if that has changed."""
        log_start = self._store.commit_log.min_offset
        if log_start == self._queues_cleaned_at:
            return
        for queue in list(self._store.queues.queues.values()):
            for file in queue.take_expired(log_start):
                self._chosen.append(file.delete)
            queue.correct_min_offset(log_start)
            queue.files.close_idle()  # the process may have fewer file descriptors than queues
            yield
        self._chosen += self._choose_index_files(log_start)
        self._queues_cleaned_at = log_start

    def _choose_index_files(self, log_start: int) -> list[Deletion]:
        index = self._store.index
        if index is None:
            return []
        files = index.files  # read first, since it may add a file to `full`
        waiting = set(map(id, index.full))
        ends = [file.end_offset for file in files[:-1] if id(file) not in waiting]
        return [files.pop(0).delete for _ in range(count_below(ends, log_start))]
