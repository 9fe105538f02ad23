"""Bounds of the store's settings: the last value that is taken, and the first that is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocketpy.errors import ConfigInvalid
from rocketpy_broker.store import (
    CommitLogConfig,
    ConsumeQueueConfig,
    FlushConfig,
    IndexConfig,
    RetentionConfig,
    StoreConfig,
)
from rocketpy_broker.store.config import BusyConfig, ReadConfig

HOUR_MS = 3_600_000

BOUNDS: list[tuple[type[Any], str, int, int]] = [
    (CommitLogConfig, "segment_bytes", 1024, 1 << 31),
    (CommitLogConfig, "message_bytes_max", 128, 1 << 30),
    (CommitLogConfig, "reserve_bytes", 0, 1 << 40),
    (ConsumeQueueConfig, "segment_bytes", 20, 1 << 31),
    (IndexConfig, "slots", 1, 1 << 28),
    (IndexConfig, "entries", 2, 1 << 28),
    (FlushConfig, "commit_log_least_pages", 0, 1 << 20),
    (FlushConfig, "commit_log_thorough_ms", 1, HOUR_MS),
    (FlushConfig, "commit_log_interval_ms", 1, HOUR_MS),
    (FlushConfig, "consume_queue_interval_ms", 1, HOUR_MS),
    (FlushConfig, "sync_timeout_ms", 1, HOUR_MS),
    (IndexConfig, "query_count_max", 1, 65_536),
    (ReadConfig, "memory_bytes_max", 1, 1 << 30),
    (ReadConfig, "memory_count_max", 1, 1 << 20),
    (ReadConfig, "disk_bytes_max", 1, 1 << 30),
    (ReadConfig, "disk_count_max", 1, 1 << 20),
    (ReadConfig, "memory_ratio_percent", 0, 100),
    (BusyConfig, "wait_ms", 0, HOUR_MS),
    (BusyConfig, "page_cache_ms", 0, HOUR_MS),
    (RetentionConfig, "reserved_hours", 0, 1_000_000),
    (RetentionConfig, "max_used_percent", 0, 100),
    (RetentionConfig, "clean_percent", 0, 100),
    (RetentionConfig, "refuse_percent", 0, 100),
    (RetentionConfig, "interval_ms", 1, HOUR_MS),
    (RetentionConfig, "file_pause_ms", 0, HOUR_MS),
    (RetentionConfig, "grace_ms", 0, 24 * HOUR_MS),
    (RetentionConfig, "batch_files_max", 1, 10_000),
]


@pytest.mark.parametrize(("group", "field", "low", "high"), BOUNDS, ids=str)
def test_a_setting_is_taken_within_its_bounds(group: type[Any], field: str, low: int, high: int) -> None:
    """A store would be opened with a value that it cannot work with, or refuse one that it can."""
    for value in (low, high):
        group(**{field: value})
    for value in (low - 1, high + 1):
        with pytest.raises(ConfigInvalid, match=f"{value}; it must be from {low} to {high}"):
            group(**{field: value})


def test_a_queue_file_holds_whole_units() -> None:
    """Source: MessageStoreConfig.getMappedFileSizeConsumeQueue. Files of other sizes cannot be exchanged."""
    sizes = {given: ConsumeQueueConfig(segment_bytes=given).segment_bytes for given in (20, 21, 39, 40, 1001)}
    assert sizes == {20: 20, 21: 40, 39: 40, 40: 40, 1001: 1020}


@pytest.mark.parametrize(("hosts", "taken"), [(7, False), (8, True), (9, False), (20, True)])
def test_the_stores_address_is_ipv4_or_ipv6(tmp_path: Path, hosts: int, *, taken: bool) -> None:
    """Records would have another layout than their flags show."""
    if taken:
        StoreConfig(root=tmp_path, store_host=bytes(hosts))
    else:
        with pytest.raises(ConfigInvalid, match=f"store_host has {hosts} bytes"):
            StoreConfig(root=tmp_path, store_host=bytes(hosts))
