"""Results of a run: samples by load and server, medians, spread, and the ratio to the baseline."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class Key(NamedTuple):
    """A row of the table: the load (such as "java client, 16 threads") and the server."""

    load: str
    server: str


@dataclass(frozen=True)
class Sample:
    """One measurement: messages per second, latencies and CPU costs."""

    rate: float
    failed: int = 0
    p50_us: float = 0.0
    p99_us: float = 0.0
    broker_cpu_us: float = 0.0  # per message
    client_cpu_us: float = 0.0  # per message
    broker_resident_bytes: int = 0
    slave_cpu_us: float = 0.0  # per message, of a pair's slave


@dataclass
class Results:
    """All samples so far. notes: other measurements, which are saved in the file."""

    baseline: str
    samples: dict[Key, list[Sample]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    def add(self, key: Key, sample: Sample) -> None:
        """Add the sample of a round."""
        self.samples.setdefault(key, []).append(sample)

    def table(self) -> str:
        """A table with a line for each load and server: median rate, spread, ratio to the baseline."""
        heads: tuple[str, ...] = (
            "load",
            "server",
            "rounds",
            "msgs/s",
            "min..max",
            "IQR",
            "ratio",
            "p50 ms",
            "p99 ms",
            "broker",
            "client",
            "slave",
        )
        rows = [self._row(key) for key in self.samples]
        if not any(sample.slave_cpu_us for samples in self.samples.values() for sample in samples):
            heads, rows = heads[:-1], [row[:-1] for row in rows]
        note = (
            f"{', '.join(heads[9:])}: CPU microseconds a message; ratio: of medians, to that load on the "
            f"{self.baseline}"
        )
        return f"{align([heads, *rows])}\n{note}"

    def rate(self, key: Key) -> float:
        """Median messages per second."""
        return _median(sample.rate for sample in self.samples[key])

    def ratio(self, key: Key) -> float | None:
        """Median rate divided by the baseline's under the same load; None without a baseline."""
        base = self.samples.get(Key(key.load, self.baseline))
        if not base or key.server == self.baseline:
            return None
        return self.rate(key) / _median(s.rate for s in base)

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Write everything as JSON."""
        rows = [
            {**key._asdict(), "ratio": self.ratio(key), "samples": [asdict(sample) for sample in samples]}
            for key, samples in self.samples.items()
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"about": {**about, **self.notes}, "rows": rows}, indent=1) + "\n")

    def _row(self, key: Key) -> tuple[str, ...]:
        samples = self.samples[key]
        rates = sorted(sample.rate for sample in samples)
        ratio, failed = self.ratio(key), sum(sample.failed for sample in samples)
        return (
            key.load,
            key.server + (f" ({failed} FAILED)" if failed else ""),
            str(len(samples)),
            f"{statistics.median(rates):,.0f}",
            f"{rates[0]:,.0f}..{rates[-1]:,.0f}",
            f"{_quartile_range(rates):,.0f}",
            "" if ratio is None else f"{ratio:.2f}",
            _milliseconds(s.p50_us for s in samples),
            _milliseconds(s.p99_us for s in samples),
            f"{_median(s.broker_cpu_us for s in samples):.1f}",
            f"{_median(s.client_cpu_us for s in samples):.1f}",
            f"{_median(s.slave_cpu_us for s in samples):.1f}",
        )


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def _milliseconds(micros: Iterable[float]) -> str:
    middle = _median(micros)
    return f"{middle / 1000:.3f}" if middle else ""  # not every load reports every latency


def _quartile_range(rates: list[float]) -> float:
    if len(rates) < 2:
        return 0.0
    quartiles = statistics.quantiles(rates, n=4, method="inclusive")
    return quartiles[2] - quartiles[0]


def align(rows: Sequence[tuple[str, ...]]) -> str:
    """A table: the first two columns to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(_line(row, widths) for row in rows)


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    words = row[:2]
    left = "  ".join(f"{text:<{width}}" for text, width in zip(words, widths, strict=False))
    right = "  ".join(f"{text:>{width}}" for text, width in zip(row[2:], widths[2:], strict=True))
    return f"{left}  {right}".rstrip()
