"""``python -m tests.sim FIRST [LAST]``: run seeds of the replication world and report failures."""

from __future__ import annotations

import logging
import sys
import time

from tests.sim.check_ha import run_seed


def main(arguments: list[str]) -> int:
    """Returns the exit status: 1 when a seed failed."""
    logging.disable(logging.CRITICAL)  # what stores say about all that happens to them
    first = int(arguments[0])
    last = int(arguments[1]) if len(arguments) > 1 else first
    began, failed, acked, promotions = time.monotonic(), 0, 0, 0
    for seed in range(first, last + 1):
        try:
            world = run_seed(seed)
        except AssertionError as error:
            failed += 1
            sys.stdout.write(f"{error}\n")
            sys.stdout.flush()
            if first == last:
                raise
        else:
            acked += len(world.acked)
            promotions += world.promotions
    seconds = time.monotonic() - began
    sys.stdout.write(
        f"seeds {first} to {last}: {failed} failed; {acked} messages acknowledged, {promotions} promotions, "
        f"{seconds:.0f} s\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
