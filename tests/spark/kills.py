"""Kills a pipeline's broker, name server and driver in turn: ``python -m tests.spark.kills --minutes 30``.

One query writes lines into a topic, another one writes them, deduplicated, into Parquet files. At the end
each line must be there once, and no query may have failed. A second run continues one that was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from examples.spark_session import start_session
from rocketpy.errors import RocketError
from rocketpy.sync import AdminClient
from tests.interop.probe import wait_until
from tests.interop.processes import OurBroker, OurNameServer, our_environment
from tests.spark.conftest import CLUSTER, CONF, QUICK_TO_START, Place

_HOME: Final = Path(__file__).parents[2] / "build" / "spark-kills"
_TOPIC: Final = "Kills"
_LINES: Final = 500
"""Lines of a file; one file is written each second."""
_END_S: Final = 600
"""Time in which the pipeline must process the remaining lines."""


@dataclass
class State:
    """Progress of earlier runs in this folder. seconds: time of feeding. ports: name server's, broker's."""

    seconds: float = 0.0
    files: int = 0
    kills: dict[str, int] = field(default_factory=dict)
    ports: tuple[int | None, int | None] = (None, None)

    def save(self, folder: Path) -> None:
        """Replace the file."""
        part = folder / "state.part"
        part.write_text(json.dumps(asdict(self)), "utf-8")
        part.replace(folder / "state.json")


class Driver:
    """`kills_job` as a process, with its JVM and its Python workers."""

    def __init__(self, namesrv: str, folder: Path) -> None:
        self._command = [sys.executable, "-m", "tests.spark.kills_job", namesrv, _TOPIC, str(folder)]
        self._log = folder / "job.log"
        self.process = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command, env=our_environment(), stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """Send SIGKILL to all its processes, like the loss of a machine."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def restart(self) -> None:
        """Kill and start it."""
        self.kill()
        self.process = self._start()

    def check(self) -> None:
        """Raise AssertionError if a query has ended."""
        assert self.process.poll() is None, f"a query ended:\n{self._log.read_text('utf-8')[-5000:]}"


def main() -> int:
    """Run; 0 when each line is there once."""
    options = _options()
    if options.fresh:
        shutil.rmtree(options.home, ignore_errors=True)
    (options.home / "in").mkdir(parents=True, exist_ok=True)
    file = options.home / "state.json"
    state = State(**json.loads(file.read_text("utf-8"))) if file.exists() else State()
    names = OurNameServer(options.home, port=state.ports[0])
    with names, OurBroker(options.home, names.address, conf=CONF, port=state.ports[1]) as broker:
        state.ports = names.port, broker.port
        with AdminClient(names.address) as admin:
            admin.create_topic(_TOPIC, 4, key=CLUSTER)
        with Driver(names.address, options.home) as driver:
            kills = {"broker": _restart(broker), "name server": _restart(names), "driver": driver.restart}
            _feed(options, state, driver, kills)
            _finish(options.home, state, driver)
        stored = Place(names, broker).stored(_TOPIC)
    return _check_output(options.home, state, stored)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="default: %(default)s")
    parser.add_argument(
        "--pause", type=float, default=30, help="seconds between kills (default: %(default)s)"
    )
    parser.add_argument("--home", type=Path, default=_HOME, help="store and results (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="forget earlier runs")
    return parser.parse_args()


def _restart(server: Any) -> Callable[[], None]:
    def restart() -> None:
        server.kill()
        server.start()

    return restart


def _feed(
    options: argparse.Namespace, state: State, driver: Driver, kills: dict[str, Callable[[], None]]
) -> None:
    """Write files at a steady rate, and kill one part after the other."""
    turns = itertools.cycle(kills)
    begun, before = time.monotonic(), state.seconds
    next_kill = begun + options.pause
    while state.seconds < options.minutes * 60:
        begin = state.files * _LINES
        part = options.home / "next.part"
        part.write_text("".join(f"{number}\n" for number in range(begin, begin + _LINES)), "ascii")
        part.replace(options.home / "in" / f"{state.files:06}.txt")
        state.files += 1
        if time.monotonic() >= next_kill:
            driver.check()
            what = next(turns)
            kills[what]()
            state.kills[what] = state.kills.get(what, 0) + 1
            next_kill = time.monotonic() + options.pause
            print(f"{state.seconds:6.0f} s: {state.files * _LINES:,} lines; killed {state.kills}", flush=True)
        state.seconds = before + time.monotonic() - begun
        state.save(options.home)
        time.sleep(1)


def _finish(home: Path, state: State, driver: Driver) -> None:
    """Wait until the output has as many rows as lines were fed."""

    def is_complete() -> bool:
        driver.check()
        return sum(_rows(home).values()) >= state.files * _LINES

    wait_until(is_complete, "the end of the pipeline", _END_S, 5)


def _rows(home: Path) -> dict[str, int]:
    """Rows of each file that the sink's log has committed."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

    rows: dict[str, int] = {}
    for batch in (home / "out" / "_spark_metadata").glob("[0-9]*"):
        for line in batch.read_text("utf-8").splitlines()[1:]:
            path = json.loads(line)["path"].removeprefix("file://")
            rows[path] = pq.read_metadata(path).num_rows
    return rows


def _check_output(home: Path, state: State, stored: int) -> int:
    spark = start_session("rocketpy kills", "local[2]", QUICK_TO_START)
    found = spark.read.parquet(str(home / "out"))
    count, different = found.count(), found.distinct().count()
    bounds = found.selectExpr("min(number)", "max(number)").first()
    spark.stop()
    lines = state.files * _LINES
    print(f"{state.seconds / 60:.0f} minutes, kills: {state.kills}")
    print(f"lines {lines:,}; stored {stored:,}, of which {stored - lines:,} are copies")
    print(f"deduplicated rows {count:,}, different {different:,}, from {bounds[0]} to {bounds[1]}")
    is_exact = (count, different, *bounds) == (lines, lines, 0, lines - 1)
    print("exact" if is_exact else "FAILED: lines are missing, or are there twice")
    return 0 if is_exact else 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        try:
            sys.exit(main())
        except RocketError as error:
            sys.exit(f"spark-kills: {error}")
