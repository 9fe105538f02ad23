"""`python -m tools.bench.pop`: messages popped and acknowledged a second, at both brokers (RocketMQ 5.5.0).

Each measurement has a new group, which pops a topic of `--messages` messages of 128 bytes from its beginning
for `--seconds`. Each consumer has its own connection, and has one pop at a time; then it acknowledges what it
has got. A pop of one message is acknowledged by ACK_MESSAGE; messages of larger pops by one ACK_MESSAGE each
(`ack each`), or all together by BATCH_ACK_MESSAGE (`batch ack`). Rounds alternate as in `tools.bench.run`.

In RocketMQ, check points and acknowledgements are timers until the invisible time is over. So the same load
runs for `--ramp` before each measurement, longer than the invisible time: then timers are due all the time.
The first round is not counted.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.interop.java_peer import JavaPeer
from tools.bench.comparison import compare, in_turn, note, numbers, options_of, plural
from tools.bench.loads import LoadProcess, fill
from tools.bench.pop_load import BATCH, INVISIBLE_S, SINGLE
from tools.bench.results import Key, Results, Sample
from tools.bench.servers import Server, servers

VERSION = "5.5.0"
_groups = itertools.count(1)


def main(arguments: list[str]) -> int:
    """Run, print and save. 0 when done, 3 where Java tools are missing."""
    return compare(parse(arguments), measure, name="pop-")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = options_of("python -m tools.bench.pop", __doc__)
    parser.set_defaults(version=VERSION, loops=["asyncio"], sdk_loops=["uvloop"])
    parser.add_argument("--messages", type=int, default=6_000_000, help="messages of the topic")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of one measurement")
    parser.add_argument("--ramp", type=float, default=INVISIBLE_S + 2, help="seconds of its load beforehand")
    parser.add_argument("--consumers", type=numbers, default=[1, 16, 64])
    parser.add_argument("--counts", type=numbers, default=[1, 32], help="most messages of a pop")
    return parser.parse_args(arguments)


def measure(peer: JavaPeer, run: Path, options: argparse.Namespace, results: Results) -> None:
    """All rounds into `results`."""
    with ExitStack() as stack:
        running = stack.enter_context(servers(peer, run, options.loops))
        for server in running:
            fill(server, options.messages, 128)
        clients = {
            loop: stack.enter_context(LoadProcess.sdk(run, loop, "pop_load")) for loop in options.sdk_loops
        }
        for number in range(-1, options.rounds):
            for loop, client in clients.items():
                for load, what in loads(options):
                    for server in in_turn(running, number):
                        key = Key(f"{load} ({loop})", server.name)
                        sample = pop(client, server, options, what)
                        if number >= 0:
                            note(results, number, key, sample)


def loads(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each load: its name, and what to request."""
    for count in options.counts:
        for acks in (SINGLE,) if count == 1 else (SINGLE, BATCH):
            for consumers in options.consumers:
                name = f"{plural(consumers, 'consumer')}, pops of {count}, {acks}"
                yield name, {"consumers": consumers, "count": count, "acks": acks}


def pop(client: LoadProcess, server: Server, options: argparse.Namespace, what: dict[str, Any]) -> Sample:
    """One measurement, with a new group. Raises RuntimeError if the topic had too few messages."""
    group = f"bench_pop_{next(_groups)}_{time.time_ns()}"
    what = {**what, "group": group, "broker": server.broker.address}
    what["broker_name"] = server.broker.conf["brokerName"]
    client.measure(server, seconds=options.ramp, **what)
    sample = client.measure(server, seconds=options.seconds, **what)
    count = sample.rate * (options.ramp + options.seconds)
    if count > 0.9 * options.messages:
        raise RuntimeError(f"{server.name} gave about {count:,.0f} messages; use more --messages")
    return sample


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
