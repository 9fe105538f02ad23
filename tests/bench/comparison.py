"""What runs that drive RocketMQ's servers and ours in turn share: options, heading, where results go."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench import machine
from tests.bench.results import Results
from tests.bench.servers import JAVA, QUEUES, TOPIC
from tests.interop.java_peer import DEFAULT_VERSION, HERE, JavaPeer, ToolsMissing

__all__ = ["EXIT_NOT_RUN", "compare", "heading", "options_of", "prepare", "save", "words"]

EXIT_NOT_RUN = 3
RESULTS = HERE.parent / "bench" / "results"

Measure = Callable[[JavaPeer, Path, argparse.Namespace, Results], None]


def options_of(program: str, text: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all such runs have. text: the program's docstring."""
    parser = argparse.ArgumentParser(prog=program, description=(text or "").split("\n")[0])
    parser.add_argument("--loops", type=words, default=["asyncio", "uvloop"], help="loops of our broker")
    parser.add_argument(
        "--sdk-loops", type=words, default=["asyncio", "uvloop"], help="loops of our client processes"
    )
    parser.add_argument("--version", default=DEFAULT_VERSION, help="RocketMQ's")
    parser.add_argument("--directory", help="where the stores go; default: the system's temporary directory")
    parser.add_argument("--discard", action="store_true", help="do not save the results")
    return parser


def words(text: str) -> list[str]:
    """Words of a text such as a,b; none of an empty one."""
    return [part for part in text.split(",") if part]


def prepare(version: str) -> JavaPeer | None:
    """The real RocketMQ; None, and a line that says so, where this machine lacks its tools."""
    try:
        return JavaPeer.prepare(version)
    except ToolsMissing as missing:
        print(f"bench: NOT RUN: {missing}")
        return None


def compare(
    options: argparse.Namespace,
    measure: Measure,
    *,
    name: str = "",
    more: Callable[[Results], str] | None = None,
) -> int:
    """Measure, print the table, save. Returns 0, or EXIT_NOT_RUN where Java tools are missing.

    name: what the results' file begins with. more: what to print below the table.
    """
    peer = prepare(options.version)
    if peer is None:
        return EXIT_NOT_RUN
    about = {**machine.describe(), "rocketmq": options.version, "options": vars(options), "queues": QUEUES}
    results = Results(baseline=JAVA)
    with tempfile.TemporaryDirectory(prefix="rocketpy-bench-", dir=options.directory) as directory:
        measure(peer, Path(directory), options, results)
    print(f"\n{heading(about)}\n\n{results.table()}")
    if more is not None:
        print(more(results))
    if not options.discard:
        save(results, about, name)
    return 0


def save(results: Results, about: dict[str, Any], name: str) -> None:
    """Keep what was measured, and say where. name: what the file begins with."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    path = RESULTS / f"{name}{moment}-{about['commit'].rstrip('+')}.json"
    results.save(path, about)
    print(f"saved as {path.relative_to(HERE.parent.parent)}")


def heading(about: dict[str, Any], what: str = "") -> str:
    """Two lines: the machine, and what was measured. what: goes before what all benchmarks share."""
    return (
        f"{about['cpu']}, {about['cores']} cores, {about['memory_bytes'] >> 30} GiB; {about['system']}; "
        f"Python {about['python']}, uvloop {about['uvloop']}; {about['java']}; RocketMQ {about['rocketmq']}; "
        f"commit {about['commit']}; load average {about['load_average']:.1f} at the start\n"
        f"{what}topic {TOPIC} made with {QUEUES} queues on each broker; ASYNC_FLUSH on each; no pinning"
    )
