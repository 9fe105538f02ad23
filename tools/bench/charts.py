"""Charts of docs/benchmarks.md, drawn from the results that docs/benchmarks/ records.

python -m tools.bench.charts    writes docs/images/bench-NAME.svg for each chart of recorded.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tools.import_map import ROOT
from tools.svg import document, text

RECORDED: Final = Path(__file__).with_name("recorded.json")
IMAGES: Final = ROOT / "docs/images"
_WIDTH: Final = 760
_LEFT: Final = 232
_LONGEST: Final = 430
"""Length of the longest bar in pixels; its number is drawn behind it."""
_COLOURS: Final = ("b", "a")


def charts() -> list[dict[str, Any]]:
    """The charts of recorded.json."""
    found: list[dict[str, Any]] = json.loads(RECORDED.read_text("utf-8"))
    return found


def draw(chart: dict[str, Any]) -> str:
    """Draw a chart as SVG, with a bar for each value. All bars begin at 0 and have the same scale."""
    largest = max(value for row in chart["rows"] for value in row["values"])
    parts = [text(20, 30, chart["title"], "t h")]
    place = 20
    for colour, name in zip(_COLOURS, chart["series"], strict=True):
        parts.append(f'<rect class="{colour}" x="{place}" y="42" width="11" height="11" rx="2"/>')
        parts.append(text(place + 17, 52, name, "m s"))
        place += 44 + round(6.8 * len(name))
    top = 72
    for row in chart["rows"]:
        parts.append(text(_LEFT - 12, top + 20, row["label"], "t s", "end"))
        for colour, value in zip(_COLOURS, row["values"], strict=True):
            width = max(1.0, _LONGEST * value / largest)
            parts.append(
                f'<rect class="{colour}" x="{_LEFT}" y="{top}" width="{width:.1f}" height="14" rx="2"/>'
            )
            parts.append(text(_LEFT + width + 7, top + 11.5, f"{value:,}", "m s"))
            top += 16
        top += 12
    return document(_WIDTH, top + 6, chart["title"], parts)


def main() -> None:
    """Draw all charts."""
    for chart in charts():
        path = IMAGES / f"bench-{chart['name']}.svg"
        path.write_text(draw(chart), "utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
