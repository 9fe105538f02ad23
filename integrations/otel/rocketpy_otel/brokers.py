"""The metrics of brokers in this process, as observable instruments."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from rocketpy import __version__
from rocketpy.telemetry import Measured, Metric
from rocketpy_otel.instruments import SCOPE

__all__ = ["BrokerInstruments"]

_FRESH_S: Final = 0.5
"""A reader asks each instrument by itself; what was collected for the first serves the others."""

Collect = Callable[[], Sequence[Measured]]


class BrokerInstruments:
    """One instrument a metric, whichever broker it comes from. May be used in any thread."""

    def __init__(self, provider: MeterProvider) -> None:
        self._meter = provider.get_meter(SCOPE, __version__)
        self._brokers: dict[int, Collect] = {}
        self._made: set[str] = set()
        self._lock = threading.Lock()
        self._measured: dict[str, list[Measured]] = {}
        self._collected_s = float("-inf")

    def add(self, collect: Collect) -> Callable[[], None]:
        """Report a broker; returns what ends that."""
        key = id(collect)
        self._brokers[key] = collect
        for measured in collect():
            self._make(measured.metric)

        def end() -> None:
            self._brokers.pop(key, None)

        return end

    def _make(self, metric: Metric) -> None:
        if metric.name in self._made:
            return
        self._made.add(metric.name)
        make = (
            self._meter.create_observable_counter
            if metric.kind == "counter"
            else self._meter.create_observable_gauge
        )
        make(metric.name, [partial(self._observe, metric.name)], metric.unit, metric.description)

    def _observe(self, name: str, _options: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            if time.monotonic() - self._collected_s > _FRESH_S:
                self._collect()
            found = self._measured.get(name, [])
        return [
            Observation(value, dict(zip(metric.labels, labels, strict=True)))
            for metric, values in found
            for labels, value in values
        ]

    def _collect(self) -> None:
        self._measured = {}
        for collect in list(self._brokers.values()):
            for measured in collect():
                self._measured.setdefault(measured.metric.name, []).append(measured)
        self._collected_s = time.monotonic()
