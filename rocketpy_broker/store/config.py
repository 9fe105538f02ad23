"""Settings of a store, in groups that are checked when they are built.

A field that mirrors a key of RocketMQ's broker.conf names it (`setting`). It keeps the default of RocketMQ
4.6.0 unless its description gives a reason.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.message.delays import DEFAULT_DELAY_LEVELS, DelayLevels
from rocketpy_broker.store.setting import LIVE, NEXT_START, CheckedSettings, mirrors, read_percent, setting

_UNIT_BYTES = 20
_HOUR_MS = 3_600_000
_PULL_BYTES = 1, 1 << 30
_PULL_COUNT = 1, 1 << 20


class FlushDiskType(Enum):
    """When a message counts as stored."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    """Written to the file; flushed within the interval."""
    SYNC_FLUSH = "SYNC_FLUSH"
    """Flushed to the disk."""


def _ratio(percent: int) -> float:
    return percent / 100


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitLogConfig(CheckedSettings):
    """The commit log, which holds the messages of all topics."""

    directory: Path | None = setting("storePathCommitLog", None)
    """Directory of the files. None: `commitlog` under the store's root."""
    segment_bytes: int = setting("mappedFileSizeCommitLog", 1 << 30, limits=(1024, 1 << 31))
    """Length of one file. It cannot be changed once the store exists."""
    message_bytes_max: int = setting("maxMessageSize", 4 << 20, limits=(128, 1 << 30), change=NEXT_START)
    """Largest record and largest batch. The limit includes all fields of the record, as in 4.6.0."""
    reserve_bytes: int = setting(None, 64 << 20, limits=(0, 1 << 40))
    """Disk blocks are allocated this far ahead of the end of the log (not in RocketMQ). So appends do not run
    out of space, and an empty store does not occupy a whole file. 0: never; the file stays sparse."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumeQueueConfig(CheckedSettings):
    """The consume queues: 20 bytes for each message, one directory for each queue."""

    segment_bytes: int = setting(
        "mappedFileSizeConsumeQueue", 300_000 * _UNIT_BYTES, limits=(_UNIT_BYTES, 1 << 31)
    )
    """Length of one file, rounded up to whole units as in 4.6.0. Files are sparse."""
    handles_max: int = 512
    """Maximum number of open files of all queues (not in RocketMQ). Above it, flushed files are closed. The
    same limit applies separately to the files of the commit log."""
    pending_bytes_max: int = 4096
    """Maximum bytes of new units that a queue buffers (not in RocketMQ). They are written at this limit, when
    they are read, and at each flush. After a crash they are dispatched again."""

    def __post_init__(self) -> None:
        self._check_limits()
        object.__setattr__(self, "segment_bytes", -(-self.segment_bytes // _UNIT_BYTES) * _UNIT_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexConfig(CheckedSettings):
    """The index of message keys."""

    enabled: bool = setting("messageIndexEnable", True, change=NEXT_START)
    """Whether keys are indexed."""
    slots: int = setting("maxHashSlotNum", 5_000_000, limits=(1, 1 << 28))
    """Hash slots of one file. The file that is being written takes four bytes of memory for each slot."""
    entries: int = setting("maxIndexNum", 20_000_000, limits=(2, 1 << 28))
    """Entries of one file, including entry 0, which is never used."""
    query_count_max: int = setting("maxMsgsNumBatch", 64, limits=(1, 65_536), change=LIVE)
    """Maximum number of messages that a query by key returns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlushConfig(CheckedSettings):
    """When written bytes are made durable."""

    disk_type: FlushDiskType = setting("flushDiskType", FlushDiskType.ASYNC_FLUSH)
    """When a message counts as stored."""
    commit_log_interval_ms: int = setting(
        "flushIntervalCommitLog", 500, limits=(1, _HOUR_MS), change=NEXT_START
    )
    """How often the commit log is flushed."""
    commit_log_least_pages: int = setting("flushCommitLogLeastPages", 0, limits=(0, 1 << 20), change=LIVE)
    """A flush of the commit log is skipped while fewer pages of 4 KiB are unflushed (RocketMQ: 4). The
    default flushes any number, so that a power failure loses at most one interval."""
    commit_log_thorough_ms: int = setting(
        "flushCommitLogThoroughInterval", 10_000, limits=(1, _HOUR_MS), change=LIVE
    )
    """Longest time for which flushes are skipped. The next flush of the queues ends it, too."""
    consume_queue_interval_ms: int = setting(
        "flushIntervalConsumeQueue", 1000, limits=(1, _HOUR_MS), change=NEXT_START
    )
    """How often all queues are flushed and the checkpoint is written (RocketMQ: 1 s for queues with two
    unflushed pages, 60 s for all)."""
    sync_timeout_ms: int = setting("syncFlushTimeout", 5000, limits=(1, _HOUR_MS), change=NEXT_START)
    """How long a SYNC_FLUSH response waits for the flush. Then its status is FLUSH_DISK_TIMEOUT."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadConfig(CheckedSettings):
    """Limits of one pull."""

    memory_bytes_max: int = setting(
        "maxTransferBytesOnMessageInMemory", 256 * 1024, limits=_PULL_BYTES, change=LIVE
    )
    """Maximum bytes of a pull whose messages are in memory."""
    memory_count_max: int = setting(
        "maxTransferCountOnMessageInMemory", 1024, limits=_PULL_COUNT, change=LIVE
    )
    """Maximum number of messages of a pull that are in memory. RocketMQ: 32."""
    disk_bytes_max: int = setting(
        "maxTransferBytesOnMessageInDisk", 64 * 1024, limits=_PULL_BYTES, change=LIVE
    )
    """Maximum bytes of a pull whose messages are on disk."""
    disk_count_max: int = setting("maxTransferCountOnMessageInDisk", 8, limits=_PULL_COUNT, change=LIVE)
    """Maximum number of messages of a pull that are on disk."""
    memory_ratio_percent: int = setting("accessMessageInMemoryMaxRatio", 40, limits=(0, 100), change=LIVE)
    """Percentage of physical memory. This many bytes at the end of the log count as "in memory"."""
    physical_memory_bytes: int = field(
        default_factory=lambda: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    )
    """Memory of this machine."""

    @property
    def memory_window_bytes(self) -> int:
        """Bytes at the end of the log that count as being in memory."""
        return self.physical_memory_bytes * self.memory_ratio_percent // 100


@dataclass(frozen=True, kw_only=True, slots=True)
class BusyConfig(CheckedSettings):
    """When messages are rejected because the store cannot keep up; see `store.busy`."""

    enabled: bool = setting("brokerFastFailureEnable", True, change=LIVE)
    """Whether an overloaded store rejects messages."""
    wait_ms: int = setting("waitTimeMillsInSendQueue", 200, limits=(0, _HOUR_MS), change=LIVE)
    """Delay of the event loop above which messages are rejected. 0: no limit."""
    page_cache_ms: int = setting("osPageCacheBusyTimeOutMills", 1000, limits=(0, _HOUR_MS), change=LIVE)
    """Duration of one commit log write above which messages are rejected. 0: no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionConfig(CheckedSettings):
    """How long messages are kept.

    `clean_percent` and `refuse_percent` are Java system properties in 4.6.0.
    """

    reserved_hours: int = setting("fileReservedTime", 72, limits=(0, 1_000_000), change=LIVE)
    """Age of a commit log file, since its last write, at which it may be deleted. An open transaction of this
    age is discarded."""
    delete_when: str = setting("deleteWhen", "04", change=LIVE)
    """Hours of the day, in local time, at which expired files are deleted; separated by semicolons."""
    max_used_percent: int = setting("diskMaxUsedSpaceRatio", 75, limits=(0, 100), change=LIVE)
    """Disk usage above which expired files are deleted at any hour."""
    clean_percent: int = setting(
        "rocketmq.broker.diskSpaceCleanForciblyRatio", 85, read=read_percent, show=_ratio, limits=(0, 100)
    )
    """Disk usage above which the oldest files are deleted at any age, if `clean_forcibly` is set."""
    refuse_percent: int = setting(
        "rocketmq.broker.diskSpaceWarningLevelRatio", 90, read=read_percent, show=_ratio, limits=(0, 100)
    )
    """Disk usage above which messages are rejected."""
    clean_forcibly: bool = setting("cleanFileForciblyEnable", False)
    """Whether unexpired messages are deleted when the disk is nearly full (RocketMQ: True). The default keeps
    acknowledged messages and rejects new ones."""
    interval_ms: int = setting("cleanResourceInterval", 10_000, limits=(1, _HOUR_MS), change=LIVE)
    """How often the disk is checked."""
    file_pause_ms: int = setting("deleteCommitLogFilesInterval", 100, limits=(0, _HOUR_MS), change=LIVE)
    """Pause between the deletions of two files."""
    grace_ms: int = setting(
        "destroyMapedFileIntervalForcibly", 120_000, limits=(0, 24 * _HOUR_MS), change=LIVE
    )
    """How long an expired file is kept while a flush holds it open (RocketMQ: while it is being read)."""
    batch_files_max: int = setting(None, 10, limits=(1, 10_000))
    """Maximum number of commit log files that one pass deletes (fixed in RocketMQ)."""

    @property
    def reserved_ms(self) -> int:
        """`reserved_hours` in milliseconds."""
        return self.reserved_hours * _HOUR_MS

    def __post_init__(self) -> None:
        self._check_limits()
        for part in self.delete_when.split(";"):
            hour = part.strip()
            if not (hour.isascii() and hour.isdigit() and len(hour) <= 2 and int(hour) < 24):
                raise ConfigInvalid(
                    f"deleteWhen is {self.delete_when!r}; give hours from 00 to 23, separated by semicolons"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryConfig:
    """Settings of recovery."""

    check_crc: bool = setting("checkCRCOnRecover", True)
    """Whether the checksums of bodies are verified."""
    cut_damage: bool = False
    """Truncate the log at damage that is not a torn tail (not in RocketMQ). The valid records after it are
    lost, so use this as a last resort. False: opening such a store raises StoreDamaged with a report."""
    use_progress: bool = True
    """After a crash, start where the checkpoint says that queues and index are complete (not in RocketMQ).
    False: start as 4.6.0 does, at the file that the checkpoint's times select, and rebuild the newest index
    file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreConfig:
    """A message store."""

    root: Path = field(metadata=mirrors("storePathRootDir"))
    """Directory of the store."""
    commit_log: CommitLogConfig = field(default_factory=CommitLogConfig)
    consume_queue: ConsumeQueueConfig = field(default_factory=ConsumeQueueConfig)
    index: IndexConfig = field(default_factory=IndexConfig)
    flush: FlushConfig = field(default_factory=FlushConfig)
    read: ReadConfig = field(default_factory=ReadConfig)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    busy: BusyConfig = field(default_factory=BusyConfig)
    store_host: bytes = b"\x7f\x00\x00\x01" + (10911).to_bytes(4, "big")
    """Address in every record (4 or 16 bytes, then the port as i32): brokerIP1 and listenPort."""
    delay_levels: str = setting("messageDelayLevel", DEFAULT_DELAY_LEVELS)
    """Delays of the levels 1, 2, … of the message property DELAY, separated by spaces."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root))
        if len(self.store_host) not in {8, 20}:
            raise ConfigInvalid(
                f"store_host has {len(self.store_host)} bytes; it must have 8 (IPv4) or 20 (IPv6)"
            )
        DelayLevels(self.delay_levels)  # raises ConfigInvalid

    @property
    def commit_log_directory(self) -> Path:
        """Where the commit log's files are."""
        return self.commit_log.directory or self.root / "commitlog"

    @property
    def consume_queue_directory(self) -> Path:
        """Where the consume queues are, as topic/queue id/file."""
        return self.root / "consumequeue"

    @property
    def index_directory(self) -> Path:
        """Where the index files are."""
        return self.root / "index"
