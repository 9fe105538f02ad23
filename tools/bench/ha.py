"""`python -m tools.bench.ha`: master and slave, RocketMQ's pair and rocketpy's in alternating rounds.

Three measurements. *SYNC_MASTER*: Java's producer sends from one warm JVM, and waits until the slave has the
messages. *lag*: the same producer does not wait for the slave (WAIT=false), so that the master is fully
loaded; the result is the delay of messages on the slave. *catch-up*: a slave restarts `--behind` bytes later.
Pairs stay running and warm; a pair and the producer share the machine. Processes are not pinned to cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from contextlib import ExitStack
from pathlib import Path

from rocketpy import Message, SendStatus, sync
from tests.interop import probe
from tests.interop.java_peer import JavaPeer
from tools.bench import catch_up
from tools.bench.catch_up import CatchUp, Laggard, log_end, wait_until_equal
from tools.bench.comparison import compare, in_turn, note, plural, replica_options, words
from tools.bench.lag import LagWatch, LogTail
from tools.bench.loads import LoadProcess
from tools.bench.results import Key, Results, Sample
from tools.bench.servers import CONF, JAVA, Server, servers


def main(arguments: list[str]) -> int:
    """Run, print and save. 0 when done, 3 where Java tools are missing."""
    options = parse(arguments)
    caught_up: dict[str, list[CatchUp]] = {}

    def measure(peer: JavaPeer, run: Path, options: argparse.Namespace, results: Results) -> None:
        with servers(peer, run, options.loops, slaves=True) as pairs:
            if options.rounds:
                measure_sends(peer, run, options, pairs, results)
            if options.catch_up_rounds:
                measure_catch_up(options, pairs, caught_up)
        results.notes["catch_up"] = {
            name: [dataclasses.asdict(one) for one in found] for name, found in caught_up.items()
        }

    return compare(
        options,
        measure,
        name="ha-",
        what=f"bodies of {options.bytes} bytes; ",
        more=lambda _: f"\n{catch_up.table(caught_up, JAVA)}" if caught_up else "",
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = replica_options("python -m tools.bench.ha", __doc__, rounds=3, behind=2 << 30, size=1024)
    parser.add_argument("--lag-threads", type=int, default=64, help="threads at full load; 0: no lag")
    parser.add_argument("--loops", type=words, default=["asyncio", "uvloop"], help="loops of our pairs")
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
                    note(results, number, Key(f"SYNC_MASTER, {plural(threads, 'thread')}", pair.name), sample)
            if options.lag_threads:
                for pair in in_turn(pairs, number):
                    sample = lag(client, pair, options)
                    load = f"lag, {plural(options.lag_threads, 'thread')}"
                    note(results, number, Key(load, pair.name), sample)


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
    """Wait until a send returns SEND_OK, since a Java slave reports its offset only after 5 s."""
    with sync.Producer("bench_waiter", pair.namesrv_address) as producer:
        message = Message(pair.topic, b"is there a slave?")
        probe.wait_until(lambda: producer.send(message).status is SendStatus.SEND_OK, f"{pair.name}'s slave")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
