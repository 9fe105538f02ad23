"""The quantiles that rocketpy bench prints."""

from __future__ import annotations

from rocketpy_cli.commands.bench import quantiles


def test_quantiles_are_values_that_occurred() -> None:
    """A latency could be printed that no message had, or the slowest one be left out."""
    found = quantiles(list(map(float, range(999, -1, -1))))
    assert found == {"p50": 500.0, "p95": 950.0, "p99": 990.0, "p99_9": 999.0, "max": 999.0}
    assert set(quantiles([7.0]).values()) == {7.0}
    assert set(quantiles([]).values()) == {0.0}
