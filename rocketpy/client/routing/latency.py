"""Latency fault tolerance: leave a broker out for a while after it was slow or failed. Pure values.

Two rows of numbers rule it. An attempt that took at least the n-th latency keeps its broker out for the n-th
time; a failed one counts as a latency of its own, 30 s. While every broker is out, one of the better half is
used, in turn.

Source: RocketMQ 4.6 MQFaultStrategy, LatencyFaultToleranceImpl. Differs: RocketMQ, once an attempt has
failed, looks only at queues of the broker that failed; here that one is avoided.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rocketpy.client.routing.routes import select_queue
from rocketpy.protocol.bodies import MessageQueue


@dataclass(slots=True)
class BrokerLatencies:
    """What is known of the brokers' latencies, and the choice of a queue by it.

    latency_ms, away_ms: the two rows, of equal length, the first one rising. failed_ms: the latency that a
    failed attempt counts as. All times are in ms, `now_ms` by one steady clock.
    """

    latency_ms: Sequence[int]
    away_ms: Sequence[int]
    failed_ms: int
    _seen: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Broker name to its last latency and the time from which on it is available again."""
    _turn: int = 0

    def update(self, broker_name: str, latency_ms: float, now_ms: float, *, failed: bool = False) -> None:
        """Note how long an attempt took, or that it failed."""
        latency_ms = self.failed_ms if failed else latency_ms
        place = bisect_right(self.latency_ms, latency_ms)
        away_ms = self.away_ms[place - 1] if place else 0
        self._seen[broker_name] = (latency_ms, now_ms + away_ms)

    def is_available(self, broker_name: str, now_ms: float) -> bool:
        """Whether a broker is not left out now."""
        seen = self._seen.get(broker_name)
        return seen is None or now_ms >= seen[1]

    def select(
        self, queues: Sequence[MessageQueue], turn: int, now_ms: float, avoid_broker: str | None = None
    ) -> MessageQueue:
        """The queue whose turn it is among those of available brokers; see `select_queue`."""
        names = {queue.broker_name for queue in queues}
        available = {name: self.is_available(name, now_ms) for name in names}
        if all(available.values()):
            return select_queue(queues, turn, avoid_broker)
        names = {name for name, good in available.items() if good and name != avoid_broker}
        if not names:
            names = {self._least_bad(sorted(set(available) - {avoid_broker}) or sorted(available), now_ms)}
        count = len(queues)
        return next(
            queue
            for queue in (queues[(turn + step) % count] for step in range(count))
            if queue.broker_name in names
        )

    def chooser(self, now_ms: float) -> Callable[[Sequence[MessageQueue], int, str | None], MessageQueue]:
        """`select` at one moment."""
        return lambda queues, turn, avoid_broker: self.select(queues, turn, now_ms, avoid_broker)

    def _least_bad(self, names: Sequence[str], now_ms: float) -> str:
        """One of the better half: available ones first, then by latency, then by who is back soonest."""

        def badness(name: str) -> tuple[bool, float, float]:
            return (not self.is_available(name, now_ms), *self._seen.get(name, (0.0, 0.0)))

        ranked = sorted(names, key=badness)
        self._turn += 1
        return ranked[self._turn % max(1, len(ranked) // 2)]
