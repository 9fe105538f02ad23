"""The files in guides compile, also without the packages that some of them import."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tools.import_map import ROOT

BLOCK = re.compile(r'^```python title="([^"]+)"\n(.*?)^```', re.DOTALL | re.MULTILINE)
GUIDES = {
    page: blocks
    for page in sorted((ROOT / "docs/guides").glob("*.md"))
    if (blocks := BLOCK.findall(page.read_text("utf-8")))
}


def test_there_are_guides_with_files() -> None:
    """A change of the pages' form could leave every file unchecked."""
    assert {"fastapi", "outbox", "testing"} <= {page.stem for page in GUIDES}


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_files_of_a_guide_compile(page: Path) -> None:
    """A reader could not run a file, or could not tell two files of one name apart."""
    names = [name for name, _ in GUIDES[page]]
    assert len(set(names)) == len(names)
    for name, text in GUIDES[page]:
        ast.parse(text, name)
