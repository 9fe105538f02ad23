"""Loads of benchmarks for a store in process. It uses only names that earlier versions have, too.

`python -P store_load.py DIRECTORY MESSAGES` prints the CPU time of a message, for each kind of work, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rocketpy_broker.store import MessageInner, MessageStore, RecoveryConfig, StoreConfig

QUEUES = 4
_LOOK_UPS = 10_000
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


def fill(root: Path, count: int, *, flush_every_s: float = 1.0) -> float:
    """Append messages in runs of 64, flush thoroughly every second like a broker, and end like a kill.

    Returns messages per second.
    """
    store = MessageStore(StoreConfig(root=root))
    store.open()
    begin = flushed = time.perf_counter()
    for start in range(0, count, 64):
        for message in messages(start, min(64, count - start)):
            store.append(message)
        store.write_out()
        store.dispatch()
        if time.perf_counter() - flushed > flush_every_s:
            store.flush(thorough=True)
            flushed = time.perf_counter()
    spent = time.perf_counter() - begin
    leave(store)
    return count / spent


def leave(store: MessageStore) -> None:
    """Leave a store like a killed process."""
    store._is_open = False  # the store has no method for this
    store._close_files()


def recover(root: Path, *, progress: bool) -> float:
    """Seconds to open a killed store."""
    store = MessageStore(StoreConfig(root=root, recovery=RecoveryConfig(use_progress=progress)))
    begin = time.perf_counter()
    store.open()
    spent = time.perf_counter() - begin
    leave(store)
    return spent


def read_all(store: MessageStore) -> float:
    """Messages per second, read in batches of 32 from the start of each queue."""
    begin, done = time.perf_counter(), 0
    for queue_id in range(QUEUES):
        offset = 0
        while (result := store.get_message("BenchmarkTest", queue_id, offset, 32)).count:
            offset = result.next_begin_offset
            done += result.count
    return done / (time.perf_counter() - begin)


def look_up(store: MessageStore, count: int) -> float:
    """Look-ups by unique key per second."""
    begin = time.perf_counter()
    for number in range(count):
        store.query_message("BenchmarkTest", f"C000020200004E0E2F2A6903{number:08X}", 32, 0, 1 << 62)
    return count / (time.perf_counter() - begin)


def main() -> None:
    """Measure each kind of work on a new store."""
    root, count = Path(sys.argv[1]), int(sys.argv[2])
    micros: dict[str, float] = {}

    def measure(name: str, work: Callable[[], object], times: int = count) -> None:
        begin = time.process_time()
        work()
        micros[name] = (time.process_time() - begin) / times * 1e6

    for run in (1, 64):
        prepared = messages(0, count)
        with MessageStore(StoreConfig(root=root / f"run-{run}")) as store:
            measure(f"store, append in runs of {run}", lambda: append_all(store, prepared, run))  # noqa: B023
    fill(root / "killed", count)
    measure("store, recovery", lambda: recover(root / "killed", progress=False))
    with MessageStore(StoreConfig(root=root / "killed")) as store:
        measure("store, read", lambda: read_all(store))
        measure("store, look-up by key", lambda: look_up(store, _LOOK_UPS), _LOOK_UPS)
    print(json.dumps(micros))


if __name__ == "__main__":
    main()
