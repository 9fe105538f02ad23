"""Charts: computes the points of SVG lines from series of samples. Templates draw them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from rocketpy_cli.console.sampler import Sample

WIDTH: Final = 600
HEIGHT: Final = 120
_TOP_MARGIN: Final = 4
"""Space above the highest value, so that a line is not cut off."""


class Line(NamedTuple):
    """One line of a chart."""

    name: str
    points: str
    """Those of an SVG polyline."""
    latest: float
    """The last value."""


class Chart(NamedTuple):
    """Lines over a common time and a common scale from 0 to `top`."""

    title: str
    lines: tuple[Line, ...]
    top: float
    begin_s: float
    """Seconds since 1970."""
    end_s: float
    """Seconds since 1970."""


def draw(title: str, series: Mapping[str, Iterable[Sample]]) -> Chart | None:
    """Return a chart, or None while no series has two samples."""
    data = {name: list(samples) for name, samples in series.items()}
    data = {name: samples for name, samples in data.items() if len(samples) > 1}
    if not data:
        return None
    begin = min(samples[0].time_s for samples in data.values())
    end = max(samples[-1].time_s for samples in data.values())
    top = max(1.0, *(sample.value for samples in data.values() for sample in samples))
    lines = tuple(
        Line(
            name,
            " ".join(_point(sample, begin, end - begin or 1, top) for sample in samples),
            samples[-1].value,
        )
        for name, samples in data.items()
    )
    return Chart(title, lines, top, begin, end)


def _point(sample: Sample, begin: float, span: float, top: float) -> str:
    x = (sample.time_s - begin) / span * WIDTH
    y = HEIGHT - max(sample.value, 0) / top * (HEIGHT - _TOP_MARGIN)
    return f"{x:.1f},{y:.1f}"
