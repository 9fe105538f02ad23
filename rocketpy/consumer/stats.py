"""Consumption rates of each topic, for administration tools. No I/O; times are in ms.

Rates cover the last minute, failures the last hour. Source: RocketMQ 4.6 ConsumerStatsManager.
"""

from __future__ import annotations

from collections import deque
from dataclasses import astuple, dataclass, replace
from typing import Final, NamedTuple

from rocketpy.protocol.bodies import ConsumeStatus

SAMPLE_MS: Final = 10_000
"""The interval at which `ConsumerStats.sample` is called."""
_MINUTE_SAMPLES: Final = 60_000 // SAMPLE_MS + 1
"""Number of samples of which the first and the last are a minute apart."""
_HOUR_SAMPLES: Final = 3_600_000 // SAMPLE_MS + 1


@dataclass(slots=True)
class _Counts:
    """Sums of one topic since the start."""

    pulls: int = 0
    pull_ms: float = 0.0
    pulled: int = 0
    calls: int = 0
    call_ms: float = 0.0
    ok: int = 0
    failed: int = 0


class _Sample(NamedTuple):
    """Sums at one time."""

    at_ms: float
    counts: dict[str, _Counts]
    """By topic."""


class ConsumerStats:
    """Counts pulls and handler calls of a consumer, by topic. now_ms: time of a monotonic clock."""

    def __init__(self, now_ms: float) -> None:
        self._counts: dict[str, _Counts] = {}
        self._samples: deque[_Sample] = deque(maxlen=_HOUR_SAMPLES)
        self.sample(now_ms)

    def record_pull(self, topic: str, messages: int, took_ms: float) -> None:
        """Count a pull that found messages. messages: how many match the subscription."""
        counts = self._counts_of(topic)
        counts.pulls += 1
        counts.pull_ms += took_ms
        counts.pulled += messages

    def record_handled(self, topic: str, ok: int, failed: int, took_ms: float, calls: int = 1) -> None:
        """Count handler calls that ended. ok, failed: how many of their messages succeeded and failed.

        took_ms: duration of all these calls together.
        """
        counts = self._counts_of(topic)
        counts.calls += calls
        counts.call_ms += took_ms
        counts.ok += ok
        counts.failed += failed

    def sample(self, now_ms: float) -> None:
        """Store the current sums, for later rates."""
        counts = {topic: replace(counts) for topic, counts in self._counts.items()}
        self._samples.append(_Sample(now_ms, counts))

    def status(self, topic: str, now_ms: float) -> ConsumeStatus:
        """Return the rates of the last minute, and the number of failed messages of the last hour."""
        now = self._counts_of(topic)
        then = self._samples[max(0, len(self._samples) - _MINUTE_SAMPLES)]
        passed_s = max(now_ms - then.at_ms, 1.0) / 1000
        before = then.counts.get(topic, _Counts())
        minute = _Counts(*(a - b for a, b in zip(astuple(now), astuple(before), strict=True)))
        hour_ago = self._samples[0].counts.get(topic, _Counts())
        return ConsumeStatus(
            pull_rt=minute.pull_ms / max(minute.pulls, 1),
            pull_tps=minute.pulled / passed_s,
            consume_rt=minute.call_ms / max(minute.calls, 1),
            consume_ok_tps=minute.ok / passed_s,
            consume_failed_tps=minute.failed / passed_s,
            consume_failed_msgs=now.failed - hour_ago.failed,
        )

    def _counts_of(self, topic: str) -> _Counts:
        counts = self._counts.get(topic)
        if counts is None:
            counts = self._counts[topic] = _Counts()
        return counts
