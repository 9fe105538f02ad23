"""Runs tests in forked processes, each with at most one changed module that exists only in that process.

The parent imports pytest and third-party packages, but no module of this repository. Each child imports those
itself, and gets the changed source from an import hook. Nothing is written to the source tree, so several
trials can run at once.
"""

import contextlib
import importlib
import importlib.machinery
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tools.mutants.packages import ROOT

if TYPE_CHECKING:
    from types import CodeType, ModuleType

    import pytest

PREPARED = (
    "asyncio", "crcmod.predefined", "hypothesis", "hypothesis.stateful", "logging.config", "lz4.frame",
    "msgpack", "msgspec", "opentelemetry.sdk.metrics", "opentelemetry.sdk.trace", "prometheus_client",
    "pytest", "pytest_asyncio", "ssl", "trustme", "yaml", "zstandard",
)  # fmt: skip
OURS = (
    "rocketpy",
    "rocketpy_broker",
    "rocketpy_cli",
    "rocketpy_kombu",
    "rocketpy_otel",
    "pyspark_rocketmq",
    "pytest_rocketpy",
    "tests",
)
MEMORY_BYTES_MAX = 6 << 30
FILE_BYTES_MAX = 3 << 30
OUTPUT_CHARACTERS_MAX = 4000
NO_REPORT = -1


@dataclass(slots=True)
class Tests:
    """The report of a child on its tests. failed: node ids. durations: in seconds, by node id."""

    __test__ = False

    exit_code: int = NO_REPORT
    failed: list[str] = field(default_factory=list)
    durations: dict[str, float] = field(default_factory=dict)
    output: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """A running child. folder: for its report and its temporary files. ends_at: monotonic deadline."""

    pid: int
    folder: Path
    ends_at: float


def prepare() -> None:
    """Import in the parent the packages that every child needs and no mutant changes.

    Raises RuntimeError if a module of this repository is imported already.
    """
    for name in PREPARED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    imported = [name for name in sys.modules if name.split(".")[0] in OURS]
    if imported:
        raise RuntimeError(f"a child could not change modules that are imported already: {imported}")


def start(
    arguments: Sequence[str], *, path: str = "", source: str = "", cpu_seconds: int, wall_seconds: float
) -> Trial:
    """Fork a child that runs pytest with `arguments`. source: the text of module `path` in the child."""
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Trial(pid, folder, time.monotonic() + wall_seconds)
    code = 70
    try:
        code = _child(arguments, path, source, cpu_seconds, folder)
    except BaseException:  # noqa: BLE001 - the child must never return into the parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(trials: Sequence[Trial]) -> tuple[Trial, Tests, str]:
    """Wait for a trial to end. Returns it, its tests, and "passed", "failed", "timeout" or "error"."""
    while True:
        for trial in trials:
            pid, status = os.waitpid(trial.pid, os.WNOHANG)
            late = time.monotonic() > trial.ends_at
            if not pid and not late:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(trial.pid, signal.SIGKILL)  # the processes that the child started, too
            if not pid:
                os.waitpid(trial.pid, 0)
            return trial, *_outcome(trial, status, late=not pid)
        time.sleep(0.02)


def _outcome(trial: Trial, status: int, *, late: bool) -> tuple[Tests, str]:
    report = trial.folder / "report.json"
    tests = Tests(**json.loads(report.read_text("utf-8"))) if report.exists() else Tests()
    if (trial.folder / "output").exists():
        tests.output = (trial.folder / "output").read_text("utf-8", "replace")[-OUTPUT_CHARACTERS_MAX:]
    shutil.rmtree(trial.folder, ignore_errors=True)
    if late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in {signal.SIGXCPU, signal.SIGKILL}):
        return tests, "timeout"
    if tests.exit_code == NO_REPORT and not os.WIFSIGNALED(status):
        return tests, "error"
    return tests, "passed" if tests.exit_code == 0 else "failed"


def _child(arguments: Sequence[str], path: str, source: str, cpu_seconds: int, folder: Path) -> int:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    temporary = folder / "tmp"
    temporary.mkdir()
    tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
    output = os.open(folder / "output", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(number, "w"), "utf-8", line_buffering=True) for number in (1, 2)
    )
    if path:
        importlib.import_module("pytest_rocketpy")  # now: its finder would come before that of the mutant
        sys.meta_path.insert(0, _Changed(path, source))
    tests = _run_pytest(arguments)
    (folder / "report.json").write_text(
        json.dumps({"exit_code": tests.exit_code, "failed": tests.failed, "durations": tests.durations}),
        "utf-8",
    )
    return 0


def _run_pytest(arguments: Sequence[str]) -> Tests:
    import hypothesis  # noqa: PLC0415 - imported by the parent
    import pytest  # noqa: PLC0415

    # The same examples for each mutant. None are kept, because later runs would try them again.
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, deadline=None)
    tests = Tests()
    options = ["-q", "--no-header", "--tb=no", "-W", "ignore::pytest.PytestAssertRewriteWarning",
               "--hypothesis-profile=mutants", "-p", "no:cacheprovider"]  # fmt: skip
    try:
        tests.exit_code = int(pytest.main([*options, *arguments], plugins=[_Recorder(tests)]))
    except pytest.PytestUnraisableExceptionWarning:  # a coroutine that was never awaited, seen at the end
        traceback.print_exc()
        tests.exit_code = int(pytest.ExitCode.TESTS_FAILED)
    return tests


class _Recorder:
    """A pytest plugin that records the duration of each test, and whether it failed."""

    def __init__(self, tests: Tests) -> None:
        self._tests = tests

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        seconds = self._tests.durations.get(report.nodeid, 0.0) + report.duration
        self._tests.durations[report.nodeid] = round(seconds, 4)
        if report.failed:
            self._tests.failed.append(report.nodeid)

    def pytest_collectreport(self, report: "pytest.CollectReport") -> None:
        if report.failed:
            self._tests.failed.append(report.nodeid)


class _Changed:
    """A finder that gives one module of this repository a changed source."""

    def __init__(self, path: str, source: str) -> None:
        parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
        while parts[0] not in OURS:  # a folder of the import path, such as integrations/spark
            del parts[0]
        self._name = ".".join(parts)
        self._source = source

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: "ModuleType | None" = None
    ) -> "importlib.machinery.ModuleSpec | None":
        if name != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None:
            raise ImportError(f"no source of {name} below {ROOT}")
        spec.loader = _Loader(name, spec.origin, self._source)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._changed_source = source

    def get_code(self, fullname: str) -> "CodeType":
        return compile(self._changed_source, self.path, "exec", dont_inherit=True)
