"""`python -m tools.bench.dledger`: DLedger groups of three, RocketMQ's and rocketpy's in alternating rounds.

rocketpy's group acknowledges a message once a majority has flushed it; RocketMQ's once a majority has it in
memory. Java's producer sends single messages from one warm JVM, since RocketMQ's group rejects batches.
*catch-up*: a follower restarts with an empty store when it is `--behind` bytes of bodies behind. Groups stay
running and warm. A group and the producer share the machine; the other group is paused (SIGSTOP), because
RocketMQ's uses a third of a core even when idle. Processes are not pinned to cores.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rocketpy import CompressionConfig, Message, Producer, ProducerConfig
from rocketpy.errors import BrokerError
from tests.interop import probe
from tests.interop.cluster import Make, stopping
from tests.interop.java_peer import JavaPeer
from tests.interop.ledger_group import LedgerGroup
from tests.interop.processes import (
    BrokerProcess,
    JavaBroker,
    JavaNameServer,
    NameServerProcess,
    OurBroker,
    OurNameServer,
)
from tools.bench.catch_up import log_end, readable
from tools.bench.comparison import compare, in_turn, note, plural, replica_options, words
from tools.bench.loads import LoadProcess
from tools.bench.machine import usage
from tools.bench.results import Key, Results, align
from tools.bench.servers import BROKER_JVM, CONF, QUEUES, TOPIC, Server

JAVA, OURS = "Java group", "rocketpy group"
_RETRY_FOR_S = 900
_HELD_S_MAX = 4
"""A group that is paused for longer elects a new leader when it continues, because heartbeats are missing."""
_FILLERS = 32


@dataclass(frozen=True)
class Recovery:
    """The catch-up of an empty follower. bytes: final size of its ledger. Others: seconds from its start."""

    bytes: int
    whole_s: float
    readable_s: float
    leader_cpu_s: float
    follower_cpu_s: float


@dataclass(frozen=True)
class Running:
    """A running group, and its name server."""

    name: str
    group: LedgerGroup
    namesrv: NameServerProcess


def main(arguments: list[str]) -> int:
    """Run, print and save. 0 when done, 3 where Java tools are missing."""
    options = parse(arguments)
    recoveries: dict[str, list[Recovery]] = {}

    def measure(peer: JavaPeer, run: Path, options: argparse.Namespace, results: Results) -> None:
        with groups(peer, run, options.groups, options.loop) as running:
            measure_sends(peer, run, options, running, results)
            for number in range(options.catch_up_rounds):
                for one in in_turn(running, number):
                    found = catch_up(one.group, options.behind, options.catch_up_bytes)
                    recoveries.setdefault(one.name, []).append(found)
                    print(f"round {number + 1}  catch-up  {one.name:12}  {found}", flush=True)
        results.notes["catch_up"] = {
            name: [dataclasses.asdict(one) for one in found] for name, found in recoveries.items()
        }

    return compare(
        options,
        measure,
        name="dledger-",
        baseline=JAVA,
        what=f"bodies of {options.bytes} bytes; ",
        more=lambda _: f"\n{table(recoveries)}" if recoveries else "",
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = replica_options(
        "python -m tools.bench.dledger", __doc__, rounds=1, behind=1 << 30, size=16 << 10
    )
    parser.add_argument("--groups", type=words, default=["java", "our"], help="whose groups")
    parser.add_argument("--loop", default="uvloop", help="event loop of our brokers")
    parser.set_defaults(seconds=3.0)
    options = parser.parse_args(arguments)
    if options.seconds > _HELD_S_MAX:
        parser.error(f"--seconds: at most {_HELD_S_MAX}, or the group that is held loses its leader")
    return options


@contextmanager
def groups(peer: JavaPeer, run: Path, makes: Sequence[Make], loop: str) -> Iterator[list[Running]]:
    """A group of three for each make, each with a name server and the topic."""

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
    """Wait until a leader is registered as the master; return its peer id."""
    probe.wait_until(lambda: group.leader() is not None and group.leader() == group.master(), "a leader")
    leader = group.leader()
    assert leader is not None
    return leader


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
                    driven = server(one)
                    with held(other for other in running if other is not one):
                        sample = client.measure(
                            driven, threads=threads, bytes=options.bytes, seconds=options.seconds
                        )
                    note(results, number, Key(plural(threads, "thread"), one.name), sample)


@contextmanager
def held(groups: Iterable[Running]) -> Iterator[None]:
    """Pause these groups inside the block."""
    with ExitStack() as stack:
        for one in groups:
            for broker in one.group.brokers.values():
                stack.enter_context(broker.held())
        yield


def server(one: Running) -> Server:
    """A group as the producer sees it: its leader; the slave's CPU time is that of one follower."""
    leader, brokers = wait_for_leader(one.group), one.group.brokers
    follower = next(broker for peer, broker in brokers.items() if peer != leader)
    return Server(one.name, one.namesrv, brokers[leader], slave=follower)


def catch_up(group: LedgerGroup, behind: int, size: int) -> Recovery:
    """Stop a follower, let the others continue, and restart it with an empty store."""
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
    probe.wait_until(lambda: log_end(broker) >= end, "a whole ledger", _RETRY_FOR_S, 0.05)
    whole_s = time.monotonic() - begin
    probe.wait_until(lambda: readable(broker, TOPIC) >= messages, "its queues", _RETRY_FOR_S, 0.05)
    return Recovery(
        bytes=end,
        whole_s=whole_s,
        readable_s=time.monotonic() - begin,
        leader_cpu_s=usage(leader.pid).cpu_s - before,
        follower_cpu_s=usage(broker.pid).cpu_s,
    )


async def _fill(namesrv: str, count: int, size: int) -> None:
    """Send single messages concurrently, since RocketMQ's group rejects batches."""
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
    """A table with a line for each round."""
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
