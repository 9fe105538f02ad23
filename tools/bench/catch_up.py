"""Measures how fast a slave catches up after a stop.

Each round begins with the same two stores: the slave's is restored to its state at the stop.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.interop import probe
from tests.interop.processes import BrokerProcess
from tools.bench.loads import fill
from tools.bench.machine import usage
from tools.bench.results import align
from tools.bench.servers import QUEUES, Server

_RUNTIME_INFO = 28
_STEP_S = 0.02
_RETRY_FOR_S = 600


@dataclass(frozen=True)
class CatchUp:
    """The result of one round.

    bytes: number of copied bytes. copy_s: seconds from the first copied byte to the last. start_s,
    readable_s: seconds from the process' start until all bytes are copied, and until all messages can be
    consumed. master_cpu_s, slave_cpu_s: CPU seconds.
    """

    bytes: int
    copy_s: float
    start_s: float
    readable_s: float
    master_cpu_s: float
    slave_cpu_s: float

    @property
    def rate(self) -> float:
        """Megabytes a second."""
        return self.bytes / self.copy_s / 1e6


class Laggard:
    """A pair whose slave is stopped: the master has `count` more messages, with bodies of `size` bytes."""

    def __init__(self, pair: Server, count: int, size: int) -> None:
        self.pair = pair
        self._slave = _slave_of(pair)
        wait_until_equal(pair)
        self._base = log_end(self._slave)
        self._slave.stop()
        self._kept = self._slave.store.with_name("store-kept")
        _copy(self._slave.store, self._kept)
        fill(pair, count, size)
        self._end = log_end(pair.broker)

    def measure(self) -> CatchUp:
        """Start the slave, and stop it once it has everything."""
        shutil.rmtree(self._slave.store)
        _copy(self._kept, self._slave.store)
        before, begin = usage(self.pair.broker_pid).cpu_s, time.monotonic()
        clock = _Clock(self._slave, self._base, self._end)
        self._slave.start()
        clock.join()
        wanted = readable(self.pair.broker, self.pair.topic)
        probe.wait_until(
            lambda: readable(self._slave, self.pair.topic) == wanted, "its queues", _RETRY_FOR_S, _STEP_S
        )
        readable_s = time.monotonic() - begin
        found = CatchUp(
            bytes=self._end - self._base,
            copy_s=clock.last - clock.first,
            start_s=clock.last - begin,
            readable_s=readable_s,
            master_cpu_s=usage(self.pair.broker_pid).cpu_s - before,
            slave_cpu_s=usage(self._slave.pid).cpu_s,
        )
        self._slave.stop()
        return found


class _Clock(threading.Thread):
    """Records when a slave's log begins to grow, and when it is complete."""

    def __init__(self, slave: BrokerProcess, base: int, end: int) -> None:
        super().__init__()
        self._slave, self._base, self._end = slave, base, end
        self.first = self.last = time.monotonic()
        self.start()

    def run(self) -> None:
        probe.wait_until(self._is_whole, f"{self._slave.name} to catch up", _RETRY_FOR_S, _STEP_S)

    def _is_whole(self) -> bool:
        asked = time.monotonic()
        end = log_end(self._slave)
        if end <= self._base:
            self.first = asked
        self.last = time.monotonic()
        return end >= self._end


def table(rounds: dict[str, list[CatchUp]], baseline: str) -> str:
    """A table of medians, one line for each pair, with the ratio of its rate to `baseline`'s."""
    heads = (
        "catch-up",
        "",
        "rounds",
        "MB/s",
        "min..max",
        "ratio",
        "start s",
        "readable s",
        "master",
        "slave",
    )
    rows = [_row(name, found, rounds.get(baseline, [])) for name, found in rounds.items()]
    return f"{align([heads, *rows])}\nmaster, slave: CPU seconds a GB, the slave's start included"


def _row(name: str, found: list[CatchUp], base: list[CatchUp]) -> tuple[str, ...]:
    rates = sorted(one.rate for one in found)
    ratio = statistics.median(rates) / _median(one.rate for one in base) if base and base is not found else 0
    return (
        name,
        f"{found[0].bytes / 1e9:.1f} GB",
        str(len(found)),
        f"{statistics.median(rates):,.0f}",
        f"{rates[0]:,.0f}..{rates[-1]:,.0f}",
        f"{ratio:.2f}" if ratio else "",
        f"{_median(one.start_s for one in found):.1f}",
        f"{_median(one.readable_s for one in found):.1f}",
        f"{_median(one.master_cpu_s / one.bytes * 1e9 for one in found):.2f}",
        f"{_median(one.slave_cpu_s / one.bytes * 1e9 for one in found):.2f}",
    )


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def wait_until_equal(pair: Server) -> None:
    """Wait until the slave's log is as long as its master's, and neither grows."""
    slave = _slave_of(pair)
    probe.wait_until(lambda: log_end(slave) == log_end(pair.broker) > 0, f"{pair.name}'s slave", _RETRY_FOR_S)


def log_end(broker: BrokerProcess) -> int:
    """The end of a broker's commit log. Raises OSError while the broker does not respond."""
    code, _, body = probe.ask(broker.address, _RUNTIME_INFO)
    if code:
        raise ConnectionError(f"{broker.name} responds {code}")
    return int(probe.table(body)["commitLogMaxOffset"])


def readable(broker: BrokerProcess, topic: str) -> int:
    """The number of messages in a broker's queues of a topic."""
    return sum(probe.offset(broker.address, probe.MAX_OFFSET, topic, queue) for queue in range(QUEUES))


def _slave_of(pair: Server) -> BrokerProcess:
    if pair.slave is None:
        raise ValueError(f"{pair.name} has no slave")
    return pair.slave


def _copy(source: Path, to: Path) -> None:
    """Copy a store, and keep holes of its preallocated files."""
    subprocess.run(["cp", "-a", str(source), str(to)], check=True)
