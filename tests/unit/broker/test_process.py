"""The process of a server."""

from __future__ import annotations

import subprocess
import sys

_HEARTBEATS = """
import gc
import sys

import rocketpy_broker.cli
from rocketpy.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rocketpy_broker.process import collect_seldom

if sys.argv[1] == "seldom":
    collect_seldom()
wanted = [SubscriptionData(topic="T", sub_string="*", sub_version=1)]
groups = [ConsumerData(group_name=f"g{n}", subscription_data_set=wanted) for n in range(3000)]
body = HeartbeatData(client_id="c", consumer_data_set=groups).encode()
del wanted, groups
before = gc.get_stats()[2]["collections"]
for _ in range(100):
    HeartbeatData.decode(body)
print(gc.get_stats()[2]["collections"] - before)
"""


def test_heartbeats_cause_few_full_collections() -> None:
    """Each stopped the event loop for 60 ms: a third of the processor time under a flood of new groups."""
    assert _full_collections("seldom") <= 2 < _full_collections("as CPython does")


def _full_collections(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _HEARTBEATS, how], capture_output=True, text=True, check=True
    )
    return int(done.stdout)
