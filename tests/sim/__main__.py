"""``python -m tests.sim [ha | pop] FIRST [LAST]``: run seeds of a world, and report failures.

The worlds: ``ha``, a master and its slaves, the default; ``pop``, consumers that pop.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Final

from tests.sim import check_ha, pop_world


def _run_ha(seed: int) -> tuple[int, int]:
    world = check_ha.run_seed(seed)
    return len(world.acked), world.promotions


def _run_pop(seed: int) -> tuple[int, int]:
    world = pop_world.run_seed(seed)
    return sum(job.is_acked for job in world.jobs.values()), world.kills


WORLDS: Final[dict[str, tuple[Callable[[int], tuple[int, int]], str]]] = {
    "ha": (_run_ha, "promotions"),
    "pop": (_run_pop, "kills"),
}
"""Name -> what runs a seed and returns its acknowledged messages and faults, and what these faults are."""


def main(arguments: list[str]) -> int:
    """Returns the exit status: 1 when a seed failed."""
    logging.disable(logging.CRITICAL)  # what stores say about all that happens to them
    run, faults = WORLDS[arguments.pop(0) if arguments[0] in WORLDS else "ha"]
    first = int(arguments[0])
    last = int(arguments[1]) if len(arguments) > 1 else first
    began, failed, totals = time.monotonic(), 0, [0, 0]
    for seed in range(first, last + 1):
        try:
            totals = [total + more for total, more in zip(totals, run(seed), strict=True)]
        except AssertionError as error:
            failed += 1
            sys.stdout.write(f"{error}\n")
            sys.stdout.flush()
            if first == last:
                raise
    seconds = time.monotonic() - began
    sys.stdout.write(
        f"seeds {first} to {last}: {failed} failed; {totals[0]} messages acknowledged, {totals[1]} {faults}, "
        f"{seconds:.0f} s\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
