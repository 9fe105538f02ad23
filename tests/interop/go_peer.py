"""The program in go/, which uses rocketmq-client-go. It is built once and cached."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.java_peer import HERE, REPOSITORY, ToolsMissing
from tests.interop.warm import DriverFailed

_SOURCE = HERE / "go"


@dataclass(frozen=True)
class GoPeer:
    """The built program."""

    program: Path

    @classmethod
    def prepare(cls) -> GoPeer:
        """Build the program if its sources are newer. Raises ToolsMissing, RuntimeError."""
        if shutil.which("go") is None:
            raise ToolsMissing(["go"])
        program = REPOSITORY / ".cache" / "interop-go" / "peer"
        program.parent.mkdir(parents=True, exist_ok=True)
        built = program.stat().st_mtime if program.exists() else 0.0
        if any(source.stat().st_mtime > built for source in _SOURCE.iterdir()):
            goal = ["go", "build", "-o", str(program), "."]
            done = subprocess.run(goal, cwd=_SOURCE, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"go could not build the peer:\n{done.stderr[-4000:]}")
        return cls(program)

    def run(self, action: str, namesrv: str, topic: str, *more: str) -> list[dict[str, Any]]:
        """Run an action to its end; return its output. Raises DriverFailed."""
        with self.running(action, namesrv, topic, *more) as process:
            return self.events(process)

    @contextmanager
    def running(self, action: str, namesrv: str, topic: str, *more: str) -> Iterator[subprocess.Popen[str]]:
        """Start an action; at the end of the block it is killed if it still runs."""
        environment = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
        process = subprocess.Popen(
            [self.program, action, namesrv, topic, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | {"HOME": str(self.program.parent)},
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @staticmethod
    def events(process: subprocess.Popen[str], timeout_s: float = 120) -> list[dict[str, Any]]:
        """Wait for the end; return the output. Raises DriverFailed."""
        out, errors = process.communicate(timeout=timeout_s)
        if process.returncode != 0:
            raise DriverFailed(f"the Go peer ended with {process.returncode}:\n{(out + errors)[-4000:]}")
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]
