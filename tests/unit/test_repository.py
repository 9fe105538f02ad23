"""Promises about the repository itself: what a newcomer, an installer and a type checker rely on."""

import re
import subprocess
import tomllib

import pytest

import rocketpy
from tools.import_map import ROOT, SOURCES

FIRST_SCREEN_LINES = 45
# Folders of one machine and hosts of package registries mean nothing to others. ([h]: not to find itself.)
NOT_FOR_OTHERS = (
    r"/(work|farm)/[a-z.]|repo1?\.maven|pypi\.org|python[h]osted|registry\.npmjs"
    r"|static\.crates|crates\.io|proxy\.golang|deb\.debian"
)


def test_no_line_belongs_to_one_machine() -> None:
    """Without this a clone would point at folders that only the author has, or at one registry's hosts."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "grep", "-nIE", NOT_FOR_OTHERS]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.stderr == ""
    assert found.stdout == ""


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_readme_shows_the_commands_at_once(command: str) -> None:
    """Without this a newcomer would have to search for how to try it."""
    assert command in _first_screen()


def test_readme_warns_of_the_other_rocketpy() -> None:
    """Without this someone would install both into one environment and import the wrong one."""
    readme = (ROOT / "README.md").read_text("utf-8")
    assert "rocketpy-mq" in _first_screen()
    assert re.search(r"same import name", readme)


def test_readme_code_compiles() -> None:
    """Without this the first code that a newcomer copies could be broken."""
    readme = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, "README.md", "exec")


def test_changelog_knows_the_version() -> None:
    """Without this nobody could tell what is in the release they have."""
    assert re.search(
        rf"^## {re.escape(rocketpy.__version__)}\b", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )


@pytest.mark.parametrize("package", SOURCES)
def test_packages_bring_their_types(package: str) -> None:
    """Without this a user's type checker would treat everything of ours as Any."""
    assert (SOURCES[package] / "py.typed").is_file()


def test_every_package_is_in_the_wheel() -> None:
    """Without this an import that works in the repository would fail once installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    shipped = {ROOT / path for path in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    assert shipped == set(SOURCES.values())


def test_public_names_exist() -> None:
    """Without this `from rocketpy import *` would fail on a name that is only promised."""
    assert [name for name in rocketpy.__all__ if not hasattr(rocketpy, name)] == []
    assert sorted(set(rocketpy.__all__)) == sorted(rocketpy.__all__)


def test_decisions_are_numbered_without_gaps() -> None:
    """Without this two decisions could share a number, and a reference lead to the wrong one."""
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))]
    assert numbers == list(range(len(numbers)))


def _first_screen() -> str:
    return "\n".join((ROOT / "README.md").read_text("utf-8").splitlines()[:FIRST_SCREEN_LINES])
