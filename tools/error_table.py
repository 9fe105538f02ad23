"""Writes a section for each error into the troubleshooting guide, from the docstrings of the errors.

    python -m tools.error_table --check    fails if the guide is out of date, or an error has no advice
    python -m tools.error_table --write    writes the sections

The advice is the paragraph of a docstring that begins with "What helps:".
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Final

from rocketpy import errors
from tools.import_map import ROOT

PAGE: Final = ROOT / "docs/operations/troubleshooting.md"
BEGIN: Final = "<!-- errors: begin; written by python -m tools.error_table --write -->"
END: Final = "<!-- errors: end -->"
_ADVICE: Final = re.compile(r"^What helps: (.*?)(?:\n\n|\Z)", re.DOTALL | re.MULTILINE)


def every_error() -> Iterator[type[Exception]]:
    """Yield the error classes in the order of their definitions."""
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, Exception) and kind.__module__ == errors.__name__:
            yield kind


def describe(kind: type[Exception]) -> str:
    """Return the section of an error. Raises ValueError if its docstring has no advice."""
    text = inspect.getdoc(kind) if "__doc__" in vars(kind) else None
    advice = _ADVICE.search(text or "")
    if text is None or advice is None:
        raise ValueError(f'the docstring of {kind.__name__} has no paragraph "What helps: …"')
    meaning = text.partition("\n\n")[0]
    lines = [f"### {kind.__name__}", "", _plain(meaning), ""]
    if issubclass(kind, errors.RocketError):
        lines += [f"`outcome`: {kind.default_outcome.name} · `retry`: {kind.default_retry.name}", ""]
    return "\n".join([*lines, f"**What helps:** {_plain(advice[1])}", ""])


def _plain(text: str) -> str:
    """Return a docstring's paragraph as Markdown in one line."""
    line = " ".join(text.split()).replace("``", "`")
    return line[:1].upper() + line[1:]


def render(page: str) -> str:
    """Return the page with the sections of all errors between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    sections = "\n".join(map(describe, every_error()))
    return f"{before}{BEGIN}\n\n{sections}\n{END}{after}"


def main() -> int:
    """Run the command line; return the exit status."""
    page = PAGE.read_text("utf-8")
    wanted = render(page)
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(wanted, "utf-8")
    elif wanted != page:
        print(f"{PAGE.relative_to(ROOT)} is out of date: run python -m tools.error_table --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
