"""docs/guides/console.md: each page of RocketMQ Dashboard, with pages, commands and methods that exist."""

from __future__ import annotations

import functools
import re

import pytest
import typer.main
from starlette.routing import Route
from typer.core import TyperGroup

from rocketpy import AdminClient, ClientConfig
from rocketpy_cli.app import app
from rocketpy_cli.console.app import Console
from rocketpy_cli.console.settings import ConsoleSettings
from tools.import_map import ROOT

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs/guides/console.md")
    .read_text("utf-8")
    .partition("## From RocketMQ Dashboard")[2]
    .splitlines()
    if line.startswith("| ") and not line.startswith("| Page ")
]
# The entries of the navigation of RocketMQ Dashboard.
PAGES = {
    "Ops",
    "Proxy",
    "Dashboard",
    "Cluster",
    "Topic",
    "Consumer",
    "Producer",
    "Message",
    "DLQMessage",
    "MessageTrace",
    "ACL",
    "Login",
}


@functools.cache
def routes() -> frozenset[str]:
    """The paths of the console."""
    settings = ConsoleSettings(client=ClientConfig(namesrv="127.0.0.1:1"), cluster="c", token="x" * 16)
    return frozenset(route.path for route in Console(settings).asgi.app.routes if isinstance(route, Route))


@functools.cache
def shell_commands() -> object:
    """The command line."""
    return typer.main.get_command(app)


def test_every_page_has_a_row() -> None:
    """An operator would not find what they know from RocketMQ Dashboard."""
    assert {row[0].partition(":")[0] for row in ROWS} == PAGES
    assert {len(row) for row in ROWS} == {4}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_what_exists(row: list[str]) -> None:
    """The table would name a page, a command or a method that does not exist, or give no reason."""
    _, console, shell, methods = row
    links = re.findall(r"`(/[a-z-]*)`", console)
    assert set(links) <= routes()
    assert links or re.match(r"not supported: .{20}", console)
    for line in re.findall(r"`rocketpy ([a-z -]+)`", shell):
        command = shell_commands()
        for word in line.split():
            assert isinstance(command, TyperGroup)
            command = command.commands[word]
    admin = AdminClient("127.0.0.1:1")
    for part, method in re.findall(r"`([a-z_]+)\.(\w+)`", methods):
        assert callable(getattr(getattr(admin, part), method))
    assert "`" in "".join(row[1:]) or console.startswith("not supported")
