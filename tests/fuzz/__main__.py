"""The long run: ``python -m tests.fuzz --inputs 1000000 --seed 7``; see --help."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.engine import Failure, Result, run_offline
from tests.fuzz.live import LIVE_TARGETS, fuzz_port
from tests.fuzz.targets import TARGETS

_NAMES = (*(target.name for target in TARGETS), *LIVE_TARGETS)
_COLUMNS = "{:<26} {:>10} {:>10} {:>9} {:>8} {:>8}  {}"


def main() -> int:
    """Run the targets one after the other; 0 when all promises held."""
    options = _options()
    print(_COLUMNS.format("target", "inputs", "inputs/s", "MiB", "peak MiB", "growth", "outcomes"))
    failures = 0
    for name in options.target or _NAMES:
        try:
            print(_row(_run(name, options)), flush=True)
        except Failure as failure:
            failures += 1
            print(f"{name}: FAILED\n{failure}", flush=True)
    print(f"seed {options.seed}: " + (f"{failures} targets FAILED" if failures else "every promise held"))
    return 1 if failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="for each target (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same inputs")
    parser.add_argument("--first", type=int, default=0, metavar="INDEX", help="index of the first input")
    parser.add_argument("--target", action="append", choices=_NAMES, help="only this one; may be repeated")
    return parser.parse_args()


def _run(name: str, options: argparse.Namespace) -> Result:
    for target in TARGETS:
        if target.name == name:
            return run_offline(target, options.inputs, options.seed, options.first)
    with tempfile.TemporaryDirectory(prefix="rocketpy-fuzz-") as store:
        port = fuzz_port(name, Path(store), inputs=options.inputs, seed=options.seed, first=options.first)
        return asyncio.run(port)


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
