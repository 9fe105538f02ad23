"""Leaders of a DLedger group are killed under load: `python -m tests.crash.leader_kill --rounds 100`.

A rocketpy client sends to three broker processes with a name server. Each round kills the leader with SIGKILL
at a random instant, waits for a successful send, and restarts the peer. At the end every message acknowledged
with SEND_OK must be readable at the offset in its response. Times are measured from the kill: until another
peer leads, until the name server has it as the master, and until the first SEND_OK.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from rocketpy import ClientConfig
from tests.interop import probe
from tests.interop.cluster import Make, stopping
from tests.interop.java_peer import JavaPeer
from tests.interop.ledger_group import LedgerGroup
from tests.interop.processes import OurNameServer
from tools.soak.faults import read_back
from tools.soak.group_load import GroupLoad
from tools.soak.load import TOPIC

REFERENCE: Mapping[str, object] = {}
"""Timings of DLedger 0.1: a heartbeat every 2 s, an election after three missed ones."""
QUICK: Mapping[str, object] = {
    "dLegerHeartbeatMillis": 250,
    "dLegerHeartbeatsMissed": 4,
    "dLegerVoteMillisMin": 100,
    "dLegerVoteMillisMax": 300,
}
"""Shorter timings."""
_PEERS = 3
_STRETCH = 50
"""Messages that are acknowledged between two kills, at least."""
_WAIT_S = 120


@dataclass
class KillReport:
    """Seconds from each kill to the election, the registration and the next send; violated promises."""

    elected_s: list[float] = field(default_factory=list)
    registered_s: list[float] = field(default_factory=list)
    recovered_s: list[float] = field(default_factory=list)
    acked: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [
            f"{name:<24} p50 {_quantile(times, 50):6.2f} s, p99 {_quantile(times, 99):6.2f} s, "
            f"longest {max(times, default=0):6.2f} s"
            for name, times in (
                ("another peer leads", self.elected_s),
                ("and is the master", self.registered_s),
                ("the first SEND_OK", self.recovered_s),
            )
        ]
        summary = f"{len(self.recovered_s)} leaders killed, {self.acked:,} messages acknowledged"
        return "\n".join([*rows, f"{summary}, {len(self.problems)} problems"])


async def kill_leaders(
    group: LedgerGroup,
    rounds: int,
    random: Random,
    *,
    refresh_ms: int | None = None,
    seconds: float = math.inf,
) -> KillReport:
    """Kill this number of leaders of a running group, or fewer if the time ends.

    refresh_ms: route refresh interval of the client. seconds: begin no round later than this.
    """
    until = time.monotonic() + seconds
    client = ClientConfig(namesrv=group.namesrv)
    if refresh_ms is not None:
        client = ClientConfig(namesrv=group.namesrv, route_refresh_ms=refresh_ms)
    await _until(lambda: group.master() is not None, "a master")
    await group.make_topic(TOPIC, 4)
    report, load = KillReport(), GroupLoad(client)
    async with load.sending():
        for number in range(rounds):
            if time.monotonic() > until:
                break
            await _more(load)
            await _until(lambda: group.leader() is not None and group.leader() == group.master(), "a leader")
            await asyncio.sleep(random.uniform(0, 0.3))
            await _kill(group, load, report)
            logging.getLogger(__name__).info("%d: %.2f s", number + 1, report.recovered_s[-1])
        await _more(load)
    found = await read_back(client, load.ledger, report.problems)
    report.problems += load.ledger.problems(found)
    report.acked = load.acked_count
    return report


async def _kill(group: LedgerGroup, load: GroupLoad, report: KillReport) -> None:
    victim = group.leader()
    if victim is None:
        return
    killed_at = time.monotonic()
    await asyncio.to_thread(group.brokers[victim].kill)
    load.note_kill()
    elected_at, registered_at = await asyncio.gather(
        _when(lambda: group.leader() is not None, "a new leader"),
        _when(lambda: group.master() not in (None, victim), "a new master"),
    )
    await _until(lambda: load.recovered_at is not None, "a send to come through")
    assert load.recovered_at is not None
    report.elected_s.append(elected_at - killed_at)
    report.registered_s.append(registered_at - killed_at)
    report.recovered_s.append(load.recovered_at - killed_at)
    await asyncio.to_thread(group.brokers[victim].start)


async def _when(condition: Callable[[], object], what: str) -> float:
    await _until(condition, what)
    return time.monotonic()


async def _more(load: GroupLoad) -> None:
    count = load.acked_count + _STRETCH
    await _until(lambda: load.acked_count >= count, f"{_STRETCH} messages more")


async def _until(condition: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(probe.wait_until, condition, what, _WAIT_S, 0.02)


def _quantile(times: list[float], percent: int) -> float:
    if len(times) < 2:
        return max(times, default=0.0)
    return statistics.quantiles(times, n=100, method="inclusive")[percent - 1]


def main() -> int:
    """Run; 0 when nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.leader_kill", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timings", choices=["reference", "ours"], default="ours")
    parser.add_argument("--make", choices=["our", "java"], default="our", help="whose brokers")
    parser.add_argument(
        "--refresh-ms", type=int, help="route refresh interval of the client; its default if omitted"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no round later than this")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger(__name__).setLevel(logging.INFO)
    logging.getLogger("rocketpy").setLevel(logging.CRITICAL)
    make: Make = options.make
    peer = JavaPeer.prepare() if make == "java" else None
    conf = QUICK if options.timings == "ours" and make == "our" else REFERENCE
    with tempfile.TemporaryDirectory(prefix="rocketpy-leader-kill-") as directory:
        names = OurNameServer(Path(directory)).start()
        with (
            stopping([names]),
            LedgerGroup(Path(directory), names.address, [make] * _PEERS, peer, conf=conf) as group,
        ):
            random = Random(options.seed)
            report = asyncio.run(
                kill_leaders(
                    group,
                    options.rounds,
                    random,
                    refresh_ms=options.refresh_ms,
                    seconds=options.seconds,
                )
            )
    for problem in report.problems[:20]:
        print(problem)
    print(report)
    return 1 if report.problems or not report.acked else 0


if __name__ == "__main__":
    sys.exit(main())
