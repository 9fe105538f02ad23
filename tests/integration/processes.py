"""Runs the command rocketpy-broker in separate processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process

from tests.waiting import LIMIT_S

COMMAND = (sys.executable, "-m", "rocketpy_broker.cli")


async def start(*arguments: str, command: tuple[str, ...] = COMMAND) -> tuple[Process, str]:
    """Start a server; return its process, and the address from its ready line."""
    process = await asyncio.create_subprocess_exec(*command, *arguments, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        line = (await process.stdout.readline()).decode()
    assert " ready at " in line, (line, await process.communicate())
    return process, line.split()[-1]


async def stop(process: Process, number: int = signal.SIGTERM) -> int:
    """Send a signal, and return the exit status."""
    process.send_signal(number)
    async with asyncio.timeout(LIMIT_S):
        await process.communicate()
    assert process.returncode is not None
    return process.returncode


async def output_of(*arguments: str, **environment: str) -> tuple[int | None, str]:
    """Exit status and output, errors among it, of a command that ends by itself."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, stdout=PIPE, stderr=STDOUT, env={**os.environ, **environment}
    )
    async with asyncio.timeout(LIMIT_S):
        output, _ = await process.communicate()
    return process.returncode, output.decode()
