"""The response to GET_BROKER_RUNTIME_INFO, which mqadmin's clusterList and brokerStatus read.

Source: AdminBrokerProcessor, StoreStatsService, BrokerStats of RocketMQ 4.6.0. Differs: values about thread
pools are 0, since there are none; values that are not measured are left out.
"""

from __future__ import annotations

import os
import time
from typing import Final

from rocketpy.protocol.remoting.command import VERSION
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.services.stats import BROKER_GET_NUMS, BROKER_PUT_NUMS, BrokerStats, PutCounts
from rocketpy_broker.store import MessageStore

_ALWAYS_ZERO: Final = (
    "sendThreadPoolQueueSize", "pullThreadPoolQueueSize", "queryThreadPoolQueueSize",
    "EndTransactionQueueSize", "sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueHeadWaitTimeMills", "pageCacheLockTimeMills", "sendThreadPoolQueueCapacity",
    "pullThreadPoolQueueCapacity", "queryThreadPoolQueueCapacity", "EndTransactionThreadPoolQueueCapacity",
    "remainTransientStoreBufferNumbs",
    # Of 4.9 and 5.x.
    "litePullThreadPoolQueueSize", "litePullThreadPoolQueueHeadWaitTimeMills",
    "litePullThreadPoolQueueCapacity", "ackThreadPoolQueueSize", "ackThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueCapacity",
)  # fmt: skip


class DayTotals:
    """Total messages put and pulled at the start of today and of yesterday. The day is an argument."""

    def __init__(self) -> None:
        self._day: object = None
        self.put_yesterday = self.put_today = self.got_yesterday = self.got_today = 0

    def update(self, day: object, put: int, got: int) -> None:
        """Store the totals if a new day has begun."""
        if day == self._day:
            return
        if self._day is not None:
            self.put_yesterday, self.put_today = self.put_today, put
            self.got_yesterday, self.got_today = self.got_today, got
        self._day = day


def runtime_info(
    store: MessageStore,
    config: BrokerConfig,
    stats: BrokerStats,
    puts: PutCounts,
    days: DayTotals,
    *,
    now_ms: float,
    booted_ms: int,
    is_active: bool,
) -> dict[str, str]:
    """Return the values by key. now_ms: of the clock of `stats`. booted_ms: start time, since 1970."""
    put_total = puts.total
    read = stats.rates(BROKER_GET_NUMS, stats.pulled_total, now_ms)
    disk_ratio, capacity = _disk_texts(store)
    table = dict.fromkeys(_ALWAYS_ZERO, "0") | store.stats.table(store.clock())
    table |= {
        "brokerVersion": str(VERSION),
        "brokerVersionDesc": "V4_6_0",
        "brokerActive": "true" if is_active else "false",
        "bootTimestamp": str(booted_ms),
        "runtime": _duration_text(time.time() - booted_ms / 1000),
        "msgPutTotalYesterdayMorning": str(days.put_yesterday),
        "msgPutTotalTodayMorning": str(days.put_today),
        "msgPutTotalTodayNow": str(put_total),
        "msgGetTotalYesterdayMorning": str(days.got_yesterday),
        "msgGetTotalTodayMorning": str(days.got_today),
        "msgGetTotalTodayNow": str(stats.pulled_total),
        "putMessageTimesTotal": str(put_total),
        "putTps": stats.rates(BROKER_PUT_NUMS, put_total, now_ms),
        "getTransferedTps": read,
        "getTransferredTps": read,  # its name in 5.x, whose tools read no other
        "getFoundTps": read,
        "commitLogMinOffset": str(store.min_physical_offset),
        "commitLogMaxOffset": str(store.max_physical_offset),
        "commitLogDiskRatio": disk_ratio,
        "consumeQueueDiskRatio": disk_ratio,
        "commitLogDirCapacity": capacity,
        "dispatchBehindBytes": str(store.dispatch_behind_bytes),
        "remainHowManyDataToFlush": f"{store.max_physical_offset - store.flushed_offset} B",
        "earliestMessageTimeStamp": str(store.earliest_store_time()),
        "startAcceptSendRequestTimeStamp": str(config.send.start_accept_ms),
    }
    return table


def _disk_texts(store: MessageStore) -> tuple[str, str]:
    """Return how full the store's disk is, and its capacity as RocketMQ writes it."""
    try:
        state = os.statvfs(store.config.root)
    except OSError:
        return "-1", "unknown"
    total, free = state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
    ratio = (state.f_blocks - state.f_bavail) / state.f_blocks if state.f_blocks else -1.0
    return str(ratio), f"Total : {total / 2**30:.1f} GiB, Free : {free / 2**30:.1f} GiB."


def _duration_text(seconds: float) -> str:
    """Return a duration as 4.6.0 formats it."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"[ {days} days, {hour} hours, {minute} minutes, {second} seconds ]"
