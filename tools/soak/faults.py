"""Two name servers and two master brokers, each killed and restarted in turn while rocketpy's client sends.

    python -m tools.soak.faults --rounds 5              # our servers
    python -m tools.soak.faults --rounds 5 --make java  # RocketMQ's

At the end every message is read back and compared with the result that its sender got (see ledger.py). A
server that was killed has to serve again, and sends have to flow as before, within one refresh of routes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rocketpy import (
    AdminClient,
    ClientConfig,
    MessageExt,
    MessageQueue,
    PullConsumer,
)
from tests.interop import probe
from tests.interop.cluster import JAVA_CONF, stopping
from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer
from tests.interop.processes import (
    BrokerProcess,
    JavaBroker,
    JavaNameServer,
    NameServerProcess,
    OurBroker,
    OurNameServer,
)
from tools.soak.bodies import number_of
from tools.soak.ledger import Ledger
from tools.soak.load import TOPIC, Load
from tools.soak.places import Place

QUEUES = 4
REFRESH_MS = 30_000
_READ_BACK_S = 60


@dataclass(frozen=True)
class Servers:
    """Running servers: `names` know all `brokers`."""

    names: Sequence[NameServerProcess]
    brokers: Sequence[BrokerProcess]

    @property
    def addresses(self) -> str:
        """Addresses of the name servers, in the form that clients take."""
        return ";".join(one.address for one in self.names)

    def in_turn(self) -> Iterator[NameServerProcess | BrokerProcess]:
        """In which order to kill them.

        Brokers register with a restarted name server at their own start or every 10 s; between
        the two name servers both brokers start, so the second is not killed before the first knows them.
        """
        yield self.names[0]
        yield from self.brokers
        yield from self.names[1:]


@dataclass
class FaultReport:
    """The results of a run. recoveries_s: seconds from each restart until sends flowed as before."""

    acked: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    kills: int = 0
    read: int = 0
    recoveries_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        slowest = max(self.recoveries_s, default=0)
        outcome = f"{len(self.problems)} PROBLEMS" if self.problems else "OK"
        return (
            f"faults: {self.kills} kills, {self.acked:,} acknowledged, failed: {self.failed or 'none'}, "
            f"{self.read:,} read back, slowest recovery {slowest:.1f} s: {outcome}"
        )


@contextmanager
def servers(run: Path, peer: JavaPeer | None = None) -> Iterator[Servers]:
    """Two name servers and two brokers of rocketpy, or those of `peer`."""
    with ExitStack() as stack:
        names: list[NameServerProcess] = [_name_server(peer, run, f"names-{n}") for n in (1, 2)]
        for one in names:
            stack.enter_context(stopping([one.start()]))
        addresses = ";".join(one.address for one in names)
        brokers = [_broker(peer, run, f"broker-{letter}", addresses) for letter in "ab"]
        for broker in brokers:
            stack.enter_context(stopping([broker.start()]))
        yield Servers(names, brokers)


def _name_server(peer: JavaPeer | None, run: Path, name: str) -> NameServerProcess:
    return OurNameServer(run, name=name) if peer is None else JavaNameServer(peer, run, name=name)


def _broker(peer: JavaPeer | None, run: Path, name: str, names: str) -> BrokerProcess:
    conf = {"registerNameServerPeriod": 10_000}
    if peer is None:
        return OurBroker(run, names, name=name, conf=conf)
    return JavaBroker(peer, run, names, name=name, conf={**JAVA_CONF, **conf})


async def fault_run(
    running: Servers,
    *,
    rounds: int,
    interval_s: float,
    refresh_ms: int = REFRESH_MS,
    recover_within_s: float = REFRESH_MS / 1000,
) -> FaultReport:
    """Kill and restart each server in turn under load, `rounds` times; then read everything back.

    interval_s: how long the load runs without faults, and how long without the killed server.
    refresh_ms: how often clients refresh their routes. recover_within_s: what takes longer is a problem.
    """
    config = ClientConfig(namesrv=running.addresses, route_refresh_ms=refresh_ms)
    async with AdminClient(client=config) as admin:
        await admin.create_topic(TOPIC, QUEUES)
        for one in running.names:
            await _until(partial(_serves, one, running), f"{one.name} to know {TOPIC}", recover_within_s)
    report, load = FaultReport(), Load(config)
    async with load.sending():
        for server in itertools.chain.from_iterable(running.in_turn() for _ in range(rounds)):
            await asyncio.sleep(interval_s)
            rate = load.rate(interval_s)
            await asyncio.to_thread(server.kill)
            report.kills += 1
            await asyncio.sleep(interval_s)
            await asyncio.to_thread(server.start)
            started = time.monotonic()
            again = f"{server.name} to be sent to again, at {rate:.0f} msgs/s"
            try:
                await _until(partial(load.flows, server, rate / 2, started), again, recover_within_s)
            except TimeoutError as error:
                report.problems.append(str(error))
            report.recoveries_s.append(time.monotonic() - started)
    found = await read_back(config, load.ledger, report.problems)
    report.problems += itertools.islice(load.ledger.problems(found), 100)
    report.acked, report.read = len(load.ledger.acked), sum(map(len, found.values()))
    outcomes = [outcome.name for outcome in load.ledger.failed.values()]
    report.failed = {name: outcomes.count(name) for name in sorted(set(outcomes))}
    return report


def _serves(names: NameServerProcess, running: Servers) -> bool:
    """Whether this name server's route of the topic has both brokers."""
    found = probe.route(names.address, TOPIC)
    return found is not None and len(found["brokerDatas"]) == len(running.brokers)


async def _until(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    await asyncio.to_thread(probe.wait_until, condition, what, timeout_s)


async def read_back(client: ClientConfig, ledger: Ledger, problems: list[str]) -> dict[int, list[Place]]:
    """The places of every message, read until none is missing, or for so long."""
    found: dict[int, list[Place]] = {}
    offsets: dict[MessageQueue, int] = {}
    until = time.monotonic() + _READ_BACK_S
    async with PullConsumer("faults_readers", client=client) as consumer:
        while True:
            # Looked up each time: a name server that was just started may not know both brokers yet.
            for queue in await consumer.fetch_queues(TOPIC):
                if queue not in offsets:
                    offsets[queue] = await consumer.min_offset(queue)
            for queue in list(offsets):
                for message in await _read_on(consumer, queue, offsets):
                    number = number_of(message.body)
                    if number is None:
                        problems.append(f"{message} is not what any producer sent")
                    else:
                        place = (queue.broker_name, queue.queue_id, message.queue_offset)
                        found.setdefault(number, []).append(place)
            if not ledger.missing(found) or time.monotonic() > until:
                return found
            await asyncio.sleep(0.1)


async def _read_on(
    consumer: PullConsumer, queue: MessageQueue, offsets: dict[MessageQueue, int]
) -> list[MessageExt]:
    """From where the queue was read until now to its end."""
    messages: list[MessageExt] = []
    while offsets[queue] < await consumer.max_offset(queue):
        result = await consumer.pull(queue, offsets[queue])
        offsets[queue] = result.next_offset
        messages += result.messages
    return messages


def main() -> int:
    """Run as the command line says; return 0 without an error."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.soak.faults", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--make", choices=["our", "java"], default="our", help="whose servers")
    parser.add_argument("--version", default=DEFAULT_VERSION, help="RocketMQ's (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="kills of each server (default: %(default)s)")
    parser.add_argument(
        "--interval", type=float, default=5, help="seconds between kill and restart (default: %(default)s)"
    )
    options = parser.parse_args()
    peer = JavaPeer.prepare(options.version) if options.make == "java" else None
    with (
        tempfile.TemporaryDirectory(prefix="rocketpy-faults-") as directory,
        servers(Path(directory), peer) as running,
    ):
        report = asyncio.run(fault_run(running, rounds=options.rounds, interval_s=options.interval))
    for problem in report.problems[:20]:
        print(problem)
    print(report)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
