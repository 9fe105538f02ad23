"""Appends in one process, no network: 128-byte bodies with UNIQ_KEY and one key, queues and index included.

`python -m tools.bench.store_append [messages] [--profile]` prints the best of several rounds, since other
work on the machine can only slow down a round.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
from pathlib import Path

from rocketpy_broker.store import MessageStore, StoreConfig
from tools.bench.store_load import append_all, messages

RUNS = (1, 16, 64)
"""Messages per run, as if 1, 16 or 64 producers had each left one in the socket buffers."""


def measure(store: MessageStore, count: int, rounds: int, run: int) -> None:
    """Print the best round."""
    best = min((append_all(store, messages(n * count, count), run) for n in range(rounds)), key=sum)
    append, write, dispatch = (seconds / count * 1e6 for seconds in best)
    print(
        f"run of {run:3}: {count / sum(best):9,.0f} msgs/s; "
        f"append {append:.2f}, write {write:.2f}, dispatch {dispatch:.2f} us a message"
    )


def main() -> None:
    """Measure, then profile if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("messages", nargs="?", type=int, default=20_000, help="messages a round")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root, MessageStore(StoreConfig(root=Path(root))) as store:
        for run in RUNS:
            measure(store, options.messages, options.rounds, run)
        if options.profile:
            batch = messages(0, options.messages)
            with cProfile.Profile() as profile:
                append_all(store, batch, RUNS[-1])
            pstats.Stats(profile).sort_stats("tottime").print_stats(12)


if __name__ == "__main__":
    main()
