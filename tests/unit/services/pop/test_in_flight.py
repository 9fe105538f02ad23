"""InFlight: the check points whose time is over."""

from __future__ import annotations

from rocketpy_broker.services.pop.formats import CheckPoint, PointKey
from rocketpy_broker.services.pop.in_flight import InFlight


def test_one_call_looks_at_a_limited_number_of_check_points() -> None:
    """Consumers choose the times: a million that end together would stop the event loop."""
    table = InFlight()
    for number in range(5000):
        point = CheckPoint(PointKey("T", "g", 0, number, number), 10_000 - number % 2000, [0], 0, "b")
        table.add(point, number, number)
    calls = 0
    postponed: list[CheckPoint] = []
    while (due_ms := table.due_ms()) is not None and due_ms <= 20_000:
        found = 0
        for point in table.due(20_000):
            found += 1
            postponed.append(point)
            table.postpone(point, 30_000)
        assert 0 < found <= 1000
        calls += 1
    assert calls == 5
    assert {point.key.start_offset for point in postponed} == set(range(5000))


def test_what_is_due_comes_in_the_order_of_the_times() -> None:
    """A job would overtake one that is due before."""
    table = InFlight()
    for number, invisible_ms in enumerate((900, 150, 170, 110)):
        table.add(CheckPoint(PointKey("T", "g", 0, number, 0), invisible_ms, [0], 0, "b"), number, 0)
    found = []
    for point in table.due(1000):
        found.append(point.revive_ms)
        table.remove(point)
    assert found == [110, 150, 170, 900]
