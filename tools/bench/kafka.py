"""Kafka's broker (one KRaft node) and Spark's Kafka sink, for comparison; the jars come from Maven."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.interop.java_peer import REPOSITORY, require_tools
from tests.interop.processes import HOST, ServerProcess, free_port

KAFKA = "3.9.1"
# The newest version on Maven Central, which may be older than PyPI's newest PySpark.
CONNECTOR = "4.2.0"
_HERE = Path(__file__).resolve().parent
# The heap of Kafka's own start script.
_JVM = ("-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")


def broker_jars() -> Path:
    """The directory with the broker's jars. Raises ToolsMissing, RuntimeError."""
    return _resolve(f"kafka-{KAFKA}", ["-P", "broker", f"-Dkafka.version={KAFKA}"])


def connector_jars() -> list[Path]:
    """The jars of Spark's Kafka source and sink. Raises ToolsMissing, RuntimeError."""
    folder = _resolve(f"spark-kafka-{CONNECTOR}", ["-P", "connector", f"-Dspark.version={CONNECTOR}"])
    return sorted(folder.glob("*.jar"))


def _resolve(name: str, arguments: Sequence[str]) -> Path:
    require_tools()
    jars = REPOSITORY / ".cache" / name
    marker = jars / ".complete"
    if not marker.exists():
        shutil.rmtree(jars, ignore_errors=True)
        goal = ["mvn", "-q", "-B", "-f", str(_HERE / "kafka_pom.xml"), *arguments]
        goal += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        done = subprocess.run(goal, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"Maven could not resolve {name}:\n{(done.stdout + done.stderr)[-4000:]}")
        marker.touch()
    return jars


class KafkaBroker(ServerProcess):
    """One Kafka node, controller and broker in one process. The first write to a topic creates it.

    partitions: number of partitions of such a topic.
    """

    kind = "Kafka broker"

    def __init__(self, jars: Path, run: Path, *, partitions: int) -> None:
        super().__init__(run, "kafka", free_port((0, 1)))
        self._class_path = str(jars / "*")
        self._conf = self.home / "server.properties"
        self._conf.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.voters=1@{HOST}:{self.port + 1}\n"
            f"listeners=PLAINTEXT://{self.address},CONTROLLER://{HOST}:{self.port + 1}\n"
            f"advertised.listeners=PLAINTEXT://{self.address}\n"
            "controller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
            f"log.dirs={self.home / 'logs'}\nnum.partitions={partitions}\n"
            "auto.create.topics.enable=true\noffsets.topic.replication.factor=1\n"
        )
        arguments = ("format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(self._conf))
        subprocess.run(self._java("kafka.tools.StorageTool", *arguments), check=True, capture_output=True)

    def command(self) -> list[str]:
        """kafka.Kafka with its configuration."""
        return self._java("kafka.Kafka", str(self._conf))

    def _java(self, main: str, *arguments: str) -> list[str]:
        return ["java", *_JVM, "-cp", self._class_path, main, *arguments]
