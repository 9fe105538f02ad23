"""Counters by topic and group, with sums and rates over the last minute, hour and day.

Counters are plain numbers that only grow; `sample` records them every 10 s; a sum over a period is the
difference to an older sample. The consume queues count stored messages, so a send needs no other counter.
No I/O or clock: `now_ms` is an argument.

Source: BrokerStatsManager, StatsItem, StoreStatsService of RocketMQ 4.6.0.
Differs: sums of hour and day exist from the start; in 4.6.0 only after 10 minutes or an hour.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Final

import msgspec

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

_PERIODS: Final = {
    "minute": (SAMPLE_MS, 60_000),
    "hour": (600_000, 3_600_000),
    "day": (3_600_000, 86_400_000),
}
"""Period -> interval of its samples and length, both in ms."""
_KEYS_MAX: Final = 100_000
"""Limit of counters; further ones are not stored. Not in RocketMQ."""


class _Sample(msgspec.Struct, gc=False, frozen=True):
    at_ms: float
    value: int
    times: int


class Counter(msgspec.Struct, gc=False, eq=False):
    """A growing value.

    A value that does not change is not sampled: a broker may have many thousand topics without traffic. The
    garbage collector scans neither counters nor samples.
    """

    value: int = 0
    times: int = 0
    """Number of increments."""
    _samples: dict[str, tuple[_Sample, ...]] = msgspec.field(
        default_factory=lambda: dict.fromkeys(_PERIODS, ())
    )
    _settled: int | None = None
    """`times` in the last sample of each period, if they agree."""

    @property
    def is_settled(self) -> bool:
        """Whether the newest sample of each period has the current value."""
        return self.times == self._settled

    def add(self, amount: int) -> None:
        """Add an amount in one increment."""
        self.value += amount
        self.times += 1

    def sample(self, now_ms: float, before_ms: float | None) -> None:
        """Store a sample for each period whose last sample is old enough, and differs.

        before_ms: time of the previous sampling of all counters; None for the first one.
        """
        current = _Sample(now_ms, self.value, self.times)
        self._settled = self.times
        for period, (interval_ms, length_ms) in _PERIODS.items():
            samples = self._samples[period]
            if samples:
                last = samples[-1]
                if last.times == self.times:
                    continue
                if now_ms - last.at_ms < interval_ms:
                    self._settled = None
                    continue
                if before_ms is not None and before_ms - last.at_ms >= interval_ms:
                    # The value did not change until then.
                    samples += (_Sample(before_ms, last.value, last.times),)
            samples += (current,)
            while samples[1:] and samples[1].at_ms <= now_ms - length_ms:
                samples = samples[1:]
            self._samples[period] = samples

    def over(self, period: str, now_ms: float) -> BrokerStatsItem:
        """Return sum, rate per second and average increment over a period: minute, hour or day."""
        _, length_ms = _PERIODS[period]
        first = _at(self._samples[period], now_ms - length_ms)
        if first is None:
            return BrokerStatsItem(sum=0, tps=0.0, avgpt=0.0)
        total, times = self.value - first.value, self.times - first.times
        return BrokerStatsItem(
            sum=total, tps=self._rate(first, now_ms), avgpt=total / times if times else 0.0
        )

    def rate_since(self, since_ms: float, now_ms: float) -> float:
        """Return the rate per second since the newest sample taken at or before `since_ms`.

        Without one, since the oldest sample.
        """
        samples = sorted(chain(*self._samples.values()), key=attrgetter("at_ms", "value"))
        first = _at(samples, since_ms)
        return self._rate(first, now_ms) if first is not None else 0.0

    def _rate(self, first: _Sample, now_ms: float) -> float:
        elapsed_ms = now_ms - first.at_ms
        return (self.value - first.value) * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0


def _at(samples: Sequence[_Sample], since_ms: float) -> _Sample | None:
    """Return the newest sample taken at or before a time, or else the oldest one; None without samples.

    Where the next sample shows that the value was the same until then, the time of the sample is `since_ms`.
    """
    first: _Sample | None = None
    for sample in reversed(samples):
        following, first = first, sample
        if sample.at_ms <= since_ms:
            if following is None or following.times == sample.times:
                return _Sample(since_ms, sample.value, sample.times)
            break
    return first


class BrokerStats:
    """The counters of a broker by name and key (a topic, or ``topic@group``).

    cluster: the key of counters of the whole broker, as in 4.6.0.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._counters: dict[tuple[str, str], Counter] = {}
        self._unsettled: set[Counter] = set()
        """Counters whose samples may differ from the current value."""
        self._put_counts: dict[str, int] = {}
        """Topic -> number of its messages in the last sample."""
        self._sampled_ms: float | None = None
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
        """Do the work of `sampling` now."""
        for _ in self.sampling(now_ms, puts):
            pass

    def sampling(self, now_ms: float, puts: Iterable[tuple[str, int, int]]) -> Generator[None, None, None]:
        """Sample all counters; to be called every 10 s. For `Slices`: it yields after each counter.

        puts: topic, number of messages stored since the start, and their bytes.
        """
        put_total = 0
        for topic, count, size in puts:
            yield
            put_total += count
            if count != self._put_counts.get(topic):
                self._put_counts[topic] = count
                counter = self._counter(TOPIC_PUT_NUMS, topic)
                counter.value = counter.times = count
                counter = self._counter(TOPIC_PUT_SIZE, topic)
                counter.value, counter.times = size, count
        for name, total in ((BROKER_PUT_NUMS, put_total), (BROKER_GET_NUMS, self.pulled_total)):
            counter = self._counter(name, self._cluster)
            counter.value = counter.times = total
        for counter in list(self._unsettled):
            yield
            counter.sample(now_ms, self._sampled_ms)
            if counter.is_settled:
                self._unsettled.discard(counter)
        self._sampled_ms = now_ms

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

    def rates(self, name: str, total: int, now_ms: float) -> str:
        """Return a rate of the whole broker over 10 s, 1 min and 10 min, separated by spaces as in 4.6.0.

        total: the current value. With the value of the last sample, a steady rate would seem to fall until
        the next sample.
        """
        counter = self._counter(name, self._cluster)
        counter.value = counter.times = total
        return "".join([f"{counter.rate_since(now_ms - ms, now_ms)} " for ms in (10_000, 60_000, 600_000)])

    def _counter(self, name: str, key: str) -> Counter:
        counter = self._counters.get((name, key))
        if counter is None:
            counter = Counter()
            if len(self._counters) >= _KEYS_MAX:
                return counter
            self._counters[name, key] = counter
        self._unsettled.add(counter)
        return counter


class PutCounts:
    """Messages stored by topic since this object was created, including those of deleted queues."""

    def __init__(self, store: MessageStore) -> None:
        self._puts = store.queues.puts
        self._begin = {topic: (puts.count, puts.size) for topic, puts in self._puts.items()}
        self._begin_total = sum(count for count, _ in self._begin.values())

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """Yield topic, number of messages, and their bytes in the commit log."""
        for topic, puts in list(self._puts.items()):  # it is read in slices
            count, size = self._begin.get(topic, (0, 0))
            yield topic, puts.count - count, puts.size - size

    @property
    def total(self) -> int:
        """Number of messages of all topics."""
        # Clients ask for it often, and there may be many thousand topics.
        return sum([puts.count for puts in self._puts.values()]) - self._begin_total
