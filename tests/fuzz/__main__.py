"""The long run: ``python -m tests.fuzz --inputs 1000000 --state .cache/fuzz.json``; see --help."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rocketpy_broker.store.files.state_file import replace_file
from tests.fuzz.engine import Failure, Result, run_offline
from tests.fuzz.live import LIVE_TARGETS, fuzz_port
from tests.fuzz.targets import TARGETS

_CHUNK = 100_000
"""Inputs between two notes of progress."""
_NAMES = (*(target.name for target in TARGETS), *LIVE_TARGETS)
_COLUMNS = "{:<26} {:>10} {:>10} {:>9} {:>8} {:>8}  {}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the targets one after the other; 0 when all promises held."""
    options = _options(arguments)
    print(_COLUMNS.format("target", "inputs", "inputs/s", "MiB", "peak MiB", "growth", "outcomes"))
    progress = _Progress(options.state, options.seed)
    failures = 0
    for name in options.target or _NAMES:
        first = max(options.first, progress.reached(name))
        end = options.inputs if options.state is not None else options.first + options.inputs
        try:
            for begin in range(first, end, _CHUNK):
                count = min(_CHUNK, end - begin)
                print(_row(_run(name, options.seed, begin, count)), flush=True)
                progress.note(name, begin + count)
        except Failure as failure:
            failures += 1
            print(f"{name}: FAILED\n{failure}", flush=True)
    print(f"seed {options.seed}: " + (f"{failures} targets FAILED" if failures else "every promise held"))
    return 1 if failures else 0


class _Progress:
    """How many inputs of each target were read, kept in a file; in none without a path."""

    def __init__(self, path: Path | None, seed: int) -> None:
        self._path, self._seed = path, seed
        self._reached: dict[str, int] = {}
        if path is not None and path.exists():
            self._reached = json.loads(path.read_text(encoding="utf-8"))

    def reached(self, target: str) -> int:
        return self._reached.get(f"{self._seed} {target}", 0)

    def note(self, target: str, end: int) -> None:
        self._reached[f"{self._seed} {target}"] = end
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(self._reached))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="for each target (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same inputs")
    parser.add_argument("--first", type=int, default=0, metavar="INDEX", help="index of the first input")
    parser.add_argument("--target", action="append", choices=_NAMES, help="only this one; may be repeated")
    parser.add_argument(
        "--state", type=Path, metavar="FILE", help="keeps how far each target is; a run goes on to --inputs"
    )
    return parser.parse_args(arguments)


def _run(name: str, seed: int, first: int, inputs: int) -> Result:
    for target in TARGETS:
        if target.name == name:
            return run_offline(target, inputs, seed, first)
    with tempfile.TemporaryDirectory(prefix="rocketpy-fuzz-") as store:
        return asyncio.run(fuzz_port(name, Path(store), inputs=inputs, seed=seed, first=first))


def _row(result: Result) -> str:
    return _COLUMNS.format(
        result.target,
        f"{result.inputs:,}",
        f"{result.inputs / max(result.seconds, 1e-9):,.0f}",
        f"{result.bytes / 2**20:,.0f}",
        f"{result.peak_bytes / 2**20:,.0f}",
        f"{result.peak_growth_bytes / 2**20:,.0f}",
        ", ".join(_outcomes(result)),
    )


def _outcomes(result: Result) -> Iterator[str]:
    for outcome, count in result.outcomes.most_common():
        yield f"{count:,} {outcome}"


if __name__ == "__main__":
    sys.exit(main())
