"""The real RocketMQ on this machine: its jars, our small Java drivers, and the command lines that start them.

`JavaPeer.prepare("4.6.0")` resolves the jars once with Maven (pom.xml here), compiles java/*.java here with
javac, and keeps both under .cache/interop-<version>/ in the repository (ignored by git). Nothing is resolved
again while the jars are there; drivers are compiled again when a source is newer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
DEFAULT_VERSION = "4.6.0"
EXAMPLES = "org.apache.rocketmq.example"

# RocketMQ 4.x reaches into the JDK to unmap its files; from JDK 17 on that needs to be said.
_OPENS = ("sun.nio.ch", "java.nio", "java.lang", "java.util", "jdk.internal.ref")
_EXPORTS = ("sun.nio.ch", "jdk.internal.ref")
# Tools live for a second or two: a quick start matters to them, peak speed does not.
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


class ToolsMissing(Exception):
    """This machine can't run the Java side. `missing` names each tool not found or not working."""

    def __init__(self, missing: Sequence[str]) -> None:
        self.missing = tuple(missing)
        super().__init__(
            f"interop needs {', '.join(self.missing)}: install a JDK (17 is what we test with) and Maven 3, "
            "with java, javac and mvn on PATH"
        )


class DriverFailed(AssertionError):
    """A Java driver ended with a non-zero exit code; the text holds the end of its output."""


@dataclass(frozen=True)
class JavaPeer:
    """Resolved jars of one RocketMQ version and our compiled drivers."""

    version: str
    jars: Path
    drivers: Path

    @classmethod
    def prepare(cls, version: str = DEFAULT_VERSION) -> JavaPeer:
        """Resolve and compile what is not in the cache yet. Raises ToolsMissing, RuntimeError."""
        require_tools()
        cache = REPOSITORY / ".cache" / f"interop-{version}"
        peer = cls(version, cache / "jars", cache / "drivers")
        peer._resolve()
        peer._compile()
        return peer

    @property
    def classpath(self) -> str:
        """Our drivers first, then every jar of this version."""
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
            "rocketmq.home.dir": str(home),
            "interop.log": str(home / "java.log"),
            "logback.configurationFile": str(home / "conf" / "logback_tools.xml"),
            "com.rocketmq.sendMessageWithVIPChannel": "false",
            "rocketmq.client.localOffsetStoreDir": str(home / "offsets"),
            **(properties or {}),
        }
        defines = [f"-D{name}={value}" for name, value in system.items()]
        return ["java", *_module_flags(), *jvm, *defines, "-cp", self.classpath, main, *args]

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
        done = subprocess.run(
            self.command(main, *args, home=home, properties=properties),
            input=stdin,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=timeout_s,
            env=java_environment(home, **(environment or {})),
            cwd=home,  # mqadmin's consumerStatus leaves files where it runs
            check=False,
        )
        if done.returncode != 0:
            tail = (done.stdout + done.stderr)[-4000:]
            raise DriverFailed(f"{main} {' '.join(args)} ended with {done.returncode}:\n{tail}")
        return done.stdout

    @contextmanager
    def running(
        self, main: str, *args: str, home: Path, properties: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """Start a class that does not end by itself; killed on leaving. It prints to home/console.log."""
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
    ) -> list[dict[str, Any]]:
        """Run one of our drivers: `steps` go in and answers come out as JSON lines."""
        stdin = "".join(json.dumps(step) + "\n" for step in steps)
        output = self.run(driver, *args, home=home, stdin=stdin, properties=properties)
        return [json.loads(line) for line in output.splitlines() if line.startswith("{")]

    def _resolve(self) -> None:
        marker = self.jars / ".complete"
        if marker.exists():
            return
        shutil.rmtree(self.jars, ignore_errors=True)
        goal = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), f"-Drocketmq.version={self.version}"]
        goal += ["dependency:copy-dependencies", f"-DoutputDirectory={self.jars}"]
        done = subprocess.run(goal, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(
                f"Maven could not resolve RocketMQ {self.version}:\n{(done.stdout + done.stderr)[-4000:]}"
            )
        marker.touch()

    def _compile(self) -> None:
        sources = sorted((HERE / "java").glob("*.java"))
        marker = self.drivers / ".complete"
        if marker.exists() and all(marker.stat().st_mtime >= source.stat().st_mtime for source in sources):
            return
        shutil.rmtree(self.drivers, ignore_errors=True)
        self.drivers.mkdir(parents=True)
        goal = [
            "javac",
            "-nowarn",
            "-encoding",
            "UTF-8",
            "-d",
            str(self.drivers),
            "-cp",
            str(self.jars / "*"),
        ]
        done = subprocess.run([*goal, *map(str, sources)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"javac refused the drivers:\n{done.stderr[-4000:]}")
        marker.touch()


def require_tools() -> None:
    """Raise ToolsMissing unless java, javac and mvn are here and start."""
    missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    if not missing and subprocess.run(["java", "-version"], capture_output=True, check=False).returncode != 0:
        missing.append("a java that starts")
    if missing:
        raise ToolsMissing(missing)


def make_home(home: Path) -> Path:
    """Lay out `home` as a ROCKETMQ_HOME with our logback files; harmless when it is there already."""
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name in ("logback_namesrv.xml", "logback_broker.xml", "logback_tools.xml"):
        shutil.copyfile(HERE / "conf" / "logback.xml", conf / name)
    return home


def java_environment(home: Path, **more: str) -> dict[str, str]:
    """Environment of a Java process: RocketMQ's home, and no address left over from the caller's shell."""
    environment = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
    return {**environment, "ROCKETMQ_HOME": str(home), **more}


def _module_flags() -> list[str]:
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENS]
    return opens + [f"--add-exports=java.base/{package}=ALL-UNNAMED" for package in _EXPORTS]
