"""Ctrl-C: servers, commands and examples end with one line and the status that shells expect."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpy_broker import EmbeddedCluster
from tests.waiting import LIMIT_S
from tools.import_map import ROOT

pytestmark = pytest.mark.slow

NO_PORT = ("--listen", "127.0.0.1:0")


@pytest.fixture
async def namesrv() -> AsyncIterator[str]:
    async with EmbeddedCluster() as cluster:
        yield cluster.namesrv_address


async def interrupted(
    process: Process, ready: bytes, stream: asyncio.StreamReader | None
) -> tuple[int, str, str]:
    """Send SIGINT once `ready` was printed; return the exit status and the output after that."""
    assert stream is not None
    async with asyncio.timeout(LIMIT_S):
        while ready not in (line := await stream.readline()):
            assert line, await process.communicate()
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    assert process.returncode is not None
    assert b"Traceback" not in out + err, err.decode()
    return process.returncode, out.decode(), err.decode()


async def start(*arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, stdout=PIPE, stderr=PIPE, cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "last"),
    [
        (("namesrv", *NO_PORT), "namesrv stopped"),
        (("broker", *NO_PORT, "--name", "b1"), "b1 stopped"),
        (("dev", *NO_PORT, "--set", "listenPort=0"), "namesrv and broker stopped"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
async def test_a_server(namesrv: str, tmp_path: Path, arguments: tuple[str, ...], last: str) -> None:
    """An operator could not tell a clean stop from a crash."""
    options = ("--store", str(tmp_path), "--namesrv", namesrv) if arguments[0] == "broker" else ()
    process = await start("rocketpy_broker", *arguments, *options)
    status, out, err = await interrupted(process, b"connect", process.stdout)
    assert (status, out.splitlines()[-1], err) == (0, last, "")


@pytest.mark.parametrize("arguments", [("console", "--port", "0")])
async def test_a_command_that_serves(namesrv: str, arguments: tuple[str, ...]) -> None:
    """The console would end with a traceback of its web server."""
    process = await start("rocketpy", "-n", namesrv, *arguments)
    status, out, err = await interrupted(process, b"is at http", process.stdout)
    assert (status, out, err) == (130, "", "rocketpy: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "ready", "last"),
    [
        (("examples.demo",), b"name server at", "demo: interrupted"),
        (
            ("examples.generate_events", "--events", "5000000"),
            b"generate_events: ",
            "generate_events: interrupted",
        ),
    ],
    ids=["demo", "generate_events"],
)
async def test_an_example(tmp_path: Path, arguments: tuple[str, ...], ready: bytes, last: str) -> None:
    """The first example that a new user stops would print a traceback of forty lines."""
    file = (str(tmp_path / "events.jsonl"),) if "generate" in arguments[0] else ()
    process = await start(*arguments, *file)
    status, _, err = await interrupted(process, ready, process.stderr)
    assert status == 130
    assert err.splitlines()[-1].endswith(last)


INTERRUPTED_BY_IMPORT = """
import os, signal, sys
from importlib import import_module

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == interrupted:
            os.kill(os.getpid(), signal.SIGINT)

interrupted, command = sys.argv[1:]
sys.argv = [command, "--version"]
sys.meta_path.insert(0, Interrupts())
sys.exit(import_module(command).main())
"""


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("rocketpy_broker.cli", "asyncio"),
        ("rocketpy_broker.cli", "rocketpy_broker.store.message_store"),
        ("rocketpy_broker.cli", "rocketpy_broker.cli.app"),
        ("rocketpy_cli", "asyncio"),
        ("rocketpy_cli", "typer"),
        ("rocketpy.__main__", "importlib.metadata"),
        ("rocketpy.__main__", "rocketpy_cli"),
    ],
)
async def test_ctrl_c_during_imports(command: str, module: str) -> None:
    """A command that is stopped in its first half second would print a traceback of its imports."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", INTERRUPTED_BY_IMPORT, module, command, stdout=PIPE, stderr=PIPE, cwd=ROOT
    )
    async with asyncio.timeout(LIMIT_S):
        out, err = await process.communicate()
    name = "rocketpy-broker" if command.startswith("rocketpy_broker") else "rocketpy"
    assert (process.returncode, out, err.decode()) == (130, b"", f"{name}: interrupted\n")
