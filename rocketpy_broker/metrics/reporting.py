"""Reports the metrics of a broker to Prometheus, if a port is set, and to installed telemetry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from rocketpy.telemetry.plugin import Measured, find_telemetry
from rocketpy_broker.metrics.collecting import MetricSources, collect, collect_in_slices
from rocketpy_broker.metrics.http_server import HttpServer
from rocketpy_broker.metrics.prometheus import NEEDS_PACKAGE, MetricsPage, is_available

log = logging.getLogger("rocketpy.broker.metrics")

_COLLECT_S_MAX: Final = 5.0


class MetricsReporter:
    """Reports the metrics of one broker from `start` to `close`. server: gets the page for Prometheus."""

    def __init__(self, sources: MetricSources, server: HttpServer | None) -> None:
        self._sources = sources
        self._loop = asyncio.get_running_loop()
        self._stop_observing: Callable[[], None] | None = None
        self.server = server

    def start(self) -> None:
        """Start reporting."""
        if self.server is not None:
            self.server.pages["/metrics"] = MetricsPage(lambda: collect_in_slices(self._sources))
            if not is_available():
                log.warning("%s", NEEDS_PACKAGE)
        telemetry = find_telemetry(None)
        if telemetry is not None:
            try:
                self._stop_observing = telemetry.observe_broker(self.collect_from_any_thread)
            except Exception:  # a failing plugin must not prevent the start of a broker
                log.exception("telemetry cannot observe broker %s", self._sources.config.name)

    def close(self) -> None:
        """Stop reporting."""
        if self._stop_observing is not None:
            self._stop_observing()

    def collect_from_any_thread(self) -> Sequence[Measured]:
        """Return the metrics, in any thread; none if the broker's event loop is closed, or hangs for 5 s."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            return collect(self._sources)

        work = collect_in_slices(self._sources)
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(_COLLECT_S_MAX)
        except (RuntimeError, TimeoutError):
            work.close()
            return []
