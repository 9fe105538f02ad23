"""Records which tests reach each line of a package, how long each takes, and which fail without a mutant."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import coverage

from tools.mutants import trial
from tools.mutants.packages import CACHE, PACKAGES, ROOT, Package, fingerprint

RECORDING_SECONDS_MAX = 1800


@dataclass(frozen=True, slots=True)
class Reached:
    """The tests that reach each line, and their durations; only tests that pass without a mutant."""

    by_line: dict[str, dict[int, frozenset[str]]]
    seconds: dict[str, float]

    def tests_for(self, path: str, line: int) -> list[str]:
        """Return the tests that reach a line, fastest first.

        A line that runs only during import, such as a constant, may affect every test: returns all.
        """
        reached = self.by_line.get(path, {}).get(line, frozenset()) - {""}
        if not reached:
            within = [tests - {""} for tests in self.by_line.get(path, {}).values()]
            nearby = frozenset().union(*within) if within else frozenset()
            reached = frozenset(self.seconds) if line in self.by_line.get(path, {}) else frozenset()
            return sorted(reached, key=lambda test: (test not in nearby, self.seconds[test]))
        return sorted(reached & self.seconds.keys(), key=self.seconds.__getitem__)


def load_or_record(name: str) -> Reached:
    """Return the recorded coverage of a package. Records it first if the package or its tests have changed.

    Raises:
        RuntimeError: The tests could not be run.
    """
    package = PACKAGES[name]
    tests = [path for path in package.tests if (ROOT / path).exists()]
    data_file = CACHE / f"{name}-{fingerprint([package.source, *(ROOT / path for path in tests)])}.coverage"
    notes = data_file.with_suffix(".json")
    if not notes.exists():
        _record(package, tests, data_file, notes)
    data = coverage.CoverageData(str(data_file))
    data.read()
    noted = json.loads(notes.read_text("utf-8"))
    seconds = {test: took for test, took in noted["durations"].items() if test not in noted["failed"]}
    return Reached(_lines(data), seconds)


def _record(package: Package, tests: list[str], data_file: Path, notes: Path) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    config = data_file.with_suffix(".rc")
    config.write_text(f"[run]\nbranch = false\nparallel = false\ndata_file = {data_file}\n", "utf-8")
    where = f"--cov={package.source.relative_to(ROOT)}"
    options = [*package.options, where, f"--cov-config={config}", "--cov-context=test", "--cov-report="]
    running = trial.start(
        [*options, *tests], cpu_seconds=RECORDING_SECONDS_MAX, wall_seconds=RECORDING_SECONDS_MAX
    )
    _, found, ended = trial.wait([running])
    if ended == "timeout" or not found.durations or not data_file.exists():
        raise RuntimeError(f"the tests of {package.source} could not be recorded ({ended}):\n{found.output}")
    notes.write_text(json.dumps({"durations": found.durations, "failed": found.failed}), "utf-8")


def _lines(data: coverage.CoverageData) -> dict[str, dict[int, frozenset[str]]]:
    found: dict[str, dict[int, frozenset[str]]] = {}
    for file in data.measured_files():
        lines = data.contexts_by_lineno(file)
        found[str(Path(file).relative_to(ROOT))] = {
            line: frozenset(context.rpartition("|")[0] for context in contexts)
            for line, contexts in lines.items()
        }
    return found


def commit() -> str:
    """Return the abbreviated hash of the checked-out commit."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603 - git
