"""Reads console blocks, and the files that a page shows with their names, from pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tools.import_map import ROOT

DOCS = ROOT / "docs"
TUTORIAL = [
    DOCS / f"tutorial/{step}.md" for step in ("install", "send", "consume", "retries", "test", "deploy")
]
_BLOCK = re.compile(r'^( *)```(\w+)(?: title="([^"]+)")?[^\n]*\n(.*?)^ *```', re.DOTALL | re.MULTILINE)
_PROMPT = re.compile(r"^[$#] ", re.MULTILINE)


class Command(NamedTuple):
    """A line after a prompt. shown: the output that the page shows; after_interrupt: what comes after ^C."""

    place: str
    text: str
    shown: list[str]
    after_interrupt: list[str] | None


class File(NamedTuple):
    """A block with a file name as its title."""

    name: str
    text: str


Step = list[Command] | File


def steps_of(page: Path) -> list[Step]:
    """What a reader does on a page, in its order: each console block, and each file to save."""
    text = page.read_text("utf-8")
    steps: list[Step] = []
    for block in _BLOCK.finditer(text):
        indent, language, title, content = block.groups()
        content = re.sub(f"^{indent}", "", content, flags=re.MULTILINE)
        if language == "console":
            line = text.count("\n", 0, block.start(4)) + 1
            steps.append(_commands(content, f"{page.relative_to(ROOT)}:{line}"))
        elif title is not None:
            steps.append(File(title, content))
    return steps


def pages_with_commands() -> list[Path]:
    """All pages that have a console block, except the tutorial."""
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [page for page in pages if page not in TUTORIAL and "```console" in page.read_text("utf-8")]


def _commands(block: str, place: str) -> list[Command]:
    starts = [found.start() for found in _PROMPT.finditer(block)]
    found = []
    for start, end in zip(starts, [*starts[1:], len(block)], strict=True):
        text, shown = _split(block[start:end])
        before, interrupt, after = "\n".join(shown).partition("^C")
        found.append(
            Command(place, text, before.splitlines(), after.strip().splitlines() if interrupt else None)
        )
    return found


def _split(text: str) -> tuple[str, list[str]]:
    """The command, with lines that a backslash continues, and the lines of output."""
    lines = text.rstrip("\n").splitlines()
    count = 1
    while lines[count - 1].endswith("\\"):
        count += 1
    return "\n".join(lines[:count]), lines[count:]
