"""Pictures of imports can be read: boxes stand apart, and arrows go down around them."""

import re
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from tools import layers
from tools.layers import Box

NAMES = [f"package{number}" for number in range(9)]
BOX = re.compile(r'class="box" x="(-?\d+)" y="(\d+)" width="(\d+)" height="(\d+)"')
POINT = re.compile(r"([MCV])([-\d ]+)")


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, set[str]]:
    """Graphs whose arrows go to later names only."""
    arrows = draw(st.sets(st.sampled_from(list(combinations(NAMES, 2)))))
    return {name: {to for start, to in arrows if start == name} for name in NAMES}


@given(graphs())
@settings(max_examples=50)
def test_boxes_stand_apart_and_arrows_pass_between_them(graph: dict[str, set[str]]) -> None:
    """A reader could not tell which boxes an arrow joins."""
    picture = _draw(graph)
    width, height = map(int, re.findall(r'viewBox="0 0 (\d+) (\d+)"', picture)[0])
    boxes = [tuple(map(int, found)) for found in BOX.findall(picture)]
    assert len(boxes) == len(NAMES)
    assert all(x >= 0 and x + w <= width and y + h <= height for x, y, w, h in boxes)
    for (x, y, w, _), (other, below, _, _) in combinations(sorted(boxes), 2):
        assert y != below or x + w < other
    arrows = re.findall(r'class="line" d="([^"]+)"', picture)
    assert len(arrows) == sum(map(len, graph.values()))
    for arrow in arrows:
        points = _points(arrow)
        assert [y for _, y in points] == sorted(y for _, y in points)
        inside = [(px, py) for px, py in points for x, y, w, h in boxes if x < px < x + w and y < py < y + h]
        assert inside == []


def test_a_picture_is_always_the_same() -> None:
    """`--check` would fail without a change of the imports."""
    graph = {"a": {"c", "b"}, "b": {"d"}, "c": {"d"}, "d": set[str]()}
    backwards = {name: graph[name] for name in reversed(graph)}
    assert _draw(graph) == _draw(backwards)


def test_a_node_without_arrows_stands_near_its_user() -> None:
    """The arrows to it would cross the whole picture."""
    graph = {
        "top": {"leaf", "middle"},
        "middle": {"low"},
        "low": {"end"},
        "end": set[str](),
        "leaf": set[str](),
    }
    places = dict(
        zip(re.findall(r'class="t h"[^>]*>(\w+)<', _draw(graph)), BOX.findall(_draw(graph)), strict=True)
    )
    assert places["leaf"][1] == places["middle"][1]


def _draw(graph: dict[str, set[str]]) -> str:
    boxes = {name: Box("above", name, "a") for name in sorted(graph)}
    return layers.draw("Packages", graph, boxes, {"a": "rocketpy"})


def _points(arrow: str) -> list[tuple[int, int]]:
    """The ends of an arrow's curves and lines."""
    points: list[tuple[int, int]] = []
    for kind, text in POINT.findall(arrow):
        numbers = [int(number) for number in text.split()]
        points.append((points[-1][0], numbers[0]) if kind == "V" else (numbers[-2], numbers[-1]))
    return points
