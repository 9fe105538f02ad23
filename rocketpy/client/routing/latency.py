"""Latency fault tolerance: avoid a broker for a while after it was slow or failed.

`LatencyConfig` has two lists of numbers. After an attempt that took at least the n-th of `latency_ms`, the
broker is avoided for the n-th of `not_available_ms`. A failed attempt counts as a latency of `failed_ms`.
While every broker is avoided, the faster half of them is used, round-robin.

Source: RocketMQ 4.6 MQFaultStrategy, LatencyFaultToleranceImpl. Differs: after a failed attempt RocketMQ
considers only queues of the failed broker; here it is avoided.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rocketpy.client.routing.routes import select_queue
from rocketpy.protocol.bodies import MessageQueue


@dataclass(slots=True)
class BrokerLatencies:
    """The latest latencies of brokers, and the choice of a queue by them. All times are in ms, `now_ms` from
    a monotonic clock.
    """

    latency_ms: Sequence[int]
    """Latencies, in ascending order; `not_available_ms` has as many elements."""
    not_available_ms: Sequence[int]
    """How long a broker is not used after an attempt with at least that latency."""
    failed_ms: int
    """The latency of a failed attempt."""
    _seen: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Broker name to its last latency and the time when it is available again, in ms."""
    _next_index: int = 0
    """Position of the round robin while every broker is avoided."""

    def update(self, broker_name: str, latency_ms: float, now_ms: float, *, failed: bool = False) -> None:
        """Record the latency of an attempt. failed: record `failed_ms` instead of `latency_ms`."""
        latency_ms = self.failed_ms if failed else latency_ms
        index = bisect_right(self.latency_ms, latency_ms)
        not_available_ms = self.not_available_ms[index - 1] if index else 0
        self._seen[broker_name] = (latency_ms, now_ms + not_available_ms)

    def is_available(self, broker_name: str, now_ms: float) -> bool:
        """Return whether a broker may be used at this time."""
        _, available_ms = self._seen.get(broker_name, (0.0, now_ms))
        return now_ms >= available_ms

    def select(
        self, queues: Sequence[MessageQueue], index: int, now_ms: float, avoid_broker: str | None = None
    ) -> MessageQueue:
        """Return the next queue of an available broker; see `select_queue`."""
        names = {queue.broker_name for queue in queues}
        available = {name: self.is_available(name, now_ms) for name in names}
        if all(available.values()):
            return select_queue(queues, index, avoid_broker)
        names = {name for name, good in available.items() if good and name != avoid_broker}
        if not names:
            names = {self._least_slow(sorted(set(available) - {avoid_broker}) or sorted(available), now_ms)}
        count = len(queues)
        return next(
            queue
            for queue in (queues[(index + step) % count] for step in range(count))
            if queue.broker_name in names
        )

    def chooser(self, now_ms: float) -> Callable[[Sequence[MessageQueue], int, str | None], MessageQueue]:
        """Return `select` bound to a time."""
        return lambda queues, index, avoid_broker: self.select(queues, index, now_ms, avoid_broker)

    def _least_slow(self, names: Sequence[str], now_ms: float) -> str:
        """Return a broker of the faster half, round-robin.

        Brokers are sorted by availability, then by latency, then by the time when they are available again.
        """

        def slowness(name: str) -> tuple[bool, float, float]:
            return (not self.is_available(name, now_ms), *self._seen.get(name, (0.0, 0.0)))

        ranked = sorted(names, key=slowness)
        self._next_index += 1
        return ranked[self._next_index % max(1, len(ranked) // 2)]
