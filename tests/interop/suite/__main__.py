"""`python -m tests.interop.suite SOURCE`: runs RocketMQ 5.3.3's own integration tests on rocketpy's servers.

SOURCE is a checkout of RocketMQ at the tag rocketmq-all-5.3.3; its tests are not on Maven Central. They start
servers in their own JVM by NamesrvController and BrokerController. The classes in java/ take the place of
these two, and stand for a name server and three brokers that this program has started. Exits with 1 if a test
fails that is not in `NOT_RUNNABLE`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.interop.java_peer import (
    QUICK,
    REPOSITORY,
    ToolsMissing,
    java_environment,
    made_once,
    make_home,
    module_flags,
    require_tools,
)
from tests.interop.processes import OurBroker, OurNameServer

_HERE: Final = Path(__file__).parent
_VERSION: Final = "5.3.3"
_PACKAGE: Final = "org/apache/rocketmq/test"
_TIMEOUT_S: Final = 600
_CONF: Final[Mapping[str, object]] = {  # as IntegrationTestBase configures brokers
    "brokerClusterName": "DefaultCluster",
    "enablePropertyFilter": "true",
    "enableCalcFilterBitMap": "true",
    "recallMessageEnable": "true",
    "mappedFileSizeCommitLog": 100 << 20,
    "maxIndexNum": 1000,
    "maxHashSlotNum": 4000,
    "maxTransferCountOnMessageInMemory": 1024,
    "maxTransferCountOnMessageInDisk": 1024,
}
OTHER_SERVERS: Final[Mapping[str, str]] = {
    "autoswitchrole": "starts RocketMQ's controllers",
    "container": "starts RocketMQ's broker containers",
    "dledger": "starts brokers of its own in its JVM",
    "grpc": "tests RocketMQ's proxy",
    "lmq": "measures RocketMQ's store",
    "schema": "tests the classes of RocketMQ's client",
    "statictopic": "tests static topics of 5.x, which our brokers do not have",
    "tls": "starts RocketMQ's servers with TLS",
    "offset/LagCalculationIT": "calls estimateMessageCount of a store",
    "offset/OffsetNotFoundIT": "adds a hook to brokers in its JVM",
}
"""Folders and classes that are not run, and why."""
_UNKNOWN: Final = "recalls messages that do not exist, which our broker rejects"
_ORDER_INFO: Final = "reads the ConsumerOrderInfoManager of a broker in its JVM"
NOT_RUNNABLE: Final[Mapping[str, str]] = {
    "offset/OffsetResetForPopIT.testResetOffsetThenAckOldForPopOrderly": _ORDER_INFO,
    "offset/OffsetResetForPopIT.testRestOffsetToSkipMsgForPopOrderly": _ORDER_INFO,
    "recall/RecallWithTraceIT.testRecallTrace": _UNKNOWN,
    "recall/SendAndRecallDelayMessageIT.testSendAndRecall_ukCollision": _UNKNOWN,
    "retry/PopConsumerRetryIT.testNormalMessageUseMessageVersionV2": (
        "its retry topic has 164 characters; records of 4.6.0, which our store has, allow 127"
    ),
}
"""Tests that fail here, as `class.test`, and why."""


class Result(NamedTuple):
    """The result of one test. failure: its stack trace, or "skipped: " and a reason; empty if it passed."""

    name: str
    failure: str

    @property
    def has_failed(self) -> bool:
        """Whether it failed, and was expected to pass."""
        return bool(self.failure) and not self.failure.startswith("skipped") and self.name not in NOT_RUNNABLE


def main(arguments: list[str]) -> int:
    """Run the tests; print a line for each. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop.suite", description=__doc__)
    parser.add_argument("source", type=Path, help=f"checkout of RocketMQ {_VERSION}")
    parser.add_argument("-k", metavar="WORD", default="", help="only classes whose path contains this")
    parser.add_argument("--traces", action="store_true", help="print whole stack traces")
    options = parser.parse_args(arguments)
    try:
        require_tools()
    except ToolsMissing as missing:
        print(f"suite: NOT RUN: {missing}")
        return 3
    classes = [name for name in test_classes(options.source) if options.k in name]
    if not classes:
        parser.error(f"{options.source} has no tests whose path contains {options.k!r}")
    classpath = compiled(options.source)
    failed = run = 0
    with tempfile.TemporaryDirectory(prefix="rocketpy-suite-") as folder:
        for result in results(Path(folder), classpath, classes):
            run += 1
            failed += result.has_failed
            lines = result.failure.splitlines()
            reason = NOT_RUNNABLE.get(result.name, "") or " ".join(lines[: None if options.traces else 3])
            print(f"{'FAILED' if result.has_failed else 'ok'} {result.name} {reason}".rstrip(), flush=True)
    print(f"suite: {run} tests of {len(classes)} classes, {failed} failed")
    return 1 if failed else 0


def test_classes(source: Path) -> list[str]:
    """Return the paths of test classes, below the package of tests and without the suffix."""
    folder = source / "test/src/test/java" / _PACKAGE
    found = sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*IT.java"))
    return [name for name in found if not name.startswith(tuple(OTHER_SERVERS))]


def compiled(source: Path) -> str:
    """Compile the tests and the classes of java/; return the class path. Cached in .cache/suite-5.3.3/."""
    cache = REPOSITORY / ".cache" / f"suite-{_VERSION}"
    jars, own, theirs = cache / "jars", cache / "own", cache / "tests"
    made_once(jars, (_HERE / "pom.xml").read_text("utf-8"), _resolve)
    sources = sorted((_HERE / "java").rglob("*.java"))
    recipe = "".join(path.read_text("utf-8") for path in sources)
    made_once(own, recipe, lambda folder: _compile(folder, [jars / "*"], sources))
    module = source / "test/src"
    tests = [
        path
        for path in sorted(module.rglob("*.java"))
        if not path.relative_to(module)
        .as_posix()
        .startswith(tuple(f"test/java/{_PACKAGE}/{name}" for name in OTHER_SERVERS))
    ]
    recipe += str(source.resolve())
    made_once(theirs, recipe, lambda folder: _compile(folder, [own, jars / "*"], tests))
    return os.pathsep.join(map(str, [own, theirs, jars / "*"]))


def _resolve(folder: Path) -> None:
    goal = ["mvn", "-q", "-B", "-f", str(_HERE / "pom.xml"), f"-Drocketmq.version={_VERSION}"]
    _run([*goal, "dependency:copy-dependencies", f"-DoutputDirectory={folder}"])


def _compile(folder: Path, classpath: list[Path], sources: list[Path]) -> None:
    paths = os.pathsep.join(map(str, classpath))
    _run(["javac", "-nowarn", "-encoding", "UTF-8", "-d", str(folder), "-cp", paths, *map(str, sources)])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{(done.stdout + done.stderr)[-4000:]}")


def results(run: Path, classpath: str, classes: list[str]) -> Iterator[Result]:
    """Start the servers, run each class in a JVM of its own, and yield the results of its tests."""
    with ExitStack() as stack:
        names = stack.enter_context(OurNameServer(run))
        brokers = [
            stack.enter_context(
                OurBroker(
                    run, names.address, name=name, conf={**_CONF, "brokerName": f"TestBrokerName_{name[-1]}"}
                )
            )
            for name in ("broker-1", "broker-2", "broker-3")
        ]
        home = make_home(run / "java")
        properties = {
            "suite.namesrv.port": str(names.port),
            "suite.broker.ports": ",".join(str(broker.port) for broker in brokers),
            "rocketmq.home.dir": str(home),
            "user.home": str(home),
            "rocketmq.client.rebalance.waitInterval": "1000",
        }
        defines = [f"-D{name}={value}" for name, value in properties.items()]
        command = ["java", *module_flags(), *QUICK, "-Xmx512m", *defines, "-cp", classpath, "RunTests"]
        for name in classes:
            yield from _results_of(command, home, name)


def _results_of(command: list[str], home: Path, name: str) -> Iterator[Result]:
    main_class = f"{_PACKAGE}/{name}".replace("/", ".")
    process = subprocess.Popen(
        [*command, main_class], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=java_environment(home), cwd=home,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=_TIMEOUT_S)
        rest = f"no test was run:\n{output[-2000:]}"
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        rest = f"it did not end within {_TIMEOUT_S} s"
        yield Result(f"{name}.(class)", rest)
    lines = [line.removeprefix("result: ") for line in output.splitlines() if line.startswith("result: ")]
    for line in lines:
        found: dict[str, Any] = json.loads(line)
        yield Result(f"{name}.{found['test']}", found["failure"])
    if not lines:
        yield Result(f"{name}.(class)", rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
