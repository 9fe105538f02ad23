"""The context of a result: machine, versions, commit, CPU and memory usage."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.java_peer import REPOSITORY

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Usage:
    """CPU seconds (user and system) a process has used, and its resident memory in bytes."""

    cpu_s: float
    resident_bytes: int


def usage(pid: int) -> Usage:
    """Usage of process `pid` so far. Raises OSError when it does not exist."""
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    # Linux's clock id for the CPU time of a process; /proc/PID/stat has a resolution of 10 ms only.
    return Usage(time.clock_gettime(~pid << 3 | 2), resident)


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of process `pid`, of its descendants, and of the ended processes that they waited for."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        number = int(path.parent.name)
        parents[number] = int(fields[1])
        used[number] = sum(map(int, fields[11:15])) / _TICKS
    found, waiting = 0.0, [pid]
    while waiting:
        number = waiting.pop()
        found += used.get(number, 0.0)
        waiting += [child for child, parent in parents.items() if parent == number]
    return found


def describe() -> dict[str, Any]:
    """Machine, versions and commit of this run."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * _PAGE,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": _first_line(["java", "-version"]),
        "commit": commit(),
        "load_average": os.getloadavg()[0],
        "uvloop": _uvloop_version(),
    }


def commit() -> str:
    """Short commit id, with + when tracked files differ from it."""
    head = _first_line(["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"])
    changed = _first_line(["git", "-C", str(REPOSITORY), "status", "--porcelain", "--untracked-files=no"])
    return head + ("+" if changed else "")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _uvloop_version() -> str | None:
    probe = [sys.executable, "-c", "import uvloop; print(uvloop.__version__)"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _first_line(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return ((done.stdout + done.stderr).splitlines() or [""])[0]
