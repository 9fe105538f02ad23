"""The page /metrics: the metrics of a broker for Prometheus. It needs the extra ``metrics``.

A thread renders the page from values that were read in the event loop. No metric contains a message body or a
secret.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from rocketpy.telemetry.plugin import Measured
from rocketpy_broker.metrics.http_server import Page

NEEDS_PACKAGE: Final = '/metrics needs the package prometheus-client: pip install "rocketpy-mq[metrics]"'
_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_CACHE_FACTOR: Final = 10
"""A page is cached for this multiple of its rendering time, so scrapes take less than a tenth of the time."""


def is_available() -> bool:
    """Whether the package prometheus-client is installed."""
    return importlib.util.find_spec("prometheus_client") is not None


def exposition(measured: Sequence[Measured]) -> bytes:
    """Return metrics in Prometheus' text format. Raises ImportError without the package prometheus-client.

    measured: pairs of a metric and its values by labels.
    """
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - an extra
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415
    from prometheus_client.registry import Collector  # noqa: PLC0415

    class _MeasuredMetrics(Collector):
        def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
            for metric, values in measured:
                kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = kind(metric.name, metric.description, labels=metric.labels)
                for labels, value in values:
                    family.add_metric(labels, value)
                yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_MeasuredMetrics())
    return bytes(generate_latest(registry))


class MetricsPage:
    """Renders the page from the metrics that `collect` returns. Requests at the same time share a page."""

    def __init__(self, collect: Callable[[], Awaitable[Sequence[Measured]]]) -> None:
        self._collect = collect
        self._page: Page | None = None
        self._fresh_until = 0.0
        self._rendering = asyncio.Lock()

    async def __call__(self) -> Page:
        """Return the page, which may be cached."""
        async with self._rendering:
            begin = time.monotonic()
            if self._page is None or begin >= self._fresh_until:
                if not is_available():
                    return Page("501 Not Implemented", f"{NEEDS_PACKAGE}\n".encode())
                text = await asyncio.to_thread(exposition, await self._collect())
                self._page = Page("200 OK", text, _CONTENT_TYPE)
                end = time.monotonic()
                self._fresh_until = end + (end - begin) * _CACHE_FACTOR
            return self._page
