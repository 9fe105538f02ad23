"""`python -m tools.bench.store`: both stores in process, in turn, without a network.

Rows: append with async and sync flush for clients in step, sync flush with slow disks, recovery after a kill,
reading a full queue, look-up by key, memory during many writes, and disk space of an empty store. To *find*
messages is what RocketMQ's getMessage does: it returns parts of the log, whose bytes it does not read. To
*read* them includes the copy into the body of a response. A slow disk has a delay before each flush: in
rocketpy's disk layer, and in Java by `slow_sync.c`. Bodies have 128 bytes, with UNIQ_KEY and a key. Each
number is the median of the rounds; Java's rounds warm up only if they are long enough.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rocketpy_broker.store import (
    BusyConfig,
    FlushConfig,
    FlushDiskType,
    MessageStore,
    StoreConfig,
)
from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.queue.queue_reader import QueueReader
from rocketpy_broker.store.upkeep.driver import StoreDriver
from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer, ToolsMissing
from tools.bench.machine import usage
from tools.bench.store_load import fill, look_up, messages, read_all, recover

CLIENTS = (1, 16, 64)
_LARGE = bytes(4096)


class SlowDisk(OsDisk):
    """A disk whose fdatasync takes `delay_s` longer."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s

    def fdatasync(self, handle: int) -> None:
        """See `Disk.fdatasync`."""
        time.sleep(self._delay_s)
        super().fdatasync(handle)


class Table:
    """Measurements by row and side."""

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, list[float]]] = {}

    def add(self, row: str, side: str, figure: float) -> None:
        """Add the measurement of a round."""
        self.figures.setdefault(row, {}).setdefault(side, []).append(figure)

    def text(self) -> str:
        """A line for each row: medians, and the ratio to Java's."""
        lines = [f"{'row':<44}{'ours':>12}{'Java':>12}{'ours/Java':>11}"]
        for row, sides in self.figures.items():
            ours, java = (statistics.median(sides.get(side, [float("nan")])) for side in ("ours", "java"))
            lines.append(f"{row:<44}{ours:>12,.2f}{java:>12,.2f}{ours / java:>11.2f}")
        return "\n".join(lines)


# -- rocketpy's store ------------------------------------------------------------------------------


async def append_in_step(root: Path, count: int, clients: int, *, sync: bool, delay_s: float = 0.0) -> float:
    """Messages per second of clients that each send once all have their responses."""
    kind = FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH
    busy = BusyConfig(enabled=False)  # this load never yields to the loop for long
    config = StoreConfig(root=root, flush=FlushConfig(disk_type=kind), busy=busy)
    store = MessageStore(config, disk=SlowDisk(delay_s) if delay_s else None)
    driver = StoreDriver(store)
    await driver.start()
    prepared = messages(0, count)
    begin = time.perf_counter()
    for start in range(0, count, clients):
        for message in prepared[start : start + clients]:
            store.append(message)
        store.write_out()
        if sync:
            await driver.flush()
        driver.schedule_dispatch()
        if not sync and start % 1024 == 0:
            await asyncio.sleep(0)
    store.dispatch()
    spent = time.perf_counter() - begin
    await driver.close()
    return count / spent


def memory_growth(root: Path, written: int) -> list[float]:
    """Resident MiB after each quarter of the bytes was written, in messages of 4 KiB."""
    import os  # noqa: PLC0415  only here

    marks: list[float] = []
    with MessageStore(StoreConfig(root=root, busy=BusyConfig(enabled=False))) as store:
        number, flushed = 0, 0
        while store.max_physical_offset < written:
            for message in messages(number, 64):
                message.body = _LARGE
                store.append(message)
            number += 64
            store.write_out()
            store.dispatch()
            if store.max_physical_offset - flushed > 64 << 20:
                flushed = store.max_physical_offset
                store.flush(thorough=True)
            if store.max_physical_offset >= written * (len(marks) + 1) // 4:
                marks.append(usage(os.getpid()).resident_bytes / (1 << 20))
    return marks


def find_all(store: MessageStore) -> float:
    """Messages per second, found in batches of 32 from the start of each queue; see `store_load.read_all`."""
    reader = QueueReader(store.commit_log, store.config.read)
    begin, done = time.perf_counter(), 0
    for queue in store.queues.queues.values():
        offset = 0
        while (found := reader.locate(queue, offset, 32).result).count:
            offset = found.next_begin_offset
            done += found.count
    return done / (time.perf_counter() - begin)


def disk_kib(root: Path) -> float:
    """KiB of blocks that a directory takes."""
    return sum(path.stat().st_blocks for path in root.rglob("*")) / 2


# -- Java's store ----------------------------------------------------------------------------------


def slow_sync(work: Path) -> Path | None:
    """The library that makes Java's flushes slower, compiled; None without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    library = work / "slow_sync.so"
    if compiler is None:
        return None
    if not library.exists():
        source = Path(__file__).with_name("slow_sync.c")
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def java(
    peer: JavaPeer, work: Path, store: Path, *arguments: str, sync: bool = False, delay_ms: int = 0
) -> dict[str, float]:
    """Run StoreBench on a store; return its output. delay_ms: see `slow_sync`."""
    conf = work / "broker.conf"
    flush = "SYNC_FLUSH" if sync else "ASYNC_FLUSH"
    conf.write_text(
        f"storePathRootDir={store}\nstorePathCommitLog={store / 'commitlog'}\nflushDiskType={flush}\n"
        "diskMaxUsedSpaceRatio=95\n"
    )
    environment = {}
    if delay_ms:
        environment = {"LD_PRELOAD": str(slow_sync(work)), "SLOW_SYNC_US": str(delay_ms * 1000)}
    output = peer.run(
        "StoreBench", str(conf), *arguments, home=work / "home", timeout_s=600, environment=environment
    )
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


# -- the rows --------------------------------------------------------------------------------------


def appends(table: Table, work: Path, peer: JavaPeer | None, count: int) -> None:
    """Append rows of one round."""
    for sync in (False, True):
        for clients in CLIENTS:
            total = count if not sync else max(500, count * clients // 1600)
            row = f"append, {'sync' if sync else 'async'} flush, {clients} clients, msgs/s"
            table.add(row, "ours", fresh(work, lambda root: step(root, total, clients, sync)))  # noqa: B023
            if peer is not None:
                arguments = ("append", str(total), str(clients))
                result = fresh_java(peer, work, *arguments, sync=sync)
                table.add(row, "java", result["messages"] / result["seconds"])
    for delay_ms in (1, 5):
        for clients in CLIENTS:
            row = f"append, sync flush + {delay_ms} ms, {clients} clients, msgs/s"
            total = 200 * clients
            rate = fresh(work, lambda root: step(root, total, clients, True, delay_ms / 1000))  # noqa: B023
            table.add(row, "ours", rate)
            if peer is not None and slow_sync(work) is not None:
                arguments = ("append", str(total), str(clients))
                result = fresh_java(peer, work, *arguments, sync=True, delay_ms=delay_ms)
                table.add(row, "java", result["messages"] / result["seconds"])


def step(root: Path, count: int, clients: int, sync: bool, delay_s: float = 0.0) -> float:
    """Run `append_in_step` in a new event loop."""
    return asyncio.run(append_in_step(root, count, clients, sync=sync, delay_s=delay_s))


def fresh(work: Path, measure: Callable[[Path], float]) -> float:
    """Measure with a temporary store."""
    root = work / "fresh"
    try:
        return measure(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def fresh_java(
    peer: JavaPeer, work: Path, *arguments: str, sync: bool, delay_ms: int = 0
) -> dict[str, float]:
    """Measure Java's store in a temporary directory."""
    root = work / "fresh-java"
    try:
        return java(peer, work, root, *arguments, sync=sync, delay_ms=delay_ms)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def recovery(table: Table, work: Path, peer: JavaPeer | None, count: int) -> None:
    """Recovery, reads and queries of one killed store, which Java's store opens last."""
    root = work / "killed"
    fill(root, count)
    checkpoint = (root / "checkpoint").read_bytes()
    name = f"recovery of {count:,} messages, s"
    table.add(name, "ours", recover(root, progress=True))
    (root / "checkpoint").write_bytes(checkpoint)
    shutil.rmtree(root / "consumequeue")
    spent = recover(root, progress=False)
    table.add(f"{name}, without progress", "ours", spent)
    look_ups = 20_000
    with MessageStore(StoreConfig(root=root)) as store:
        table.add("find in a full queue, msgs/s", "ours", find_all(store))
        table.add("read a full queue, msgs/s", "ours", read_all(store))
        table.add("look-up by key, a second", "ours", look_up(store, look_ups))
    if peer is not None:
        for row in ("find in a full queue", "read a full queue"):
            read = java(peer, work, root, row.split()[0])
            table.add(f"{row}, msgs/s", "java", read["messages"] / read["seconds"])
        keys = java(peer, work, root, "key", str(look_ups))
        table.add("look-up by key, a second", "java", keys["messages"] / keys["seconds"])
        theirs = work / "killed-java"
        java(peer, work, theirs, "append", str(count), "1", "halt")
        spent = java(peer, work, theirs, "open", "halt")["open"]
        for row in (name, f"{name}, without progress"):
            table.add(row, "java", spent)
        shutil.rmtree(theirs)
    shutil.rmtree(root)


def empty(table: Table, work: Path, peer: JavaPeer | None) -> None:
    """Disk space of an empty store after it was opened and closed."""
    row = "empty store on disk, KiB"
    root = work / "empty"
    with MessageStore(StoreConfig(root=root)):
        table.add(row, "ours", disk_kib(root))
    if peer is not None:
        java(peer, work, work / "empty-java", "open")
        table.add(row, "java", disk_kib(work / "empty-java"))


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--appends", type=int, default=100_000, help="messages of an append row")
    parser.add_argument("--recovered", type=int, default=1_000_000, help="messages of the recovery row")
    parser.add_argument("--memory-gb", type=float, default=10.0, help="0: leave the row out")
    parser.add_argument("--directory", help="where the stores are made")
    parser.add_argument("--no-java", action="store_true")
    parser.add_argument("--only", choices=("appends", "recovery", "empty", "memory"))
    options = parser.parse_args(arguments)
    try:
        peer = None if options.no_java else JavaPeer.prepare(DEFAULT_VERSION)
    except ToolsMissing as missing:
        print(f"bench: without Java: {missing}")
        peer = None
    table = Table()
    rows: dict[str, Callable[[Path], None]] = {
        "appends": lambda work: appends(table, work, peer, options.appends),
        "recovery": lambda work: recovery(table, work, peer, options.recovered),
        "empty": lambda work: empty(table, work, peer),
    }
    for _ in range(options.rounds):
        for name, measure in rows.items():
            if options.only in (None, name):
                with tempfile.TemporaryDirectory(prefix="rocketpy-bench-", dir=options.directory) as work:
                    measure(Path(work))
    if options.memory_gb and options.only in (None, "memory"):
        with tempfile.TemporaryDirectory(prefix="rocketpy-bench-", dir=options.directory) as work:
            marks = memory_growth(Path(work) / "store", int(options.memory_gb * (1 << 30)))
        print(f"resident MiB while {options.memory_gb} GiB are written: {[round(mark) for mark in marks]}")
    print(table.text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
