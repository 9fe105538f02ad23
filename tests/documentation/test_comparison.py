"""The page that compares rocketpy with other clients."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tools.import_map import ROOT

PAGE = ROOT / "docs/comparison.md"


def rows() -> list[list[str]]:
    """The cells of the rows of tables that have a column for our test."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", PAGE.read_text("utf-8"), re.MULTILINE):
        head, _, *lines = table.splitlines()
        if head.endswith("| Our test |"):
            found += [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return found


@pytest.mark.parametrize("row", [pytest.param(row, id=row[0]) for row in rows()])
def test_each_yes_of_ours_has_a_test(row: list[str]) -> None:
    """A reader would choose rocketpy for something that no test holds."""
    assert len(row) == 8
    if row[1].startswith("no"):
        assert row[-1] == ""
        return
    assert row[1].startswith("yes")
    path, _, name = row[-1].strip("`").partition("::")
    tree = ast.parse(Path(ROOT / path).read_text("utf-8"))
    tests = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert name in tests if name else any(test.startswith("test_") for test in tests)


def test_the_tables_are_found() -> None:
    """The form of the page could hide its rows."""
    assert len(rows()) >= 30
