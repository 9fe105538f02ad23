"""`python -m tools.bench.run`: both brokers in alternating rounds, and the ratio of medians.

Loads: RocketMQ's own benchmark.Producer (`--official-rounds`; 20 s each, since it reports every ten
seconds), the same loop in one warm JVM (`--rounds`), the PyPI package rocketmq, and rocketpy. The open loop
(`--open-rounds`) shows latencies at equal rates: shares of what the Java client reaches with 64 threads on
the Java broker. Other Python clients on PyPI are not measured: rocketmq-client-python (and its forks) needs
a librocketmq that it does not contain, pyrocketmq runs the Java client in a JVM, rocketmq-python-client
uses gRPC with proxies of 5.x only, and rocketmq-sdk is a client of RabbitMQ. All servers stay running and
warm for the whole run. Each round measures each load with each server once, in alternating order. Processes
are not pinned to cores.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.interop.java_peer import JavaPeer
from tools.bench.comparison import compare, in_turn, note, numbers, options_of, plural, words
from tools.bench.loads import LoadProcess, ProcessPerServer, official
from tools.bench.results import Key, Results, Sample
from tools.bench.servers import JAVA, Server, servers

JAVA_CLIENT = "Java client"
_OPEN_THREADS: Final = 64
_MAXIMUM_ROUNDS: Final = 3


@dataclass(frozen=True)
class Load:
    """One load: its name in the table, and a function that drives a server with it for some seconds."""

    name: str
    measure: Callable[[Server, float], Sample]


def main(arguments: list[str]) -> int:
    """Run, print and save. 0 when done, 3 where Java tools are missing."""
    options = parse(arguments)
    return compare(
        options,
        measure,
        more=lambda results: "\n".join(
            against_java_client(results, size) for size in options.bytes if options.rounds
        ),
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = options_of("python -m tools.bench.run", __doc__)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of the warm loads")
    parser.add_argument(
        "--official-rounds", type=int, default=7, help="rounds of RocketMQ's benchmark.Producer"
    )
    parser.add_argument("--open-rounds", type=int, default=5, help="rounds of the open loop")
    parser.add_argument(
        "--open-percent", type=numbers, default=[10, 50, 90], help="its rates, as shares of Java's maximum"
    )
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="duration of one measurement of a warm load"
    )
    parser.add_argument(
        "--warm-up", type=float, default=3.0, help="seconds each load warms each server before"
    )
    parser.add_argument("--bytes", type=numbers, default=[128, 1024], help="sizes of bodies")
    parser.add_argument(
        "--threads", type=numbers, default=[1, 16, 64, 256], help="threads of the clients that have threads"
    )
    parser.add_argument(
        "--concurrency",
        type=numbers,
        default=[1, 16, 64, 256, 2000],
        help="sends in flight of rocketpy's client",
    )
    parser.add_argument(
        "--batching",
        type=words,
        default=["on", "off"],
        help="whether rocketpy's client batches sends in flight",
    )
    parser.add_argument(
        "--batch", type=int, default=32, help="messages per batch of rocketpy's client; 0: none"
    )
    return parser.parse_args(arguments)


def measure(peer: JavaPeer, run: Path, options: argparse.Namespace, results: Results) -> None:
    """All rounds of all loads into `results`."""
    with ExitStack() as stack:
        running = stack.enter_context(servers(peer, run, options.loops))
        loads = list(warm_loads(stack, peer, run, options)) if options.rounds else []
        for load in loads:
            for server in running:
                load.measure(server, options.warm_up)
        for number in range(options.rounds):
            drive(loads, running, number, options.seconds, results)
        if options.open_rounds and options.open_percent:
            open_loops(stack.enter_context(LoadProcess.java(peer, run)), running, options, results)
        theirs = [official_load(peer, run, threads) for threads in options.threads]
        for number in range(options.official_rounds):
            drive(theirs, running, number, 0, results)


def open_loops(
    client: LoadProcess, running: list[Server], options: argparse.Namespace, results: Results
) -> None:
    """All rounds of the open loop, with bodies of the first size."""
    what: dict[str, Any] = {"threads": _OPEN_THREADS, "bytes": options.bytes[0]}
    (java,) = (server for server in running if server.name == JAVA)
    for server in running:
        client.measure(server, seconds=options.warm_up, **what)
    highest = statistics.median(
        client.measure(java, seconds=options.seconds, **what).rate for _ in range(_MAXIMUM_ROUNDS)
    )
    results.notes["open loop: maximum of the Java broker"] = highest
    loads = []
    for percent in options.open_percent:
        rate = highest * percent / 100
        name = f"open loop, {options.bytes[0]} B, {percent} % of Java's maximum"
        loads.append(process_load(client, name, rate=rate, **what))
    for number in range(options.open_rounds):
        drive(loads, running, number, options.seconds, results)


def drive(loads: list[Load], running: list[Server], number: int, seconds: float, results: Results) -> None:
    """One round; every second round goes through the servers the other way."""
    for load in loads:
        for server in in_turn(running, number):
            note(results, number, Key(load.name, server.name), load.measure(server, seconds))


def warm_loads(stack: ExitStack, peer: JavaPeer, run: Path, options: argparse.Namespace) -> Iterator[Load]:
    """Loads whose client process lives for the whole run."""
    threaded: dict[str, LoadProcess | ProcessPerServer] = {}
    if options.threads:
        threaded[JAVA_CLIENT] = stack.enter_context(LoadProcess.java(peer, run))
        if importlib.util.find_spec("rocketmq") is None:
            print("PyPI's rocketmq: NOT RUN, it is not installed; its only wheel is for Linux on x86-64")
        else:
            threaded["PyPI's rocketmq"] = ProcessPerServer(stack, lambda: LoadProcess.librocketmq(run))
    sdks = {loop: stack.enter_context(LoadProcess.sdk(run, loop)) for loop in options.sdk_loops}
    for size in options.bytes:
        for name, client in threaded.items():
            for threads in options.threads:
                title = f"{name}, {size} B, {plural(threads, 'thread')}"
                yield process_load(client, title, threads=threads, bytes=size)
        for loop, sdk in sdks.items():
            for batching in options.batching:
                for concurrency in options.concurrency:
                    title = f"rocketpy ({loop}), {size} B, batching {batching}, {concurrency} in flight"
                    gathers = batching == "on"
                    yield process_load(sdk, title, concurrency=concurrency, bytes=size, gathers=gathers)
            if options.batch:
                title = f"rocketpy ({loop}), {size} B, batches of {options.batch}, 4 in flight"
                yield process_load(sdk, title, concurrency=4, batch=options.batch, bytes=size)


def process_load(client: LoadProcess | ProcessPerServer, name: str, **what: Any) -> Load:
    """A load done by a client process."""
    return Load(name, lambda server, seconds: client.measure(server, seconds=seconds, **what))


def official_load(peer: JavaPeer, run: Path, threads: int) -> Load:
    """A load done by RocketMQ's own benchmark producer."""
    name = f"benchmark.Producer, {plural(threads, 'thread')}"
    return Load(name, lambda server, _seconds: official(peer, run, server, threads))


def against_java_client(results: Results, size: int) -> str:
    """Rates of rocketpy's client on the Java broker, divided by the Java client's best with such bodies."""
    rates = {key.load: results.rate(key) for key in results.samples if key.server == JAVA}
    best = max(
        (rate for name, rate in rates.items() if name.startswith(f"{JAVA_CLIENT}, {size} B")), default=0
    )
    if not best:
        return f"{size} B: the Java client was not measured"
    lines = [f"{size} B, on the Java broker, over the Java client's best ({best:,.0f} msgs/s):"]
    ours = [
        (name, rate) for name, rate in rates.items() if name.startswith("rocketpy") and f", {size} B" in name
    ]
    return "\n".join(lines + [f"  {rate / best:5.2f}  {name}" for name, rate in ours])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
