"""One piece of the soak of a crowd: producers and consumers of both languages that start and stop.

Four producers, and six consumers in two groups, concurrent and orderly, each a process of its own. All the
time one of them, chosen by chance, is stopped or killed and after a while replaced by a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import statistics
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz.engine import memory_of
from tests.interop.java_peer import JavaPeer, ToolsMissing, java_environment, make_home
from tools.soak.piece import PieceReport
from tools.soak.servers import Servers
from tools.soak.witness import Witness

PYTHON, JAVA = "python", "java"
_CHURN_SECONDS = 8.0
_SETTLE_SECONDS = 180.0
_SAMPLE_SECONDS = 1.0
_STOP_SECONDS = 20.0
_numbers = itertools.count()


@dataclass
class _Slot:
    """A place in the crowd, and the process that has it now."""

    role: str
    group: str
    language: str
    process: Process | None = None
    reading: asyncio.Task[None] | None = None


async def run_crowd(index: int, seconds: float, rate: int, store: Path) -> PieceReport:
    """Run piece `index`. rate: messages a second of all producers together."""
    crowd = _Crowd(index, rate, store)
    started = time.monotonic()
    try:
        await crowd.run(seconds)
    finally:
        await crowd.end()
    crowd.report.seconds = time.monotonic() - started
    return crowd.report


class _Crowd:
    def __init__(self, index: int, rate: int, store: Path) -> None:
        self.report = PieceReport()
        self.servers = Servers(store)
        self.home = store.parent
        self.java = _java_peer()
        self.random = Random(index)
        self.topic = f"Crowd{index}"
        together, orderly = f"together_{index}", f"orderly_{index}"
        self.witness = Witness({together: False, orderly: True})
        self.first = index * 10**12
        self.pause_ms = max(1, 4000 // rate)
        places = [
            ("produce", f"producers_{index}", PYTHON), ("produce", f"producers_{index}", PYTHON),
            ("produce", f"producers_{index}", JAVA), ("produce", f"producers_{index}", JAVA),
            ("concurrent", together, PYTHON), ("concurrent", together, PYTHON),
            ("concurrent", together, JAVA),
            ("orderly", orderly, PYTHON), ("orderly", orderly, JAVA), ("orderly", orderly, PYTHON),
        ]  # fmt: skip
        self.slots = [
            _Slot(role, group, language if self.java is not None else PYTHON)
            for role, group, language in places
        ]
        self.memory: list[int] = []
        self.activity = asyncio.Event()

    async def run(self, seconds: float) -> None:
        await self.servers.start()
        for slot in self.slots:
            await self._fill(slot)
        watching = asyncio.create_task(self._watch_memory())
        until = time.monotonic() + seconds
        try:
            while (left := until - time.monotonic()) > 0:
                await asyncio.sleep(min(left, _CHURN_SECONDS * self.random.random()))
                await self._replace(self.random.choice(self.slots))
        finally:
            watching.cancel()
        await asyncio.gather(*(self._empty(slot) for slot in self.slots if slot.role == "produce"))
        await self._settle()
        await asyncio.gather(*(self._empty(slot) for slot in self.slots))
        self._finish()

    async def end(self) -> None:
        """Kill the members and stop the servers."""
        await asyncio.gather(*(self._empty(slot, signal.SIGKILL) for slot in self.slots))
        await self.servers.stop()

    def _finish(self) -> None:
        witness, report = self.witness, self.report
        witness.settle()
        report.acked, report.unknown, report.received = len(witness.acked), witness.unknown, witness.received
        report.duplicates, report.problems = witness.duplicates, witness.problems
        quarter = max(1, len(self.memory) // 4)
        report.server_early_bytes = int(statistics.median(self.memory[quarter : 2 * quarter] or [0]))
        report.server_late_bytes = int(statistics.median(self.memory[-quarter:] or [0]))

    async def _watch_memory(self) -> None:
        while True:
            self.memory.append(memory_of(self.servers.pid)[0])
            await asyncio.sleep(_SAMPLE_SECONDS)

    async def _settle(self) -> None:
        """Wait until each group has taken everything, or for so long that missing messages are lost."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                while self.witness.missing():
                    self.activity.clear()
                    await self.activity.wait()

    # -- members ------------------------------------------------------------------------------

    async def _replace(self, slot: _Slot) -> None:
        """One member leaves, orderly or not, and another joins."""
        number = self.random.choice((signal.SIGTERM, signal.SIGKILL))
        self.report.members_killed += number == signal.SIGKILL
        await self._empty(slot, number)
        await asyncio.sleep(_CHURN_SECONDS * self.random.random())
        await self._fill(slot)

    async def _fill(self, slot: _Slot) -> None:
        number = next(_numbers)
        arguments = (
            slot.role, self.servers.namesrv, self.topic, slot.group, str(self.first + number * 10**8),
            str(self.pause_ms),
        )  # fmt: skip
        command, environment = self._command(slot, arguments)
        slot.process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, env=environment)
        name = f"{slot.language} {slot.role} {number}"
        slot.reading = asyncio.create_task(self._read_output(slot, slot.process, name))
        self._disturb(slot)

    def _command(self, slot: _Slot, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        if slot.language == PYTHON or self.java is None:
            return [sys.executable, "-m", "tools.soak.member", *arguments], dict(os.environ)
        home = make_home(self.home / "java")
        return self.java.command("Soak", *arguments, home=home), java_environment(home)

    async def _read_output(self, slot: _Slot, process: Process, name: str) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if not line.endswith(b"\n"):
                return  # it was killed in the middle of a word
            self.witness.observe(slot.group, name, line.decode(), time.monotonic())
            self.activity.set()

    async def _empty(self, slot: _Slot, number: int = signal.SIGTERM) -> None:
        process, slot.process = slot.process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            await asyncio.wait_for(process.wait(), _STOP_SECONDS)
        except TimeoutError:
            self.report.problems.append(f"a {slot.language} member ({slot.role}) does not end by SIGTERM")
            process.kill()
            await process.wait()
        if slot.reading is not None:
            await slot.reading
        self._disturb(slot)

    def _disturb(self, slot: _Slot) -> None:
        if slot.role != "produce":
            self.witness.disturb(slot.group, time.monotonic())


def _java_peer() -> JavaPeer | None:
    try:
        return JavaPeer.prepare()
    except ToolsMissing as missing:
        print(f"soak: WITHOUT Java members: {missing}")
        return None
