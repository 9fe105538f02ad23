"""Counts repeated deliveries: ``python -m tools.soak.repeats restart`` or ``... jobs``.

restart: two brokers and their name server in processes of their own, a producer, and two members of a group.
In the middle a broker is killed (or stopped, ``--signal TERM``), and started again after some seconds.

jobs: 8 workers share 4 queues with 100 jobs; one worker that has a queue is killed (or stopped). It prints on
how many workers a job ran at once, and how many jobs of living workers ran again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from rocketpy import AdminClient, ConsumeFrom, Message, MessageExt, Producer, PushConfig, PushConsumer
from rocketpy.errors import RocketError
from tests.interop.java_peer import JavaPeer, java_environment, make_home
from tools.soak.servers import free_port

_START_SECONDS = 60
_BROKER = (sys.executable, "-m", "rocketpy_broker.cli")
_TOPIC, _GROUP = "Repeats", "repeats"
_SETTLE_SECONDS = 60.0
_JOBS, _WORKERS, _QUEUES = 100, 8, 4


class Cluster:
    """A name server and brokers, each a process of its own."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._ports: dict[str, int] = {}
        self._processes: dict[str, Process] = {}
        self.namesrv = ""

    async def start(self, *brokers: str) -> None:
        """Start all; the topic has `_QUEUES` queues on each broker."""
        self.namesrv = await self._run("namesrv", "namesrv", "--listen", "127.0.0.1:0")
        for name in brokers:
            self._ports[name] = free_port()
            await self.start_broker(name)
        async with AdminClient(self.namesrv) as admin:
            await admin.topics.create(_TOPIC, queues=_QUEUES)

    async def start_broker(self, name: str) -> None:
        """Start a broker on its store and port."""
        arguments = ("--store", str(self._home / name), "--listen", f"127.0.0.1:{self._ports[name]}")
        await self._run(name, "broker", *arguments, "--namesrv", self.namesrv, "--name", name)

    async def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """Send a signal to a server and wait for its end."""
        process = self._processes.pop(name)
        process.send_signal(number)
        await process.wait()

    async def close(self) -> None:
        """Stop all."""
        for name in list(self._processes):
            await self.stop(name)

    async def _run(self, name: str, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(*_BROKER, *arguments, stdout=PIPE)
        self._processes[name] = process
        assert process.stdout is not None
        async with asyncio.timeout(_START_SECONDS):
            line = (await process.stdout.readline()).decode()
        if " ready at " not in line:
            raise RuntimeError(f"{name} did not start: {line}")
        return line.split()[-1]


class Member:
    """A consumer process, and the lines that it says.

    observe: called with the words of each line, instead of keeping them in `lines`.
    """

    def __init__(
        self, name: str, process: Process, observe: Callable[[list[str]], None] | None = None
    ) -> None:
        self.name = name
        self.process = process
        self._ready = asyncio.Event()
        self.lines: list[list[str]] = []
        self._observe = observe or self.lines.append
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            words = line.decode().split()
            self._observe(words)
            if words == ["ready"]:
                self._ready.set()
        self._ready.set()

    async def started(self) -> None:
        """Wait until it is ready. Raises RuntimeError if it ends before, TimeoutError."""
        async with asyncio.timeout(_START_SECONDS):
            await self._ready.wait()
        if self.process.returncode is not None or self._reading.done():
            raise RuntimeError(f"{self.name} has ended; its error is above")

    async def end(self, number: int = signal.SIGTERM) -> None:
        """End the process by a signal."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        await self.process.wait()
        await self._reading


async def _start_members(command: Sequence[str], environment: dict[str, str], count: int) -> list[Member]:
    members = [
        Member(str(at), await asyncio.create_subprocess_exec(*command, stdout=PIPE, env=environment))
        for at in range(count)
    ]
    for member in members:
        await member.started()
    return members


# -- a broker's restart ---------------------------------------------------------------------------


async def restart(options: argparse.Namespace, home: Path) -> None:
    """Restart one of two brokers under load, and count the repeated deliveries."""
    cluster, number = Cluster(home), signal.Signals[f"SIG{options.signal}"]
    await cluster.start(*("broker-b", "broker-a")[: options.brokers])
    arguments = ("concurrent", cluster.namesrv, _TOPIC, _GROUP, "0", "0")
    command, environment = [sys.executable, "-m", "tools.soak.member", *arguments], dict(os.environ)
    if options.language == "java":
        java_home = make_home(home / "java")
        usual = {"rocketmq.client.rebalance.waitInterval": "20000"}
        command = JavaPeer.prepare().command("Soak", *arguments, home=java_home, properties=usual)
        environment = java_environment(java_home)
    members = await _start_members(command, environment, options.members)
    sent: list[int] = []
    producing = asyncio.create_task(_produce(cluster.namesrv, options.rate, sent))
    await asyncio.sleep(options.seconds / 2)
    await cluster.stop("broker-b", number)
    await asyncio.sleep(options.away)
    await cluster.start_broker("broker-b")
    await asyncio.sleep(options.seconds / 2)
    producing.cancel()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SETTLE_SECONDS):
            while not set(sent) <= _handled(members):  # noqa: ASYNC110 - lines of processes
                await asyncio.sleep(1)
    await asyncio.sleep(5)  # for repetitions of what is complete
    missing = set(sent) - _handled(members)
    await asyncio.gather(*(member.end() for member in members))
    await cluster.close()
    repeats = sum(count - 1 for count in _got(members).values())
    print(
        f"{options.language}, {options.members} members, SIG{options.signal}: {len(sent):,} messages, "
        f"{repeats:,} deliveries repeated, {len(missing):,} missing"
    )


def _handled(members: Sequence[Member]) -> set[int]:
    return {int(words[1]) for member in members for words in member.lines if words[0] == "got"}


def _got(members: Sequence[Member]) -> Counter[int]:
    """How often each message was delivered; redeliveries after a failure are left out."""
    first = (words for member in members for words in member.lines if words[0] == "got" and words[-1] == "0")
    return Counter(int(words[1]) for words in first)


async def _produce(namesrv: str, rate: int, sent: list[int]) -> None:
    async with Producer("repeats", namesrv) as producer:
        for number in itertools.count():
            with contextlib.suppress(RocketError):  # a resend would look like a repetition
                await producer.send(Message(_TOPIC, b"%d" % number))
                sent.append(number)
            await asyncio.sleep(1 / rate)


# -- jobs of workers ------------------------------------------------------------------------------


async def jobs(options: argparse.Namespace, home: Path) -> None:
    """Kill one of the workers, and count jobs that ran at the same time or again."""
    cluster = Cluster(home)
    await cluster.start("broker-a")
    async with Producer("repeats", cluster.namesrv) as producer:
        for job in range(_JOBS):
            await producer.send(Message(_TOPIC, b"%d" % job))
    worker = (sys.executable, "-m", "tools.soak.repeats", "worker", cluster.namesrv, str(options.job_ms))
    workers = await _start_members(worker, dict(os.environ), _WORKERS)
    await asyncio.sleep(options.seconds / 4)
    busy = [worker for worker in workers if any(words[0] == "begin" for words in worker.lines)]
    killed = busy[0]
    await killed.end(signal.Signals[f"SIG{options.signal}"])
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SETTLE_SECONDS):
            while len({words[1] for one in workers for words in one.lines if words[0] == "end"}) < _JOBS:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
    await asyncio.sleep(2)
    await asyncio.gather(*(one.end() for one in workers if one is not killed))
    await cluster.close()
    was_killed = options.signal == "KILL"
    at_once, again = _overlaps([(one, was_killed and one is killed) for one in workers])
    ended = {words[1] for one in workers for words in one.lines if words[0] == "end"}
    print(
        f"{_WORKERS} workers, {_QUEUES} queues, {_JOBS} jobs of {options.job_ms} ms, SIG{options.signal}: "
        f"a job ran on up to {at_once} workers at once; {again} jobs of living workers ran again; "
        f"{_JOBS - len(ended)} jobs did not end"
    )


def _overlaps(workers: Sequence[tuple[Member, bool]]) -> tuple[int, int]:
    """The most runs of a job at the same time, and how many jobs ran again without a kill of their worker."""
    events: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    runs, lost = Counter[str](), Counter[str]()
    for worker, was_killed in workers:
        running: set[str] = set()
        for words in worker.lines:
            if words[0] in {"begin", "end"}:
                change = 1 if words[0] == "begin" else -1
                events[words[1]].append((float(words[2]), change))
                runs[words[1]] += change == 1
                running.symmetric_difference_update({words[1]})
        if was_killed:
            lost.update(words[1] for words in worker.lines if words[0] == "begin")
            for job in running:  # its process has ended
                events[job].append((float(worker.lines[-1][2]), -1))
    most = 0
    for changes in events.values():
        count = 0
        for _, change in sorted(changes):
            count += change
            most = max(most, count)
    again = sum(1 for job, count in runs.items() if count - lost[job] > 1)
    return most, again


async def worker(namesrv: str, job_ms: int) -> None:
    """Handle jobs, and say when each begins and ends."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def handle(message: MessageExt) -> None:
        job = message.body.decode()
        print(f"begin {job} {time.monotonic():.3f}", flush=True)
        await asyncio.sleep(job_ms / 1000)
        print(f"end {job} {time.monotonic():.3f}", flush=True)

    config = PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET, concurrency=4)
    consumer = PushConsumer(_GROUP, namesrv, handle, config=config)
    consumer.subscribe(_TOPIC)
    async with consumer:
        print("ready", flush=True)
        await stop.wait()


def main() -> None:
    """Run one of the trials."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak.repeats", description=__doc__)
    trials = parser.add_subparsers(dest="trial", required=True)
    one = trials.add_parser("restart")
    one.add_argument("--language", choices=("python", "java"), default="python")
    one.add_argument("--brokers", type=int, choices=(1, 2), default=2)
    one.add_argument("--members", type=int, default=2)
    one.add_argument("--signal", choices=("KILL", "TERM"), default="KILL")
    one.add_argument("--rate", type=int, default=120, help="messages a second (default: %(default)s)")
    one.add_argument("--seconds", type=float, default=20, help="of load (default: %(default)s)")
    one.add_argument(
        "--away", type=float, default=3, help="seconds without the broker (default: %(default)s)"
    )
    two = trials.add_parser("jobs")
    two.add_argument("--signal", choices=("KILL", "TERM"), default="KILL")
    two.add_argument("--job-ms", type=int, default=1000)
    two.add_argument("--seconds", type=float, default=16)
    three = trials.add_parser("worker")
    three.add_argument("namesrv")
    three.add_argument("job_ms", type=int)
    options = parser.parse_args()
    if options.trial == "worker":
        asyncio.run(worker(options.namesrv, options.job_ms))
        return
    with tempfile.TemporaryDirectory() as home:
        asyncio.run((restart if options.trial == "restart" else jobs)(options, Path(home)))


if __name__ == "__main__":
    main()
