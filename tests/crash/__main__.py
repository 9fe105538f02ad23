"""Crashes a store at every change of its disk: `python -m tests.crash --recoveries 50000 --seed 1`.

With `--resume` and the same state file it continues an earlier run. Prints a row for each workload.
"""

from __future__ import annotations

import argparse
import errno
import json
import logging
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from tests.crash.damage import base, damages, outcome_of
from tests.crash.faults import count_calls, run_fault
from tests.crash.sweep import run_pass
from tests.crash.verify import Violation
from tests.crash.workloads import WORKLOADS

_COLUMNS = "{:<20} {:>7} {:>10} {:>10} {:>9} {:>7}"
_SHARES = {"faults": 0.08, "damage": 0.12}
_CODES = (errno.ENOSPC, errno.EIO)
_SLICE = 400
_BOUNDARIES = 20
"""Assumed number of boundaries of a pass, before the first pass has counted them."""
_RECOVERIES_EACH = 6
"""Approximate number of recoveries at one boundary."""


class Row:
    """The results of one workload so far."""

    def __init__(self, saved: dict[str, Any] | None = None) -> None:
        self.seed = 0
        self.boundaries = self.recoveries = 0
        self.seconds = 0.0
        self.failures: list[str] = []
        self.__dict__.update(saved or {})


def main() -> int:
    """Run; 0 when all promises held."""
    options = _options()
    logging.disable(logging.CRITICAL)
    state = Path(options.resume) if options.resume else None
    rows = _load(state)
    targets = _targets(options.recoveries, options.workload)
    for name, target in targets.items():
        row = rows.setdefault(name, Row())
        while row.recoveries < target and len(row.failures) < 20:
            _advance(name, row, options.seed, target)
            if state is not None:
                state.write_text(json.dumps({key: value.__dict__ for key, value in rows.items()}))
    _print({name: rows[name] for name in targets}, options.seed)
    return 1 if any(rows[name].failures for name in targets) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument(
        "--recoveries", type=int, default=2000, help="of all workloads (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="the same seed crashes at the same places")
    parser.add_argument("--resume", metavar="FILE", help="keeps the state here, and goes on from it")
    names = (*WORKLOADS, *_SHARES)
    parser.add_argument("--workload", action="append", choices=names, help="only this one; may be repeated")
    return parser.parse_args()


def _load(state: Path | None) -> dict[str, Row]:
    if state is None or not state.exists():
        return {}
    return {name: Row(saved) for name, saved in json.loads(state.read_text()).items()}


def _targets(recoveries: int, chosen: list[str] | None) -> dict[str, int]:
    weights = {name: workload.weight for name, workload in WORKLOADS.items()}
    total = sum(weights.values()) / (1 - sum(_SHARES.values()))
    shares = {name: weight / total for name, weight in weights.items()} | _SHARES
    shares = {name: share for name, share in shares.items() if not chosen or name in chosen}
    scale = recoveries / sum(shares.values())
    return {name: max(1, round(share * scale)) for name, share in shares.items()}


def _advance(name: str, row: Row, seed: int, target: int) -> None:
    """Run one more pass."""
    started = time.monotonic()
    row.seed += 1
    if name == "faults":
        _faults(row, seed, target)
    elif name == "damage":
        _damage(row, seed, target)
    else:
        wanted = target - row.recoveries
        boundaries = row.boundaries // (row.seed - 1) if row.seed > 1 else _BOUNDARIES
        stride = max(1, min(boundaries, boundaries * _RECOVERIES_EACH // wanted))
        result = run_pass(WORKLOADS[name], seed * 1000 + row.seed, stride=stride, recoveries_max=wanted)
        row.boundaries += result.boundaries
        row.recoveries += result.recoveries
        row.failures += [str(failure) for failure in result.failures]
    row.seconds += time.monotonic() - started


def _faults(row: Row, seed: int, target: int) -> None:
    """One run for each call and kind of failure."""
    number = seed * 1000 + row.seed
    calls = count_calls(number)
    row.boundaries += calls
    places = Random(number).sample(range(1, calls + 1), calls)
    for at in places:
        for code in _CODES:
            for lasting in (False, True):
                if row.recoveries >= target:
                    return
                result = run_fault(number, at, code, lasting=lasting)
                row.recoveries += result.recoveries
                row.failures += [str(failure) for failure in result.failures]


def _damage(row: Row, seed: int, target: int) -> None:
    """The next of all damages, in an order that the seed shuffles."""
    for clean in (True, False):
        stored = base(clean=clean)
        todo = list(damages(stored.writer.disk, Random(seed)))
        Random(seed).shuffle(todo)
        row.boundaries = max(row.boundaries, 2 * len(todo))
        for damage in todo[(row.seed - 1) * _SLICE : row.seed * _SLICE]:
            if row.recoveries >= target:
                return
            row.recoveries += 1
            try:
                outcome_of(stored, damage)
            except Violation as violation:
                row.failures.append(f"{'clean' if clean else 'killed'} store: {violation}")


def _print(rows: dict[str, Row], seed: int) -> None:
    print(_COLUMNS.format("workload", "passes", "boundaries", "recoveries", "failures", "/s"))
    for name, row in [*rows.items(), ("all", _sum(list(rows.values())))]:
        rate = f"{row.recoveries / row.seconds:.0f}" if row.seconds else "-"
        print(_COLUMNS.format(name, row.seed, row.boundaries, row.recoveries, len(row.failures), rate))
    for row in rows.values():
        for failure in row.failures:
            print(f"FAILED {failure}")
    print(f"seed {seed}")


def _sum(rows: list[Row]) -> Row:
    total = Row()
    for row in rows:
        total.seed += row.seed
        total.boundaries += row.boundaries
        total.recoveries += row.recoveries
        total.seconds += row.seconds
        total.failures += row.failures
    return total


if __name__ == "__main__":
    sys.exit(main())
