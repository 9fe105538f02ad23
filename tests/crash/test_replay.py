"""A failed sweep must fail when it is repeated; otherwise its cause cannot be found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_SCRIPT = """
import logging, zlib
from tests.crash.disk import RecordingDisk
from tests.crash.faults import run_fault
from tests.crash.workloads import WORKLOADS
from tests.crash import ledger_store_sweep, ledger_sweep, sweep

logging.disable(logging.CRITICAL)
crc, step = 0, RecordingDisk._step

def note(self, kind, path, data=b"", position=0):
    global crc
    crc = zlib.crc32(f"{kind} {path} {position} ".encode() + data, crc)
    step(self, kind, path, data, position)

RecordingDisk._step = note
RUN
print(crc)
"""
_RUNS = {
    "ledger": "ledger_sweep.sweep(1, stride=7)",
    "ledger faults": "ledger_sweep.fail_calls(1)",
    "store on a ledger": "ledger_store_sweep.sweep(1, stride=60)",
    "store": "[sweep.run_pass(one, 1, stride=60, variants=2) for one in WORKLOADS.values()]",
    "store faults": "[run_fault(1, at, 5, lasting=False) for at in range(1, 90, 20)]",
}


@pytest.mark.slow
@pytest.mark.parametrize("run", _RUNS.values(), ids=_RUNS)
def test_a_sweep_makes_the_same_calls_in_every_process(run: str) -> None:
    """A failure could not be repeated, since the order of a set of bytes differs between processes."""
    found = set()
    for seed in ("1", "2"):
        script = _SCRIPT.replace("RUN", run)
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, check=True
        )
        found.add(done.stdout)
    assert len(found) == 1
