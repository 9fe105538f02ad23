"""Appends in one process, no network: 128-byte bodies with UNIQ_KEY and one key, queues and index included.

`python -m tests.bench.store_append [messages] [--profile]` prints the best of several rounds, since other
work on the machine only ever makes a round slower.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from pathlib import Path

from rocketpy_broker.store import MessageInner, MessageStore, StoreConfig

RUNS = (1, 16, 64)
"""Messages a run: what one, sixteen and sixty-four producers in step leave in a socket buffer."""
PROPERTIES = b"KEYS\x01key%d\x02UNIQ_KEY\x01C000020200004E0E2F2A6903%08X\x02WAIT\x01true\x02TAGS\x01TagA\x02"
HOST = b"\x7f\x00\x00\x01\x00\x00\x12\x34"


def messages(first: int, count: int) -> list[MessageInner]:
    """Messages over four queues, as RocketMQ's benchmark producer makes them."""
    return [
        MessageInner(
            "BenchmarkTest", n % 4, b"x" * 128, PROPERTIES % (n % 1000, n), 0, 0, 1_700_000_000_000, HOST
        )
        for n in range(first, first + count)
    ]


def append_all(store: MessageStore, batch: list[MessageInner], run: int) -> tuple[float, float, float]:
    """Seconds spent in append, write_out and dispatch."""
    spent = [0.0, 0.0, 0.0]
    clock = time.perf_counter
    for start in range(0, len(batch), run):
        begin = clock()
        for message in batch[start : start + run]:
            store.append(message)
        appended = clock()
        store.write_out()
        written = clock()
        store.dispatch()
        spent = [spent[0] + appended - begin, spent[1] + written - appended, spent[2] + clock() - written]
    return spent[0], spent[1], spent[2]


def measure(store: MessageStore, count: int, rounds: int, run: int) -> None:
    """Print the best round."""
    best = min((append_all(store, messages(n * count, count), run) for n in range(rounds)), key=sum)
    append, write, dispatch = (seconds / count * 1e6 for seconds in best)
    print(
        f"run of {run:3}: {count / sum(best):9,.0f} msgs/s; "
        f"append {append:.2f}, write {write:.2f}, dispatch {dispatch:.2f} us a message"
    )


def main() -> None:
    """Measure, then profile when asked."""
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
