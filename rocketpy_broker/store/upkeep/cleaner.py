"""Retention: decides which files expire, takes them out of the store, and deletes them in any thread.

Two things start a pass: the hour of `delete_when`, and a disk fuller than `max_used_percent`. A pass deletes
the oldest commit log files that were last written longer ago than `reserved_hours`. Above `refuse_percent`
the store rejects messages until there is space. With `clean_forcibly`, which is off by default, a disk
fuller than `clean_percent` has the oldest files deleted whatever their age.
Files of consume queues and index are deleted once all their entries point below the commit log's start. The
file being written is never deleted.

A file is removed from its list first, so that no new reader finds it, and then deleted. A reader that has it
open can continue. The commit log is first: a crash in between leaves units and index entries that point below
the log, which readers skip.

Source: RocketMQ DefaultMessageStore CleanCommitLogService, MappedFileQueue deleteExpiredFileByTime.
Differs: in 4.6.0 `clean_forcibly` is on by default, so a full disk deletes messages that were never read.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rocketpy.errors import DiskFull
from rocketpy_broker.store.busy import Reason
from rocketpy_broker.store.config import RetentionConfig
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.message_store import MessageStore

logger = logging.getLogger("rocketpy_broker.store.cleaner")

_NAMED_QUEUES_MAX = 20

Deletion = Callable[[], None]
"""Deletes one file. Blocks; safe in a thread. Raises StoreError."""


class DiskUse(NamedTuple):
    """Used part of the file systems of commit log and consume queues, 0 to 1; below 0 when not known."""

    log: float
    queues: float


class FileAge(NamedTuple):
    """A commit log file. written_ms: when it was last written. held_ms: for how long a reader has been seen
    to hold it; None when none does.
    """

    written_ms: int
    held_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CleanDecision:
    """The decision about one pass. reason: for the log; empty when no file is deleted."""

    reason: str
    at_once: bool
    """Delete files whatever their age."""
    refuse_writes: bool
    """The disk is so full that messages are rejected."""


def is_hour_of(delete_when: str, now_ms: int) -> bool:
    """Whether it is one of the hours of `deleteWhen`, such as "04" or "04;16", in local time."""
    hour = time.localtime(now_ms / 1000).tm_hour
    return any(part.strip().isdigit() and int(part) == hour for part in delete_when.split(";"))


def decide(config: RetentionConfig, use: DiskUse, now_ms: int) -> CleanDecision:
    """Whether to delete now, and how."""
    fullest = 100 * max(use)
    urgent = fullest > config.clean_percent
    refuse = fullest > config.refuse_percent
    reason = ""
    if urgent and config.clean_forcibly:
        reason = f"the disk is {fullest:.0f}% full, above {config.clean_percent}%"
    elif fullest > config.max_used_percent or min(use) < 0:
        reason = f"the disk is {fullest:.0f}% full, the limit is {config.max_used_percent}%"
    elif is_hour_of(config.delete_when, now_ms):
        reason = f"it is the hour of deleteWhen={config.delete_when}"
    return CleanDecision(reason, urgent and config.clean_forcibly, refuse)


def expired(config: RetentionConfig, files: Sequence[FileAge], now_ms: int, *, at_once: bool) -> int:
    """Return how many of the oldest files expire now. files: all but the one being written, oldest first.

    A file that a reader has open is kept for `grace_ms` after it was first found so, and with it the later
    files, since a log has no holes.
    """
    limit = now_ms - config.reserved_ms
    count = 0
    for file in files[: config.batch_files_max]:
        if not at_once and file.written_ms > limit:
            break
        if file.held_ms is not None and file.held_ms < config.grace_ms:
            break
        count += 1
    return count


def deletable_below(ends: Sequence[int], offset: int) -> int:
    """Return how many of the oldest files of a queue or the index only point below a commit log offset.

    ends: physical offset of the newest record of each file but the last, oldest first.
    """
    count = 0
    for end in ends:
        if end >= offset:
            break
        count += 1
    return count


def disk_use(path: Path) -> float:
    """Used part of the file system of `path`, 0 to 1; -1 when it is unknown."""
    try:
        state = os.statvfs(path)
    except OSError:
        return -1.0
    return (state.f_blocks - state.f_bfree) / state.f_blocks if state.f_blocks else -1.0


class Cleaner:
    """Retention of one store. use: returns the used part of a file system."""

    def __init__(self, store: MessageStore, *, use: Callable[[Path], float] = disk_use) -> None:
        self._store = store
        self._config = store.config.retention
        self._use = use
        self._held_since: dict[int, int] = {}
        self._queues_cleaned_at = -1
        self._is_stuck = False
        """Whether the disk is nearly full and nothing is left to delete. Logged when it begins."""
        self._chosen: list[Deletion] = []
        """Taken out of the store and not returned yet; kept when `choose` fails halfway."""

    def measure(self) -> DiskUse:
        """How full the disks are. Blocks; safe in a thread."""
        config = self._store.config
        queues = config.consume_queue_directory
        return DiskUse(
            self._use(config.commit_log_directory), self._use(queues if queues.exists() else config.root)
        )

    def choose(self, use: DiskUse, now_ms: int) -> list[Deletion]:
        """Take expired files out of the store; returns their deletions, to be run in this order.

        Call `MessageStore.persist_min_offset` before the first step. Raises StoreError when a file cannot be
        read; the next call then returns what this one took.
        """
        decision = decide(self._config, use, now_ms)
        self._refuse(decision, use)
        if decision.reason:
            self._choose_log_files(decision, now_ms)
        self._follow_log()
        steps, self._chosen = self._chosen, []
        return steps

    def run(self, now_ms: int) -> int:
        """Run a whole pass in this thread; returns how many files were deleted. Raises StoreError."""
        steps = self.choose(self.measure(), now_ms)
        if steps:
            self._store.persist_min_offset()
        for step in steps:
            step()
        return len(steps)

    def _refuse(self, decision: CleanDecision, use: DiskUse) -> None:
        store = self._store
        if decision.refuse_writes == (store.disk_full is not None):
            return
        percent = f"{100 * max(use):.0f}%"
        if decision.refuse_writes:
            limit = self._config.refuse_percent
            full = DiskFull(f"the disk is {percent} full, above {limit}%; free space or add a disk")
            store.reject(Reason.DISK_FULL, full)
            logger.error("messages are rejected: %s", full)
        else:
            store.reject(Reason.DISK_FULL, None)
            logger.warning("messages are accepted again: the disk is %s full", percent)

    # -- the commit log --------------------------------------------------------------------------

    def _choose_log_files(self, decision: CleanDecision, now_ms: int) -> None:
        files = self._store.commit_log.files
        # Only files below the checkpoint may go: after power loss, recovery expects all others.
        checkpoint = self._store.checkpoint
        flushed = min(checkpoint.flushed_offset, checkpoint.dispatched_offset)
        old = [file for file in files.mapped_files[:-1] if file.end <= flushed]
        ages = [self._age(file, now_ms) for file in old[: self._config.batch_files_max]]
        count = expired(self._config, ages, now_ms, at_once=False)
        forced = expired(self._config, ages, now_ms, at_once=True) - count if decision.at_once else 0
        if count:
            logger.info(
                "%d commit log files from %s on are deleted: %s",
                count, files.mapped_files[0].path.name, decision.reason,
            )  # fmt: skip
            self._take_log(count)
        if forced:
            self._force(forced, decision)
        if decision.at_once and not (count or forced) and not self._is_stuck:
            logger.warning("%s, and there is no file to delete", decision.reason)
        self._is_stuck = decision.at_once and not (count or forced)

    def _take_log(self, count: int) -> None:
        mapped_files = [self._store.commit_log.files.take_first() for _ in range(count)]
        for file in mapped_files:
            self._held_since.pop(file.start, None)
        mapped_files += self._store.commit_log.take_expired_side_files()
        self._chosen += [self._store.persist_min_offset, *(file.delete for file in mapped_files)]

    def _force(self, count: int, decision: CleanDecision) -> None:
        """Take files that have not expired, and log which messages are lost."""
        self._follow_log()
        queues = list(self._store.queues.queues.values())
        begin = self._store.commit_log.min_offset
        firsts = [queue.first_at(begin) for queue in queues]
        self._take_log(count)
        self._follow_log()
        end = self._store.commit_log.min_offset
        lost = [
            (f"{queue.topic}/{queue.queue_id} {first} to {after - 1}", after - first)
            for queue, first in zip(queues, firsts, strict=True)
            if (after := queue.first_at(end)) > first
        ]
        messages = sum(number for _, number in lost)
        self._store.stats.forced_messages += messages
        logger.warning(
            "%s: deleting %d commit log files with offsets %d to %d before fileReservedTime=%d hours, with "
            "%d messages of %d queues (%s%s). Free space or add a disk; cleanFileForciblyEnable=false keeps "
            "unexpired messages and refuses sends instead",
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

    def _follow_log(self) -> None:
        """Take out queue and index files that point below the log's start, once for each start."""
        log_start = self._store.commit_log.min_offset
        if log_start == self._queues_cleaned_at:
            return
        for queue in self._store.queues.queues.values():
            for file in queue.take_expired(log_start):
                self._chosen.append(file.delete)
            queue.correct_min_offset(log_start)
            queue.files.close_idle()  # there may be more queues than descriptors
        self._chosen += self._choose_index_files(log_start)
        self._queues_cleaned_at = log_start

    def _choose_index_files(self, log_start: int) -> list[Deletion]:
        index = self._store.index
        if index is None:
            return []
        files = index.files  # may fill a file, so before `full`
        waiting = set(map(id, index.full))
        ends = [file.end_offset for file in files[:-1] if id(file) not in waiting]
        return [files.pop(0).delete for _ in range(deletable_below(ends, log_start))]
