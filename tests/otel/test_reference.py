"""docs/reference/telemetry.md contains every attribute, span and metric name."""

from __future__ import annotations

from rocketpy_broker.metrics import catalog
from rocketpy_otel import names
from tools.import_map import ROOT

PAGE = (ROOT / "docs/reference/telemetry.md").read_text("utf-8")


def test_every_name_is_in_the_reference() -> None:
    """Users would find attributes and metrics that nothing explains."""
    texts = [value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)]
    assert len(texts) > 25
    assert [text for text in texts if f"`{text}`" not in PAGE] == []


def test_every_broker_metric_is_in_the_reference() -> None:
    """Operators would have to guess the meaning of a metric, and its labels."""
    for metric in catalog.CATALOG:
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{metric.name}` ")]
        assert f"| {metric.kind} | `{metric.unit}` |" in row
        assert all(f"`{label}`" in row for label in metric.labels[2:])
