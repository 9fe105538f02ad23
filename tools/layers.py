"""Draws a graph without cycles as boxes in rows: each box is above all boxes that its arrows point to.

An arrow that passes a row has a place of its own in it, so that it goes around the boxes. The same graph
always gives the same picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from statistics import fmean
from typing import Final, NamedTuple

from tools import svg

__all__ = ["Box", "draw"]

_SWEEPS: Final = 30
_BOX_HEIGHT: Final = 36
_ROW_HEIGHT: Final = 76
_MARGIN: Final = 16
_GAP: Final = 12
_PASSING_WIDTH: Final = 4

Graph = Mapping[str, AbstractSet[str]]


class Box(NamedTuple):
    """What a box shows: a small line, a name below it, and a stripe with the CSS class `kind` of `svg`."""

    above: str
    name: str
    kind: str

    @property
    def width(self) -> int:
        """The width in pixels."""
        return round(26 + max(6.4 * len(self.above), 8.4 * len(self.name)))


class _Place(NamedTuple):
    """A place in a row: a node (its own target), or the arrow from `node` to `target` as it passes."""

    row: int
    node: str
    target: str


def draw(title: str, graph: Graph, boxes: Mapping[str, Box], legend: Mapping[str, str]) -> str:
    """Return an SVG document. boxes: one for each node. legend: CSS class of a stripe -> what it means.

    Raises RecursionError if the graph has a cycle.
    """
    routes = _routes(graph)
    rows = _ordered(routes, boxes)
    widths = {
        place: boxes[place.node].width if place.node == place.target else _PASSING_WIDTH
        for row in rows
        for place in row
    }
    across = _spread(rows, routes, widths)
    left = min(across[place] - widths[place] / 2 for place in across) - _MARGIN
    right = max(across[place] + widths[place] / 2 for place in across) + _MARGIN
    at = {
        place: (round(x - left), 44 + place.row * _ROW_HEIGHT)
        for place, x in sorted(across.items(), key=lambda item: item[0])
    }
    parts = [_arrow([at[place] for place in route]) for route in routes if len(route) > 1]
    for place, (x, y) in at.items():
        if place.node == place.target:
            parts += _box(boxes[place.node], x, y)
    x = _MARGIN
    for kind, meaning in legend.items():
        parts.append(f'<rect class="{kind}" x="{x}" y="14" width="12" height="12" rx="2"/>')
        parts.append(svg.text(x + 18, 24, meaning, "m s"))
        x += 40 + round(6.4 * len(meaning))
    height = 44 + (len(rows) - 1) * _ROW_HEIGHT + _BOX_HEIGHT + _MARGIN
    return svg.document(max(round(right - left), x), height, title, parts)


def _routes(graph: Graph) -> list[list[_Place]]:
    """Return the places of each arrow from its beginning to its end, and the place of each node alone."""
    heights = _heights(graph)
    top = max(heights.values(), default=0)
    routes = [[_Place(top - heights[node], node, node)] for node in sorted(heights)]
    for node in sorted(graph):
        for other in sorted(graph[node]):
            passed = range(top - heights[node] + 1, top - heights[other])
            routes.append([
                _Place(top - heights[node], node, node),
                *(_Place(row, node, other) for row in passed),
                _Place(top - heights[other], other, other),
            ])  # fmt: skip
    return routes


def _heights(graph: Graph) -> dict[str, int]:
    """Return how many rows each node is above the lowest one."""
    heights: dict[str, int] = {}
    users: dict[str, list[str]] = {}

    def height(node: str) -> int:
        if node not in heights:
            heights[node] = max((height(other) + 1 for other in graph.get(node, ())), default=0)
        return heights[node]

    for node in sorted(graph):
        height(node)
        for other in sorted(graph[node]):
            users.setdefault(other, []).append(node)
    # A node with more arrows from above than to below makes them shorter when it is higher.
    for node in sorted(heights, key=lambda node: (-heights[node], node)):
        if len(users.get(node, ())) > len(graph.get(node, ())):
            heights[node] = min(heights[user] for user in users[node]) - 1
    return {node: heights[node] - min(heights.values()) for node in heights}


def _joined(routes: Iterable[Sequence[_Place]]) -> dict[_Place, tuple[list[_Place], list[_Place]]]:
    """Place -> the places above and below that an arrow joins with it."""
    joined: dict[_Place, tuple[list[_Place], list[_Place]]] = {}
    for route in routes:
        for place in route:
            joined.setdefault(place, ([], []))
        for upper, lower in pairwise(route):
            joined[upper][1].append(lower)
            joined[lower][0].append(upper)
    return joined


def _ordered(routes: Sequence[Sequence[_Place]], boxes: Mapping[str, Box]) -> list[list[_Place]]:
    """Return the rows from the top, in the order with the fewest crossings found.

    Each sweep orders each row by the middle of its neighbours in the row before it.
    """
    joined = _joined(routes)
    rows: list[list[_Place]] = [[] for _ in range(max(place.row for place in joined) + 1)]
    for place in sorted(joined, key=lambda place: (boxes[place.node].kind, place)):
        rows[place.row].append(place)
    best, fewest = [row.copy() for row in rows], _crossings(rows, joined)
    for sweep in range(_SWEEPS):
        side = sweep % 2
        for row in reversed(rows) if side else rows:
            order = {place: number / len(line) for line in rows for number, place in enumerate(line)}
            row.sort(
                key=lambda place: fmean([order[other] for other in joined[place][side]] or [order[place]])
            )
        crossings = _crossings(rows, joined)
        if crossings < fewest:
            best, fewest = [row.copy() for row in rows], crossings
    return best


def _crossings(
    rows: Sequence[Sequence[_Place]], joined: Mapping[_Place, tuple[list[_Place], list[_Place]]]
) -> int:
    """Count the pairs of arrows that cross between two rows."""
    order = {place: number for row in rows for number, place in enumerate(row)}
    count = 0
    for row in rows:
        lines = [(order[place], order[lower]) for place in row for lower in joined[place][1]]
        count += sum(a < c and b > d for a, b in lines for c, d in lines)
    return count


def _spread(
    rows: Sequence[Sequence[_Place]], routes: Iterable[Sequence[_Place]], widths: Mapping[_Place, int]
) -> dict[_Place, float]:
    """Return how far right the middle of each place is, in pixels: near its neighbours, and in order."""
    joined = _joined(routes)
    across: dict[_Place, float] = {}
    for row in rows:
        across.update(_placed(row, [0.0] * len(row), widths))
    for sweep in range(_SWEEPS):
        for row in reversed(rows) if sweep % 2 else rows:
            wanted = [
                fmean([across[other] for side in joined[place] for other in side] or [across[place]])
                for place in row
            ]
            across.update(_placed(row, wanted, widths))
    return across


def _placed(
    row: Sequence[_Place], wanted: Sequence[float], widths: Mapping[_Place, int]
) -> dict[_Place, float]:
    """Return places as near to the wanted ones as order and widths allow, by the least sum of squares."""
    # Without the widths before it, a place only has to be no further left than the one before. Places that
    # want to overlap form a block, at the mean of what they want.
    offsets = [0.0]
    for before, after in pairwise(row):
        offsets.append(offsets[-1] + (widths[before] + widths[after]) / 2 + _GAP)
    blocks: list[list[float]] = []
    for want, offset in zip(wanted, offsets, strict=True):
        blocks.append([want - offset])
        while len(blocks) > 1 and fmean(blocks[-2]) > fmean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    means = [fmean(block) for block in blocks for _ in block]
    return {place: mean + offset for place, mean, offset in zip(row, means, offsets, strict=True)}


def _arrow(points: Sequence[tuple[int, int]]) -> str:
    """Draw an arrow from the lower edge of the first box to the upper edge of the last one."""
    x, y = points[0]
    path = f"M{x} {y + _BOX_HEIGHT}"
    for number, (to, top) in enumerate(points[1:], 2):
        start, end = y + _BOX_HEIGHT, top - (5 if number == len(points) else 0)
        path += f"C{x} {(start + end) // 2} {to} {(start + end) // 2} {to} {end}"
        if number < len(points):
            path += f"V{top + _BOX_HEIGHT}"
        x, y = to, top
    head = f"M{x - 4} {y - 7}L{x} {y}L{x + 4} {y - 7}z"
    return f'<path class="line" d="{path}"/><path class="head" d="{head}"/>'


def _box(box: Box, middle: int, top: int) -> list[str]:
    left = middle - box.width // 2
    above = [svg.text(left + 14, top + 13, box.above, "m s")] if box.above else []
    return [
        f'<rect class="box" x="{left}" y="{top}" width="{box.width}" height="{_BOX_HEIGHT}" rx="4"/>',
        f'<rect class="{box.kind}" x="{left}" y="{top}" width="5" height="{_BOX_HEIGHT}" rx="2"/>',
        *above,
        svg.text(left + 14, top + (29 if above else 23), box.name, "t h"),
    ]
