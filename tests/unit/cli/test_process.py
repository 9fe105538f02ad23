"""The process of a server."""

from __future__ import annotations

import subprocess
import sys

_HEARTBEATS = """
import gc
import sys

import rocketpy_broker.cli
from rocketpy.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rocketpy_broker.cli.process import tune_garbage_collection

if sys.argv[1] == "seldom":
    tune_garbage_collection()
wanted = [SubscriptionData(topic="T", sub_string="*", sub_version=1)]
groups = [ConsumerData(group_name=f"g{n}", subscription_data_set=wanted) for n in range(3000)]
body = HeartbeatData(client_id="c", consumer_data_set=groups).encode()
del wanted, groups
before = gc.get_stats()[2]["collections"]
youngest = [0]
gc.callbacks.append(lambda phase, info: youngest.append(len(gc.get_objects(0)) if phase == "start" else 0))
for _ in range(100):
    HeartbeatData.decode(body)
print(gc.get_stats()[2]["collections"] - before, max(youngest))
"""


def test_heartbeats_cause_few_full_collections() -> None:
    """Each stopped the event loop for 60 ms: a third of the processor time under a flood of new groups."""
    assert _collections("seldom")[0] <= 2 < _collections("as CPython does")[0]


def test_searches_of_the_youngest_objects_are_short() -> None:
    """With 10,000 objects at a time each stopped the event loop for 5 ms."""
    assert 0 < _collections("seldom")[1] < 3000


def _collections(how: str) -> tuple[int, int]:
    """How many full collections there are, and how many objects the youngest have at most."""
    done = subprocess.run(
        [sys.executable, "-c", _HEARTBEATS, how], capture_output=True, text=True, check=True
    )
    full, youngest = map(int, done.stdout.split())
    return full, youngest
