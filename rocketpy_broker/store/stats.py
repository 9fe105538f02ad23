"""Counters of a store since it was opened, under the names of RocketMQ's runtime information.

The store increments the counters. `sample`, called every second, keeps their values to compute rates. Source:
RocketMQ StoreStatsService. Differs: the messages of a run share one write, and each counts with its duration.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from rocketpy_broker.store.log.messages import LogPiece

PUT_BOUNDS_MS: Final = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_LABELS: Final = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]", "[1~2s]",
    "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
_WINDOWS_S: Final = (10, 60, 600)


class _Sample(NamedTuple):
    """The counters' values at `time_ms` (ms since 1970)."""

    time_ms: int
    put: int
    found: int
    missed: int
    transferred: int


class StoreStats:
    """Counters of one store. Times in ms."""

    __slots__ = ("_samples", "damaged_reads", "dispatch_waiting_max", "forced_messages", "found", "missed",
                 "put_bytes", "put_ms_max", "put_times", "times_by_duration", "transferred")  # fmt: skip

    def __init__(self) -> None:
        self.put_times = 0
        """Messages written."""
        self.put_bytes = 0
        """Bytes of their records."""
        self.put_ms_max = 0
        self.times_by_duration = [0] * len(_LABELS)
        """Messages by duration of their write."""
        self.found = 0
        """Reads that found messages."""
        self.missed = 0
        """Reads that found none."""
        self.transferred = 0
        """Messages read."""
        self.dispatch_waiting_max = 0
        """Maximum number of records that waited for dispatch at the same time."""
        self.damaged_reads = 0
        """Reads that failed because of a damaged record, or a damaged unit of a consume queue."""
        self.forced_messages = 0
        """Messages deleted before their time because the disk was nearly full (cleanFileForciblyEnable)."""
        self._samples: deque[_Sample] = deque(maxlen=_WINDOWS_S[-1] + 1)

    def count_run(self, pieces: Sequence[LogPiece], taken_ms: int, waiting: int) -> None:
        """Count the messages of one write. waiting: records that then wait for dispatch."""
        count = 0
        for piece in pieces:
            count += piece.records
            self.put_bytes += piece.end - piece.begin
        self.put_times += count
        self.dispatch_waiting_max = max(self.dispatch_waiting_max, waiting)
        if taken_ms <= 0:  # nearly always
            self.times_by_duration[0] += count
            return
        self.put_ms_max = max(self.put_ms_max, taken_ms)
        self.times_by_duration[bisect_left(PUT_BOUNDS_MS, taken_ms)] += count

    def count_read(self, count: int) -> None:
        """Count a read and the messages it found."""
        if count:
            self.found += 1
            self.transferred += count
        else:
            self.missed += 1

    def sample(self, now_ms: int) -> None:
        """Keep the values of the counters, to compute rates. Call it every second."""
        self._samples.append(_Sample(now_ms, self.put_times, self.found, self.missed, self.transferred))

    def rates(self, counter: str, now_ms: int) -> tuple[float, ...]:
        """Return rates per second over the last 10 s, minute and 10 minutes.

        counter: one of put, found, missed and transferred.
        """
        now = _Sample(now_ms, self.put_times, self.found, self.missed, self.transferred)
        return tuple(self._rate(counter, now, window) for window in _WINDOWS_S)

    def _rate(self, counter: str, now: _Sample, window_s: int) -> float:
        samples = self._samples
        if not samples:
            return 0.0
        then = samples[max(0, len(samples) - window_s)]
        seconds = (now.time_ms - then.time_ms) / 1000
        increase: int = getattr(now, counter) - getattr(then, counter)
        return increase / seconds if seconds > 0 else 0.0

    def table(self, now_ms: int) -> dict[str, str]:
        """Return all values under RocketMQ's names."""
        found, missed = self.rates("found", now_ms), self.rates("missed", now_ms)
        total = tuple(a + b for a, b in zip(found, missed, strict=True))
        return {
            "putMessageTimesTotal": str(self.put_times),
            "putMessageSizeTotal": str(self.put_bytes),
            "putMessageAverageSize": str(self.put_bytes / max(1, self.put_times)),
            "putMessageEntireTimeMax": str(self.put_ms_max),
            "putMessageDistributeTime": " ".join(
                f"{label}:{count}" for label, count in zip(_LABELS, self.times_by_duration, strict=True)
            ),
            "dispatchMaxBuffer": str(self.dispatch_waiting_max),
            "putTps": _format_rates(self.rates("put", now_ms)),
            "getFoundTps": _format_rates(found),
            "getMissTps": _format_rates(missed),
            "getTotalTps": _format_rates(total),
            "getTransferedTps": _format_rates(self.rates("transferred", now_ms)),
        }


def _format_rates(rates: tuple[float, ...]) -> str:
    return " ".join(f"{rate:.2f}" for rate in rates)
