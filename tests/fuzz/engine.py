"""Runs one target over many inputs and keeps count: results, errors by type, time and memory."""

from __future__ import annotations

import logging
import signal
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from types import FrameType

from tests.fuzz.mutation import rng_for
from tests.fuzz.targets import Target

# Both are CPU times, so that a busy machine does not count as a hang.
_HANG_SECONDS = 1.0
_STOP_SECONDS = 20
_WATCHED = 256
"""How many inputs share one timer."""


class Failure(AssertionError):
    """An input that violated a promise; the text says how to replay it."""


@dataclass(slots=True)
class Result:
    """The results of a target.

    outcomes: how often each, by name: accepted, an error's class, closed, a response code.
    largest_bytes: of one input, or of what one connection sent.
    peak_bytes: most memory the reading process ever had; peak_growth_bytes: more than before the run.
    """

    target: str
    inputs: int = 0
    bytes: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    largest_bytes: int = 0
    peak_growth_bytes: int = 0
    peak_bytes: int = 0


def memory_bound(largest_input: int) -> int:
    """How much the memory of a process may grow while it reads inputs up to this size."""
    return 4 * largest_input + (64 << 20)


def run_offline(target: Target, inputs: int, seed: int, first: int = 0) -> Result:
    """Read `inputs` inputs. Raises Failure for the first that breaks a promise."""
    result = Result(target.name)
    _forget_peak()
    (before, _), started = memory_of(), perf_counter()
    with _alarm(result):
        for index in range(first, first + inputs):
            if index % _WATCHED == 0:
                signal.setitimer(signal.ITIMER_PROF, _STOP_SECONDS)
            _run_one(target, seed, index, result)
    result.seconds = perf_counter() - started
    _, result.peak_bytes = memory_of()
    result.peak_growth_bytes = result.peak_bytes - before
    if result.peak_growth_bytes > memory_bound(result.largest_bytes):
        raise Failure(
            f"{target.name}: memory grew by {result.peak_growth_bytes} bytes, "
            f"{memory_bound(result.largest_bytes)} are allowed for inputs up to {result.largest_bytes} bytes"
        )
    return result


def _run_one(target: Target, seed: int, index: int, result: Result) -> None:
    rng = rng_for(seed, target.name, index)
    data = target.make(rng)
    started = process_time()
    try:
        target.check(data, rng)
        outcome = "accepted"
    except target.allowed as error:
        outcome = type(error).__name__
    except Exception as error:
        raise Failure(
            f"{type(error).__name__}: {error}\n{_where(error)}\n{replay_line(target.name, seed, index, data)}"
        ) from error
    if process_time() - started > _HANG_SECONDS:
        raise Failure(f"took {process_time() - started:.1f} s\n{replay_line(target.name, seed, index, data)}")
    result.inputs += 1
    result.bytes += len(data)
    result.outcomes[outcome] += 1
    result.largest_bytes = max(result.largest_bytes, len(data))


def _where(error: BaseException) -> str:
    """The last frames of this project in the traceback of an error."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return "  from " + ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)


def replay_line(target: str, seed: int, index: int, data: bytes) -> str:
    """The command that runs this input, and its description."""
    command = f"python -m tests.fuzz --target {target!r} --seed {seed} --first {index} --inputs 1"
    shown = data[:200].hex() + ("…" if len(data) > 200 else "")
    return f"replay: {command}\ninput of {len(data)} bytes: {shown}"


@contextmanager
def _alarm(result: Result) -> Iterator[None]:
    """Ends a reader that does not return. Logs of readers are dropped: they have millions of lines."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise Failure(f"{result.target}: no end after {_STOP_SECONDS} s, behind input {result.inputs}")

    previous = signal.signal(signal.SIGPROF, stop)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def memory_of(process: int | str = "self") -> tuple[int, int]:
    """(resident now, the most it was since `_forget_peak`) in bytes."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    found = {line.partition(":")[0]: line.split()[1] for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return int(found["VmRSS"]) * 1024, int(found["VmHWM"]) * 1024


def _forget_peak() -> None:
    """Start over with the most memory that this process ever had; see proc(5) on clear_refs."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
