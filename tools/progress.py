"""Runs a command that may take long, and shows its progress: python -m tools.progress COMMAND…

Shows the last line that the command has printed: on a terminal every second, in the same place; in a log
every 20 s. If the command fails, prints all of its output. The exit status is that of the command. Uses only
the standard library, because it runs before anything is installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

_TERMINAL_S: Final = 1.0
_LOG_S: Final = 20.0
_INTERRUPTED: Final = 130


def run(command: Sequence[str]) -> int:
    """Run a command; return its exit status, or 130 after Ctrl-C."""
    is_terminal = sys.stderr.isatty()
    lines: list[str] = []
    started = time.monotonic()
    process = subprocess.Popen(  # noqa: S603 - the command that the user gave
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )

    def read() -> None:
        for line in process.stdout or ():
            lines.append(line)  # noqa: PERF402 - the main thread shows the last one meanwhile

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while reader.is_alive():
            reader.join(_TERMINAL_S if is_terminal else _LOG_S)
            if reader.is_alive() and lines:
                _show(f"  {time.monotonic() - started:4.0f} s: {lines[-1].strip()}", is_terminal)
        status = process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        status = _INTERRUPTED
    if is_terminal:
        _show("", is_terminal)
    if status == _INTERRUPTED:
        print("interrupted", file=sys.stderr)
    elif status:
        sys.stderr.writelines(lines)
    return status


def _show(text: str, is_terminal: bool) -> None:
    if is_terminal:  # go to the start of the line, and erase it
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
