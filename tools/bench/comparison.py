"""Shared parts of benchmarks that compare RocketMQ's servers with rocketpy's: options, heading, results."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.interop.java_peer import DEFAULT_VERSION, REPOSITORY, JavaPeer, ToolsMissing
from tools.bench import machine
from tools.bench.results import Key, Results, Sample
from tools.bench.servers import JAVA, QUEUES, TOPIC

EXIT_NOT_RUN = 3
RESULTS = Path(__file__).with_name("results")

T = TypeVar("T")

Measure = Callable[[JavaPeer, Path, argparse.Namespace, Results], None]


def options_of(program: str, text: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all such runs have. text: the program's docstring."""
    parser = _plain_options(program, text)
    parser.add_argument("--loops", type=words, default=["asyncio", "uvloop"], help="loops of our broker")
    parser.add_argument(
        "--sdk-loops", type=words, default=["asyncio", "uvloop"], help="loops of our client processes"
    )
    return parser


def replica_options(
    program: str, text: str | None, *, rounds: int, behind: int, size: int
) -> argparse.ArgumentParser:
    """A parser with the options of benchmarks of replication.

    rounds, behind, size: defaults for catching up: rounds, bytes of bodies to copy, and bytes of one body.
    """
    parser = _plain_options(program, text)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of sends")
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of one measurement of sends")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds of each load beforehand")
    parser.add_argument("--threads", type=numbers, default=[1, 16, 64], help="threads of the producer")
    parser.add_argument("--bytes", type=int, default=128, help="size of bodies")
    parser.add_argument("--catch-up-rounds", type=int, default=rounds)
    parser.add_argument("--behind", type=int, default=behind, help="bytes of bodies a replica is behind")
    parser.add_argument("--catch-up-bytes", type=int, default=size, help="size of those bodies")
    return parser


def _plain_options(program: str, text: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description=(text or "").split("\n")[0])
    parser.add_argument("--version", default=DEFAULT_VERSION, help="RocketMQ's")
    parser.add_argument("--directory", help="where the stores go; default: the system's temporary directory")
    parser.add_argument("--discard", action="store_true", help="do not save the results")
    return parser


def numbers(text: str) -> list[int]:
    """Numbers of a text such as 1,16,64; an empty list for an empty text."""
    return [int(part) for part in words(text)]


def words(text: str) -> list[str]:
    """Words of a text such as a,b; an empty list for an empty text."""
    return [part for part in text.split(",") if part]


def plural(count: int, noun: str) -> str:
    """A count and its noun: 1 thread, 16 threads."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def in_turn(servers: list[T], number: int) -> list[T]:
    """The servers in the order of round `number`; every second round reverses it."""
    return servers if number % 2 == 0 else servers[::-1]


def note(results: Results, number: int, key: Key, sample: Sample) -> None:
    """Keep and print the sample of a round."""
    results.add(key, sample)
    late = f"  p50 {sample.p50_us / 1000:.2f} ms  p99 {sample.p99_us / 1000:.2f} ms" if sample.p99_us else ""
    print(
        f"round {number + 1}  {key.load:32}  {key.server:16}  {sample.rate:10,.0f} msgs/s{late}", flush=True
    )


def prepare(version: str) -> JavaPeer | None:
    """The real RocketMQ; None, after printing the reason, if tools are missing."""
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
    baseline: str = JAVA,
    what: str = "",
    more: Callable[[Results], str] | None = None,
) -> int:
    """Measure, print the table, save. Returns 0, or EXIT_NOT_RUN where Java tools are missing.

    name: prefix of the results' file. baseline: the program to compare with. what: for the heading.
    more: what to print below the table.
    """
    peer = prepare(options.version)
    if peer is None:
        return EXIT_NOT_RUN
    queues = vars(options).get("queues", QUEUES)
    about = {**machine.describe(), "rocketmq": options.version, "options": vars(options), "queues": queues}
    results = Results(baseline)
    with tempfile.TemporaryDirectory(prefix="rocketpy-bench-", dir=options.directory) as directory:
        measure(peer, Path(directory), options, results)
    print(f"\n{heading(about, what)}\n\n{results.table()}")
    if more is not None:
        print(more(results))
    if not options.discard:
        save(results, about, name)
    return 0


def save(results: Results, about: dict[str, Any], name: str) -> None:
    """Save the results, and print where. name: the beginning of the file's name."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    path = RESULTS / f"{name}{moment}-{about['commit'].rstrip('+')}.json"
    results.save(path, about)
    print(f"saved as {path.relative_to(REPOSITORY)}")


def heading(about: dict[str, Any], what: str = "") -> str:
    """Two lines about the machine and the measurement. what: begins the second line."""
    return (
        f"{about['cpu']}, {about['cores']} cores, {about['memory_bytes'] >> 30} GiB; {about['system']}; "
        f"Python {about['python']}, uvloop {about['uvloop']}; {about['java']}; RocketMQ {about['rocketmq']}; "
        f"commit {about['commit']}; load average {about['load_average']:.1f} at the start\n"
        f"{what}topic {TOPIC} made with {about['queues']} queues on each broker; ASYNC_FLUSH on each; "
        "no pinning"
    )
