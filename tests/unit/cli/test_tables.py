"""Tables that commands print, and their help texts."""

from __future__ import annotations

from pathlib import Path

import pytest

import rocketpy_cli
from rocketpy_cli import main
from rocketpy_cli.tables import print_table


def test_a_table_in_a_pipe_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    """grep(1), awk(1) and cut(1) would have to remove borders, or blanks at the ends of lines."""
    print_table(
        [{"topic": "Orders", "messages": 7, "note": None}, {"topic": "T", "messages": 10, "note": "x y"}]
    )
    assert capsys.readouterr().out == (
        "topic   messages  note\nOrders         7  -\nT             10  x y\n"
    )  # fmt: skip


def test_all_commands_print_the_same_tables() -> None:
    """One command could print borders again."""
    modules = Path(rocketpy_cli.__file__).parent.rglob("*.py")
    assert [module.name for module in modules if "rich.table" in module.read_text("utf-8")] == ["tables.py"]


@pytest.mark.parametrize("command", [[], ["send"], ["group", "reset"]])
def test_helps_show_values_where_there_are_any(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Users would write `--json true`, and send a message `true`."""
    assert main([*command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--help" in shown
    assert "bool" not in shown.lower()
    assert "TOPIC" in shown or command != ["send"]
