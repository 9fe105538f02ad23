"""How telemetry is found and enabled. Each test runs a process, since providers are global."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from rocketpy.telemetry import ENTRY_POINT_GROUP
from tests.otel.recorder import run_alone
from tools.import_map import ROOT

PREAMBLE = """
import asyncio, sys
from rocketpy import Message, Producer
from rocketpy.errors import ConfigInvalid
from rocketpy_broker.embedded import EmbeddedCluster

async def send(cluster, count=1, **settings):
    async with Producer("g", cluster.namesrv_address, **settings) as producer:
        for _ in range(count):
            await producer.send(Message("T", b"x"))
"""

WITHOUT = """
sys.modules["opentelemetry"] = None  # as if it were not installed

async def main():
    async with EmbeddedCluster(transport="memory") as cluster:
        await send(cluster)
        try:
            await send(cluster, telemetry=True)
        except ConfigInvalid as error:
            assert "rocketpy-mq[otel]" in str(error), error
        else:
            raise AssertionError("no error")
    assert not [name for name in sys.modules if name.startswith("opentelemetry.")], "something was imported"
"""

API_ONLY = """
from opentelemetry import trace

calls = []
for tracer in (trace.NoOpTracer, trace.ProxyTracer):
    tracer.start_span = lambda *a, **k: calls.append(a)

async def main():
    async with EmbeddedCluster(transport="memory") as cluster:
        async with Producer("g", cluster.namesrv_address) as producer:
            await asyncio.gather(*[producer.send(Message("T", b"x")) for _ in range(100)])
            assert calls == [], "a span was asked of an API that does nothing"
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import SimpleSpanProcessor
            from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
            exporter, provider = InMemorySpanExporter(), TracerProvider()
            provider.add_span_processor(SimpleSpanProcessor(exporter))
            trace.set_tracer_provider(provider)
            await producer.send(Message("T", b"late"))
            assert [span.name for span in exporter.get_finished_spans()] == ["send T"]
        await send(cluster)
        assert len(exporter.get_finished_spans()) == 2
        await send(cluster, telemetry=False)
        assert len(exporter.get_finished_spans()) == 2
"""

NEVER_IDLE = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

async def main():
    reader = InMemoryMetricReader()
    async with EmbeddedCluster(transport="memory") as cluster, asyncio.timeout(60):
        async with Producer("g", cluster.namesrv_address) as producer:
            stop = asyncio.Event()
            async def busy():
                while not stop.is_set():
                    await producer.send(Message("T", b"x"))
            busy_ones = [asyncio.create_task(busy()) for _ in range(4)]
            await asyncio.sleep(0)
            metrics.set_meter_provider(MeterProvider([reader]))
            while reader.get_metrics_data() is None:
                await asyncio.sleep(0.01)
            stop.set()
            await asyncio.gather(*busy_ones)
"""


@pytest.mark.parametrize(
    "program", [WITHOUT, API_ONLY, NEVER_IDLE], ids=["without", "api only", "never idle"]
)
def test_telemetry_is_enabled_when_an_exporter_is_configured(tmp_path: Path, program: str) -> None:
    """Users would have to enable it in code, pay for it without an exporter, or not be able to send."""
    info = tmp_path / "site" / "announced-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: announced\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\nopentelemetry = {_announced()}\n")
    program = f"{PREAMBLE}\nsys.path.insert(0, {str(info.parent)!r})\n{program}\nasyncio.run(main())\n"
    run_alone(program)


def _announced() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["entry-points"][ENTRY_POINT_GROUP]["opentelemetry"])


def test_announced_entry_points_exist() -> None:
    """An installed package would announce something that cannot be loaded."""
    import rocketpy_otel  # noqa: PLC0415 - what the entry point names

    module, _, name = _announced().partition(":")
    assert module == rocketpy_otel.__name__
    assert callable(getattr(rocketpy_otel, name))
