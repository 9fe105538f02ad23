"""A JVM that runs several programs in turn, since a JVM's startup takes longer than most programs."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class DriverFailed(AssertionError):
    """A Java program ended with an error; the text holds the end of its output."""


def stacks(pid: int) -> str:
    """Stacks of all threads of a running JVM, for the report of one that hangs."""
    try:
        asked = subprocess.run(["jstack", str(pid)], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"jstack {pid} failed: {error}"
    return asked.stdout or f"jstack {pid} failed: {asked.stderr}"


class WarmJvm:
    """One JVM with java/Warm.java. It is started for the first program, and again if a program ended it."""

    def __init__(self, start: Callable[[Path], subprocess.Popen[bytes]]) -> None:
        """Create it without starting the JVM. start: starts Warm with a home directory, and with pipes."""
        self._start = start
        self._home = tempfile.TemporaryDirectory(prefix="rocketpy-warm-")
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def run(
        self, main: str, *args: str, stdin: str = "", properties: Mapping[str, str], timeout_s: float = 300
    ) -> tuple[str, str]:
        """Run a class to its end; return its standard output and its standard error.

        Raises DriverFailed if its main threw an exception or took too long. properties: system properties
        during the run; those that RocketMQ reads only once keep their first value.
        """
        asked = {"main": main, "args": args, "stdin": stdin, "properties": dict(properties)}
        with self._lock:
            failed, output, errors = self._ask(asked, timeout_s)
        if failed:
            raise DriverFailed(f"{main} {' '.join(args)} failed:\n{(output + errors)[-4000:]}")
        return output, errors

    def close(self) -> None:
        """End the process; may be called twice."""
        if self._process is not None:
            self._end(self._process)
        self._home.cleanup()

    def _ask(self, what: dict[str, Any], timeout_s: float) -> tuple[bool, str, str]:
        if self._process is None or self._process.poll() is not None:
            self._process = self._start(Path(self._home.name))
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        hung: list[str] = []

        def end_hung() -> None:
            hung.append(f"; its threads were at\n{stacks(process.pid)}")
            process.kill()

        watch = threading.Timer(timeout_s, end_hung)
        watch.start()
        try:
            process.stdin.write(json.dumps(what).encode() + b"\n")
            process.stdin.flush()
            result = json.loads(process.stdout.readline() or b"{}")
            output = process.stdout.read(result.get("bytes", 0))
        except BrokenPipeError:
            result, output = {}, b""
        finally:
            watch.cancel()
            watch.join()
        if len(output) != result.get("bytes"):
            self._end(process)
            raise DriverFailed(
                f"{what['main']} {what['args']} "
                + (f"took more than {timeout_s:g} s{hung[0]}" if hung else "ended its JVM")
            )
        return result["failed"], output.decode(), result["errors"]

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.communicate()
        self._process = None
