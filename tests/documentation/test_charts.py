"""The charts of the benchmarks page."""

from __future__ import annotations

from typing import Any

import pytest

from tools.bench.charts import IMAGES, charts, draw
from tools.import_map import ROOT


@pytest.mark.parametrize("chart", [pytest.param(chart, id=chart["name"]) for chart in charts()])
def test_a_chart_shows_what_the_pages_record(chart: dict[str, Any]) -> None:
    """A chart could show figures that nobody measured."""
    assert f"images/bench-{chart['name']}.svg" in (ROOT / "docs/benchmarks.md").read_text("utf-8")
    pages = "".join(path.read_text("utf-8") for path in (ROOT / "docs/benchmarks").iterdir())
    for row in chart["rows"]:
        for value in row["values"]:
            assert f" {value:,} " in pages, row["label"]
    assert (IMAGES / f"bench-{chart['name']}.svg").read_text("utf-8") == draw(chart)
