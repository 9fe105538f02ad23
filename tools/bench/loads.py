"""Loads for a broker: RocketMQ's benchmark producer, a warm Java process, and rocketpy's client."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from rocketpy import Message, sync
from tests.interop.java_peer import EXAMPLES, REPOSITORY, JavaPeer, java_environment, make_home
from tests.interop.processes import our_environment
from tools.bench.machine import usage
from tools.bench.results import Sample
from tools.bench.servers import Server

CLIENT_JVM = ("-server", "-Xms512m", "-Xmx512m")
FILL_BYTES = 512 << 10  # bodies of a batch
_OFFICIAL_LINE = re.compile(
    r"Send TPS: (\d+) Max RT: (\d+) Average RT: +([\d.]+) Send Failed: (\d+) Response Failed: (\d+)"
)


class LoadProcess:
    """A client process that sends on request: one JSON line starts a measurement, another one reports it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    def java(cls, peer: JavaPeer, run: Path, driver: str = "Load") -> Self:
        """java/Load.java: DefaultMQProducer, N threads of synchronous sends, one JVM for the whole run.

        driver: another program in java/.
        """
        home = make_home(run / f"java-{driver.lower()}")
        command = peer.command(driver, home=home, jvm=CLIENT_JVM)
        return cls(_start(command, home / "console.log", java_environment(home)))

    @classmethod
    def sdk(
        cls, run: Path, loop: str, module: str = "sdk_load", *options: str, checkout: Path = REPOSITORY
    ) -> Self:
        """sdk_load.py: rocketpy.Producer on the asyncio or uvloop loop; or another module here.

        checkout: directory with the rocketpy that it uses.
        """
        # Started by its path, because another checkout has modules of this name, too.
        program = Path(__file__).with_name(f"{module}.py")
        command = [sys.executable, "-P", str(program), "--loop", loop, *options]
        return cls(_start(command, run / f"{module}-{loop}.log", our_environment(checkout)))

    @classmethod
    def librocketmq(cls, run: Path) -> Self:
        """librocketmq_load.py: the PyPI package rocketmq, which wraps RocketMQ's C++ client."""
        command = [sys.executable, "-m", "tools.bench.librocketmq_load"]
        environment = {**our_environment(), "HOME": str(run)}  # it logs there
        return cls(_start(command, run / "librocketmq-load.log", environment))

    def measure(self, server: Server, **what: Any) -> Sample:
        """Send to `server` as `what` describes. Raises RuntimeError if the client process ends."""
        broker_before, client_before = usage(server.broker_pid), usage(self._process.pid)
        slave_before = slave_cpu_s(server)
        result = self._ask({"namesrv": server.namesrv_address, "topic": server.topic, **what})
        broker, client, sent = usage(server.broker_pid), usage(self._process.pid), max(1, result["sent"])
        client_cpu_s = result.get("cpu_seconds", client.cpu_s - client_before.cpu_s)
        return Sample(
            rate=result["sent"] / result["seconds"],
            failed=result["failed"],
            p50_us=result["p50_us"],
            p99_us=result["p99_us"],
            broker_cpu_us=(broker.cpu_s - broker_before.cpu_s) / sent * 1e6,
            client_cpu_us=client_cpu_s / sent * 1e6,
            broker_resident_bytes=broker.resident_bytes,
            slave_cpu_us=(slave_cpu_s(server) - slave_before) / sent * 1e6,
        )

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the load process has no pipes")
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                result: dict[str, Any] = json.loads(line)
                return result
        raise RuntimeError(f"the load process ended with {self._process.wait()} on {what}; see its log")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def slave_cpu_s(server: Server) -> float:
    """CPU seconds of a pair's slave so far; 0 without one."""
    return usage(server.slave.pid).cpu_s if server.slave is not None else 0.0


def fill(server: Server, count: int, size: int) -> None:
    """Send this many messages with bodies of this size, in batches, to all queues in turn."""
    with sync.Producer("bench_filler", server.namesrv_address) as producer:
        queues = itertools.cycle(producer.fetch_publish_message_queues(server.topic))
        batch = [Message(server.topic, b"b" * size, wait_store=False)] * (FILL_BYTES // size)
        for at in range(0, count, len(batch)):
            producer.send_batch(batch[: count - at], queue=next(queues))


def official(peer: JavaPeer, run: Path, server: Server, threads: int) -> Sample:
    """RocketMQ's own example.benchmark.Producer, unmodified, in a fresh JVM: its second ten-second report.

    The first ten seconds are its warm-up. Its -s 128 makes bodies of 130 bytes.
    """
    home = make_home(run / "official")
    arguments = ("-t", server.topic, "-w", str(threads), "-s", "128", "-n", server.namesrv_address)
    command = peer.command(f"{EXAMPLES}.benchmark.Producer", *arguments, home=home, jvm=CLIENT_JVM)
    with _running(command, home) as process:
        _next_report(process)
        before, client_before, start = usage(server.broker_pid), usage(process.pid), time.monotonic()
        rate, _, average_ms, failed, refused = _next_report(process)
        after, client, seconds = usage(server.broker_pid), usage(process.pid), time.monotonic() - start
    return Sample(
        rate=rate,
        failed=int(failed + refused),
        p50_us=average_ms * 1000,  # the average, since it does not report the median
        broker_cpu_us=(after.cpu_s - before.cpu_s) / (rate * seconds) * 1e6,
        client_cpu_us=(client.cpu_s - client_before.cpu_s) / (rate * seconds) * 1e6,
        broker_resident_bytes=after.resident_bytes,
    )


class ProcessPerServer:
    """A client process for each server, for a library that uses only the first name server of its process.

    start: starts a process, which is closed by `stack`.
    """

    def __init__(self, stack: ExitStack, start: Callable[[], LoadProcess]) -> None:
        self._stack = stack
        self._start = start
        self._processes: dict[str, LoadProcess] = {}

    def measure(self, server: Server, **what: Any) -> Sample:
        """See `LoadProcess.measure`."""
        process = self._processes.get(server.name)
        if process is None:
            process = self._processes[server.name] = self._stack.enter_context(self._start())
        return process.measure(server, **what)


@contextmanager
def _running(command: list[str], home: Path) -> Iterator[subprocess.Popen[str]]:
    process = _start(command, home / "console.log", java_environment(home))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _next_report(process: subprocess.Popen[str]) -> tuple[float, ...]:
    for line in process.stdout or ():
        if found := _OFFICIAL_LINE.search(line):
            return tuple(map(float, found.groups()))
    raise RuntimeError(f"benchmark.Producer ended with {process.wait()} before a report")


def _start(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    with log.open("ab") as errors:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
