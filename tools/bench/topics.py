"""Sends over many topics: `python -m tools.bench.topics [--topics N,N] [--rounds N]`.

rocketpy's client sends to all topics in turn, to each broker in alternating rounds, with batching off. Each
number of topics has brokers of its own. Before the rounds each queue gets messages, until consume queues and
index are as long as the log. RocketMQ keeps the file of each queue open, so the number of queues is limited
by the open files of a process (ulimit -Hn): with more, its broker stops accepting messages.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from rocketpy.protocol.bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from rocketpy.protocol.codes import RequestCode
from tests.interop import probe
from tests.interop.cluster import PATIENT, stopping
from tests.interop.java_peer import JavaPeer
from tests.interop.processes import JavaBroker, JavaNameServer, OurBroker, OurNameServer
from tools.bench.comparison import compare, in_turn, note, numbers, options_of, plural
from tools.bench.loads import LoadProcess
from tools.bench.results import Key, Results, align
from tools.bench.servers import BROKER_JVM, CONF, JAVA, TOPIC, Server

_OTHER_FILES: Final = 400
"""Jars, sockets, logs, commit log and index of RocketMQ's broker."""
_FILL_IN_FLIGHT: Final = 16
_FILLS_MAX: Final = 60


def main(arguments: list[str]) -> int:
    """Run, print and save. 0 when done, 3 where Java tools are missing."""
    parser = options_of("python -m tools.bench.topics", __doc__)
    parser.set_defaults(loops=["asyncio"], sdk_loops=["asyncio"])
    parser.add_argument("--topics", type=numbers, default=[1, 1000, 5000], help="numbers of topics")
    parser.add_argument("--queues", type=int, default=4, help="queues of a topic")
    parser.add_argument("--concurrency", type=numbers, default=[64], help="sends in flight")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of one measurement")
    parser.add_argument("--bytes", type=int, default=128, help="size of bodies")
    options = parser.parse_args(arguments)
    most = (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - _OTHER_FILES) // options.queues
    for count in options.topics:
        if count > most:
            print(f"{count} topics are measured as {most}: RocketMQ needs an open file for each queue")
    options.topics = [min(count, most) for count in options.topics]
    return compare(options, measure, name="topics-", what="each numbered ", more=growth)


def growth(results: Results) -> str:
    """A table of the brokers' CPU time of a message, and its ratio to the first number of topics."""
    rows: list[tuple[str, ...]] = [("load", "server", "broker", "ratio")]
    first: dict[tuple[str, str], float] = {}
    for (load, server), samples in results.samples.items():
        cpu_us = statistics.median(sample.broker_cpu_us for sample in samples)
        _, _, in_flight = load.partition(", ")
        base = first.setdefault((server, in_flight), cpu_us)
        rows.append((load, server, f"{cpu_us:.1f}", f"{cpu_us / base:.2f}"))
    return f"\n{align(rows)}\nratio: to the first number of topics, on the same server"


def measure(peer: JavaPeer, run: Path, options: argparse.Namespace, results: Results) -> None:
    """All rounds of all loads into `results`."""
    with ExitStack() as stack:
        client = stack.enter_context(LoadProcess.sdk(run, options.sdk_loops[0]))
        running = {count: start(stack, peer, run / f"{count}", count, options) for count in options.topics}
        what: dict[str, Any] = {"bytes": options.bytes, "gathers": False}
        for count, servers in running.items():
            for server in servers:
                fill(client, server, count * options.queues, topics=count, **what)
        for number in range(options.rounds):
            for count, servers in running.items():
                for concurrency in options.concurrency:
                    load = f"{plural(count, 'topic')}, {concurrency} in flight"
                    for server in in_turn(servers, number):
                        sample = client.measure(
                            server, topics=count, concurrency=concurrency, seconds=options.seconds, **what
                        )
                        note(results, number, Key(load, server.name), sample)
                        await_dispatch(server)


def start(
    stack: ExitStack, peer: JavaPeer, run: Path, count: int, options: argparse.Namespace
) -> list[Server]:
    """Start brokers of both makes with this number of topics."""
    conf = {**CONF, **PATIENT}
    names = JavaNameServer(peer, run)
    stack.enter_context(stopping([names.start()]))
    java = JavaBroker(peer, run, names.address, conf=conf, jvm=BROKER_JVM)
    servers = [Server(JAVA, names, java)]
    for loop in options.loops:
        our_names = OurNameServer(run / loop)
        stack.enter_context(stopping([our_names.start()]))
        ours = OurBroker(run / loop, our_names.address, conf=conf, options=("--loop", loop))
        servers.append(Server(f"ours, {loop}", our_names, ours))
    for server in servers:
        write_topics(server.broker.store, count, options.queues)
        stack.enter_context(stopping([server.broker.start()]))
    return servers


def write_topics(store: Path, count: int, queues: int) -> None:
    """Write the file of topics of a new store. A broker takes minutes to create thousands one by one."""
    names = (f"{TOPIC}{number}" for number in range(count))
    topics = {
        name: TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues) for name in names
    }
    version = DataVersion(timestamp=int(time.time() * 1000), counter=1)
    wrapper = TopicConfigSerializeWrapper(topic_config_table=topics, data_version=version)
    (store / "config").mkdir(parents=True)
    (store / "config" / "topics.json").write_bytes(msgspec.json.format(wrapper.encode(), indent=2))


def fill(client: LoadProcess, server: Server, queues: int, **what: Any) -> None:
    """Send until each queue has messages, and the broker has created the files of all queues."""
    sent, number = 0.0, 0
    while sent < 2 * queues or number < 2:
        sent += client.measure(server, concurrency=_FILL_IN_FLIGHT, seconds=1, **what).rate
        number += 1
        if number > _FILLS_MAX:
            raise RuntimeError(f"{server.name} took {sent:,.0f} messages only; see {server.broker.home}")
    await_dispatch(server)


def await_dispatch(server: Server) -> None:
    """Wait until consume queues and index are as long as the log."""
    probe.wait_until(partial(is_dispatched, server.broker.address), f"dispatch of {server.name}")


def is_dispatched(address: str) -> bool:
    """Whether a broker says that all records are dispatched."""
    _, _, body = probe.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
    return probe.table(body)["dispatchBehindBytes"] == "0"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
