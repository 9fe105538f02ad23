"""`python -m tests.interop.run [--all] [--page] [--direction TEXT] [pytest arguments]`: the interop cases.

--all: all cases with newer servers, too. --page: write docs/compatibility.md from all results so far.

The exit status is 0 if each case passed, pytest's if one failed, and 3 if Java tools are missing.
"""

from __future__ import annotations

import io
import shutil
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.java_peer import DEFAULT_VERSION, HERE, JavaPeer, ToolsMissing
from tests.interop.matrix import PAGE, Results, add_results, page

EXIT_NOT_RUN = 3
# More than cores, since cases wait for timers of JVMs half of the time.
PROCESSES = 4


class CaseList:
    """pytest plugin that notes each case of a run, whether it was started or not."""

    def __init__(self) -> None:
        self.directions: dict[str, str] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Called by pytest when it knows the cases."""
        for item in session.items:
            self.directions[item.nodeid] = str(dict(item.user_properties)["direction"])


@dataclass
class Row:
    """One case of the table."""

    direction: str
    case: str
    result: str = "?"
    seconds: float = 0.0


class CaseTable:
    """pytest plugin that records a row for each case: worst outcome and total time of its phases."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest for set-up, call and tear-down of each case."""
        properties = dict(report.user_properties)
        new = Row(str(properties.get("direction", "")), str(properties.get("case", report.nodeid)))
        row = self.rows.setdefault(report.nodeid, new)
        row.seconds += report.duration
        if report.when == "call" or report.outcome != "passed":
            row.result = report.outcome if row.result in {"?", "passed"} else row.result

    def text(self) -> str:
        """The table, rows by direction."""
        rows = sorted(self.rows.values(), key=lambda row: row.direction)
        width = max((len(row.direction) for row in rows), default=0)
        names = max((len(row.case) for row in rows), default=0)
        lines = [f"{'direction':{width}}  {'case':{names}}  result   seconds"]
        lines += [f"{r.direction:{width}}  {r.case:{names}}  {r.result:7}  {r.seconds:7.1f}" for r in rows]
        return "\n".join(lines)

    def results(self) -> Results:
        """Return the outcome of each case."""
        return {node: row.result for node, row in self.rows.items()}

    def summary(self) -> str:
        """Return the number of cases by result, as one line."""
        results = [row.result for row in self.rows.values()]
        counts = ", ".join(f"{results.count(result)} {result}" for result in sorted(set(results)))
        return f"interop with RocketMQ {DEFAULT_VERSION}: {len(results)} cases: {counts}"


def directions() -> dict[str, str]:
    """Return the direction of each case that exists."""
    cases = CaseList()
    with redirect_stdout(io.StringIO()):
        pytest.main(["-m", "interop", "--collect-only", str(HERE)], plugins=[cases])
    return cases.directions


def main(arguments: list[str]) -> int:
    """Run the cases; see the module's text for the exit codes."""
    try:
        JavaPeer.prepare(DEFAULT_VERSION)
    except ToolsMissing as missing:
        print(f"interop: NOT RUN: {missing}")
        return EXIT_NOT_RUN
    if shutil.which("go") is None:
        print("interop: the Go client's cases are NOT RUN: go is not on PATH")
    with_newer, writes_page = "--all" in arguments, "--page" in arguments
    arguments = [argument for argument in arguments if argument not in {"--all", "--page"}]
    table = CaseTable()
    # Keep only files of failed cases, since a run writes several gigabytes of sparse store files.
    keep = ["-o", "tmp_path_retention_policy=failed", "-o", "tmp_path_retention_count=1"]
    spread = ["-n", str(PROCESSES), "--dist", "loadscope", "-p", "tests.interop.groups"]
    where = [] if any(Path(argument.partition("::")[0]).exists() for argument in arguments) else [str(HERE)]
    code = pytest.main(
        [
            "-m",
            "interop" if with_newer else "interop and not versions",
            "-q",
            *keep,
            *spread,
            *where,
            *arguments,
        ],
        plugins=[table],
    )
    print(f"\n{table.text()}\n\n{table.summary()}")
    results = add_results(table.results())
    if writes_page:
        PAGE.write_text(page(directions(), results), "utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
