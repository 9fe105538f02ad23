"""`python -m tests.bench.dledger`: DLedger groups of three, RocketMQ's and ours in alternating rounds.

Ours acknowledges a message once a majority has flushed it; RocketMQ's once a majority has it in memory. Sends
are those of Java's producer in one warm JVM, one message each: RocketMQ's group takes no batches. *catch-up*:
a follower that has lost everything comes back `--behind` bytes of bodies later. Groups stay up and warm; the
three brokers of a group and the producer share the machine. Nothing is pinned.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocketpy import CompressionConfig, Message, Producer, ProducerConfig
from rocketpy.errors import BrokerError
from tests.bench import machine
from tests.bench.catch_up import log_end, readable
from tests.bench.comparison import EXIT_NOT_RUN, heading, prepare, save, words
from tests.bench.loads import LoadProcess
from tests.bench.machine import usage
from tests.bench.results import Key, Results, align
from tests.bench.run import numbers, plural
from tests.bench.servers import BROKER_JVM, CONF, QUEUES, TOPIC, Server
from tests.interop import probe
from tests.interop.cluster import Make, stopping
from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer
from tests.interop.ledger_group import LedgerGroup
from tests.interop.processes import (
    BrokerProcess,
    JavaBroker,
    JavaNameServer,
    NameServerProcess,
    OurBroker,
    OurNameServer,
)

JAVA, OURS = "Java group", "our group"
_PATIENCE_S = 900
_FILLERS = 32


@dataclass(frozen=True)
class Recovery:
    """A follower that began empty. bytes: of its ledger at the end. The rest: seconds from its start."""

    bytes: int
    whole_s: float
    readable_s: float
    leader_cpu_s: float
    follower_cpu_s: float


@dataclass(frozen=True)
class Running:
    """A group that is up, and the name server that knows it."""

    name: str
    group: LedgerGroup
    namesrv: NameServerProcess


def main(arguments: list[str]) -> int:
    """Run, print and save. 0 when done, 3 where Java tools are missing."""
    options = parse(arguments)
    peer = prepare(options.version)
    if peer is None:
        return EXIT_NOT_RUN
    about: dict[str, Any] = {**machine.describe(), "rocketmq": options.version, "options": vars(options)}
    results, recoveries = Results(baseline=JAVA), dict[str, list[Recovery]]()
    with (
        tempfile.TemporaryDirectory(prefix="rocketpy-bench-", dir=options.directory) as directory,
        groups(peer, Path(directory), options.groups, options.loop) as running,
    ):
        measure_sends(peer, Path(directory), options, running, results)
        for number in range(options.catch_up_rounds):
            for one in in_turn(running, number):
                found = catch_up(one.group, options.behind, options.catch_up_bytes)
                recoveries.setdefault(one.name, []).append(found)
                print(f"round {number + 1}  catch-up  {one.name:12}  {found}", flush=True)
    print(f"\n{heading(about, f'bodies of {options.bytes} bytes; ')}\n\n{results.table()}")
    if recoveries:
        print(f"\n{table(recoveries)}")
        about["catch_up"] = {
            name: [dataclasses.asdict(one) for one in found] for name, found in recoveries.items()
        }
    if not options.discard:
        save(results, about, "dledger-")
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.dledger", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="a stretch of sends")
    parser.add_argument(
        "--warm-up", type=float, default=5.0, help="seconds a group is warmed up with each load"
    )
    parser.add_argument("--threads", type=numbers, default=[1, 16, 64], help="threads of the producer")
    parser.add_argument("--bytes", type=int, default=128, help="size of bodies")
    parser.add_argument("--catch-up-rounds", type=int, default=1)
    parser.add_argument("--behind", type=int, default=1 << 30, help="bytes of bodies a follower lacks")
    parser.add_argument("--catch-up-bytes", type=int, default=16 << 10, help="size of those bodies")
    parser.add_argument("--groups", type=words, default=["java", "our"], help="whose groups")
    parser.add_argument("--loop", default="uvloop", help="event loop of our brokers")
    parser.add_argument("--version", default=DEFAULT_VERSION, help="RocketMQ's")
    parser.add_argument("--directory", help="where the stores go; default: the system's temporary directory")
    parser.add_argument("--discard", action="store_true", help="do not save the results")
    return parser.parse_args(arguments)


@contextmanager
def groups(peer: JavaPeer, run: Path, makes: Sequence[Make], loop: str) -> Iterator[list[Running]]:
    """A group of three for each make, with a name server of its own and the topic."""

    def new(*, make: Make, run: Path, namesrv: str, conf: Mapping[str, object]) -> BrokerProcess:
        if make == "java":
            return JavaBroker(peer, run, namesrv, conf=conf, jvm=BROKER_JVM)
        return OurBroker(run, namesrv, conf=conf, options=("--loop", loop))

    with ExitStack() as stack:
        running = []
        for make in makes:
            names: NameServerProcess = OurNameServer(run / make)
            if make == "java":
                names = JavaNameServer(peer, run / make)
            stack.enter_context(stopping([names.start()]))
            group = LedgerGroup(run / make, names.address, [make] * 3, conf=CONF, file_bytes=1 << 30, new=new)
            stack.enter_context(group)
            wait_for_leader(group)
            asyncio.run(group.make_topic(TOPIC, QUEUES))
            running.append(Running(JAVA if make == "java" else OURS, group, names))
        yield running


def wait_for_leader(group: LedgerGroup) -> str:
    """Until one leads and is the master for producers; return which."""
    probe.wait_until(lambda: group.leader() is not None and group.leader() == group.master(), "a leader")
    leader = group.leader()
    assert leader is not None
    return leader


def in_turn(running: list[Running], number: int) -> list[Running]:
    """Every second round goes the other way."""
    return running if number % 2 == 0 else running[::-1]


def measure_sends(
    peer: JavaPeer,
    run: Path,
    options: argparse.Namespace,
    running: list[Running],
    results: Results,
) -> None:
    """All rounds of sends into `results`."""
    with LoadProcess.java(peer, run) as client:
        for one in running:
            for threads in options.threads if options.rounds else ():
                client.measure(server(one), threads=threads, bytes=options.bytes, seconds=options.warm_up)
        for number in range(options.rounds):
            for threads in options.threads:
                for one in in_turn(running, number):
                    sample = client.measure(
                        server(one), threads=threads, bytes=options.bytes, seconds=options.seconds
                    )
                    results.add(Key(plural(threads, "thread"), one.name), sample)
                    print(
                        f"round {number + 1}  {plural(threads, 'thread'):12}  {one.name:12}"
                        f"  {sample.rate:10,.0f} msgs/s  p50 {sample.p50_us / 1000:.2f} ms"
                        f"  p99 {sample.p99_us / 1000:.2f} ms",
                        flush=True,
                    )


def server(one: Running) -> Server:
    """A group as the producer sees it: its leader; the slave's CPU time is that of one follower."""
    leader, brokers = wait_for_leader(one.group), one.group.brokers
    follower = next(broker for peer, broker in brokers.items() if peer != leader)
    return Server(one.name, one.namesrv, brokers[leader], slave=follower)


def catch_up(group: LedgerGroup, behind: int, size: int) -> Recovery:
    """Stop a follower, let the others go on, and start it again with an empty store."""
    leading = wait_for_leader(group)
    follower = next(peer for peer in group.brokers if peer != leading)
    broker = group.brokers[follower]
    broker.stop()
    shutil.rmtree(broker.store)
    asyncio.run(_fill(group.namesrv, behind // size, size))
    leader = group.brokers[wait_for_leader(group)]
    end, messages = log_end(leader), readable(leader, TOPIC)
    before, begin = usage(leader.pid).cpu_s, time.monotonic()
    broker.start()
    probe.wait_until(lambda: log_end(broker) >= end, "a whole ledger", _PATIENCE_S, 0.05)
    whole_s = time.monotonic() - begin
    probe.wait_until(lambda: readable(broker, TOPIC) >= messages, "its queues", _PATIENCE_S, 0.05)
    return Recovery(
        bytes=end,
        whole_s=whole_s,
        readable_s=time.monotonic() - begin,
        leader_cpu_s=usage(leader.pid).cpu_s - before,
        follower_cpu_s=usage(broker.pid).cpu_s,
    )


async def _fill(namesrv: str, count: int, size: int) -> None:
    """Send one by one, many at a time: RocketMQ's group takes no batches."""
    config = ProducerConfig(
        batching=False, send_timeout_ms=30_000, compression=CompressionConfig(above_bytes=size)
    )
    left = iter(range(count))
    async with (
        Producer("bench_filler", namesrv, config=config) as producer,
        asyncio.TaskGroup() as senders,
    ):
        for _ in range(_FILLERS):
            senders.create_task(_send_rest(producer, left, Message(TOPIC, b"b" * size)))


async def _send_rest(producer: Producer, left: Iterator[int], message: Message) -> None:
    for _ in left:
        while True:
            try:
                await producer.send(message)
                break
            except BrokerError:  # busy
                await asyncio.sleep(0.05)


def table(recoveries: dict[str, list[Recovery]]) -> str:
    """A line a round."""
    heads = ("catch-up", "GB", "whole s", "MB/s", "readable s", "leader CPU s", "follower CPU s")
    rows = [
        (
            name,
            f"{one.bytes / 1e9:.2f}",
            f"{one.whole_s:.1f}",
            f"{one.bytes / one.whole_s / 1e6:.0f}",
            f"{one.readable_s:.1f}",
            f"{one.leader_cpu_s:.1f}",
            f"{one.follower_cpu_s:.1f}",
        )
        for name, found in recoveries.items()
        for one in found
    ]
    return align([heads, *rows])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
