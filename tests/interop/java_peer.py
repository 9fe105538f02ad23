"""The real RocketMQ on this machine: its jars, the Java drivers, and the command lines that start them.

`JavaPeer.prepare("4.6.0")` resolves the jars with Maven (pom.xml here), compiles java/*.java here with javac,
and caches both in .cache/interop-<version>/ of the repository (ignored by git). Drivers are compiled again
when a source has changed. Several processes may prepare the same version at the same time: see `made_once`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interop.warm import DriverFailed, WarmJvm, stacks

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
DEFAULT_VERSION = "4.6.0"
EXAMPLES = "org.apache.rocketmq.example"

# RocketMQ 4.x reaches into the JDK to unmap its files; from JDK 17 on this needs an option.
_OPENS = ("sun.nio.ch", "java.nio", "java.lang", "java.util", "jdk.internal.ref")
_EXPORTS = ("sun.nio.ch", "jdk.internal.ref")
# Drivers that call RocketMQ's store, whose classes differ in later versions.
_OF_THE_STORE = frozenset({"Store.java", "StoreBench.java"})
# The driver of features of RocketMQ 5's client.
_OF_VERSION_5 = frozenset({"Features.java"})
# For programs that run for seconds: fast startup instead of peak speed.
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
QUICK_START = (*QUICK, "-Xmx256m")


class ToolsMissing(Exception):
    """This machine can't run the Java side. `missing` names each tool not found or not working."""

    def __init__(self, missing: Sequence[str]) -> None:
        self.missing = tuple(missing)
        super().__init__(
            f"interop needs {', '.join(self.missing)}: install a JDK (17 is what we test with) and Maven 3, "
            "with java, javac and mvn on PATH"
        )


@dataclass(frozen=True)
class JavaPeer:
    """Resolved jars of one RocketMQ version and the compiled drivers."""

    version: str
    jars: Path
    drivers: Path
    _warm: dict[str, WarmJvm] = field(default_factory=dict, repr=False, compare=False)
    _others: dict[str, JavaPeer] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def prepare(cls, version: str = DEFAULT_VERSION) -> JavaPeer:
        """Resolve and compile what is not in the cache. Raises ToolsMissing, RuntimeError.

        Only DEFAULT_VERSION has drivers of the store, and examples: Maven Central lacks those of other
        versions.
        """
        require_tools()
        cache = REPOSITORY / ".cache" / f"interop-{version}"
        peer = cls(version, cache / "jars", cache / "drivers")
        made_once(peer.jars, (HERE / "pom.xml").read_text(), peer._resolve)
        made_once(peer.drivers, peer._sources_digest(), peer._compile)
        return peer

    def of_version(self, version: str) -> JavaPeer:
        """A peer of another version, prepared at the first call and closed with this one."""
        if version == self.version:
            return self
        if version not in self._others:
            self._others[version] = JavaPeer.prepare(version)
        return self._others[version]

    @property
    def classpath(self) -> str:
        """The drivers of java/, then every jar of this version."""
        return os.pathsep.join([str(self.drivers), str(self.jars / "*")])

    def command(
        self,
        main: str,
        *args: str,
        home: Path,
        jvm: Iterable[str] = QUICK_START,
        properties: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Command line that runs class `main` with its logs and files under directory `home`."""
        system = {
            "java.net.preferIPv4Stack": "true",
            "user.home": str(home),
            "file.encoding": "UTF-8",
            "stdout.encoding": "UTF-8",  # since JDK 18 not the same as file.encoding
            "rocketmq.home.dir": str(home),
            "interop.log": str(home / "java.log"),
            "logback.configurationFile": str(home / "conf" / "logback_tools.xml"),
            "com.rocketmq.sendMessageWithVIPChannel": "false",
            "rocketmq.client.localOffsetStoreDir": str(home / "offsets"),
            # Consumers rebalance every second instead of every 20 s.
            "rocketmq.client.rebalance.waitInterval": "1000",
            "rocketmq.client.rebalance.lockInterval": "1000",
            **(properties or {}),
        }
        defines = [f"-D{name}={value}" for name, value in system.items()]
        return ["java", *module_flags(), *jvm, *defines, "-cp", self.classpath, main, *args]

    def run(
        self,
        main: str,
        *args: str,
        home: Path,
        stdin: str = "",
        properties: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 120,
    ) -> str:
        """Run a class to its end and return its standard output. Raises DriverFailed on a non-zero exit."""
        make_home(home)
        process = subprocess.Popen(
            self.command(main, *args, home=home, properties=properties),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=java_environment(home, **(environment or {})),
            cwd=home,  # mqadmin's consumerStatus writes files into the working directory
        )
        with process:
            try:
                output, errors = process.communicate(stdin, timeout_s)
                ending = f"ended with {process.returncode}"
            except subprocess.TimeoutExpired:
                ending = f"did not end in {timeout_s:g} s, when its threads were at\n{stacks(process.pid)}\n"
                process.kill()
                output, errors = process.communicate()
        if process.returncode != 0:
            raise DriverFailed(f"{main} {' '.join(args)} {ending}:\n{(output + errors)[-4000:]}")
        return output

    def run_warm(
        self,
        main: str,
        *args: str,
        jvm: Mapping[str, str],
        properties: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> tuple[str, str]:
        """Run a class that leaves no threads in a reused JVM; return its standard output and error.

        jvm: properties that RocketMQ reads only once; each set of them has its own JVM. properties: further
        system properties during this run.
        """

        def start(home: Path) -> subprocess.Popen[bytes]:
            make_home(home)
            command = self.command("Warm", home=home, properties=jvm, jvm=(*QUICK, "-Xmx768m"))
            with (home / "console.log").open("a") as console:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=console,
                    env=java_environment(home),
                    cwd=home,  # mqadmin writes results into files of the working directory
                )

        key = json.dumps(dict(jvm), sort_keys=True)
        if key not in self._warm:
            self._warm[key] = WarmJvm(start)
        return self._warm[key].run(main, *args, stdin=stdin, properties=properties or {})

    def close(self) -> None:
        """Stop the reused JVMs."""
        for other in self._others.values():
            other.close()
        for warm in self._warm.values():
            warm.close()
        self._warm.clear()

    @contextmanager
    def running(
        self, main: str, *args: str, home: Path, properties: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """Start a class, and kill it at the end of the block. Its output is in home/console.log."""
        make_home(home)
        command = self.command(main, *args, home=home, properties=properties)
        with (home / "console.log").open("w") as console:
            process = subprocess.Popen(
                command, stdout=console, stderr=console, text=True, env=java_environment(home), cwd=home
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def drive(
        self,
        driver: str,
        *args: str,
        home: Path,
        steps: Iterable[Mapping[str, Any]] = (),
        properties: Mapping[str, str] | None = None,
        timeout_s: float = 120,
    ) -> list[dict[str, Any]]:
        """Run a driver in its own JVM: `steps` go in and results come out as JSON lines."""
        stdin = lines_of(steps)
        return results_of(
            self.run(driver, *args, home=home, stdin=stdin, properties=properties, timeout_s=timeout_s)
        )

    def _resolve(self, folder: Path) -> None:
        goal = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), f"-Drocketmq.version={self.version}"]
        goal += ["-P", "examples"] if self.version == DEFAULT_VERSION else []
        goal += ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        done = subprocess.run(goal, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(
                f"Maven could not resolve RocketMQ {self.version}:\n{(done.stdout + done.stderr)[-4000:]}"
            )

    def _sources(self) -> list[Path]:
        left_out: set[str] = set()
        if self.version != DEFAULT_VERSION:
            left_out |= _OF_THE_STORE
        if not self.version.startswith("5."):
            left_out |= _OF_VERSION_5
        return [path for path in sorted((HERE / "java").glob("*.java")) if path.name not in left_out]

    def _sources_digest(self) -> str:
        return hashlib.sha256(b"".join(source.read_bytes() for source in self._sources())).hexdigest()

    def _compile(self, folder: Path) -> None:
        goal = ["javac", "-nowarn", "-encoding", "UTF-8", "-d", str(folder), "-cp", str(self.jars / "*")]
        done = subprocess.run(
            [*goal, *map(str, self._sources())], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"javac refused the drivers:\n{done.stderr[-4000:]}")


def made_once(folder: Path, recipe: str, make: Callable[[Path], None]) -> None:
    """Fill `folder` by `make`, unless it exists and was made by the same `recipe`.

    Several processes may call this at the same time: one calls `make`, the others wait. `make` fills a
    temporary folder, which is renamed when it is complete, so a failed `make` leaves no `folder`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    marker = folder / ".complete"
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed, also by the end of this process
        if marker.exists() and marker.read_text() == recipe:
            return
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as scratch:
            made = Path(scratch, "made")
            made.mkdir()
            make(made)
            (made / marker.name).write_text(recipe)
            if folder.exists():
                folder.rename(Path(scratch, "old"))
            made.rename(folder)


def lines_of(steps: Iterable[Mapping[str, Any]]) -> str:
    """Steps as a driver reads them."""
    return "".join(json.dumps(step) + "\n" for step in steps)


def results_of(output: str) -> list[dict[str, Any]]:
    """The results in a driver's output; other lines are a logger's."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def require_tools() -> None:
    """Raise ToolsMissing unless java, javac and mvn are installed and start."""
    missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    if not missing and subprocess.run(["java", "-version"], capture_output=True, check=False).returncode != 0:
        missing.append("a java that starts")
    if missing:
        raise ToolsMissing(missing)


def make_home(home: Path) -> Path:
    """Lay out `home` as a ROCKETMQ_HOME with this project's logback files; may be repeated."""
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name in ("logback_namesrv.xml", "logback_broker.xml", "logback_tools.xml"):
        shutil.copyfile(HERE / "conf" / "logback.xml", conf / name)
    return home


def java_environment(home: Path, **more: str) -> dict[str, str]:
    """Environment of a Java process: RocketMQ's home, without a name server address of the caller's shell."""
    environment = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
    return {**environment, "ROCKETMQ_HOME": str(home), **more}


def module_flags() -> list[str]:
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENS]
    return opens + [f"--add-exports=java.base/{package}=ALL-UNNAMED" for package in _EXPORTS]
