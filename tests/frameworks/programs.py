"""Files of a guide, programs that use them, and the messages that these have sent."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx

from rocketpy import MessageExt
from rocketpy.errors import RouteNotFound
from rocketpy.sync import PullConsumer
from tests.waiting import LIMIT_S
from tools.import_map import ROOT

T = TypeVar("T")
HTTP = httpx.Client(timeout=LIMIT_S, limits=httpx.Limits(max_keepalive_connections=0))
"""Opens a connection for each request, since workers of a server may still start."""
PATH = (ROOT, ROOT / "integrations/kombu", ROOT / "integrations/pytest")


def files_of(page: str) -> dict[str, str]:
    """The blocks of a guide that have a title: path -> text. Each Python block must have one."""
    text = (ROOT / "docs/guides" / f"{page}.md").read_text("utf-8")
    blocks = re.findall(r'^```python title="([\w/.]+)"\n(.*?)^```', text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == text.count("```python") > 0
    return dict(blocks)


def write_files(page: str, folder: Path) -> None:
    """Write the files of a guide, as a reader would."""
    for name, text in files_of(page).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")


def wait_until(condition: Callable[[], T | None]) -> T:
    """Wait until a call returns something true; return that."""
    end = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)
    return found


def stored(namesrv: str, topic: str) -> list[MessageExt]:
    """All messages of a topic."""
    found: list[MessageExt] = []
    with PullConsumer("readers", namesrv) as consumer:
        try:
            queues = consumer.fetch_queues(topic)
        except RouteNotFound:
            return []
        for queue in queues:
            offset, end = 0, consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset)
                found += result.messages
                offset = result.next_offset
    return found


class Program:
    """A running program and its output."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def output(self) -> str:
        """Its standard output and error so far."""
        return self._output.read_text("utf-8", "replace")

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until it has written something; return the match."""

        def written() -> re.Match[str] | None:
            found = re.search(pattern, self.output)
            assert found or self.process.poll() is None, self.output
            return found

        return wait_until(written)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)


@contextmanager
def running(folder: Path, namesrv: str, *arguments: str) -> Iterator[Program]:
    """Run Python with these arguments in a folder. It is stopped at the end of the block if it still runs."""
    paths = os.pathsep.join(map(str, (folder, *PATH)))
    environment = {**os.environ, "PYTHONPATH": paths, "NAMESRV_ADDR": namesrv, "PYTHONUNBUFFERED": "1"}
    output = folder / f"output-{len(list(folder.glob('output-*')))}.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Program(process, output)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(LIMIT_S)
