"""Runs seeds of the raft simulation: `python -m tests.sim.raft FIRST COUNT`.

A failure prints the line that replays it.
"""

from __future__ import annotations

import gc
import sys
from random import Random

from tests.sim.raft_check import Violation, check
from tests.sim.raft_world import FAST, Faults, World

_WORLDS_KEPT = 20
_REPORTED = 1000


def run_seed(seed: int) -> World:
    """Run one world to its end: faults, then a heal phase. Raises Violation naming the seed."""
    random = Random(seed)
    size = random.choice((1, 3, 3, 3, 5))
    no_op = (lambda pos: b"no-op") if random.random() < 0.7 else None
    timings = FAST if random.random() < 0.8 else {}
    world = World(seed, size, faults=Faults.drawn(random), no_op=no_op, **timings)
    try:
        world.run(random.randrange(200, 700), load=random.choice((0.05, 0.2, 0.5)))
        world.heal()
        check(world.settle(load=0.2), "I10: the group did not settle")
        world.run(80)
        check(world.settle(), "I10: somebody did not catch up")
        check(not world.unreported(), f"clients still wait for {world.unreported()}")
        world.checker.finish({peer.name: peer.disk.entries for peer in world.peers.values()})
        failure = world.checker.history.failure(world.checker.committed)
        check(failure is None, str(failure))
    except Exception as error:
        raise Violation(f"python -m tests.sim.raft {seed} 1: {error!r}") from error
    return world


def main(arguments: list[str]) -> int:
    """Run COUNT seeds from FIRST on."""
    first, count = (int(argument) for argument in arguments)
    gc.disable()  # a world is a web of cycles, and the next one takes its place
    acked = failed = 0
    for seed in range(first, first + count):
        if seed % _WORLDS_KEPT == 0:
            gc.collect()
        try:
            acked += len(run_seed(seed).checker.acked)
        except Violation as violation:
            failed += 1
            print(violation)
        if (seed + 1 - first) % _REPORTED == 0:
            print(f"{seed + 1 - first} of {count}: {failed} failed, {acked} entries acknowledged", flush=True)
    print(f"{count} seeds, {failed} failed, {acked} entries acknowledged")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
