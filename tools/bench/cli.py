"""Speed and CPU time of `rocketpy send --file` and `rocketpy consume --follow`, with a broker process.

`python -m tools.bench.cli [messages]` prints the best of several rounds, since other work on the machine can
only slow down a round. `consume` is measured as it is, and with all writes to the pipe by its thread.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rocketpy import AdminClient
from tests.integration.processes import start, stop

ROUNDS: Final = 3
COMMAND: Final = "import sys; from rocketpy_cli import main; sys.exit(main())"
BY_THREAD: Final = "import rocketpy_cli.streams as s; s._piece_without_block = lambda _: 0; " + COMMAND


def measured(program: str, *words: str, environment: Mapping[str, str]) -> tuple[float, float]:
    """Seconds and CPU seconds of a command, whose output another process reads from a pipe."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        assert reader.stdin is not None
        command = [sys.executable, "-c", program, *words]
        subprocess.run(
            command,
            stdout=reader.stdin,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
            check=True,
        )
        reader.stdin.close()
    seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def report(name: str, program: str, *words: str, environment: Mapping[str, str], count: int) -> None:
    """Print the best of several rounds of a command."""
    rounds = [measured(program, *words, environment=environment) for _ in range(ROUNDS)]
    seconds, cpu = (min(one[index] for one in rounds) for index in (0, 1))
    print(f"{name:24} {count / seconds:9,.0f} messages/s  {cpu / count * 1e6:5.2f} us of CPU a message")


def measure(namesrv: str, file: Path, count: int) -> None:
    """Measure each command."""
    lines = (f"message number {number:9} " + "x" * 40 for number in range(count))
    file.write_text("\n".join(lines), "utf-8")
    at = {"ROCKETPY_NAMESRV": namesrv}
    measured(COMMAND, "send", "Lines", "--file", str(file), environment=at)
    report("send --file", COMMAND, "send", "More", "--file", str(file), environment=at, count=count)
    follow = ("consume", "Lines", "--follow", "--from", "begin", "--count", str(count))
    report("consume --follow", COMMAND, *follow, environment=at, count=count)
    report("  by its thread only", BY_THREAD, *follow, environment=at, count=count)


async def main(count: int) -> None:
    """Start servers, and measure."""
    with tempfile.TemporaryDirectory() as root:
        words = ("dev", "--listen", "127.0.0.1:0", "--set", "listenPort=0", "--store", f"{root}/store")
        process, namesrv = await start(*words)
        try:
            async with AdminClient(namesrv) as admin:
                await admin.topics.create("Lines", 4)
                await admin.topics.create("More", 4)
            await asyncio.to_thread(measure, namesrv, Path(root, "lines"), count)
        finally:
            await stop(process)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("messages", nargs="?", type=int, default=500_000)
    asyncio.run(main(parser.parse_args().messages))
