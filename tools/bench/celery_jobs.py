"""Celery jobs on workers of which one is killed: how long they take, and which jobs run more than once.

    python -m tools.bench.celery_jobs --jobs 100 --seconds 5 --workers 8 --queues 4
    python -m tools.bench.celery_jobs --broker redis          # the same on redis-server, if it is installed

Each worker has a process of its own, or several with --processes. One worker is killed with SIGKILL after a
quarter of the jobs, and replaced at once, as a supervisor would. Exits with 1 if a job was lost, if one ran
on two workers at the same time, or if another job than the killed worker's ran again. Redis also needs
`pip install "redis>=6.1,<7"`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from celery import Celery

import rocketpy_kombu
from tools.import_map import ROOT

assert rocketpy_kombu.Transport.driver_type == "rocketmq"  # the import registers it
_APPLICATION: Final = """
import os, pathlib, sys, time
import rocketpy_kombu
from celery import Celery

app = Celery("trial", broker=os.environ["TRIAL_BROKER"])
app.conf.update(
    task_acks_late=True, worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    broker_transport_options={
        "visibility_timeout": float(os.environ["TRIAL_VISIBILITY"]),
        "topic_queues": int(os.environ["TRIAL_QUEUES"]),
    },
)
notes = os.open(pathlib.Path(__file__).with_name("notes"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.task
def job(number, seconds):
    os.write(notes, f"start {number} {os.environ['TRIAL_WORKER']} {time.time()}\\n".encode())
    time.sleep(seconds)
    os.write(notes, f"end {number} {os.environ['TRIAL_WORKER']} {time.time()}\\n".encode())
"""
_LIMIT_S: Final = 900


class Run(NamedTuple):
    """One run of a job; `end` is None for one that was killed."""

    number: int
    worker: str
    start: float
    end: float | None


class Trial:
    """The workers, and what their jobs have written."""

    def __init__(self, folder: Path, broker: str, options: argparse.Namespace) -> None:
        self._folder = folder
        self._options = options
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT, ROOT / "integrations/kombu"))),
            "TRIAL_BROKER": broker,
            "TRIAL_QUEUES": str(options.queues),
            "TRIAL_VISIBILITY": str(options.visibility),
        }
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._names = itertools.count(1)
        (folder / "trial.py").write_text(_APPLICATION, "utf-8")
        self._broker = broker

    def start_worker(self) -> None:
        """Start a worker without waiting."""
        name = f"worker{next(self._names)}"
        pool = ("--pool=solo",) if self._options.processes == 1 else ("-c", str(self._options.processes))
        command = (sys.executable, "-m", "celery", "-A", "trial", "worker", *pool, "-n", f"{name}@here")
        quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=INFO")
        with (self._folder / f"{name}.log").open("wb") as log:
            self._workers[name] = subprocess.Popen(
                (*command, *quiet),
                cwd=self._folder,
                env=self._environment | {"TRIAL_WORKER": name},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ready(self) -> int:
        """The number of workers that have started. Raises RuntimeError if one has ended."""
        for name, worker in self._workers.items():
            if worker.poll() is not None:
                raise RuntimeError((self._folder / f"{name}.log").read_text("utf-8"))
        return sum(b" ready." in log.read_bytes() for log in self._folder.glob("worker*.log"))

    def send(self) -> None:
        """Send all jobs."""
        transport = {"topic_queues": self._options.queues}
        with Celery("client", broker=self._broker, broker_transport_options=transport) as app:
            for number in range(self._options.jobs):
                app.send_task("trial.job", [number, self._options.seconds])

    def runs(self) -> list[Run]:
        """All runs so far."""
        starts: dict[tuple[int, str], float] = {}
        ends: dict[tuple[int, str], float] = {}
        path = self._folder / "notes"
        for line in path.read_text("utf-8").splitlines() if path.exists() else ():
            kind, number, worker, at = line.split()
            (starts if kind == "start" else ends)[int(number), worker] = float(at)
        return [Run(*key, start, ends.get(key)) for key, start in sorted(starts.items())]

    def done(self) -> int:
        """The number of jobs that have ended."""
        return len({run.number for run in self.runs() if run.end is not None})

    def kill_one(self) -> str:
        """Kill a worker that runs jobs, with all its processes; return its name."""
        busy = {run.worker for run in self.runs() if run.end is None}
        name = next(name for name in self._workers if name in busy)
        victim = self._workers.pop(name)
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait()
        return name

    def stop(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            worker.send_signal(signal.SIGTERM)
        for worker in self._workers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(30)
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition. Raises TimeoutError."""
    end = time.monotonic() + _LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.1)


@contextlib.contextmanager
def rocketpy_servers(folder: Path) -> Iterator[str]:
    """A name server and a broker in another process; yields the address for kombu."""
    server = (sys.executable, "-m", "rocketpy_broker", "dev", "--store", str(folder / "store"))
    command = (*server, "--listen", "127.0.0.1:0", "--set", "listenPort=0")
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            shown = "".join(line for _, line in zip(range(2), process.stdout or (), strict=False))
            yield "rocketmq://" + re.findall(r"127\.0\.0\.1:\d+", shown)[0]
        finally:
            process.send_signal(signal.SIGINT)


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """redis-server on a socket file."""
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("celery_jobs: redis-server is not installed (on Debian: apt install redis-server)")
    path = folder / "redis.sock"
    command = (program, "--port", "0", "--unixsocket", str(path), "--appendonly", "yes", "--dir", str(folder))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(path.exists, "redis-server did not start")
            yield f"redis+socket://{path}"
        finally:
            process.terminate()


def judge(runs: list[Run], jobs: int, killed: str | None) -> list[str]:
    """What is wrong with the runs."""
    wrong = []
    if missing := set(range(jobs)) - {run.number for run in runs if run.end is not None}:
        wrong.append(f"{len(missing)} jobs did not end: {sorted(missing)[:10]}")
    by_number = {number: [run for run in runs if run.number == number] for number in range(jobs)}
    for number, found in by_number.items():
        if len(found) > 1 and not any(run.worker == killed for run in found):
            wrong.append(f"job {number} ran {len(found)} times, and no run was the killed worker's")
        spans = sorted((run.start, run.end) for run in found if run.end is not None)
        wrong += [
            f"job {number} ran on two workers at once"
            for (_, end), (start, _) in itertools.pairwise(spans)
            if start < end
        ]
    return wrong


def main() -> int:
    """Run one trial, and print its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of a job")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--processes", type=int, default=1, help="processes of each worker")
    parser.add_argument("--queues", type=int, default=4, help="queues of the topic")
    parser.add_argument("--visibility", type=float, default=10.0, help="visibility timeout in seconds")
    parser.add_argument("--broker", choices=("rocketpy", "redis"), default="rocketpy")
    parser.add_argument("--url", help="address of a running broker, instead of a new one")
    parser.add_argument("--no-kill", action="store_true")
    options = parser.parse_args()
    servers = rocketpy_servers if options.broker == "rocketpy" else redis_server
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="celery-jobs-")))
        url = options.url or stack.enter_context(servers(folder))
        trial = Trial(folder, url, options)
        stack.callback(trial.stop)
        for _ in range(options.workers):
            trial.start_worker()
        wait_until(lambda: trial.ready() == options.workers, "the workers did not start")
        trial.send()
        killed = None
        if not options.no_kill:
            wait_until(lambda: trial.done() >= options.jobs // 4, "the jobs do not end")
            killed = trial.kill_one()
            trial.start_worker()
        wait_until(lambda: trial.done() == options.jobs, "the jobs did not end")
        runs = trial.runs()
    ended = [run.end for run in runs if run.end is not None]
    took = max(ended) - min(run.start for run in runs)
    wrong = judge(runs, options.jobs, killed)
    print(
        f"celery_jobs: {options.broker}, {options.jobs} jobs of {options.seconds:g} s, "
        f"{options.workers} workers of {options.processes} processes, {options.queues} queues: {took:.1f} s, "
        f"{len(runs)} starts"
    )
    for text in wrong:
        print(f"celery_jobs: {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
