"""Shared parts of the sweeps over ledgers: when to crash, results, and command lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.crash.disk import Operation, RecordingDisk

_FAILURES_MAX = 5


@dataclass(slots=True)
class LedgerPass:
    """The result of a run. refused: detected damage. failures: the crashes that violated a promise."""

    recoveries: int = 0
    refused: int = 0
    failures: list[str] = field(default_factory=list)


@contextmanager
def crashing(
    disk: RecordingDisk, seed: int, stride: int, result: LedgerPass, crash: Callable[[Operation, str], None]
) -> Iterator[None]:
    """Inside the block, call `crash` at every `stride`-th change of the disk, until five crashes have failed.

    crash: gets the change that is about to be made, and its description for failures.
    """
    changes = 0

    def before(operation: Operation) -> None:
        nonlocal changes
        changes += 1
        if (changes + seed) % stride or len(result.failures) >= _FAILURES_MAX:
            return
        disk.before = None
        crash(operation, f"seed {seed}, change {changes}, {operation.kind} {operation.path[7:]}")
        disk.before = before

    disk.before = before
    try:
        yield
    finally:
        disk.before = None


def run_seeds(arguments: list[str], *sweeps: Callable[[int], LedgerPass]) -> int:
    """Run the command line SEED COUNT: each sweep for COUNT seeds; 0 when every promise held."""
    seed, count = (int(argument) for argument in arguments)
    logging.disable(logging.CRITICAL)
    total = LedgerPass()
    for number in range(seed, seed + count):
        for one in (sweep(number) for sweep in sweeps):
            total.recoveries += one.recoveries
            total.refused += one.refused
            total.failures += one.failures
            for failure in one.failures:
                print(failure, flush=True)
    failed = len(total.failures)
    print(f"{count} seeds, {total.recoveries} recoveries, {total.refused} refused, {failed} failures")
    return 1 if failed else 0
