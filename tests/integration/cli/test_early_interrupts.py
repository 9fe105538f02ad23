"""Ctrl-C while a command is loaded: at each import, until its arguments are read."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from typing import NamedTuple

import pytest

from tests.waiting import LIMIT_S
from tools.import_map import ROOT

BEFORE_MAIN = {
    "rocketpy": {"rocketpy_cli"},
    "python -m rocketpy": {"rocketpy", "rocketpy._version", "rocketpy.__main__"},
    "rocketpy-broker": {"rocketpy", "rocketpy._version", "rocketpy_broker", "rocketpy_broker.cli"},
}
"""What the interpreter loads before `main` can catch anything: packages that import nothing themselves."""
PROGRAMS = {
    "rocketpy": ("from rocketpy_cli import main; sys.exit(main())", "--version"),
    "python -m rocketpy": ("import runpy; runpy.run_module('rocketpy', run_name='__main__')", "--version"),
    "rocketpy-broker": ("from rocketpy_broker.cli import main; sys.exit(main())", "ha --help"),
}
"""A program as its script starts it, and arguments that end it when everything is loaded."""
AT_LEAST = 25
"""How many positions are tried, besides all of the first ones."""

PARENT = """
import json, os, signal, sys

program, arguments, first_ones, more = sys.argv[1], sys.argv[2].split(), int(sys.argv[3]), int(sys.argv[4])
begins = "rocketpy"  # imports count from the first one of ours

class Finder:
    def __init__(self, position):
        self.position, self.count, self.name = position, 0, ""

    def find_spec(self, name, path=None, target=None):
        if self.count or name.startswith(begins):
            self.count += 1
            if self.count == self.position:
                os.write(names, name.encode())
                os.kill(os.getpid(), signal.SIGINT)
        return None

def run(position):
    global names
    reading, names = os.pipe()
    error_reading, errors = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(errors, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
        finder = Finder(position)
        sys.meta_path.insert(0, finder)
        sys.argv = ["command", *arguments]
        exec(program)
        sys.exit(0)
    os.close(names)
    os.close(errors)
    with open(error_reading) as stream:
        text = stream.read()
    with open(reading) as stream:
        name = stream.read()
    _, status = os.waitpid(child, 0)
    print(json.dumps([position, name, os.waitstatus_to_exitcode(status), text]), flush=True)
    return bool(name)

total = 1
while total < 4096 and (position := total * 2) and run(position):
    total = position
for position in sorted({*range(1, first_ones + 1), *range(first_ones, total, max(1, total // more))}):
    run(position)
"""


class Seen(NamedTuple):
    """What a child did that was interrupted at an import."""

    position: int
    name: str
    status: int
    errors: str


@pytest.mark.parametrize("command", PROGRAMS)
async def test_an_interrupt_during_imports_is_one_line(command: str) -> None:
    """A user who stops a command in its first moments would see a traceback through importlib."""
    program, arguments = PROGRAMS[command]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, f"import sys; {program}", arguments, "12", str(AT_LEAST)),
        stdout=PIPE,
        cwd=ROOT,
    )
    async with asyncio.timeout(LIMIT_S):
        out, _ = await process.communicate()
    seen = [Seen(*json.loads(line)) for line in out.decode().splitlines()]
    interrupted = [each for each in seen if each.name]
    assert {each.status for each in seen if not each.name} == {0}, seen
    assert len(interrupted) > AT_LEAST
    line = f"{command.rsplit(maxsplit=1)[-1]}: interrupted\n"
    bad = [each for each in interrupted if (each.status, each.errors) != (130, line)]
    assert {each.name for each in bad} <= BEFORE_MAIN[command], bad
