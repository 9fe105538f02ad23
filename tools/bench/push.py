"""`python -m tools.bench.push`: push consumers of both makes with brokers of both makes.

Two loads. *drain*: a new group consumes a topic of `--messages` messages of 128 bytes. *latency*: a message
every two milliseconds; the time from its send to its handler. Servers and consumer processes stay running and
warm; rounds alternate as in `tools.bench.run`. Processes are not pinned to cores.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocketpy import Message, ProducerConfig, sync
from tests.interop.java_peer import JavaPeer
from tools.bench.comparison import compare, in_turn, options_of, words
from tools.bench.loads import LoadProcess, fill
from tools.bench.push_load import HANDLERS
from tools.bench.results import Key, Results, Sample
from tools.bench.servers import QUEUES, Server, servers

INTERVAL_S = 0.002
_groups = itertools.count(1)


@dataclass(frozen=True)
class Consumer:
    """A consumer process and its name in the table."""

    name: str
    process: LoadProcess

    def measure(self, server: Server, do: str, messages: int) -> Sample:
        """One measurement, with a new group."""
        group = f"bench_group_{next(_groups)}_{time.time_ns()}"
        what: dict[str, Any] = {"do": do, "group": group, "messages": messages}
        if do == "drain":
            return self.process.measure(server, **what)
        with sending(server):
            return self.process.measure(server, topic=LATENCY_TOPIC, **what)


LATENCY_TOPIC = "BenchLatency"


def main(arguments: list[str]) -> int:
    """Run, print and save. 0 when done, 3 where Java tools are missing."""
    return compare(parse(arguments), measure, name="push-")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = options_of("python -m tools.bench.push", __doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages a drain")
    parser.add_argument("--samples", type=int, default=2000, help="messages of a latency measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--handlers", type=words, default=list(HANDLERS), help="kinds of our handlers")
    return parser.parse_args(arguments)


def measure(peer: JavaPeer, run: Path, options: argparse.Namespace, results: Results) -> None:
    """All rounds into `results`; each consumer warms up by one drain of a tenth on each server."""
    with ExitStack() as stack:
        running = stack.enter_context(servers(peer, run, options.loops))
        consumers = list(start_consumers(stack, peer, run, options))
        for server in running:
            fill(server, options.messages, 128)
            create_latency_topic(server)
            for consumer in consumers:
                consumer.measure(server, "drain", max(1, options.messages // 10))
        for number in range(options.rounds):
            for consumer in consumers:
                for server in in_turn(running, number):
                    drain = consumer.measure(server, "drain", options.messages)
                    results.add(Key(f"drain, {consumer.name}", server.name), drain)
                    late = consumer.measure(server, "latency", options.samples)
                    results.add(Key(f"latency, {consumer.name}", server.name), late)
                    print(
                        f"round {number + 1}  {consumer.name:32}  {server.name:16}  {drain.rate:10,.0f}/s"
                        f"  p50 {late.p50_us / 1000:.2f} ms  p99 {late.p99_us / 1000:.2f} ms",
                        flush=True,
                    )


def start_consumers(
    stack: ExitStack, peer: JavaPeer, run: Path, options: argparse.Namespace
) -> Iterator[Consumer]:
    """Java's consumer, and rocketpy's for each event loop and kind of handler."""
    yield Consumer("Java consumer", stack.enter_context(LoadProcess.java(peer, run, "PushLoad")))
    for loop in options.sdk_loops:
        for handler in options.handlers:
            process = LoadProcess.sdk(run, loop, "push_load", "--handler", handler)
            yield Consumer(f"our consumer ({loop}), {handler}", stack.enter_context(process))


def create_latency_topic(server: Server) -> None:
    """Create the topic of the latency load on the server's broker."""
    with sync.Producer("bench_sender", server.namesrv_address) as producer:
        producer.create_topic(LATENCY_TOPIC, QUEUES, key=str(server.broker.conf["brokerClusterName"]))


@contextmanager
def sending(server: Server) -> Iterator[None]:
    """Send messages with the current time until the end of the block."""
    end = threading.Event()

    def run() -> None:
        config = ProducerConfig(batching=False)
        with sync.Producer("bench_sender", server.namesrv_address, config=config) as producer:
            while not end.wait(INTERVAL_S):
                producer.send_oneway(Message(LATENCY_TOPIC, f"{time.time_ns():<128}".encode()))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
