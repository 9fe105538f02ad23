"""Prints the part of requirements.lock that some extras need, with hashes: python -m tools.locked test.

One file locks everything, but a newcomer who tries the demo should not download Spark. Uses only the standard
library, because it runs before anything is installed. ``--without NAME`` leaves a package out.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["Locked", "closure", "read_lock", "roots"]

ROOT: Final = Path(__file__).resolve().parent.parent
_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")


class Locked(NamedTuple):
    """A block of the lock file: one version of a package. needed_by: names of packages that require it."""

    name: str
    version: str
    text: str
    needed_by: frozenset[str]


def normal(name: str) -> str:
    """Return the normalized name of a package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(text: str) -> list[Locked]:
    """Return the blocks of a lock file that uv wrote. A package may have several, for different platforms."""
    return [_block(block) for block in re.findall(r"^[a-zA-Z0-9].*\n(?:[ ]+.*\n)*", text, re.MULTILINE)]


def _block(text: str) -> Locked:
    lines = text.splitlines(keepends=True)
    notes = [
        line.strip().removeprefix("#").strip().removeprefix("via").strip() for line in lines if "# " in line
    ]
    name, _, rest = lines[0].partition("==")
    installed = "".join(line for line in lines if "# " not in line)
    return Locked(normal(name), rest.split()[0], installed, frozenset(normal(note) for note in notes if note))


def roots(project: Mapping[str, Any], extras: Iterable[str]) -> set[str]:
    """Return the packages that pyproject.toml requires to build, to run, and for the extras.

    Raises KeyError for an unknown extra.
    """
    own = normal(project["project"]["name"])
    optional = project["project"]["optional-dependencies"]
    found = {normal(name) for name, _ in map(_parse, project["build-system"]["requires"])}
    waiting = [*project["project"]["dependencies"], *(line for extra in extras for line in optional[extra])]
    while waiting:
        name, inner = _parse(waiting.pop())
        if normal(name) == own:
            waiting += [line for extra in inner for line in optional[extra]]
        else:
            found.add(normal(name))
    return found


def _parse(requirement: str) -> tuple[str, list[str]]:
    match = _REQUIREMENT.match(requirement)
    if match is None:
        raise ValueError(f"not a requirement: {requirement!r}")
    return match[1], [extra.strip() for extra in (match[2] or "").split(",") if extra.strip()]


def closure(lock: Iterable[Locked], names: Iterable[str]) -> Iterator[Locked]:
    """Return the blocks of these packages and of their dependencies, in the order of the lock file."""
    blocks, found = list(lock), set(names)
    while more := {block.name for block in blocks if block.needed_by & found} - found:
        found |= more
    return (block for block in blocks if block.name in found)


def main() -> int:
    """Print the blocks; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--without", action="append", default=[], metavar="NAME")
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    lock = read_lock((ROOT / "requirements.lock").read_text("utf-8"))
    left_out = {normal(name) for name in options.without}
    for block in closure(lock, roots(project, options.extras)):
        if block.name not in left_out:
            sys.stdout.write(block.text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
