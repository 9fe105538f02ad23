"""The console blocks of the pages: each command runs in a shell, with real servers."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from rocketpy_broker import EmbeddedCluster
from tests.documentation.given import GIVEN, NOT_RUN, STATUS, WORDS_NOT_RUN
from tests.documentation.pages import TUTORIAL, Command, File, pages_with_commands, steps_of
from tests.documentation.shell import NAMESRV, Shell, free_address

PAGES = pages_with_commands()
_OWN_SERVERS = re.compile(r"^\$ rocketpy(-broker)? (dev|namesrv)\b")


def reason_not_to_run(command: Command) -> str | None:
    """Why a command does not run here, None if it does."""
    text = command.text
    if text.startswith("# "):
        return WORDS_NOT_RUN["#"]
    return WORDS_NOT_RUN.get(text.split()[1]) or NOT_RUN.get(_key(command))


def _key(command: Command) -> tuple[str, str]:
    """The page and the command without a comment."""
    return Path(command.place.partition(":")[0]).stem, command.text.partition("  #")[0].rstrip()


def commands(pages: list[Path]) -> list[Command]:
    """All commands of pages."""
    return [
        command for page in pages for step in steps_of(page) if isinstance(step, list) for command in step
    ]


def test_only_known_commands_do_not_run() -> None:
    """An exception could outlive its command, or the form of a page hide its commands."""
    every = commands([*TUTORIAL, *PAGES])
    written = {_key(command) for command in every}
    assert {*NOT_RUN, *STATUS, *GIVEN} - written == set()
    words = {"#" if text.startswith("# ") else text.split()[1] for _, text in written}
    assert set(WORDS_NOT_RUN) - words == set()
    assert sum(reason_not_to_run(command) is None for command in every) >= 60


@pytest.mark.slow
@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES])
async def test_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """A command that a reader copies could be wrong, or write something else than the page shows."""
    if any(_OWN_SERVERS.match(command.text) for command in commands([page])):
        await follow([page], tmp_path, free_address())
    else:
        async with EmbeddedCluster() as cluster:
            await follow([page], tmp_path, cluster.namesrv_address)


@pytest.mark.slow
async def test_the_tutorial(tmp_path: Path) -> None:
    """A new user could be stuck at one of its six steps."""
    await follow(TUTORIAL, tmp_path, free_address())


async def follow(pages: list[Path], folder: Path, namesrv: str) -> None:
    """Do what the pages say, in their order."""
    places = {"9464": free_address().rpartition(":")[2]}
    async with Shell(folder, namesrv, places) as shell:
        for page in pages:
            for step in steps_of(page):
                if isinstance(step, File):
                    shell.save(step.name, step.text)
                    continue
                for command in step:
                    await prepare(GIVEN.get(_key(command), ""), shell)
                    if reason_not_to_run(command) is None:
                        await shell.run(command, STATUS.get(_key(command), 0))


async def prepare(code: str, shell: Shell) -> None:
    """Run the code that makes what a command takes for granted."""
    names: dict[str, Any] = {"shell": shell, "NAMESRV": shell.places[NAMESRV]}
    source = compile(code, "given.py", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if (running := eval(source, names)) is not None:  # noqa: S307 - our own table
        await running
