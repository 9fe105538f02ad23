"""`python -m tools.bench.versions --before COMMIT`: CPU time per message, in an earlier and in this version.

Each round restarts servers and clients of both versions, because the memory layout of a process makes it some
percent slower or faster. In a round, short measurements alternate; the stores, which are in process, run at
the same time. The ratio is the median of the rounds' ratios, with its 95 % confidence interval.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketpy import sync
from tests.interop.cluster import PATIENT, stopping
from tests.interop.java_peer import REPOSITORY
from tests.interop.processes import OurBroker, OurNameServer, checkout_of, our_environment
from tools.bench import machine
from tools.bench.comparison import in_turn, save, words
from tools.bench.loads import LoadProcess, fill
from tools.bench.results import Key, Results, Sample, align
from tools.bench.servers import CONF, QUEUES, TOPIC, Server

BEFORE, AFTER = "before", "after"
SENDS: Final = {
    "producer, one by one": {"concurrency": 1, "gathers": False},
    "producer, unbatched, 64 in flight": {"concurrency": 64, "gathers": False},
    "producer, batched, 64 in flight": {"concurrency": 64, "gathers": True},
}
DRAINS: Final = {"push consumer": "async", "lite pull": "lite"}
PROCESSES: Final[dict[str, Callable[[Sample], float]]] = {
    "client": lambda sample: sample.client_cpu_us,
    "broker": lambda sample: sample.broker_cpu_us,
}


def main(arguments: list[str]) -> int:
    """Run, print and save."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.versions", description=__doc__)
    parser.add_argument("--before", required=True, help="commit, or a directory with a checkout")
    parser.add_argument("--after", default=str(REPOSITORY), help="the same; default: this checkout")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=4, help="measurements of each load in a round")
    parser.add_argument("--seconds", type=float, default=0.5, help="duration of one measurement of sends")
    parser.add_argument("--messages", type=int, default=200_000, help="messages of a drain")
    parser.add_argument("--stored", type=int, default=50_000, help="messages of a store in process")
    parser.add_argument("--only", type=words, default=["clients", "store"], help="clients, store, or both")
    parser.add_argument("--directory", help="where the stores go; default: the system's temporary directory")
    options = parser.parse_args(arguments)
    sides = {BEFORE: checkout_of(options.before), AFTER: checkout_of(options.after)}
    about = {**machine.describe(), "options": vars(options)}
    results = Results(BEFORE)
    rounds = {"clients": clients, "store": store}
    try:
        for number in range(options.rounds):
            for name in options.only:
                with tempfile.TemporaryDirectory(prefix="rocketpy-bench-", dir=options.directory) as run:
                    for key, sample in rounds[name](Path(run), sides, options, number).items():
                        results.add(key, sample)
            print(f"round {number + 1}", flush=True)
    finally:  # after an interrupt, too: then of the complete rounds
        print(table(results))
    save(results, about, "versions-")
    return 0


@dataclass(frozen=True)
class Side:
    """A version's broker, and its client processes by load."""

    name: str
    server: Server
    drained: Server
    loads: dict[str, LoadProcess]


def clients(run: Path, sides: dict[str, Path], options: argparse.Namespace, number: int) -> dict[Key, Sample]:
    """Measure each load of each version's clients with the broker of that version."""
    found: dict[Key, list[Sample]] = {}
    with ExitStack() as stack:
        started = [start(stack, run / side, side, checkout, options) for side, checkout in sides.items()]
        for turn in range(-1, options.turns):
            for load in (*SENDS, *DRAINS):
                for side in in_turn(started, number + turn):
                    sample = measure_load(side, load, options, turn)
                    if turn >= 0:  # the first one is a warm-up
                        found.setdefault(Key(load, side.name), []).append(sample)
    return {key: mean(samples) for key, samples in found.items()}


def start(stack: ExitStack, run: Path, side: str, checkout: Path, options: argparse.Namespace) -> Side:
    """Start a version's servers and clients."""
    run.mkdir()
    names = OurNameServer(run, checkout=checkout)
    stack.enter_context(stopping([names.start()]))
    broker = OurBroker(run, names.address, conf={**CONF, **PATIENT}, checkout=checkout)
    stack.enter_context(stopping([broker.start()]))
    server, drained = (Server(side, names, broker, topic=topic) for topic in (TOPIC, "Drained"))
    with sync.Producer("bench_topics", names.address) as producer:
        for one in (server, drained):
            producer.create_topic(one.topic, QUEUES)
    fill(drained, options.messages, 128)
    sender = stack.enter_context(LoadProcess.sdk(run, "asyncio", checkout=checkout))
    loads = dict.fromkeys(SENDS, sender)
    for load, handler in DRAINS.items():
        process = LoadProcess.sdk(run, "asyncio", "push_load", "--handler", handler, checkout=checkout)
        loads[load] = stack.enter_context(process)
    return Side(side, server, drained, loads)


def measure_load(side: Side, load: str, options: argparse.Namespace, turn: int) -> Sample:
    """One measurement of a load; each drain has a new group."""
    if load in SENDS:
        return side.loads[load].measure(side.server, seconds=options.seconds, bytes=128, **SENDS[load])
    group = f"{DRAINS[load]}_{turn + 1}"
    return side.loads[load].measure(side.drained, do="drain", group=group, messages=options.messages)


def mean(samples: Sequence[Sample]) -> Sample:
    """The mean rate and CPU times of several measurements."""
    return Sample(
        rate=statistics.fmean(sample.rate for sample in samples),
        failed=sum(sample.failed for sample in samples),
        broker_cpu_us=statistics.fmean(sample.broker_cpu_us for sample in samples),
        client_cpu_us=statistics.fmean(sample.client_cpu_us for sample in samples),
    )


def store(run: Path, sides: dict[str, Path], options: argparse.Namespace, _: int) -> dict[Key, Sample]:
    """Measure the stores, each in its own process."""
    program = str(Path(__file__).with_name("store_load.py"))
    running = {}
    for side, checkout in sides.items():
        command = [sys.executable, "-P", program, str(run / side), str(options.stored)]
        running[side] = subprocess.Popen(
            command, env=our_environment(checkout), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    return {
        Key(load, side): Sample(1e6 / micros, client_cpu_us=micros)
        for side, process in running.items()
        for load, micros in json.loads(process.communicate()[0]).items()
    }


def table(results: Results) -> str:
    """A table with a line for each load and process: medians of both versions, and their ratio."""
    rows: list[tuple[str, ...]] = [("load", "process", "rounds", "before µs", "after µs", "ratio", "95 %")]
    for load in dict.fromkeys(key.load for key in results.samples):
        for process, cpu_us in PROCESSES.items():
            before, after = (
                [cpu_us(one) for one in results.samples[Key(load, side)]] for side in (BEFORE, AFTER)
            )
            if not all(before):
                continue  # in process: there is no broker
            ratios = [new / old for old, new in zip(before, after, strict=True)]
            low, high = interval(ratios)
            middle = (statistics.median(values) for values in (before, after))
            numbers = (*(f"{value:.2f}" for value in middle), f"{statistics.median(ratios):.3f}")
            rows.append((load, process, str(len(ratios)), *numbers, f"{low:.3f}..{high:.3f}"))
    return align(rows)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The distribution-free 95 % confidence interval of the median, by ranks of the binomial distribution."""
    ordered, count = sorted(values), len(values)
    rank, below = 0, 1 / 2**count
    while below <= 0.025 and rank < count // 2:
        rank += 1
        below += math.comb(count, rank) / 2**count
    return ordered[max(0, rank - 1)], ordered[count - max(1, rank)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
