"""Measures whether tests fail after small changes of the code.

    python -m tools.mutants store ha       tries the sample of both; continues where it was stopped
    python -m tools.mutants store --again  tries the survivors again, after tests were added
    python -m tools.mutants store --report prints the score and the survivors, and tries nothing
    python -m tools.mutants store --show 0123456789ab    prints what a mutant changes
    python -m tools.mutants sample --seed 7 --count 200  tries 200 mutants, shared by the packages of `SAMPLE`
    python -m tools.mutants client --only DropCall SwapSteps  tries mutants of these operators

The sample: 300 places of each package, drawn with seed 20 from all that cosmic-ray's operators, `DropCall`
and `SwapSteps` can change. Results are kept in .cache/mutants/PACKAGE.jsonl, one line per trial; a mutant's
last line counts. Survivors that no test should notice are explained in tools/mutants/explained.txt, and do
not count; an explanation holds for each package that contains the module.
The id of a mutant depends on module, definition, operator and text of the line. A report lists explanations
of mutants that no longer exist.
"""

import argparse
import difflib
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypedDict

from tools.mutants import coverage_of, trial
from tools.mutants.packages import CACHE, PACKAGES, ROOT, SAMPLE
from tools.mutants.places import Mutant, draw

SEED = 20
COUNT = 300
EXPLAINED = Path(__file__).with_name("explained.txt")
# Most mutants fail one of the first few tests. A longer first step would mostly cost time for collection.
FIRST_TESTS, FIRST_SECONDS = 12, 2.0
# Slower tests are not run.
ANY_TEST_SECONDS = 20.0
KILLED = ("killed", "timeout")


class Result(TypedDict):
    """One line of the results file."""

    id: str
    path: str
    line: int
    definition: str
    operator: str
    outcome: str
    by: str
    tests: int
    seconds: float
    commit: str
    change: str


class Job(NamedTuple):
    """A mutant, and the tests to run in steps: a step runs only if all tests of the previous one passed."""

    mutant: Mutant
    steps: list[list[str]]
    seconds: float
    started: float


def main() -> None:
    """Run the command line."""
    options = _options()
    explained = _explained()
    scores = []
    for name, count in _counts(options.packages, options.count):
        mutants = [
            mutant
            for mutant in draw(PACKAGES[name].source, options.seed)
            if not options.only or mutant.operator.rpartition("/")[2] in options.only
        ]
        sample = mutants[:count]
        if options.show:
            for mutant in sample:
                if mutant.id in options.show:
                    print(f"{mutant.path}:{mutant.line} {mutant.definition}\n{_change(mutant)}\n")
            continue
        if not options.report:
            results = _results(name)
            wanted = [
                mutant for mutant in sample if _is_wanted(mutant, results, explained, again=options.again)
            ]
            _try_all(name, wanted, options)
        if options.report and not options.only:
            _report_stale(mutants, _explained(name))
        scores.append(_report(name, sample, _results(name), explained, full=options.report))
    if len(scores) > 1:
        killed, counted = map(sum, zip(*scores, strict=True))
        print(f"together: {killed} of {counted} noticed ({100 * killed / max(counted, 1):.1f} %)")


def _counts(names: Iterable[str], count: int) -> Iterator[tuple[str, int]]:
    """Yield each package with its number of mutants. The packages of "sample" share `count`."""
    for name in names:
        if name != "sample":
            yield name, count
            continue
        for number, shared in enumerate(SAMPLE):
            yield shared, count // len(SAMPLE) + (number < count % len(SAMPLE))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tools.mutants", description="Try a sample of mutants.")
    parser.add_argument(
        "packages",
        nargs="+",
        choices=[*PACKAGES, "sample"],
        help='packages whose mutants are tried; "sample": a few of ' + ", ".join(SAMPLE),
    )
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the sample (default: %(default)s)")
    parser.add_argument(
        "--count",
        type=int,
        default=COUNT,
        help="mutants of each package, or of all for sample (default: %(default)s)",
    )
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time (default: %(default)s)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=15.0,
        help="maximum duration of the tests for one mutant, as measured without it (default: %(default)s)",
    )
    parser.add_argument("--only", nargs="+", metavar="OPERATOR", help="only mutants of these operators")
    parser.add_argument("--again", action="store_true", help="try only the survivors, again")
    parser.add_argument("--report", action="store_true", help="only print the kept results")
    parser.add_argument("--show", nargs="+", metavar="ID", help="only print what these mutants change")
    return parser.parse_args()


def _is_wanted(mutant: Mutant, results: dict[str, Result], explained: dict[str, str], *, again: bool) -> bool:
    if again:
        known = results.get(mutant.id)
        return known is not None and known["outcome"] not in KILLED and mutant.id not in explained
    return mutant.id not in results


def _try_all(name: str, mutants: list[Mutant], options: argparse.Namespace) -> None:
    trial.prepare()
    reached = coverage_of.load_or_record(name)
    commit = coverage_of.commit()
    waiting = iter(mutants)
    running: dict[int, tuple[trial.Trial, Job]] = {}
    done = 0
    while True:
        while len(running) < options.jobs and (mutant := next(waiting, None)) is not None:
            tests = reached.tests_for(mutant.path, mutant.line)
            job = Job(mutant, list(_steps(tests, reached, options.seconds)), 0.0, time.monotonic())
            if not job.steps:
                _keep(name, _result(job, "not reached", "", 0, commit))
                done += 1
                continue
            started = _start(job, reached, PACKAGES[name].options)
            running[started.pid] = (started, job)
        if not running:
            return
        ended, tests_run, outcome = trial.wait([found for found, _ in running.values()])
        _, job = running.pop(ended.pid)
        if outcome == "passed" and len(job.steps) > 1:
            job = job._replace(steps=job.steps[1:])
            started = _start(job, reached, PACKAGES[name].options)
            running[started.pid] = (started, job)
            continue
        word = {"passed": "survived", "failed": "killed"}.get(outcome, outcome)
        if outcome == "error":
            print(tests_run.output)
        result = _result(job, word, next(iter(tests_run.failed), ""), len(tests_run.durations), commit)
        _keep(name, result)
        done += 1
        place = f"{job.mutant.path}:{job.mutant.line}"
        print(f"{name} {done}/{len(mutants)} {word} {result['seconds']:.1f} s {place}", flush=True)


def _steps(tests: list[str], reached: coverage_of.Reached, seconds_max: float) -> Iterator[list[str]]:
    """Yield the fastest few tests, then all others that fit into `seconds_max`."""
    first: list[str] = []
    others: list[str] = []
    total = 0.0
    for test in tests:
        took = reached.seconds[test]
        if took > ANY_TEST_SECONDS or (total + took > seconds_max and first):
            continue
        total += took
        is_early = len(first) < FIRST_TESTS and total <= FIRST_SECONDS
        (first if is_early or not first else others).append(test)
    yield from (step for step in (first, others) if step)


def _start(job: Job, reached: coverage_of.Reached, options: Iterable[str]) -> trial.Trial:
    tests = job.steps[0]
    expected = sum(reached.seconds[test] for test in tests)
    return trial.start(
        ["-x", "-p", "no:cov", "-p", "no:xdist", *options, *tests],
        path=job.mutant.path,
        source=job.mutant.source(),
        cpu_seconds=int(20 + 4 * expected),
        wall_seconds=60 + 8 * expected,
    )


def _result(job: Job, outcome: str, by: str, tests: int, commit: str) -> Result:
    mutant = job.mutant
    return Result(
        id=mutant.id,
        path=mutant.path,
        line=mutant.line,
        definition=mutant.definition,
        operator=mutant.operator,
        outcome=outcome,
        by=by,
        tests=tests,
        seconds=round(time.monotonic() - job.started, 2),
        commit=commit,
        change=_change(mutant),
    )


def _change(mutant: Mutant) -> str:
    before = (ROOT / mutant.path).read_text("utf-8").splitlines()
    changed = difflib.unified_diff(before, mutant.source().splitlines(), lineterm="", n=0)
    return "\n".join(line for line in changed if not line.startswith(("---", "+++", "@@")))


def _keep(name: str, result: Result) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with _file_of(name).open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")


def _results(name: str) -> dict[str, Result]:
    """Return each mutant's last result. An incomplete line is skipped, so that its mutant is tried again."""
    found: dict[str, Result] = {}
    if _file_of(name).exists():
        for line in _file_of(name).read_text("utf-8").splitlines():
            try:
                result: Result = json.loads(line)
            except ValueError:
                continue
            found[result["id"]] = result
    return found


def _file_of(name: str) -> Path:
    return CACHE / f"{name}.jsonl"


def _explained(name: str = "") -> dict[str, str]:
    """Return the explained mutants, each with the reason why no test should notice it. name: one section."""
    found: dict[str, str] = {}
    section = ""
    for line in EXPLAINED.read_text("utf-8").splitlines():
        if line.startswith("#"):
            section = line.removeprefix("# ")
        elif name in {section, ""}:
            identity, reason = line.split(maxsplit=1)
            found[identity] = reason
    return found


def _report_stale(mutants: Iterable[Mutant], explained: dict[str, str]) -> None:
    """Print the explained mutants that no longer exist, because their lines have changed."""
    for identity in explained.keys() - {mutant.id for mutant in mutants}:
        print(f"{identity} is explained and no longer exists: {explained[identity]}")


def _report(
    name: str, sample: Iterable[Mutant], results: dict[str, Result], explained: dict[str, str], *, full: bool
) -> tuple[int, int]:
    """Print a package's score. Returns how many mutants were killed, and how many count."""
    known = [(mutant, results[mutant.id]) for mutant in sample if mutant.id in results]
    survivors = [(mutant, result) for mutant, result in known if result["outcome"] not in KILLED]
    unexplained = [(mutant, result) for mutant, result in survivors if mutant.id not in explained]
    if full:
        for mutant, result in sorted(unexplained, key=lambda found: (found[0].path, found[0].line)):
            print(f"{mutant.id} {result['outcome']} {mutant.path}:{mutant.line} {mutant.definition}")
            print("    " + result["change"].replace("\n", "\n    "))
    counts = Counter(result["outcome"] for _, result in known)
    counted = len(known) - (len(survivors) - len(unexplained))
    killed = sum(counts[word] for word in KILLED)
    print(
        f"{name}: {killed} of {counted} noticed ({100 * killed / max(counted, 1):.1f} %), "
        f"{len(unexplained)} not, {len(survivors) - len(unexplained)} explained; {dict(counts)}"
    )
    return killed, counted


if __name__ == "__main__":
    main()
