"""An HTTP endpoint with the broker's metrics for Prometheus: GET /metrics. Needs the extra ``metrics``.

It is served by the broker's event loop, so what is read is consistent. Plain HTTP without a password: keep it
to this machine, or put a proxy before it. No metric holds a body or a secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rocketpy.errors import ConfigInvalid
from rocketpy.telemetry import Measured

__all__ = ["MetricsServer", "exposition"]

log = logging.getLogger("rocketpy.broker.metrics")

_REQUEST_BYTES_MAX: Final = 8192
_REQUEST_S_MAX: Final = 5.0
_CONNECTIONS_MAX: Final = 32
"""One more is refused: a scraper has one."""


def exposition(measured: Sequence[Measured]) -> bytes:
    """The metrics in Prometheus' text format. Raises ConfigInvalid without the package prometheus-client."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - an extra
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415
        from prometheus_client.registry import Collector  # noqa: PLC0415
    except ImportError:
        raise ConfigInvalid(
            'metricsPort needs the package prometheus-client: pip install "rocketpy-mq[metrics]"'
        ) from None

    class _Now(Collector):
        def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
            for metric, values in measured:
                kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = kind(metric.name, metric.description, labels=metric.labels)
                for labels, value in values:
                    family.add_metric(labels, value)
                yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Now())
    return bytes(generate_latest(registry))


class MetricsServer:
    """Serves what `collect` returns. port: 0 for any free one; `address` tells which."""

    def __init__(self, host: str, port: int, collect: Callable[[], Sequence[Measured]]) -> None:
        self._host = host
        self._port = port
        self._collect = collect
        self._server: asyncio.Server | None = None
        self._busy = 0

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        if self._server is None or not self._server.sockets:
            return self._host, self._port
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def start(self) -> None:
        """Listen. Raises ConfigInvalid without prometheus-client, OSError."""
        exposition([])  # is the package here?
        try:
            self._server = await asyncio.start_server(
                self._serve, self._host, self._port, limit=_REQUEST_BYTES_MAX
            )
        except OSError as error:
            raise OSError(error.errno, f"metricsPort {self._port}: {error.strerror}") from None
        log.info("metrics at http://%s:%d/metrics", *self.address)

    async def close(self) -> None:
        """Stop."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._busy += 1
        try:
            with contextlib.suppress(
                OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
            ):
                async with asyncio.timeout(_REQUEST_S_MAX):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head))
                    await writer.drain()
        finally:
            self._busy -= 1
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if self._busy > _CONNECTIONS_MAX:
            return _response("503 Service Unavailable", b"too many at once\n")
        if method not in {b"GET", b"HEAD"}:
            return _response("405 Method Not Allowed", b"GET only\n")
        if path not in {b"/metrics", b"/"}:
            return _response("404 Not Found", b"metrics are at /metrics\n")
        body = exposition(self._collect())
        return _response("200 OK", body, is_head=method == b"HEAD")


def _response(status: str, body: bytes, *, is_head: bool = False) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if is_head else body)
