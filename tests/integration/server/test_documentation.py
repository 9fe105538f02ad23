"""The programs that README and the tutorial show, run as a reader would run them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S
from tools.import_map import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def whole_programs() -> list[tuple[str, str]]:
    """(page and number, text) of each Python block that is a program and not a fragment."""
    found = []
    for page in PAGES:
        blocks = re.findall(r"^```python[^\n]*\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        programs = [block for block in blocks if "asyncio.run(" in block]
        found += [(f"{page.stem}-{number}", text) for number, text in enumerate(programs, 1)]
    return found


def test_there_are_programs_to_run() -> None:
    """Without this a change of the pages' form could leave every program unchecked."""
    assert len(whole_programs()) >= 3


@pytest.mark.parametrize("program", [pytest.param(text, id=name) for name, text in whole_programs()])
def test_program_runs(program: str, tmp_path: Path) -> None:
    """Without this the first code that a newcomer copies could fail."""
    file = tmp_path / "program.py"
    file.write_text(program, "utf-8")
    command = [sys.executable, "-W", "error", str(file)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout
