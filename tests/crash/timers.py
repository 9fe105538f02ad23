"""Timers on a real clock over crashes: `python -m tests.crash.timers [--faults kill slave switch]`.

rocketpy's client sends 20,000 messages that are due between 0.5 s and 60 s later. Then broker processes are
killed with SIGKILL: one that starts again (`kill`), a SYNC_MASTER whose slave becomes the master
(`slave`), or the leader of a DLedger group (`switch`). At the end each message must be in its topic once, and
not early. Printed is how late messages were that were not due in an outage, which lasts from a kill to the
next delivery.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

from rocketpy import AdminClient, Message, Producer, ProducerConfig, PullConsumer, SendStatus
from rocketpy.config import RetryConfig
from rocketpy.protocol.codes import RequestCode
from tests.crash.leader_kill import QUICK
from tests.interop import probe
from tests.interop.cluster import stopping
from tests.interop.ledger_group import LedgerGroup
from tests.interop.processes import OurBroker, OurNameServer

TOPIC: Final = "Timers"
LEAST_MS: Final = 500
_SENDERS: Final = 32
_QUEUES: Final = 4
_WAIT_S: Final = 240


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Site:
    """Brokers that run."""

    fail: Callable[[], int]
    """Kills the master and waits until there is one again. Returns when the old one had ended, in ms."""
    times: int
    """Number of kills, at equal distances."""


@contextmanager
def undisturbed(run: Path, namesrv: str) -> Iterator[Site]:
    """One broker, which is not killed."""
    with OurBroker(run, namesrv):
        yield Site(_now_ms, 0)


@contextmanager
def restarted(run: Path, namesrv: str) -> Iterator[Site]:
    """One broker, which is killed and starts again."""

    def fail() -> int:
        broker.kill()
        ended_ms = _now_ms()
        broker.start()
        return ended_ms

    with OurBroker(run, namesrv) as broker:
        yield Site(fail, 3)


@contextmanager
def replaced(run: Path, namesrv: str) -> Iterator[Site]:
    """A SYNC_MASTER that is killed, and its slave, which starts again as the master."""
    conf = {"brokerName": "pair", "brokerRole": "SYNC_MASTER"}
    master = OurBroker(run, namesrv, name="master", conf=conf)
    slave = OurBroker(run, namesrv, name="slave", conf={**conf, "brokerRole": "SLAVE", "brokerId": 1})

    def is_followed() -> bool:
        info = probe.table(probe.ask(master.address, RequestCode.GET_BROKER_RUNTIME_INFO)[2])
        return info["haAckedOffset"] != "-1"

    def fail() -> int:
        master.kill()
        ended_ms = _now_ms()
        slave.stop()
        slave.conf |= {"brokerRole": "ASYNC_MASTER", "brokerId": 0}
        slave.start()
        return ended_ms

    with stopping([master.start(), slave.start()]):
        probe.wait_until(is_followed, "the slave to follow", _WAIT_S)
        yield Site(fail, 1)


@contextmanager
def elected(run: Path, namesrv: str) -> Iterator[Site]:
    """A DLedger group of three, whose leader is killed and starts again when there is another one."""

    def fail() -> int:
        victim = group.master()
        if victim is None:
            raise RuntimeError("the group has no leader to kill")
        group.brokers[victim].kill()
        ended_ms = _now_ms()
        probe.wait_until(lambda: group.master() not in (None, victim), "another leader", _WAIT_S)
        group.brokers[victim].start()
        return ended_ms

    with LedgerGroup(run, namesrv, ["our"] * 3, conf=QUICK, file_bytes=64 << 20) as group:
        probe.wait_until(lambda: group.master() is not None, "a leader", _WAIT_S)
        yield Site(fail, 2)


FAULTS: Final[dict[str, Callable[[Path, str], AbstractContextManager[Site]]]] = {
    "none": undisturbed,
    "kill": restarted,
    "slave": replaced,
    "switch": elected,
}


@dataclass
class Outcome:
    """What became of the messages of one run."""

    dues: dict[int, int] = field(default_factory=dict)
    """Number of a message -> when it is due, in ms."""
    stored: dict[int, list[int]] = field(default_factory=dict)
    """The same -> when it was delivered, in ms."""
    kills: list[tuple[int, int]] = field(default_factory=list)
    """Of each kill: when it began, and when the process had ended, in ms."""

    def lost(self) -> int:
        """Number of messages that were not delivered."""
        return len(self.dues.keys() - self.stored.keys())

    def early(self) -> int:
        """Number of messages that were delivered before they were due."""
        return sum(min(times) < self.dues[number] for number, times in self.stored.items())

    def twice(self) -> int:
        """Number of messages that were delivered more than once."""
        return sum(len(times) > 1 for times in self.stored.values())

    def outages(self) -> list[tuple[int, int]]:
        """Begin and end of the times without a delivery after kills, in ms."""
        times = sorted(min(times) for times in self.stored.values())
        ends = [next((time for time in times if time > end), end) for _, end in self.kills]
        return [(begin, end) for (begin, _), end in zip(self.kills, ends, strict=True)]

    def late(self) -> list[int]:
        """How late the messages were that were not due in an outage, sorted, in ms."""
        outages = self.outages()
        return sorted(
            min(times) - self.dues[number]
            for number, times in self.stored.items()
            if not any(begin <= self.dues[number] <= end for begin, end in outages)
        )

    def p99_ms(self) -> int:
        """The 99th percentile of `late`; 0 without a message."""
        late = self.late()
        return late[len(late) * 99 // 100] if late else 0

    def __str__(self) -> str:
        late = self.late() or [0]
        text = (
            f"{len(self.dues):,} timers: {self.lost()} lost, {self.early()} early, {self.twice()} twice; "
            f"late by {late[len(late) // 2]} ms (median), {self.p99_ms()} ms (p99), {late[-1]} ms (most)"
        )
        if self.kills:
            longest = max(end - begin for begin, end in self.outages())
            in_outages = len(self.stored) - len(self.late())
            text += f"; {len(self.kills)} outages of {longest / 1000:.1f} s at most, {in_outages} due in them"
        return text


async def observe(fault: str, run: Path, count: int, longest_s: float, seed: int = 1) -> Outcome:
    """Run one site, and return what became of the messages."""
    with OurNameServer(run) as names, FAULTS[fault](run, names.address) as site:
        async with AdminClient(names.address) as admin:
            await admin.create_topic(TOPIC, _QUEUES)
        outcome = Outcome()
        await _send(outcome, names.address, count, longest_s, Random(seed))
        begin, end = time.time(), max(outcome.dues.values()) / 1000
        for number in range(1, site.times + 1):
            await asyncio.sleep(begin + (end - begin) * number / (site.times + 1) - time.time())
            begin_ms = _now_ms()
            outcome.kills.append((begin_ms, await asyncio.to_thread(site.fail)))
        await asyncio.sleep(end - time.time())
        until = time.monotonic() + _WAIT_S
        while outcome.lost() and time.monotonic() < until:
            await asyncio.sleep(0.2)
            outcome.stored = await _delivered(names.address)
        return outcome


async def _send(outcome: Outcome, namesrv: str, count: int, longest_s: float, random: Random) -> None:
    """Send the messages. No send may fail, nor is one repeated, which would store two timers."""
    numbers, config = iter(range(count)), ProducerConfig(retry=RetryConfig(times=0))
    async with Producer("timers", namesrv=namesrv, config=config) as producer, asyncio.TaskGroup() as tasks:

        async def some() -> None:
            for number in numbers:
                due_ms = _now_ms() + random.randint(LEAST_MS, int(longest_s * 1000))
                due = datetime.fromtimestamp(due_ms / 1000, UTC)
                result = await producer.send(Message(TOPIC, b"%d" % number, deliver_at=due))
                if result.status is not SendStatus.SEND_OK:
                    raise RuntimeError(f"a send ended with {result.status.name}")
                outcome.dues[number] = due_ms

        for _ in range(_SENDERS):
            tasks.create_task(some())


async def _delivered(namesrv: str) -> dict[int, list[int]]:
    """Read the topic: number of a message -> when it was stored there, each time."""
    found: dict[int, list[int]] = {}
    async with PullConsumer("timers", namesrv=namesrv) as consumer:
        for queue in await consumer.fetch_queues(TOPIC):
            offset = 0
            while messages := (await consumer.pull(queue, offset)).messages:
                for message in messages:
                    found.setdefault(int(message.body), []).append(message.store_timestamp)
                offset += len(messages)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Observe the faults one after another; 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.timers", description=__doc__)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--longest", type=float, default=60, help="longest delay in seconds")
    parser.add_argument("--p99", type=int, help="fail if the 99th percentile is above this, in ms")
    options = parser.parse_args(arguments)
    failed = False
    for fault in options.faults:
        with tempfile.TemporaryDirectory(prefix="rocketpy-timers-") as directory:
            outcome = asyncio.run(observe(fault, Path(directory), options.messages, options.longest))
        print(f"{fault}: {outcome}", flush=True)
        failed = failed or bool(outcome.lost() or outcome.early() or outcome.twice())
        failed = failed or (options.p99 is not None and outcome.p99_ms() > options.p99)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
