"""Attacks name server, brokers and console while nine good clients work; exits with 1 for a broken promise.

The same number of harmless connections comes first, so that the clients' times can be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.attack.kinds import HOSTILE
from tools.attack.run import Outcome, Plan, attack


def main() -> int:
    """Run, and print the figures."""
    options = _options()
    plan = Plan(
        connections=options.connections,
        rate=options.rate,
        seed=options.seed,
        budget_s=options.minutes * 60,
        niceness=10,
        kinds=tuple(options.kind or ()),
        p99_floor_ms=options.p99_floor_ms,
    )
    with tempfile.TemporaryDirectory(prefix="rocketpy-attack-") as folder:
        outcome = asyncio.run(attack(plan, Path(folder)))
    sys.stdout.writelines(f"{line}\n" for line in _lines(outcome, options.seed))
    return 1 if outcome.problems else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.attack", description=__doc__)
    parser.add_argument(
        "--connections", type=int, default=100_000, help="hostile ones (default: %(default)s)"
    )
    parser.add_argument("--rate", type=float, default=150, help="connections a second (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed draws the same connections")
    parser.add_argument(
        "--minutes", type=float, default=30, help="bound of each phase (default: %(default)s)"
    )
    parser.add_argument(
        "--p99-floor-ms",
        type=float,
        default=20,
        help="times below it are never too long: upkeep of full tables "
        "takes up to 20 ms, which empty ones do not (default: %(default)s)",
    )
    parser.add_argument("--kind", action="append", choices=HOSTILE, help="only this one; may be repeated")
    return parser.parse_args()


def _lines(outcome: Outcome, seed: int) -> Iterator[str]:
    yield (f"{'':28} {'harmless':>20} {'hostile':>24}")
    for name, one, two in outcome.rows:
        yield (f"{name:28} {one:>20} {two:>24}")
    yield ""
    for name, count in sorted(outcome.kinds.items()):
        yield (f"{count:>10,} {name}")
    for problem in outcome.problems:
        yield (f"FAILED: {problem}")
    yield (f"seed {seed}: {'FAILED' if outcome.problems else 'every promise held'}")


if __name__ == "__main__":
    sys.exit(main())
