"""Server processes for the interop run and the benchmarks: RocketMQ's and rocketpy's with one interface.

    with JavaNameServer(peer, run) as names, JavaBroker(peer, run, names.address) as broker: ...

Each process has its own directory (home, configuration, store, logs) and free loopback ports, and is stopped
by its pid. A server is ready when it accepts connections; for a broker, also the name server must have its
address and the route of its template topic.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Self

from tests.interop import probe
from tests.interop.java_peer import QUICK, REPOSITORY, JavaPeer, java_environment, make_home
from tests.interop.warm import stacks

HOST = "127.0.0.1"
SERVER_JVM = (*QUICK, "-Xms128m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m")
DEFAULT_TOPIC = "TBW102"  # brokers that create topics automatically register this one
# Below Linux's ephemeral ports (32768 and up), so that no outgoing connection uses one of these ports.
_port_candidates = itertools.cycle(range(21000 + os.getpid() % 500 * 16, 32000, 4))
_reserved: list[socket.socket] = []


def free_port(neighbours: Sequence[int] = (0,)) -> int:
    """A port p such that every p + n, n in `neighbours`, can be bound on loopback now.

    Calls in other processes return other ports while this process runs.
    """
    for port in itertools.islice(_port_candidates, 5000):
        if all(is_free(port + step) for step in neighbours) and _reserve(port):
            return port
    raise OSError(f"no free port with neighbours {neighbours} below 32000")


def free_broker_port() -> int:
    """A listen port for a broker: port - 2 is RocketMQ's VIP channel and port + 1 its HA port."""
    return free_port((-2, 0, 1))


class ServerProcess:
    """One server in its own directory. Start with `with` or `start()`; `stop()` is safe to call twice."""

    kind: ClassVar[str] = "server"
    ready_words: ClassVar[str] = ""  # its ready line; another program could respond at its port
    stop_timeout_s: ClassVar[float] = 30

    def __init__(self, run: Path, name: str, port: int) -> None:
        self.name = name
        self.home = run / name
        self.home.mkdir(parents=True, exist_ok=True)
        self.port = port
        self.address = f"{HOST}:{port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._console_from = 0

    @property
    def pid(self) -> int:
        """Process id. Raises RuntimeError if it does not run."""
        if self._process is None:
            raise RuntimeError(f"{self.name} does not run")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def command(self) -> list[str]:
        """The command line; each kind of server has its own."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """The process environment."""
        return dict(os.environ)

    def is_ready(self) -> bool:
        """Whether it serves. May raise OSError, which means not yet."""
        socket.create_connection((HOST, self.port), timeout=1).close()
        return True

    def start(self, timeout_s: float = 180) -> Self:
        """Start and wait until it serves. Raises RuntimeError with the end of its logs if it does not."""
        with (self.home / "console.log").open("ab") as console:
            self._console_from = console.tell()
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env=self.environment(),
                cwd=self.home,
            )
        try:
            probe.wait_until(self._is_ready_or_dead, f"{self.kind} {self.name} to serve", timeout_s)
        except TimeoutError as error:
            report = self.report()
            self.kill()
            raise RuntimeError(f"{error} on {self.address}\n{report}") from error
        if not self.is_running:
            code, self._process = self._process.returncode, None
            raise RuntimeError(f"{self.kind} {self.name} on {self.address} ended with {code}\n{self.logs()}")
        return self

    def stop(self) -> None:
        """SIGTERM and wait; SIGKILL when it does not end within `stop_timeout_s`."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(self.stop_timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Pause the process (SIGSTOP) in the block: connections stay open, and get no response."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def logs(self, lines: int = 40) -> str:
        """The end of each log of this process, for a failure's report."""
        found = [path for path in (self.home / "console.log", self.home / "java.log") if path.exists()]
        return "\n".join(f"--- {path}\n" + "\n".join(_tail(path, lines)) for path in found)

    def report(self) -> str:
        """The end of its logs and, of a running JVM, the stacks of its threads."""
        return self.logs()

    def _is_ready_or_dead(self) -> bool:
        return not self.is_running or (self._has_said_ready() and self.is_ready())

    def _has_said_ready(self) -> bool:
        with (self.home / "console.log").open("rb") as console:
            console.seek(self._console_from)
            return self.ready_words.encode() in console.read()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class JvmProcess(ServerProcess):
    """Shared parts of RocketMQ's servers."""

    def report(self) -> str:
        """See `ServerProcess.report`."""
        threads = f"\n--- threads of {self.name}\n{stacks(self.pid)}" if self.is_running else ""
        return self.logs() + threads


class NameServerProcess(ServerProcess):
    """Shared parts of both name servers: namesrv.conf, and readiness when it responds to a cluster query."""

    kind = "name server"

    def __init__(self, run: Path, name: str, port: int | None, conf: Mapping[str, object] | None) -> None:
        super().__init__(run, name, free_port() if port is None else port)
        self.conf: dict[str, object] = {**(conf or {}), "listenPort": self.port}

    @property
    def conf_file(self) -> Path:
        """namesrv.conf, written at each start."""
        path = self.home / "namesrv.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.conf.items()))
        return path

    def is_ready(self) -> bool:
        """Whether it accepts connections and responds. Raises OSError while it does not."""
        probe.broker_addresses(self.address)
        return True


class BrokerProcess(ServerProcess):
    """Shared parts of both brokers: broker.conf, a store directory, and readiness as its name servers see it.

    namesrv: addresses, with semicolons between them.
    """

    kind = "broker"

    def __init__(
        self,
        run: Path,
        namesrv: str,
        *,
        name: str,
        port: int | None = None,
        store: Path | None = None,
        conf: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(run, name, free_broker_port() if port is None else port)
        self.namesrv = namesrv
        self.store = self.home / "store" if store is None else store
        self.conf: dict[str, object] = {
            "brokerClusterName": "InteropCluster",
            "brokerName": name,
            "brokerId": 0,
            "brokerIP1": HOST,
            "brokerIP2": HOST,
            "listenPort": self.port,
            "namesrvAddr": namesrv,
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            "mappedFileSizeCommitLog": 16 << 20,
            "mappedFileSizeConsumeQueue": 20 * 20_000,
            "flushDiskType": "ASYNC_FLUSH",
            "diskMaxUsedSpaceRatio": 95,
            **(conf or {}),
        }

    @property
    def conf_file(self) -> Path:
        """broker.conf, written at each start."""
        path = self.home / "broker.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.conf.items()))
        return path

    def is_ready(self) -> bool:
        """Whether it accepts connections, and the name server has its address and template topic, if any.

        A DLedger peer is ready when it accepts connections: it registers once its group has a leader.
        """
        if self.conf.get("enableDLegerCommitLog") == "true":
            return super().is_ready()
        return super().is_ready() and all(map(self._is_known, self.namesrv.split(";")))

    def _is_known(self, namesrv: str) -> bool:
        if self.address not in probe.broker_addresses(namesrv):
            return False
        return self.conf.get("autoCreateTopicEnable") == "false" or self._has_template_route(namesrv)

    def _has_template_route(self, namesrv: str) -> bool:
        found = probe.route(namesrv, DEFAULT_TOPIC)
        return found is not None and any(
            b["brokerName"] == self.conf["brokerName"] for b in found["brokerDatas"]
        )


class JavaNameServer(JvmProcess, NameServerProcess):
    """RocketMQ's own name server. `properties` are system properties such as tls.config.file."""

    ready_words = "boot success"

    def __init__(
        self,
        peer: JavaPeer,
        run: Path,
        *,
        name: str = "java-namesrv",
        port: int | None = None,
        jvm: Sequence[str] = SERVER_JVM,
        conf: Mapping[str, object] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(run, name, port, conf)
        self._peer, self._jvm, self._properties = peer, jvm, properties

    def command(self) -> list[str]:
        """NamesrvStartup with a configuration file that holds the port."""
        make_home(self.home)
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        arguments = ("-c", str(self.conf_file))
        return self._peer.command(
            main, *arguments, home=self.home, jvm=self._jvm, properties=self._properties
        )

    def environment(self) -> dict[str, str]:
        """With ROCKETMQ_HOME."""
        return java_environment(self.home)


class JavaBroker(JvmProcess, BrokerProcess):
    """RocketMQ's own broker. `properties` are system properties such as rocketmq.serialize.type."""

    ready_words = "boot success"

    def __init__(
        self,
        peer: JavaPeer,
        run: Path,
        namesrv: str,
        *,
        name: str = "java-broker",
        port: int | None = None,
        store: Path | None = None,
        conf: Mapping[str, object] | None = None,
        jvm: Sequence[str] = SERVER_JVM,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(run, namesrv, name=name, port=port, store=store, conf=conf)
        self._peer, self._jvm, self._properties = peer, jvm, properties

    def command(self) -> list[str]:
        """BrokerStartup with broker.conf."""
        make_home(self.home)
        main = "org.apache.rocketmq.broker.BrokerStartup"
        arguments = ("-c", str(self.conf_file))
        return self._peer.command(
            main, *arguments, home=self.home, jvm=self._jvm, properties=self._properties
        )

    def environment(self) -> dict[str, str]:
        """With ROCKETMQ_HOME."""
        return java_environment(self.home)


class OurNameServer(NameServerProcess):
    """rocketpy's name server as its users start it, by the command line."""

    ready_words = "ready at"

    def __init__(
        self,
        run: Path,
        *,
        name: str = "our-namesrv",
        port: int | None = None,
        conf: Mapping[str, object] | None = None,
        checkout: Path = REPOSITORY,
    ) -> None:
        super().__init__(run, name, port, conf)
        self._checkout = checkout

    def command(self) -> list[str]:
        """`rocketpy-broker namesrv`."""
        return [sys.executable, "-m", "rocketpy_broker.cli", "namesrv", "-c", str(self.conf_file)]

    def environment(self) -> dict[str, str]:
        """With the checkout on the path, so that an installed copy is not needed."""
        return our_environment(self._checkout)


class OurBroker(BrokerProcess):
    """rocketpy's broker as its users start it, by the command line and RocketMQ's broker.conf."""

    ready_words = "ready at"

    def __init__(
        self,
        run: Path,
        namesrv: str,
        *,
        name: str = "our-broker",
        port: int | None = None,
        store: Path | None = None,
        conf: Mapping[str, object] | None = None,
        options: Sequence[str] = (),
        checkout: Path = REPOSITORY,
    ) -> None:
        super().__init__(run, namesrv, name=name, port=port, store=store, conf=conf)
        self._options = options
        self._checkout = checkout

    def command(self) -> list[str]:
        """`rocketpy-broker broker`."""
        base = [sys.executable, "-m", "rocketpy_broker.cli", "broker", "-c", str(self.conf_file)]
        return [*base, "--namesrv", self.namesrv, "--store", str(self.store), *self._options]

    def environment(self) -> dict[str, str]:
        """With the checkout on the path, so that an installed copy is not needed."""
        return our_environment(self._checkout)


def our_environment(checkout: Path = REPOSITORY) -> dict[str, str]:
    """Environment for rocketpy's processes: this checkout first on the path, output unbuffered."""
    roots = [checkout, checkout / "integrations/otel", checkout / "integrations/spark"]
    path = os.pathsep.join(filter(None, [*map(str, roots), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def checkout_of(version: str) -> Path:
    """A directory with the code of a version: that directory, or a commit, which is unpacked into .cache."""
    if Path(version, "rocketpy").is_dir():
        return Path(version).resolve()
    git = ["git", "-C", str(REPOSITORY)]
    commit = subprocess.check_output([*git, "rev-parse", f"{version}^{{commit}}"], text=True).strip()
    target = REPOSITORY / ".cache/versions" / commit
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as unpacking:
            code = Path(unpacking, "code")
            code.mkdir()
            archive = subprocess.check_output([*git, "archive", commit])
            subprocess.run(["tar", "-x", "-C", code], input=archive, check=True)
            code.rename(target)
    return target


def is_free(port: int) -> bool:
    """Whether `port` can be bound on loopback now."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except OSError:
            return False
    return True


def _reserve(port: int) -> bool:
    """Whether no other test uses this port: its user holds a Unix socket of that name."""
    if sys.platform != "linux":
        return True
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(f"\0rocketpy-interop-port-{port}")
    except OSError:
        sock.close()
        return False
    _reserved.append(sock)
    return True


def _tail(path: Path, lines: int) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
