"""What a store can be told. Groups of settings, checked once, when they are built.

Each field names the RocketMQ key (broker.conf) it mirrors and keeps 4.6.0's default unless it says why not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.message.delays import DEFAULT_DELAY_LEVELS, DelayLevels

_UNIT_BYTES = 20


class FlushDiskType(Enum):
    """When a message counts as stored."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    """Written to the file; flushed within the interval."""
    SYNC_FLUSH = "SYNC_FLUSH"
    """Flushed to the disk."""


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigInvalid(f"{name} is {value}; it must be from {low} to {high}")


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitLogConfig:
    """The commit log: one record after the other, all topics together."""

    directory: Path | None = None
    """storePathCommitLog. None: `commitlog` under the store's root."""
    segment_bytes: int = 1 << 30
    """mappedFileSizeCommitLog: length of one file. Fixed for the life of a store."""
    message_bytes_max: int = 4 << 20
    """maxMessageSize: of a whole record, as 4.6.0 compares it, and of a whole batch."""
    reserve_bytes: int = 64 << 20
    """Ours: blocks are reserved this far ahead of what is written, so that an append does not meet a
    full disk and an empty store does not take a whole file. 0: never; the file stays a hole."""

    def __post_init__(self) -> None:
        _check_range("mappedFileSizeCommitLog", self.segment_bytes, 1024, 1 << 31)
        _check_range("maxMessageSize", self.message_bytes_max, 128, 1 << 30)
        _check_range("reserve_bytes", self.reserve_bytes, 0, 1 << 40)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumeQueueConfig:
    """The consume queues: 20 bytes a message, one directory a queue."""

    segment_bytes: int = 300_000 * _UNIT_BYTES
    """mappedFileSizeConsumeQueue: length of one file, rounded up to whole units as 4.6.0 does. Sparse."""
    handles_max: int = 512
    """Ours: with more files of queues open, those that are flushed are closed until they are needed again."""
    pending_bytes_max: int = 4096
    """Ours: a queue's newest units are written to its file when they are this many, when they are read,
    or at the next flush; after a crash they are dispatched again."""

    def __post_init__(self) -> None:
        _check_range("mappedFileSizeConsumeQueue", self.segment_bytes, _UNIT_BYTES, 1 << 31)
        object.__setattr__(self, "segment_bytes", -(-self.segment_bytes // _UNIT_BYTES) * _UNIT_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexConfig:
    """The key index."""

    enabled: bool = True
    """messageIndexEnable."""
    slots: int = 5_000_000
    """maxHashSlotNum: hash slots of one file. Four bytes of memory each, for the file being written."""
    entries: int = 20_000_000
    """maxIndexNum: entries of one file, less one."""
    query_count_max: int = 64
    """maxMsgsNumBatch: a query by key returns no more."""

    def __post_init__(self) -> None:
        _check_range("maxHashSlotNum", self.slots, 1, 1 << 28)
        _check_range("maxIndexNum", self.entries, 2, 1 << 28)


@dataclass(frozen=True, kw_only=True, slots=True)
class FlushConfig:
    """When written bytes are made durable."""

    disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    """flushDiskType."""
    commit_log_interval_ms: int = 500
    """flushIntervalCommitLog."""
    commit_log_least_pages: int = 0
    """flushCommitLogLeastPages: with less than so many pages of 4 KiB written, the log's flush waits for the
    next (RocketMQ: 4). Ours takes what there is, so that power loss takes no more than an interval."""
    commit_log_thorough_ms: int = 10_000
    """flushCommitLogThoroughInterval: … but no longer than this; nor than for the queues' next flush."""
    consume_queue_interval_ms: int = 1000
    """flushIntervalConsumeQueue. Each of ours is thorough (4.6.0's only every 60 s)
    and moves the checkpoint."""
    sync_timeout_ms: int = 5000
    """syncFlushTimeout: how long a SYNC_FLUSH answer waits before it says FLUSH_DISK_TIMEOUT."""

    def __post_init__(self) -> None:
        _check_range("flushCommitLogLeastPages", self.commit_log_least_pages, 0, 1 << 20)
        _check_range("flushCommitLogThoroughInterval", self.commit_log_thorough_ms, 1, 3_600_000)
        _check_range("flushIntervalCommitLog", self.commit_log_interval_ms, 1, 3_600_000)
        _check_range("flushIntervalConsumeQueue", self.consume_queue_interval_ms, 1, 3_600_000)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadConfig:
    """How much one pull gets."""

    memory_bytes_max: int = 256 * 1024
    """maxTransferBytesOnMessageInMemory."""
    memory_count_max: int = 32
    """maxTransferCountOnMessageInMemory."""
    disk_bytes_max: int = 64 * 1024
    """maxTransferBytesOnMessageInDisk."""
    disk_count_max: int = 8
    """maxTransferCountOnMessageInDisk."""
    memory_ratio_percent: int = 40
    """accessMessageInMemoryMaxRatio: the newest so much of physical memory counts as "in memory"."""
    physical_memory_bytes: int = field(
        default_factory=lambda: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    )
    """Memory of this machine."""

    @property
    def memory_window_bytes(self) -> int:
        """Bytes at the log's end that count as being in memory."""
        return self.physical_memory_bytes * self.memory_ratio_percent // 100


@dataclass(frozen=True, kw_only=True, slots=True)
class BusyConfig:
    """When messages are refused because the store cannot keep up; see `busy`."""

    enabled: bool = True
    """brokerFastFailureEnable."""
    wait_ms: int = 200
    """waitTimeMillsInSendQueue: how late the event loop may be. 0: any time."""
    page_cache_ms: int = 1000
    """osPageCacheBusyTimeOutMills: how long one write to the commit log may take. 0: any time."""

    def __post_init__(self) -> None:
        _check_range("waitTimeMillsInSendQueue", self.wait_ms, 0, 3_600_000)
        _check_range("osPageCacheBusyTimeOutMills", self.page_cache_ms, 0, 3_600_000)


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionConfig:
    """How long messages are kept. 4.6.0 has the two upper watermarks as Java system properties."""

    reserved_hours: int = 72
    """fileReservedTime: a commit log file may go so long after it was last written."""
    delete_when: str = "04"
    """deleteWhen: hours of the day, local time, separated by semicolons: expired files are deleted then."""
    max_used_percent: int = 75
    """diskMaxUsedSpaceRatio: a fuller disk has expired files deleted at any hour."""
    clean_percent: int = 85
    """rocketmq.broker.diskSpaceCleanForciblyRatio: a fuller disk has the oldest files deleted at any age, if
    `clean_forcibly` is set."""
    refuse_percent: int = 90
    """rocketmq.broker.diskSpaceWarningLevelRatio: with a fuller disk messages are refused."""
    clean_forcibly: bool = False
    """cleanFileForciblyEnable: whether a nearly full disk may cost messages that have not expired. RocketMQ's
    default is True; ours keeps acknowledged messages and refuses new ones."""
    interval_ms: int = 10_000
    """cleanResourceInterval: how often to look."""
    file_pause_ms: int = 100
    """deleteCommitLogFilesInterval: pause between two files."""
    grace_ms: int = 120_000
    """destroyMapedFileIntervalForcibly: a file that is being read stays so long, and no longer."""
    batch_files_max: int = 10
    """Commit log files deleted in one pass (fixed in RocketMQ)."""

    def __post_init__(self) -> None:
        _check_range("fileReservedTime", self.reserved_hours, 0, 1_000_000)
        _check_range("diskMaxUsedSpaceRatio", self.max_used_percent, 0, 100)
        _check_range("clean_percent", self.clean_percent, 0, 100)
        _check_range("refuse_percent", self.refuse_percent, 0, 100)
        _check_range("cleanResourceInterval", self.interval_ms, 1, 3_600_000)
        _check_range("batch_files_max", self.batch_files_max, 1, 10_000)
        for part in self.delete_when.split(";"):
            hour = part.strip()
            if not (hour.isascii() and hour.isdigit() and len(hour) <= 2 and int(hour) < 24):
                raise ConfigInvalid(f"deleteWhen is {self.delete_when!r}; hours from 00 to 23 are expected")


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryConfig:
    """How a store is opened."""

    check_crc: bool = True
    """checkCRCOnRecover."""
    cut_damage: bool = False
    """Ours: cut the log at damage that is not a torn tail, losing the valid records behind it. An operator's
    last resort; otherwise such a store is refused with a report."""
    use_progress: bool = True
    """Ours: after a crash begin where the checkpoint says that queues and index are complete. False: begin as
    4.6.0 does, with the file that the checkpoint's times name, and build the newest index file again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreConfig:
    """A message store in `root` (storePathRootDir)."""

    root: Path
    commit_log: CommitLogConfig = field(default_factory=CommitLogConfig)
    consume_queue: ConsumeQueueConfig = field(default_factory=ConsumeQueueConfig)
    index: IndexConfig = field(default_factory=IndexConfig)
    flush: FlushConfig = field(default_factory=FlushConfig)
    read: ReadConfig = field(default_factory=ReadConfig)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    busy: BusyConfig = field(default_factory=BusyConfig)
    store_host: bytes = b"\x7f\x00\x00\x01" + (10911).to_bytes(4, "big")
    """Address written into every record (4 or 16 bytes, then the port as i32): brokerIP1 and listenPort."""
    delay_levels: str = DEFAULT_DELAY_LEVELS
    """messageDelayLevel: what DELAY=1, 2, … wait; the consume queue of a delayed message has its due time."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root))
        if len(self.store_host) not in {8, 20}:
            raise ConfigInvalid(f"store_host has {len(self.store_host)} bytes; 8 for IPv4, 20 for IPv6")
        DelayLevels(self.delay_levels)  # raises for a wrong table

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
