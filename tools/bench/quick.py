"""`python -m tools.bench.quick`: CPU time per message of this checkout in three minutes, as a JSON file.

`python -m tools.bench.quick A.json B.json` compares two such files: the ratio of medians for each load and
process, and the spread of the rounds. It exits with 1 if a row of B is slower by more than both spreads and
`--limit` percent. Two files from one quiet machine agree within a few percent; for closer comparisons see
`tools.bench.versions`, which measures both in alternating rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from rocketpy.native import native_form
from tests.interop.java_peer import REPOSITORY
from tools.bench import machine, versions
from tools.bench.comparison import save
from tools.bench.results import Results, Sample, align

_SIDE: Final = "this checkout"
_ROUNDS: Final = {"clients": versions.clients, "store": versions.store}


def main(arguments: list[str]) -> int:
    """Measure and save, or compare two files."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.quick", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="JSON", help="two files to compare")
    parser.add_argument("--limit", type=float, default=5.0, metavar="PERCENT", help="for the exit status")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--directory", help="where the stores go; default: the system's temporary directory")
    options = parser.parse_args(arguments)
    if not options.files:
        return _measure(options)
    if len(options.files) != 2:
        parser.error("give two files to compare, or none to measure")
    rows = list(compare(*(json.loads(path.read_text("utf-8")) for path in options.files)))
    print(_table(rows))
    slower = [row for row in rows if row.is_slower(options.limit / 100)]
    for row in slower:
        print(f"slower: {row.load}, {row.process}: {row.ratio:.2f} times the CPU time")
    return 1 if slower else 0


def _measure(options: argparse.Namespace) -> int:
    settings = argparse.Namespace(turns=3, seconds=0.5, messages=100_000, stored=30_000)
    about = {**machine.describe(), "form": native_form(), "options": vars(options)}
    results = Results(_SIDE)
    for number in range(options.rounds):
        for measure in _ROUNDS.values():
            with tempfile.TemporaryDirectory(prefix="rocketpy-bench-", dir=options.directory) as run:
                for key, sample in measure(Path(run), {_SIDE: REPOSITORY}, settings, number).items():
                    results.add(key, sample)
        print(f"round {number + 1} of {options.rounds}", flush=True)
    print(f"{native_form()}\n{_figures(results)}")
    save(results, about, "quick-")
    return 0


def _figures(results: Results) -> str:
    """A table with a line for each load and process: the median and the spread of the rounds."""
    lines: list[tuple[str, ...]] = [("load", "process", "µs a message", "min..max")]
    for (load, _), samples in results.samples.items():
        for process, cpu_us in versions.PROCESSES.items():
            values = [cpu_us(sample) for sample in samples]
            if all(values):
                spread = f"{min(values):.2f}..{max(values):.2f}"
                lines.append((load, process, f"{statistics.median(values):.2f}", spread))
    return align(lines)


class Row(NamedTuple):
    """One load and process in two files: CPU times of a message in each round."""

    load: str
    process: str
    before: list[float]
    after: list[float]

    @property
    def ratio(self) -> float:
        """The median of the second file over that of the first."""
        return statistics.median(self.after) / statistics.median(self.before)

    def is_slower(self, limit: float) -> bool:
        """Whether the second file is slower by more than `limit`, and by more than the rounds differ."""
        return self.ratio > 1 + limit and min(self.after) > max(self.before)


def compare(document: dict[str, Any], other: dict[str, Any]) -> Iterator[Row]:
    """Yield a row for each load and process that both files have. Arguments: the files' contents."""
    before, after = _cpu_times(document), _cpu_times(other)
    for load, process in before:
        if (load, process) in after:
            yield Row(load, process, before[load, process], after[load, process])


def _cpu_times(document: dict[str, Any]) -> dict[tuple[str, str], list[float]]:
    """Return the CPU times of a message in each round, by load and process."""
    found = {
        (row["load"], process): [cpu_us(Sample(**sample)) for sample in row["samples"]]
        for row in document["rows"]
        for process, cpu_us in versions.PROCESSES.items()
    }
    return {key: values for key, values in found.items() if all(values)}


def _table(rows: list[Row]) -> str:
    lines: list[tuple[str, ...]] = [("load", "process", "A µs", "B µs", "B/A", "A min..max", "B min..max")]
    for row in rows:
        medians = (f"{statistics.median(values):.2f}" for values in (row.before, row.after))
        spreads = (f"{min(values):.2f}..{max(values):.2f}" for values in (row.before, row.after))
        lines.append((row.load, row.process, *medians, f"{row.ratio:.2f}", *spreads))
    return align(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
