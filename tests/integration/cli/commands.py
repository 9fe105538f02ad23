"""Runs the command rocketpy in this process, or in a separate one where signals, pipes or startup matter."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
from asyncio.subprocess import PIPE, Process
from typing import IO, NamedTuple

import pytest

from rocketpy_cli import main
from tests.waiting import LIMIT_S

COMMAND = (sys.executable, "-m", "rocketpy")
_COLUMNS = "200"
_running = threading.Lock()


class Done(NamedTuple):
    """The result of a command: exit status, standard output and error."""

    status: int | None
    out: str
    err: str


def _is_of_user(name: str) -> bool:
    """Whether a variable belongs to the user who runs the tests."""
    return name.startswith(("ROCKETPY_", "NAMESRV"))


# -- in this process --------------------------------------------------------------------------


async def run(*arguments: str, given: bytes = b"", **environment: str) -> Done:
    """Run a command to its end on another thread, while the event loop serves its cluster."""
    async with asyncio.timeout(LIMIT_S):
        return await asyncio.to_thread(run_here, *arguments, given=given, **environment)


def run_here(*arguments: str, given: bytes = b"", **environment: str) -> Done:
    """Run a command to its end; one at a time, because standard streams and environment are its own."""
    with (
        _running,
        _stream() as stdin,
        _stream() as stdout,
        _stream() as stderr,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in filter(_is_of_user, list(os.environ)):
            patch.delenv(name)
        for name, value in {"HOME": os.devnull, "COLUMNS": _COLUMNS, **environment}.items():
            patch.setenv(name, value)
        os.pwrite(stdin.fileno(), given, 0)
        for name, stream in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
            patch.setattr(sys, name, stream)
        status = main(arguments)
        for stream in (stdout, stderr):
            stream.seek(0)
        return Done(status, stdout.read(), stderr.read())


def _stream() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8", newline="")


# -- in processes -----------------------------------------------------------------------------


async def start(*arguments: str, **environment: str) -> Process:
    """Start a command whose streams are pipes, without the settings of the user who runs the tests."""
    own = {name: value for name, value in os.environ.items() if not _is_of_user(name)}
    settings = {**own, "HOME": os.devnull, "COLUMNS": _COLUMNS, **environment}
    return await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=settings
    )


async def finish(process: Process, given: bytes = b"") -> Done:
    """Give a command its input, and wait for its end."""
    async with asyncio.timeout(LIMIT_S):
        out, err = await process.communicate(given)
    return Done(process.returncode, out.decode(), err.decode())


async def run_process(*arguments: str, given: bytes = b"", **environment: str) -> Done:
    """Run a command to its end."""
    return await finish(await start(*arguments, **environment), given)
