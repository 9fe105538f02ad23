"""gunicorn, uWSGI and Celery: clients that are started after a fork work, others raise at once."""

from __future__ import annotations

import os
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from celery import Celery

from rocketpy.sync import AdminClient
from tests.frameworks.programs import HTTP, Program, files_of, running, stored, wait_until, write_files
from tools.import_map import ROOT

pytestmark = pytest.mark.frameworks
GUNICORN = ("-m", "gunicorn", "--bind", "127.0.0.1:0")
REFUSAL = r"ClientClosed: this client was started in process (\d+), before a fork"
# gunicorn's master starts the client, as a module does that starts it while it is imported.
EARLY = """
preload_app = True
workers = 2

def on_starting(server):
    from wsgi import producer
    producer.start()
"""
FOLDERS = {"data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "control"}
WORKER = f"""
from tasks import app, producer

app.conf.update(broker_url="filesystem://", broker_transport_options={FOLDERS!r})
if __name__ == "__main__":
    app.worker_main(["worker", "--pool=prefork", "--concurrency=2", "--loglevel=INFO", "--without-mingle",
                     "--without-gossip"])
"""
EARLY_WORKER = WORKER.replace("if __name__", "producer.start()\nif __name__").replace("tasks", "late_tasks")
# It consumes, forks a child that lives longer, and waits.
PARENT = """
import os, signal
from rocketpy.sync import PushConsumer

consumer = PushConsumer("orphans", handler=lambda message: None)
consumer.subscribe("Orphans")
consumer.start()
if os.fork() == 0:
    print("child", os.getpid(), flush=True)
signal.pause()
"""


def processes_that_respond(url: str, program: Program, count: int) -> set[str]:
    """The processes that respond to requests; each sends a message.

    Requests overlap, since an idle server may give one after another to the same process.
    """
    found: set[str] = set()

    def all_have_responses() -> bool:
        for response in pool.map(HTTP.get, [url] * count):
            assert response.status_code == 200, program.output
            found.add(re.findall(r"sent by process (\d+)", response.text)[0])
        return len(found) == count

    with ThreadPoolExecutor(count) as pool:
        wait_until(all_have_responses)
    return found


def test_gunicorn_starts_clients_after_its_fork(tmp_path: Path, namesrv: str) -> None:
    """Workers of an application that is loaded before the fork would share one client."""
    write_files("prefork", tmp_path)
    with running(tmp_path, namesrv, *GUNICORN, "--workers", "2", "wsgi") as server:
        url = server.wait_for(r"Listening at: (http://\S+)")[1]
        pids = processes_that_respond(f"{url}/gunicorn", server, 2)
        assert str(server.process.pid) not in pids
        assert server.stop() == 0
    assert b"/gunicorn" in {message.body for message in stored(namesrv, "Visits")}
    assert "Traceback" not in server.output
    assert "was not closed" not in server.output


def test_a_client_of_gunicorns_master_raises_in_the_workers(tmp_path: Path, namesrv: str) -> None:
    """A request would hang until gunicorn kills its worker, without an error."""
    write_files("prefork", tmp_path)
    (tmp_path / "gunicorn.conf.py").write_text(EARLY, "utf-8")
    with running(tmp_path, namesrv, *GUNICORN, "wsgi") as server:
        url = server.wait_for(r"Listening at: (http://\S+)")[1]
        assert HTTP.get(url).status_code == 500
        assert server.wait_for(REFUSAL)[1] == str(server.process.pid)
        assert server.stop() == 0
    assert "WORKER TIMEOUT" not in server.output


def test_uwsgi_starts_clients_after_its_fork(tmp_path: Path, namesrv: str) -> None:
    """Workers of uWSGI, which runs Python inside a C program, would share one client.

    The server is stopped once all workers respond: uWSGI loses a signal to a worker that still starts, and
    kills that worker after a minute.
    """
    write_files("prefork", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    start = "import pyuwsgi, sys; pyuwsgi.run(sys.argv[1:])"
    page = (ROOT / "docs/guides/prefork.md").read_text("utf-8")
    [command] = re.findall(r"^uwsgi (.*)$", page, re.MULTILINE)
    options = command.replace(":8000", address).split()
    with running(tmp_path, namesrv, "-c", start, *options) as server:
        server.wait_for(r"spawned uWSGI worker 4")
        processes_that_respond(f"http://{address}/uwsgi", server, 4)
        server.stop()
    assert b"/uwsgi" in {message.body for message in stored(namesrv, "Visits")}
    assert "Traceback" not in server.output


def enqueue(folder: Path, name: str, number: int) -> None:
    """Send a task to the worker whose broker is a folder."""
    options = {key: str(folder / value) for key, value in FOLDERS.items()}
    with Celery("client", broker="filesystem://", broker_transport_options=options) as client:
        client.send_task(name, args=[number])


def prepare_worker(folder: Path, text: str) -> None:
    """Write the guide's tasks and a program that runs their worker."""
    write_files("prefork", folder)
    (folder / "worker.py").write_text(text, "utf-8")
    for name in set(FOLDERS.values()):
        (folder / name).mkdir()


def test_celery_starts_clients_in_its_processes(tmp_path: Path, namesrv: str) -> None:
    """A task would hang, or share the connection of the worker's main process."""
    prepare_worker(tmp_path, WORKER)
    with running(tmp_path, namesrv, "worker.py") as worker:
        for number in range(4):
            enqueue(tmp_path, "tasks.notify", number)
        wait_until(lambda: len(stored(namesrv, "Notices")) >= 4)
        assert worker.stop() == 0
    bodies = {message.body for message in stored(namesrv, "Notices")}
    assert bodies == {b"order 0", b"order 1", b"order 2", b"order 3"}
    assert "Traceback" not in worker.output
    assert "was not closed" not in worker.output


def test_a_client_of_celerys_main_process_raises_in_tasks(tmp_path: Path, namesrv: str) -> None:
    """A task would hang without a reason."""
    prepare_worker(tmp_path, EARLY_WORKER)
    tasks = re.sub(r"@worker_process_(init|shutdown)\.connect\n", "", files_of("prefork")["tasks.py"])
    (tmp_path / "late_tasks.py").write_text(tasks, "utf-8")
    with running(tmp_path, namesrv, "worker.py") as worker:
        enqueue(tmp_path, "late_tasks.notify", 7)
        assert worker.wait_for(REFUSAL)[1] == str(worker.process.pid)
        worker.stop()


def test_a_broker_notices_the_end_of_a_parent_whose_child_lives(tmp_path: Path, namesrv: str) -> None:
    """The queues of a dead member would not be read for two minutes."""
    (tmp_path / "parent.py").write_text(PARENT, "utf-8")
    with AdminClient(namesrv) as admin:
        admin.create_topic("Orphans")

        with running(tmp_path, namesrv, "parent.py") as parent:
            child = int(parent.wait_for(r"child (\d+)")[1])
            wait_until(lambda: admin.groups.members("orphans"))
            parent.stop(signal.SIGKILL)
            try:
                wait_until(lambda: not admin.groups.members("orphans"))
            finally:
                os.kill(child, signal.SIGKILL)
