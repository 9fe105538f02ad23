"""A shell that runs the commands of pages, with addresses and ports of the test instead of the page's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import random
import re
import signal
import socket
import sys
import termios
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.documentation.pages import Command
from tests.waiting import LIMIT_S
from tools.import_map import ROOT

NAMESRV: Final = "127.0.0.1:9876"
"""The name server of the pages."""
_SERVER: Final = re.compile(r"\$ rocketpy(?:-broker (?=dev|namesrv|broker)| (?=dev|console))(\w+)")
_READY: Final = {
    "dev": ["namesrv ready at 127.0.0.1:9876", "broker-a ready at 127.0.0.1:10911"],
    "namesrv": ["namesrv ready at 127.0.0.1:9876"],
}
"""What servers write when they are ready, for blocks that do not show it."""
_ENDLESS: Final = re.compile(r" --follow\b|tail -f ")
_PATH: Final = ":".join(
    map(str, (ROOT, *(ROOT / "integrations" / name for name in ("cli", "pytest", "otel"))))
)
_SCRIPTS: Final = {
    "python": 'exec {python} "$@"',
    "rocketpy": """case "$1" in
dev) shift; exec {python} -m rocketpy dev --listen {namesrv} "$@";;
console) exec {python} -m rocketpy "$@" --port 0;;
*) exec {python} -m rocketpy "$@";;
esac""",
    "rocketpy-broker": """case "$1" in
dev) shift; exec {python} -m rocketpy_broker dev --listen {namesrv} "$@";;
broker) exec {python} -m rocketpy_broker "$@" --set listenPort=0;;
*) exec {python} -m rocketpy_broker "$@";;
esac""",
}
"""The commands of a reader's environment. Their servers listen where those of other tests do not."""


class Run:
    """A command that has been started, and what it has written so far."""

    def __init__(self, process: asyncio.subprocess.Process, terminal: int) -> None:
        self.process = process
        self._terminal = terminal
        self._written = [b"", b""]
        self._news = asyncio.Event()
        assert process.stdout is not None
        self._reader = asyncio.create_task(self._read(process.stdout))
        asyncio.get_running_loop().add_reader(terminal, self._read_terminal)

    @property
    def text(self) -> str:
        """Output and errors."""
        return b"".join(self._written).decode().replace("\r", "")

    async def wait_for(self, shown: list[str]) -> None:
        """Wait until it has written what the page shows, or anything if the page shows nothing."""
        try:
            async with asyncio.timeout(LIMIT_S):
                while not self.text or missing(shown, self.text):
                    assert not self._reader.done(), self.text
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{missing(shown, self.text)} missing in:\n{self.text}") from None

    async def end(self) -> int:
        """Wait for its end; return its status."""
        try:
            async with asyncio.timeout(LIMIT_S):
                await self._reader
                return await self.process.wait()
        finally:
            self.signal(signal.SIGKILL)
            asyncio.get_running_loop().remove_reader(self._terminal)
            os.close(self._terminal)

    def signal(self, number: int) -> None:
        """Send a signal to it and to everything that it started, as a terminal does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(65536):
            self._add(0, chunk)
        self._news.set()

    def _read_terminal(self) -> None:
        try:
            self._add(1, os.read(self._terminal, 65536))
        except OSError:  # all who could write to it have ended
            asyncio.get_running_loop().remove_reader(self._terminal)

    def _add(self, index: int, chunk: bytes) -> None:
        self._written[index] += chunk
        self._news.set()


class Shell:
    """Runs commands in a folder. places: what stands on a page -> what stands for it here."""

    def __init__(self, folder: Path, namesrv: str, places: dict[str, str]) -> None:
        self.folder = folder / "reader"
        self.folder.mkdir()
        self.places = {NAMESRV: namesrv, "mq-1.example.com:9876": namesrv, **places}
        self._servers: list[tuple[str, Run]] = []
        scripts = folder / "bin"
        scripts.mkdir()
        for name, text in _SCRIPTS.items():
            script = scripts / name
            script.write_text("#!/bin/sh\n" + text.format(python=sys.executable, namesrv=namesrv), "utf-8")
            script.chmod(0o755)
        own = {
            name: value for name, value in os.environ.items() if not name.startswith(("ROCKETPY_", "PYTEST"))
        }
        self._environment = own | {
            "PATH": f"{scripts}:{own['PATH']}",
            "PYTHONPATH": _PATH,
            "PYTEST_ADDOPTS": "-p pytest_rocketpy -p no:cacheprovider",
            "ROCKETPY_NAMESRV": namesrv,
            "HOME": str(self.folder),
            "COLUMNS": "200",
        }

    async def __aenter__(self) -> Self:
        """Nothing runs yet."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the servers."""
        await self._stop([run for _, run in self._servers])

    def save(self, name: str, text: str) -> None:
        """Save a file that a page shows."""
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(self.replaced(text), "utf-8")

    async def run(self, command: Command, status: int = 0) -> None:
        """Run a command, and compare what it writes with what the page shows. Servers stay."""
        server = _SERVER.match(command.text)
        if server:
            await self._make_room(server[1])
        run = await self._start(command.text[2:].rstrip("& "))
        if server:
            self._servers.append((server[1], run))
            await run.wait_for(command.shown or _READY.get(server[1], []))
            assert run.process.returncode is None, run.text
            return
        if command.after_interrupt is not None or _ENDLESS.search(command.text):
            await run.wait_for(command.shown)
            run.signal(signal.SIGINT)
            ended = await run.end()
            # 130: it ended because of SIGINT, and says so; a shell adds 128 to the signal's number.
            assert ended in {0, 130, -signal.SIGINT}, (command, ended, run.text)
        else:
            ended = await run.end()
            assert ended == status, (command, ended, run.text)
        assert "Traceback" not in run.text, (command, run.text)
        shown = command.shown + (command.after_interrupt or [])
        assert not missing(shown, run.text), (command.place, missing(shown, run.text), run.text)

    def replaced(self, text: str) -> str:
        """A text of a page with the places of the test."""
        for written, real in self.places.items():
            text = text.replace(written, real)
        return text

    async def _start(self, text: str) -> Run:
        master, slave = pty.openpty()
        settings = termios.tcgetattr(slave)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, settings)
        os.write(master, b"y\n")  # confirms
        try:
            process = await asyncio.create_subprocess_exec(
                *("bash", "-o", "pipefail", "-c", self.replaced(text)),
                stdin=slave,
                stdout=asyncio.subprocess.PIPE,
                stderr=slave,
                cwd=self.folder,
                env=self._environment,
                start_new_session=True,
            )
        finally:
            os.close(slave)
        return Run(process, master)

    async def _make_room(self, kind: str) -> None:
        """Stop earlier servers whose ports the next one needs."""
        rivals = {"broker": {"dev"}, "console": {"console"}}.get(kind, {"dev", "namesrv"})
        ends = [(old, run) for old, run in self._servers if old in rivals]
        self._servers = [pair for pair in self._servers if pair not in ends]
        await self._stop([run for _, run in ends])

    async def _stop(self, runs: list[Run]) -> None:
        for run in runs:
            run.signal(signal.SIGINT)
        for run in runs:
            status = await run.end()
            assert status in {0, 130}, (status, run.text)
            assert "Traceback" not in run.text


def missing(shown: list[str], text: str) -> list[str]:
    """Lines that a page shows and a command has not written. Numbers, ids and the lines' order may differ."""
    written = [_shape(line) for line in text.splitlines()]
    lacking = []
    for line in shown:
        if not line.strip() or line.strip() == "…":
            continue
        if (shape := _shape(line)) in written:
            written.remove(shape)
        else:
            lacking.append(line)
    return lacking


def _shape(line: str) -> str:
    line = re.sub(r"\b[0-9A-F]{24,32}\b", "ID", line)
    return " ".join(re.sub(r"\d+", "N", line).split())


def free_address() -> str:
    """An address below the ports that the system gives to clients, so that only a server takes it."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return f"127.0.0.1:{port}"
