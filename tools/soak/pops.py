"""SimpleConsumers share messages while workers and brokers are killed: `make soak-pops`.

On two kinds of clusters: a pair whose master is a SYNC_MASTER, and a DLedger group. Four processes have eight
SimpleConsumers each. In turn a worker and a broker are killed with SIGKILL and replaced. Once in a piece, the
pair is switched: its master is killed, the slave is promoted, and the old master returns as its slave. In the
group, another peer becomes the leader with each kill. Each message whose send was acknowledged must be
received, and each copy must have a reason (see pop_witness.py).

A second run continues after the last complete piece.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Protocol

from rocketpy import AdminClient, ClientConfig, Message, Producer, ProducerConfig, SendStatus
from rocketpy.config import RetryConfig
from rocketpy.errors import RocketError
from tests.crash.leader_kill import QUICK
from tests.interop import probe
from tests.interop.cluster import stopping
from tests.interop.ledger_group import LedgerGroup
from tests.interop.processes import OurBroker, OurNameServer, our_environment
from tools.soak.pop_witness import PopWitness
from tools.soak.repeats import Member

KINDS: Final = ("pair", "dledger")
_HOME: Final = Path(__file__).parents[2] / "build" / "soak" / "pops"
_TOPIC, _GROUP, _QUEUES = "Pops", "pop_soak", 8
_WORKERS, _CONSUMERS = 4, 8
_SENDERS: Final = 32
_AHEAD_MAX: Final = 500
"""Sends wait while so many messages are not received, so that messages flow during the whole piece."""
_PAUSE_S: Final = 0.1
_START_S: Final = 120
_STOP_S: Final = 120
_QUIET_S: Final = 60
"""The piece ends if nothing is received for so long, beyond the invisible time of extended messages."""
_LATE_S: Final = 3
"""How long copies may come after the end of the invisible time."""
_COLUMNS = "{:>8} {:>5} {:>7} {:>9} {:>9} {:>9} {:>9} {:>7} {:>9} {:>8} {:>5}  {}"
_TITLES = ("cluster", "piece", "seconds", "sent", "received", "acked", "extended", "workers", "brokers")


@dataclass(slots=True, kw_only=True)
class PopReport:
    """The results of one piece.

    sent: acknowledged sends. unknown: other sends, whose messages may be stored or not. acked: confirmed
    acknowledgements. workers, brokers, switches: how many were killed, and how often another broker led.
    """

    kind: str
    seconds: float = 0.0
    sent: int = 0
    unknown: int = 0
    received: int = 0
    acked: int = 0
    extended: int = 0
    workers: int = 0
    brokers: int = 0
    switches: int = 0
    copies: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    problems: list[str] = field(default_factory=list)


class _Cluster(Protocol):
    """Running servers, and the kills of their brokers."""

    namesrv: str

    def kills(self) -> Iterator[Callable[[], bool]]:
        """Yield without end what kills and restarts brokers; each returns whether another one leads now."""

    async def make_topic(self) -> None:
        """Create the topic."""


class _Pair:
    """A SYNC_MASTER and its slave."""

    def __init__(self, namesrv: str, run: Path) -> None:
        self.namesrv = namesrv
        conf = {"brokerName": "pair", "syncFlushTimeout": 20_000, "registerNameServerPeriod": 10_000}
        self._master = OurBroker(run, namesrv, name="a", conf={**conf, "brokerRole": "SYNC_MASTER"})
        self._slave = OurBroker(run, namesrv, name="b", conf={**conf, "brokerRole": "SLAVE", "brokerId": 1})

    def start(self) -> list[OurBroker]:
        return [broker.start() for broker in (self._master, self._slave)]

    async def make_topic(self) -> None:
        async with AdminClient(self.namesrv) as admin:
            await admin.create_topic(_TOPIC, _QUEUES)

    def kills(self) -> Iterator[Callable[[], bool]]:
        yield from (lambda: self._restart(self._master), self._switch)
        yield from itertools.cycle((lambda: self._restart(self._slave), lambda: self._restart(self._master)))

    def _restart(self, broker: OurBroker) -> bool:
        broker.kill()
        broker.start()
        self._await_slave()
        return False

    def _switch(self) -> bool:
        """Kill the master, and promote the slave as docs/guides/servers.md says."""
        self._await_slave()
        self._master.kill()
        self._slave.stop()
        done = _run_cli("promote", "-c", str(self._slave.conf_file), "--role", "SYNC_MASTER")
        if done.returncode:
            raise RuntimeError(f"the slave cannot be promoted: {done.stdout}{done.stderr}")
        self._slave.conf |= {"brokerRole": "SYNC_MASTER", "brokerId": 0}
        self._master.conf |= {"brokerRole": "SLAVE", "brokerId": 1}
        self._master, self._slave = self._slave, self._master
        self._master.start()
        self._slave.start()
        self._await_slave()
        return True

    def _await_slave(self) -> None:
        """Wait until sends succeed: before, the master acknowledges what is only there."""
        probe.wait_until(self._has_slave, "the slave to have the messages of its master", _START_S)

    def _has_slave(self) -> bool:
        return _run_cli("ha", "status", "--namesrv", self.namesrv).returncode == 0


def _run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rocketpy_broker.cli", *arguments]
    return subprocess.run(command, env=our_environment(), capture_output=True, text=True, check=False)


class _Ledger:
    """A DLedger group of three peers."""

    def __init__(self, group: LedgerGroup) -> None:
        self.namesrv = group.namesrv
        self._group = group

    async def make_topic(self) -> None:
        await self._group.make_topic(_TOPIC, _QUEUES)

    def kills(self) -> Iterator[Callable[[], bool]]:
        return itertools.repeat(self._kill_leader)

    def _kill_leader(self) -> bool:
        group = self._group
        probe.wait_until(lambda: None is not group.leader() == group.master(), "a leader", _START_S)
        victim = group.leader()
        assert victim is not None
        group.brokers[victim].kill()
        probe.wait_until(lambda: group.master() not in (None, victim), "a new master", _START_S)
        group.brokers[victim].start()
        return True


@contextmanager
def _cluster(kind: str, run: Path) -> Iterator[_Cluster]:
    with ExitStack() as stack:
        names = OurNameServer(run).start()
        stack.enter_context(stopping([names]))
        if kind == "pair":
            pair = _Pair(names.address, run)
            stack.enter_context(stopping(pair.start()))
            yield pair
        else:
            group = LedgerGroup(run, names.address, ["our"] * 3, conf=QUICK, file_bytes=64 << 20)
            yield _Ledger(stack.enter_context(group))


class _Piece:
    def __init__(self, cluster: _Cluster, report: PopReport, messages: int, kills: int, invisible_s: float):
        self._cluster = cluster
        self._report = report
        self._messages = messages
        self._kills = kills
        self._invisible_s = invisible_s
        self._witness = PopWitness()
        self._members: list[Member] = []
        self._numbers = itertools.count()
        self._names = itertools.count(1)

    async def run(self) -> None:
        """Send and receive the messages while workers and brokers are killed."""
        witness, report = self._witness, self._report
        await self._cluster.make_topic()
        try:
            await asyncio.gather(*(self._start_member() for _ in range(_WORKERS)))
            async with asyncio.TaskGroup() as group:
                group.create_task(self._produce())
                group.create_task(self._disturb())
            await self._settle()
        finally:
            async with AsyncExitStack() as stack:
                for member in self._members:
                    stack.push_async_callback(self._stop, member)
        witness.settle()
        report.sent, report.received, report.acked = len(witness.sent), witness.received, witness.acked
        report.extended, report.lost = witness.extended, witness.lost
        report.copies = dict(sorted(witness.copies.items()))
        report.problems += witness.problems

    async def _produce(self) -> None:
        """Send each message once: a repeated send could store it twice."""
        client = ClientConfig(namesrv=self._cluster.namesrv, route_refresh_ms=1000)
        config = ProducerConfig(retry=RetryConfig(times=0), send_timeout_ms=10_000)
        async with (
            Producer("pop_soak_senders", client=client, config=config) as producer,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(_SENDERS):
                group.create_task(self._send(producer))

    async def _send(self, producer: Producer) -> None:
        witness, report = self._witness, self._report
        while len(witness.sent) < self._messages:
            if len(witness.sent) - witness.seen() > _AHEAD_MAX:
                await asyncio.sleep(_PAUSE_S)
                continue
            number = next(self._numbers)
            try:
                result = await producer.send(Message(_TOPIC, b"%d" % number))
            except RocketError:
                report.unknown += 1
                await asyncio.sleep(_PAUSE_S)
                continue
            if result.status is SendStatus.SEND_OK:
                witness.sent.add(number)
            else:
                report.unknown += 1

    async def _disturb(self) -> None:
        """Kill a worker and a broker in turn, when further messages were received."""
        kills = self._cluster.kills()
        for number in range(self._kills):
            while self._witness.seen() < (number + 1) * self._messages // (self._kills + 1):  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE_S)  # the next kill needs messages, not an instant
            if number % 2 == 0:
                await self._replace_member(number // 2 % _WORKERS)
                continue
            begin_ms = _now_ms()
            if await asyncio.to_thread(next(kills)):
                self._witness.switched(begin_ms, _now_ms())
                self._report.switches += 1
            self._report.brokers += 1

    async def _settle(self) -> None:
        """Wait until everything was received, and for copies after that; or until nothing comes any more."""
        witness, quiet_s = self._witness, _QUIET_S + 2 * self._invisible_s
        received, changed_at = witness.received, time.monotonic()
        while witness.unfinished() and time.monotonic() < changed_at + quiet_s:
            await asyncio.sleep(_PAUSE_S)
            if witness.received != received:
                received, changed_at = witness.received, time.monotonic()
        await asyncio.sleep(2 * self._invisible_s + _LATE_S)

    # -- workers --------------------------------------------------------------------------------

    async def _start_member(self) -> None:
        name = f"worker {next(self._names)}"
        invisible_ms = str(int(self._invisible_s * 1000))
        arguments = (self._cluster.namesrv, _TOPIC, _GROUP, str(_CONSUMERS), invisible_ms)
        command = (sys.executable, "-m", "tools.soak.pop_member", *arguments)
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, env=our_environment())
        member = Member(name, process, lambda words: self._witness.observe(name, words))
        self._members.append(member)
        await member.started()

    async def _replace_member(self, index: int) -> None:
        member = self._members.pop(index)
        await self._kill(member)
        self._report.workers += 1
        await self._start_member()

    async def _kill(self, member: Member) -> None:
        member.process.kill()
        await member.end()
        self._witness.killed(member.name, _now_ms())

    async def _stop(self, member: Member) -> None:
        try:
            async with asyncio.timeout(_STOP_S):
                await member.end()
        except TimeoutError:
            self._report.problems.append(f"{member.name} does not end by SIGTERM")
            await self._kill(member)


async def run_piece(
    kind: str, run: Path, messages: int, *, kills: int = 8, invisible_s: float = 6
) -> PopReport:
    """Run servers of one kind in a new directory, and count what becomes of the messages.

    kills: of workers and brokers together. invisible_s: invisible time of a reception in seconds.
    """
    report = PopReport(kind=kind)
    began = time.monotonic()
    with _cluster(kind, run) as cluster:
        await _Piece(cluster, report, messages, kills, invisible_s).run()
    report.seconds = time.monotonic() - began
    return report


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> int:
    """Run the pieces that are still to be run; 0 when nothing was wrong in any."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.soak.pops", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--cluster", choices=(*KINDS, "both"), default="both")
    parser.add_argument(
        "--messages", type=int, default=20_000, help="on each kind of cluster (default: %(default)s)"
    )
    parser.add_argument(
        "--piece", type=int, default=50_000, help="messages in a piece (default: %(default)s)"
    )
    parser.add_argument("--kills", type=int, default=8, help="in a piece, of both (default: %(default)s)")
    parser.add_argument("--invisible", type=float, default=6, help="seconds (default: %(default)s)")
    parser.add_argument("--home", type=Path, default=_HOME, help="results (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="forget the pieces of earlier runs")
    options = parser.parse_args()
    if options.fresh:
        shutil.rmtree(options.home, ignore_errors=True)
    options.home.mkdir(parents=True, exist_ok=True)
    file = options.home / "pieces.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    pieces = [PopReport(**json.loads(line)) for line in lines]
    print(_COLUMNS.format(*_TITLES, "switches", "lost", "copies"))
    for index, piece in enumerate(pieces):
        print(_row(index, piece))
    for kind in KINDS if options.cluster == "both" else (options.cluster,):
        while (left := options.messages - sum(one.sent for one in pieces if one.kind == kind)) > 0:
            with tempfile.TemporaryDirectory(prefix="rocketpy-pops-") as run:
                piece = asyncio.run(
                    run_piece(
                        kind,
                        Path(run),
                        min(left, options.piece),
                        kills=options.kills,
                        invisible_s=options.invisible,
                    )
                )
            pieces.append(piece)
            with file.open("a") as results:
                results.write(json.dumps(asdict(piece)) + "\n")
            print(_row(len(pieces) - 1, piece), flush=True)
    return _exit_status(pieces)


def _row(index: int, piece: PopReport) -> str:
    numbers = (piece.sent, piece.received, piece.acked, piece.extended)
    kills = (piece.workers, piece.brokers, piece.switches, piece.lost)
    row = _COLUMNS.format(
        piece.kind,
        index,
        f"{piece.seconds:.1f}",
        *(f"{one:,}" for one in numbers),
        *kills,
        _text(piece.copies),
    )
    return f"{row}; {len(piece.problems)} PROBLEMS" if piece.problems else row


def _text(copies: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in copies.items()) or "none"


def _exit_status(pieces: Sequence[PopReport]) -> int:
    problems = [f"{piece.kind}: {problem}" for piece in pieces for problem in piece.problems]
    for problem in problems[:20]:
        print(problem)
    for kind in dict.fromkeys(piece.kind for piece in pieces):
        mine = [piece for piece in pieces if piece.kind == kind]
        sent, received, workers, brokers, switches, unknown, lost = (
            sum(getattr(piece, name) for piece in mine)
            for name in ("sent", "received", "workers", "brokers", "switches", "unknown", "lost")
        )
        copies = Counter[str]()
        for piece in mine:
            copies.update(piece.copies)
        print(
            f"pops, {kind}: {sent:,} messages sent ({unknown:,} more sends without SEND_OK), {received:,} "
            f"received; {workers} workers and {brokers} brokers killed, {switches} switches; {lost} lost; "
            f"{copies.total():,} copies: {_text(copies)}"
        )
    print(f"pops: {f'{len(problems)} PROBLEMS' if problems else 'OK'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
