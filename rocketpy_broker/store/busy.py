"""Detects overload of the store. Then messages are rejected, so that producers send to other brokers.

RocketMQ's brokers queue sends in front of a thread pool. They respond SYSTEM_BUSY to sends that waited for
200 ms, and to all sends while a write into the page cache takes a second. Here one event loop does the work,
so requests wait in socket buffers while the loop is delayed. A timer measures the delay, so that no message
needs a clock. If the delay exceeds the limit five times in a row, messages are rejected until a timer is on
time; a single delay rejects none. After a write longer than `page_cache_ms`, messages are rejected until the
next sample.

Source: RocketMQ BrokerFastFailure; DefaultMessageStore isOSPageCacheBusy.
"""

from __future__ import annotations

from enum import IntEnum

from rocketpy.errors import StoreError
from rocketpy_broker.store.config import BusyConfig

_LATE_SAMPLES = 5


class Reason(IntEnum):
    """Why a store rejects messages. If several reasons apply, the first one is reported."""

    FAILURE = 0
    """The store failed, or is not open."""
    DISK_FULL = 1
    NOT_MARKED = 2
    """The disk was full at the start, so the file `abort` does not exist yet."""
    BUSY = 3
    """The store cannot keep up."""
    SLAVE = 4
    """This broker is a slave, or not the leader of its DLedger group."""


class StoreBusy(StoreError):
    """The store is overloaded and rejects messages temporarily. A broker responds SYSTEM_BUSY (2)."""


class PendingFull(StoreBusy):
    """Too many messages wait for a majority of their group. A broker responds SYSTEM_ERROR (1); try again."""


class OverloadDetector:
    """Decides from the delay of the loop and the duration of writes whether to reject messages.

    Call `sample` every `interval_ms`, and `wrote_in` after each write.
    """

    interval_ms = 50

    def __init__(self, config: BusyConfig) -> None:
        self._config = config
        self._late_samples = 0

    def sample(self, late_ms: float) -> StoreBusy | None:
        """Return the error with which messages are rejected until the next sample; None if they are accepted.

        late_ms: delay of the timer in ms.
        """
        limit = self._config.wait_ms
        is_late = self._config.enabled and limit > 0 and late_ms > limit
        self._late_samples = self._late_samples + 1 if is_late else 0
        if self._late_samples < _LATE_SAMPLES:
            return None
        return StoreBusy(
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
            f"period in queue: {late_ms:.0f}ms, the limit is {limit}ms"
        )

    def wrote_in(self, taken_ms: int) -> StoreBusy | None:
        """Return the error that rejects messages after a write of `taken_ms`; None if it was fast enough."""
        limit = self._config.page_cache_ms
        if not self._config.enabled or not limit or taken_ms <= limit:
            return None
        return StoreBusy(
            "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, "
            f"a write took {taken_ms}ms, the limit is {limit}ms"
        )
