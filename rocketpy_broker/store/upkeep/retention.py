"""Which files go, and when the disk is too full to write: decisions only, from numbers and the time.

Two things start a pass: the hour of `delete_when`, and a disk fuller than `max_used_percent`. A pass deletes
the oldest commit log files that were last written longer ago than `reserved_hours`. Above `refuse_percent`
the store takes no more messages until there is room. With `clean_forcibly`, which is off by default, a disk
fuller than `clean_percent` has the oldest files deleted whatever their age.
Consume queues and index follow: what points below the commit log goes. The file being written never goes.

Source: RocketMQ DefaultMessageStore CleanCommitLogService, MappedFileQueue deleteExpiredFileByTime.
Differs: `clean_forcibly` is on by default there, so a full disk costs messages that nobody has read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rocketpy_broker.store.config import RetentionConfig

_HOUR_MS = 3_600_000


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
    """What one pass does. reason: for the log; empty when there is nothing to do."""

    reason: str
    at_once: bool
    """Delete files whatever their age."""
    refuse_writes: bool
    """The disk is so full that messages are refused."""


def is_hour_of(delete_when: str, now_ms: int) -> bool:
    """Is it one of the hours of `deleteWhen`, "04" or "04;16", in local time?"""
    hour = time.localtime(now_ms / 1000).tm_hour
    return any(part.strip().isdigit() and int(part) == hour for part in delete_when.split(";"))


def decide(config: RetentionConfig, use: DiskUse, now_ms: int, *, manual: bool = False) -> CleanDecision:
    """Whether to delete now, and how. manual: an operator asked for it."""
    fullest = 100 * max(use)
    urgent = fullest > config.clean_percent
    refuse = fullest > config.refuse_percent
    reason = ""
    if manual:
        reason = "asked for"
    elif urgent and config.clean_forcibly:
        reason = f"the disk is {fullest:.0f}% full, above {config.clean_percent}%"
    elif fullest > config.max_used_percent or min(use) < 0:
        reason = f"the disk is {fullest:.0f}% full, the limit is {config.max_used_percent}%"
    elif is_hour_of(config.delete_when, now_ms):
        reason = f"it is the hour of deleteWhen={config.delete_when}"
    return CleanDecision(reason, urgent and config.clean_forcibly, refuse)


def expired(config: RetentionConfig, files: Sequence[FileAge], now_ms: int, *, at_once: bool) -> int:
    """How many of the oldest files go now. files: all but the one being written, oldest first.

    A file that a reader holds stays for `grace_ms` from when it was first in the way; so do those behind it,
    for a log has no holes.
    """
    limit = now_ms - config.reserved_hours * _HOUR_MS
    count = 0
    for file in files[: config.batch_files_max]:
        if not at_once and file.written_ms > limit:
            break
        if file.held_ms is not None and file.held_ms < config.grace_ms:
            break
        count += 1
    return count


def deletable_below(ends: Sequence[int], offset: int) -> int:
    """How many of the oldest files of a queue or of the index go: those whose newest record lies below
    that commit log offset. ends: that record's physical offset, of all files but the last, oldest first.
    """
    count = 0
    for end in ends:
        if end >= offset:
            break
        count += 1
    return count
