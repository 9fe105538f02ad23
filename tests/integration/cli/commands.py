"""The command rocketpy in processes of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from typing import NamedTuple

from tests.waiting import LIMIT_S

COMMAND = (sys.executable, "-m", "rocketpy")


class Done(NamedTuple):
    """What a command left: its exit status, standard output and error."""

    status: int | None
    out: str
    err: str


async def start(*arguments: str, **environment: str) -> Process:
    """A command whose streams are pipes. Files of the user who runs the tests do not count."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("ROCKETPY_", "NAMESRV"))}
    settings = {**own, "HOME": os.devnull, "COLUMNS": "200", **environment}
    # A shell ignores SIGINT in its background jobs, and processes inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=settings
    )


async def finish(process: Process, given: bytes = b"") -> Done:
    """Give a command its input, and wait for its end."""
    async with asyncio.timeout(LIMIT_S):
        out, err = await process.communicate(given)
    return Done(process.returncode, out.decode(), err.decode())


async def run(*arguments: str, given: bytes = b"", **environment: str) -> Done:
    """Run a command to its end."""
    return await finish(await start(*arguments, **environment), given)
