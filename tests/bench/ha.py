"""`python -m tests.bench.ha`: master and slave, RocketMQ's pair and ours in alternating rounds.

Three things. *SYNC_MASTER*: sends that are answered once the slave has them, by Java's producer in one warm
JVM. *lag*: the same producer waits for no slave (WAIT=false), so that the master runs at full load; how late
each message is on the slave. *catch-up*: a slave that was stopped comes back `--behind` bytes later. Pairs
stay up and warm; both brokers of a pair and the producer share the machine. Nothing is pinned.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rocketpy import Message, SendStatus, sync
from tests.bench import catch_up, machine
from tests.bench.catch_up import CatchUp, Laggard, log_end, wait_until_equal
from tests.bench.comparison import EXIT_NOT_RUN, heading, prepare, save, words
from tests.bench.lag import LagWatch, LogTail
from tests.bench.loads import LoadProcess
from tests.bench.results import Key, Results, Sample
from tests.bench.run import numbers, plural
from tests.bench.servers import CONF, JAVA, QUEUES, Server, servers
from tests.interop import probe
from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer


def main(arguments: list[str]) -> int:
    """Run, print and save. 0 when done, 3 where Java tools are missing."""
    options = parse(arguments)
    peer = prepare(options.version)
    if peer is None:
        return EXIT_NOT_RUN
    about: dict[str, Any] = {**machine.describe(), "rocketmq": options.version, "options": vars(options)}
    about["queues"] = QUEUES
    results, caught_up = Results(baseline=JAVA), dict[str, list[CatchUp]]()
    with (
        tempfile.TemporaryDirectory(prefix="rocketpy-bench-", dir=options.directory) as directory,
        servers(peer, Path(directory), options.loops, slaves=True) as pairs,
    ):
        if options.rounds:
            measure_sends(peer, Path(directory), options, pairs, results)
        if options.catch_up_rounds:
            measure_catch_up(options, pairs, caught_up)
    print(f"\n{heading(about, f'bodies of {options.bytes} bytes; ')}\n\n{results.table()}")
    if caught_up:
        print(f"\n{catch_up.table(caught_up, JAVA)}")
        about["catch_up"] = {
            name: [dataclasses.asdict(one) for one in found] for name, found in caught_up.items()
        }
    if not options.discard:
        save(results, about, "ha-")
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.ha", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of sends and of lag")
    parser.add_argument("--seconds", type=float, default=5.0, help="a stretch of sends")
    parser.add_argument(
        "--warm-up", type=float, default=5.0, help="seconds a pair is warmed up with each load"
    )
    parser.add_argument("--threads", type=numbers, default=[1, 16, 64], help="threads of the producer")
    parser.add_argument("--lag-threads", type=int, default=64, help="threads at full load; 0: no lag")
    parser.add_argument("--bytes", type=int, default=128, help="size of bodies")
    parser.add_argument("--catch-up-rounds", type=int, default=3)
    parser.add_argument("--behind", type=int, default=2 << 30, help="bytes of bodies a slave is behind")
    parser.add_argument("--catch-up-bytes", type=int, default=1024, help="size of bodies it is behind of")
    parser.add_argument("--loops", type=words, default=["asyncio", "uvloop"], help="loops of our pairs")
    parser.add_argument("--version", default=DEFAULT_VERSION, help="RocketMQ's")
    parser.add_argument("--directory", help="where the stores go; default: the system's temporary directory")
    parser.add_argument("--discard", action="store_true", help="do not save the results")
    return parser.parse_args(arguments)


def measure_sends(
    peer: JavaPeer, run: Path, options: argparse.Namespace, pairs: list[Server], results: Results
) -> None:
    """All rounds of sends and lag into `results`."""
    with ExitStack() as stack:
        client = stack.enter_context(LoadProcess.java(peer, run))
        for pair in pairs:
            wait_for_slave(pair)
            for threads in options.threads:
                send(client, pair, options, threads, options.warm_up)
        for number in range(options.rounds):
            for threads in options.threads:
                for pair in in_turn(pairs, number):
                    sample = send(client, pair, options, threads, options.seconds)
                    note(results, number, f"SYNC_MASTER, {plural(threads, 'thread')}", pair, sample)
            if options.lag_threads:
                for pair in in_turn(pairs, number):
                    sample = lag(client, pair, options)
                    note(results, number, f"lag, {plural(options.lag_threads, 'thread')}", pair, sample)


def in_turn(pairs: list[Server], number: int) -> list[Server]:
    """Every second round goes the other way."""
    return pairs if number % 2 == 0 else pairs[::-1]


def note(results: Results, number: int, load: str, pair: Server, sample: Sample) -> None:
    """Keep and print a sample."""
    results.add(Key(load, pair.name), sample)
    print(
        f"round {number + 1}  {load:24}  {pair.name:16}  {sample.rate:10,.0f} msgs/s"
        f"  p50 {sample.p50_us / 1000:.2f} ms  p99 {sample.p99_us / 1000:.2f} ms",
        flush=True,
    )


def send(
    client: LoadProcess, pair: Server, options: argparse.Namespace, threads: int, seconds: float
) -> Sample:
    """Sends that wait for the slave."""
    return client.measure(pair, threads=threads, bytes=options.bytes, seconds=seconds)


def lag(client: LoadProcess, pair: Server, options: argparse.Namespace) -> Sample:
    """Sends that do not wait; the sample's latencies are the slave's lag."""
    wait_until_equal(pair)
    assert pair.slave is not None
    tail = LogTail(
        pair.slave.store / "commitlog", log_end(pair.slave), int(str(CONF["mappedFileSizeCommitLog"]))
    )
    with LagWatch(tail) as watch:
        sample = client.measure(
            pair, threads=options.lag_threads, bytes=options.bytes, seconds=options.seconds, wait=False
        )
        wait_until_equal(pair)
    return dataclasses.replace(
        sample, p50_us=watch.percentile_ms(0.5) * 1000, p99_us=watch.percentile_ms(0.99) * 1000
    )


def measure_catch_up(
    options: argparse.Namespace, pairs: list[Server], found: dict[str, list[CatchUp]]
) -> None:
    """All rounds of catching up into `found`."""
    for pair in pairs:
        wait_for_slave(pair)
    count = options.behind // options.catch_up_bytes
    behind = {pair.name: Laggard(pair, count, options.catch_up_bytes) for pair in pairs}
    for number in range(options.catch_up_rounds):
        for pair in in_turn(pairs, number):
            one = behind[pair.name].measure()
            found.setdefault(pair.name, []).append(one)
            print(
                f"round {number + 1}  catch-up  {pair.name:16}  {one.rate:7,.0f} MB/s"
                f"  {one.start_s:.1f} s from its start, readable after {one.readable_s:.1f} s",
                flush=True,
            )


def wait_for_slave(pair: Server) -> None:
    """Until a send is answered with SEND_OK: a Java slave takes five seconds to say that it is there."""
    with sync.Producer("bench_waiter", pair.namesrv_address) as producer:
        message = Message(pair.topic, b"is there a slave?")
        probe.wait_until(lambda: producer.send(message).status is SendStatus.SEND_OK, f"{pair.name}'s slave")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
