"""Counters by topic and group, with sums and rates over the last minute, hour and day.

Counters are plain numbers that only grow; `sample` records them every 10 s; a sum over a period is the
difference to an older sample. What was put is read from the consume queues, so a send pays nothing for it.
Source: BrokerStatsManager, StatsItem, StoreStatsService of RocketMQ 4.6.0. Pure: `now_ms` is passed in.
Differs: sums of hour and day are there from the start and not after their first 10 minutes or hour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from rocketpy.protocol.bodies import BrokerStatsItem
from rocketpy_broker.store import MessageStore

SAMPLE_MS: Final = 10_000

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"

_PERIODS: Final = {"minute": (SAMPLE_MS, 7), "hour": (600_000, 7), "day": (3_600_000, 25)}
"""Period -> ms between its samples, and their number."""
_KEYS_MAX: Final = 100_000
"""Counters of further keys are not kept. Not in RocketMQ."""


class _Sample(NamedTuple):
    at_ms: float
    value: int
    times: int


class Counter:
    """A growing value. times: number of increments."""

    __slots__ = ("_samples", "times", "value")

    def __init__(self) -> None:
        self.value = 0
        self.times = 0
        self._samples: dict[str, deque[_Sample]] = {}

    def add(self, amount: int) -> None:
        """Add an amount in one increment."""
        self.value += amount
        self.times += 1

    def sample(self, now_ms: float) -> None:
        """Store a sample of each period whose last sample is old enough."""
        for period, (apart_ms, count) in _PERIODS.items():
            samples = self._samples.setdefault(period, deque(maxlen=count))
            if not samples or now_ms - samples[-1].at_ms >= apart_ms:
                samples.append(_Sample(now_ms, self.value, self.times))

    def over(self, period: str, now_ms: float) -> BrokerStatsItem:
        """Return sum, rate per second and average increment over a period: minute, hour or day."""
        samples = self._samples.get(period)
        if not samples:
            return BrokerStatsItem(sum=0, tps=0.0, avgpt=0.0)
        first = samples[0]
        total, times = self.value - first.value, self.times - first.times
        elapsed_ms = now_ms - first.at_ms
        return BrokerStatsItem(
            sum=total,
            tps=total * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0,
            avgpt=total / times if times else 0.0,
        )

    def rate_since(self, since_ms: float, now_ms: float) -> float:
        """Return the rate per second since the newest sample that is at least as old as `since_ms`."""
        samples = [sample for kept in self._samples.values() for sample in kept]
        older = [sample for sample in samples if sample.at_ms <= since_ms] or samples[:1]
        if not older:
            return 0.0
        first = max(older, key=lambda sample: sample.at_ms)
        elapsed_ms = now_ms - first.at_ms
        return (self.value - first.value) * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0


class BrokerStats:
    """The counters of a broker by name and key (a topic, or ``topic@group``).

    cluster: the key of counters of the whole broker, as in 4.6.0.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._counters: dict[tuple[str, str], Counter] = {}
        self.pulled_total = 0
        """Messages pulled since the start."""

    def count_pulled(self, topic: str, group: str, count: int, size: int) -> None:
        """Count the messages of one pull."""
        key = f"{topic}@{group}"
        self._counter(GROUP_GET_NUMS, key).add(count)
        self._counter(GROUP_GET_SIZE, key).add(size)
        self.pulled_total += count

    def count_sent_back(self, topic: str, group: str) -> None:
        """Count a message that a consumer sent back."""
        self._counter(SNDBCK_PUT_NUMS, f"{topic}@{group}").add(1)

    def sample(self, now_ms: float, puts: Iterable[tuple[str, int, int]]) -> None:
        """Sample all counters; to be called every 10 s.

        puts: topic, number of messages stored since the start, and their bytes.
        """
        put_total = 0
        for topic, count, size in puts:
            counter = self._counter(TOPIC_PUT_NUMS, topic)
            counter.value = counter.times = count
            counter = self._counter(TOPIC_PUT_SIZE, topic)
            counter.value, counter.times = size, count
            put_total += count
        for name, total in ((BROKER_PUT_NUMS, put_total), (BROKER_GET_NUMS, self.pulled_total)):
            counter = self._counter(name, self._cluster)
            counter.value = counter.times = total
        for counter in self._counters.values():
            counter.sample(now_ms)

    def find(self, name: str, key: str) -> Counter | None:
        """Return a counter; None if nothing was counted under that key."""
        return self._counters.get((name, key))

    def named(self, name: str) -> list[tuple[str, Counter]]:
        """Return the counters of a name, with their keys."""
        return [(key, counter) for (known, key), counter in self._counters.items() if known == name]

    def rate(self, name: str, key: str, now_ms: float) -> float:
        """Return a counter's rate per second over the last minute; 0 without a counter."""
        counter = self.find(name, key)
        return (counter.over("minute", now_ms).tps or 0.0) if counter is not None else 0.0

    def rates(self, name: str, now_ms: float) -> str:
        """Return a rate of the whole broker over 10 s, 1 min and 10 min, as 4.6.0 writes the three."""
        counter = self._counter(name, self._cluster)
        return "".join([f"{counter.rate_since(now_ms - ms, now_ms)} " for ms in (10_000, 60_000, 600_000)])

    def _counter(self, name: str, key: str) -> Counter:
        counter = self._counters.get((name, key))
        if counter is None:
            counter = Counter()
            if len(self._counters) < _KEYS_MAX:
                self._counters[name, key] = counter
        return counter


class PutCounts:
    """Messages stored by topic since this object was created, read from the open store's consume queues."""

    def __init__(self, store: MessageStore) -> None:
        self._queues = store.queues.queues
        self._begin = {key: (queue.next_offset, queue.put_bytes) for key, queue in self._queues.items()}

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """Yield topic, number of messages, and their bytes in the commit log."""
        counts: dict[str, tuple[int, int]] = {}
        for key, queue in self._queues.items():
            begin, begin_bytes = self._begin.get(key, (0, 0))
            count, size = counts.get(key[0], (0, 0))
            new = max(queue.next_offset - begin, 0)
            counts[key[0]] = count + new, size + max(queue.put_bytes - begin_bytes, 0)
        return iter([(topic, count, size) for topic, (count, size) in counts.items()])

    @property
    def total(self) -> int:
        """Number of messages of all topics."""
        return sum(count for _, count, _ in self)
