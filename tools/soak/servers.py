"""The servers of the soak: a name server and a broker in one process of their own, on one store."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

_START_SECONDS = 60


class Servers:
    """`start`, `stop`, and start with the same store and port."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._process: Process | None = None
        self.namesrv = f"127.0.0.1:{free_port()}"

    @property
    def pid(self) -> int:
        """Process id of the servers that run now."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start and wait until both serve."""
        command = ("dev", "--store", str(self._store), "--listen", self.namesrv, "--set", "listenPort=0")
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rocketpy_broker.cli", *command, stdout=PIPE
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(_START_SECONDS):
            for _ in range(2):
                if b" ready at " not in await self._process.stdout.readline():
                    raise RuntimeError("the servers did not start; their log is above")

    async def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal, and wait for the end."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
            await self._process.wait()
            self._process = None


def free_port() -> int:
    """A port that survives a restart of the name server; another program could take it, but hardly will."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
