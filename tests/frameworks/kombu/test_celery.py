"""Celery's workers with the transport: processes, remote control, delays, retries, and killed workers."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from celery import Celery

from tests.frameworks.programs import Program, running, stored, wait_until, write_files

pytestmark = pytest.mark.frameworks

# Each task writes a line when it starts and one when it ends. Those of `hold` wait for a file.
TASKS = """
import os, pathlib, sys, time
import rocketpy_kombu
from celery import Celery

app = Celery("shop", broker="rocketmq://")
app.conf.update(
    task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True, worker_hijack_root_logger=False,
    broker_transport_options={"visibility_timeout": 8, "wait_time_seconds": 1},
)
folder = pathlib.Path(__file__).parent

def note(text):
    with (folder / "notes").open("a") as file:
        file.write(f"{text} {os.getpid()} {os.getppid()}\\n")

@app.task
def hold(name):
    note(f"start {name}")
    while not (folder / "go").exists():
        time.sleep(0.05)
    note(f"end {name}")

@app.task
def send_another(name):
    hold.delay(name)

@app.task(bind=True, max_retries=3)
def flaky(self):
    note(f"try {self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
"""
OPTIONS = ("--loglevel=INFO", "--without-heartbeat")


class Shop:
    """A folder with the tasks, and what they have written."""

    def __init__(self, folder: Path, namesrv: str) -> None:
        (folder / "shop.py").write_text(TASKS, "utf-8")
        self.folder = folder
        self.namesrv = namesrv
        self.app = Celery("client", broker=f"rocketmq://{namesrv}")

    def notes(self, kind: str) -> list[list[str]]:
        """The lines of a kind: name, process, its parent."""
        path = self.folder / "notes"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return [line.split()[1:] for line in lines if line.startswith(kind)]

    def names(self, kind: str) -> Counter[str]:
        """How often tasks have written a line of a kind."""
        return Counter(name for name, *_ in self.notes(kind))

    def go(self) -> None:
        """Let the tasks end."""
        (self.folder / "go").touch()

    @contextmanager
    def worker(self, name: str, *options: str, processes: int = 2) -> Iterator[Program]:
        """Run a worker that is ready."""
        arguments = ("-m", "celery", "-A", "shop", "worker", "-n", f"{name}@here", "-c", str(processes))
        with running(self.folder, self.namesrv, *arguments, *OPTIONS, *options) as program:
            program.wait_for(rf"{name}@here ready")
            yield program


@pytest.fixture
def shop(tmp_path: Path, namesrv: str) -> Iterator[Shop]:
    """The tasks, without a worker."""
    found = Shop(tmp_path, namesrv)
    with found.app:
        yield found


def test_a_worker_runs_delayed_retried_and_nested_tasks(shop: Shop) -> None:
    """The guide promises them; its processes send with clients of their own."""
    shop.go()
    with shop.worker("one") as worker:
        shop.app.send_task("shop.send_another", ["nested"])
        shop.app.send_task("shop.hold", ["later"], countdown=1)
        shop.app.send_task("shop.flaky")
        wait_until(lambda: shop.names("end")["nested"] and shop.names("end")["later"])
        wait_until(lambda: shop.names("try") == {"0": 1, "1": 1, "2": 1})
        assert {parent for *_, parent in shop.notes("end")} == {str(worker.process.pid)}
        assert worker.stop() == 0
    assert "Traceback" not in worker.output, worker.output
    assert any(message.deliver_at is not None for message in stored(shop.namesrv, "celery"))


def test_remote_control_reaches_every_worker(shop: Shop) -> None:
    """`celery inspect ping` is the health check of deployments; RocketMQ itself has no fanout."""
    with ExitStack() as workers:
        for name in ("one", "two"):
            workers.enter_context(shop.worker(name, processes=1))
        assert shop.app.control.inspect(timeout=30, limit=2).ping() == {
            "one@here": {"ok": "pong"},
            "two@here": {"ok": "pong"},
        }
        shop.app.send_task("shop.hold", ["x"], task_id="task-1")
        wait_until(lambda: shop.names("start")["x"])
        running_tasks = shop.app.control.inspect(timeout=30, limit=2).active()
        assert [task["id"] for tasks in running_tasks.values() for task in tasks] == ["task-1"]
        assert shop.app.control.inspect(["two@here"], timeout=30, limit=1).ping() == {
            "two@here": {"ok": "pong"}
        }
        shop.go()


def test_only_the_task_of_a_killed_worker_runs_again(shop: Shop) -> None:
    """A worker that is killed would lose its tasks, or others would start theirs twice."""
    with ExitStack() as programs:
        workers = {
            name: programs.enter_context(shop.worker(name, processes=1)) for name in ("one", "two", "three")
        }
        for number in range(3):
            shop.app.send_task("shop.hold", [f"job{number}"])
        wait_until(lambda: shop.names("start").total() == 3)
        by_parent = {parent: name for name, _, parent in shop.notes("start")}
        victim = workers["one"].process
        lost = by_parent[str(victim.pid)]
        os.killpg(victim.pid, signal.SIGKILL)
        with shop.worker("four", processes=1):
            wait_until(lambda: shop.names("start")[lost] == 2)
            shop.go()
            wait_until(lambda: len(shop.names("end")) == 3)
    assert shop.names("start") == {f"job{number}": 2 if f"job{number}" == lost else 1 for number in range(3)}
    assert shop.names("end").total() == 3


def test_a_task_of_a_killed_process_runs_again(shop: Shop) -> None:
    """The kernel kills a process that uses too much memory; its worker goes on."""
    with shop.worker("one", processes=2) as worker:
        shop.app.send_task("shop.hold", ["heavy"])
        wait_until(lambda: shop.names("start")["heavy"])
        os.kill(int(shop.notes("start")[0][1]), signal.SIGKILL)
        wait_until(lambda: shop.names("start")["heavy"] == 2)
        shop.go()
        wait_until(lambda: shop.names("end")["heavy"])
        assert worker.stop() == 0


def test_a_warm_shutdown_gives_tasks_to_other_workers(shop: Shop) -> None:
    """A deployment would delay waiting tasks by the visibility timeout, or run them twice."""
    with shop.worker("one", "--prefetch-multiplier=4", processes=1) as first:
        for number in range(4):
            shop.app.send_task("shop.hold", [f"job{number}"])
        wait_until(lambda: first.output.count("received") == 4)
        first.process.send_signal(signal.SIGTERM)
        first.wait_for("Warm shutdown")
        shop.go()
        first.process.wait(60)
        with shop.worker("two", processes=1):
            wait_until(lambda: len(shop.names("end")) == 4)
    assert max(shop.names("start").values()) == 1, shop.names("start")


def test_a_purge_leaves_no_task(shop: Shop) -> None:
    """`celery purge` would say that it has removed tasks, and a worker would run them."""
    for number in range(5):
        shop.app.send_task("shop.hold", [f"old{number}"])
    assert shop.app.control.purge() == 5
    shop.go()
    shop.app.send_task("shop.hold", ["new"])
    with shop.worker("one", processes=1):
        wait_until(lambda: shop.names("end")["new"])
    assert shop.names("start") == {"new": 1}


def test_the_guide_runs(tmp_path: Path, namesrv: str) -> None:
    """A reader's first worker would not start."""
    write_files("celery", tmp_path)
    client = "from shop import send_receipt; print(send_receipt.delay(42).id)"
    with running(tmp_path, namesrv, "-c", client) as sender:
        assert sender.process.wait(60) == 0, sender.output
        task_id = re.findall(r"^[0-9a-f-]{36}$", sender.output, re.MULTILINE)[0]
    with running(tmp_path, namesrv, "-m", "celery", "-A", "shop", "worker", "-c", "1", *OPTIONS) as worker:
        worker.wait_for(rf"send_receipt\[{task_id}\] succeeded.*receipt 42 by attempt 0")
