"""Garbage collection and memory of a server's process."""

from __future__ import annotations

import platform
import subprocess
import sys
from functools import cache

import pytest

COLLECTS_WHILE_DECODING = sys.version_info < (3, 12)
"""Since Python 3.12 the garbage collector runs between bytecode instructions only."""

_HEARTBEATS = """
import gc
import sys

import rocketpy_broker.cli
from rocketpy.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rocketpy_broker.cli.process import tune_memory

if sys.argv[1] == "tuned":
    tune_memory()
wanted = [SubscriptionData(topic="T", sub_string="*", sub_version=1)]
groups = [ConsumerData(group_name=f"g{n}", subscription_data_set=wanted) for n in range(3000)]
body = HeartbeatData(client_id="c", consumer_data_set=groups).encode()
del wanted, groups
before = gc.get_stats()[2]["collections"]
youngest = [0]
gc.callbacks.append(lambda phase, info: youngest.append(len(gc.get_objects(0)) if phase == "start" else 0))
for _ in range(50):
    HeartbeatData.decode(body)
print(gc.get_stats()[2]["collections"] - before, max(youngest))
"""

_LARGE_FRAMES = """
import sys
from pathlib import Path

from rocketpy_broker.cli.process import tune_memory


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if sys.argv[1] == "tuned":
    tune_memory()
bytearray(16 << 20)  # glibc raises its thresholds when this is freed
before = resident()
frames, small = [], []
for _ in range(100):
    frames.append(b"x" * (1 << 20))
    small.append(bytearray(50_000))  # larger than the gaps that imports left
frames.clear()
print(resident() - before)
"""


def test_heartbeats_cause_few_full_collections() -> None:
    """A full collection stops the event loop for 60 ms: new groups cost a third of the processor time."""
    assert _collections("tuned")[0] <= 1
    if COLLECTS_WHILE_DECODING:
        assert _collections("as CPython does")[0] > 4


@pytest.mark.skipif(not COLLECTS_WHILE_DECODING, reason="the collector does not run while a body is decoded")
def test_collections_of_the_youngest_objects_are_short() -> None:
    """A collection of 10,000 young objects stopped the event loop for 5 ms."""
    assert 0 < _collections("tuned")[1] < 3000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such thresholds")
def test_the_memory_of_large_frames_is_returned() -> None:
    """After an attack with large frames the process kept 50 MiB that it did not use."""
    assert _run(_LARGE_FRAMES, "tuned")[0] < 10 << 20 < _run(_LARGE_FRAMES, "as glibc does")[0]


@cache
def _collections(how: str) -> tuple[int, int]:
    """The number of full collections, and the largest number of objects in the youngest generation."""
    full, youngest = _run(_HEARTBEATS, how)
    return full, youngest


def _run(program: str, how: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", program, how], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]
