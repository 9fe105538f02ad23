"""Properties of the repository that users, installers and type checkers rely on."""

import importlib
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import rocketpy
from tools.crates import CRATES, read_crates
from tools.import_map import ROOT, SOURCES

FIRST_SCREEN_LINES = 45
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# Folders of one machine and hosts of package registries mean nothing to others. ([h]: not to find itself.)
NOT_FOR_OTHERS = (
    r"/(work|farm)/[a-z.]|repo1?\.maven|pypi\.org|python[h]osted|registry\.npmjs"
    r"|static\.crates|crates\.io|proxy\.golang|deb\.debian"
)


def test_no_line_belongs_to_one_machine() -> None:
    """A clone would refer to folders of one machine, or to the hosts of one registry."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "grep", "-nIE", NOT_FOR_OTHERS]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.stderr == ""
    assert found.stdout == ""


def test_every_crate_has_a_version_and_a_hash() -> None:
    """A crate could be exchanged on its way, or a build take another version."""
    crates = read_crates(CRATES.read_text("utf-8"))
    assert crates == sorted(crates)
    assert len({crate.name for crate in crates}) == len(crates)
    assert all(re.fullmatch(r"[0-9a-f]{64}", crate.sha256) for crate in crates)
    wanted = tomllib.loads((ROOT / "native/Cargo.toml").read_text("utf-8"))["dependencies"]
    assert wanted.keys() <= {crate.name for crate in crates}


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_readme_shows_the_commands_at_once(command: str) -> None:
    """A new user would have to search for the first command."""
    assert command in _first_screen()


def test_readme_warns_of_the_other_rocketpy() -> None:
    """A user would install both into one environment and import the wrong one."""
    readme = (ROOT / "README.md").read_text("utf-8")
    assert "rocketpy-mq" in _first_screen()
    assert re.search(r"same import name", readme)


def test_readme_code_compiles() -> None:
    """The first code that a new user copies could fail."""
    readme = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, "README.md", "exec")


def test_changelog_knows_the_version() -> None:
    """Users could not tell which changes their release contains."""
    assert re.search(
        rf"^## {re.escape(rocketpy.__version__)}\b", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )


@pytest.mark.parametrize("package", SOURCES)
def test_packages_bring_their_types(package: str) -> None:
    """The type checker of a user would treat every type of this project as Any."""
    assert (SOURCES[package] / "py.typed").is_file()


def test_every_package_is_in_the_wheel() -> None:
    """An import that works in the repository would fail once installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    shipped = {ROOT / path for path in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    assert shipped == set(SOURCES.values())


def test_public_names_exist() -> None:
    """`from rocketpy import *` would fail for a name without a definition."""
    public = vars(rocketpy)["__all__"]
    assert [name for name in public if not hasattr(rocketpy, name)] == []
    assert sorted(set(public)) == sorted(public)


def test_former_paths_of_modules_work() -> None:
    """An application that imports MessageColumns from its first path would stop with an ImportError."""
    former = importlib.import_module("rocketpy.message_columns")
    assert former.MessageColumns is rocketpy.MessageColumns


def test_each_decision_has_a_number_of_its_own() -> None:
    """Two decisions could share a number, and a reference could lead to the wrong one."""
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))]
    assert len(set(numbers)) == len(numbers)


def test_differences_have_every_quirk_once() -> None:
    """A quirk of RocketMQ could be left without a decision of this project."""
    rows = re.findall(r"^\| (\d+)(?:–(\d+))? \|", _differences(), re.MULTILINE)
    numbers = [number for first, last in rows for number in range(int(first), int(last or first) + 1)]
    assert numbers == list(range(1, 84))


def test_differences_name_tests_that_cite_the_quirk() -> None:
    """A row could name a test that does not check it."""
    claims = re.findall(r"^\| (\d+) \|.*\| `(tests/[^`]+)` \|$", _differences(), re.MULTILINE)
    wrong = [(number, path) for number, path in claims if int(number) not in _quirks_cited(ROOT / path)]
    assert claims
    assert wrong == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/internals/map.md"])
def test_the_first_pages_explain_quirks(page: str) -> None:
    """A reader of the code would meet QUIRKS and a number, and not know where to look."""
    assert re.search(r"`QUIRKS \d+` in code means number \d+ of `tests/golden/QUIRKS.md`", _read(page))


def test_cited_quirks_exist() -> None:
    """A reader would look for a number that the list does not have."""
    known = {
        int(number) for number in re.findall(r"^(\d+)\. ", _read("tests/golden/QUIRKS.md"), re.MULTILINE)
    }
    folders = (*SOURCES.values(), ROOT / "tests", ROOT / "tools")
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    cited = {number for path in sources for number in _quirks_cited(path)}
    assert len(cited) > 40
    assert cited <= known


def test_contributing_has_each_target() -> None:
    """A contributor would not learn of a target, or would run one that does not exist."""
    phony = re.search(r"^\.PHONY: (.+)$", _read("Makefile"), re.MULTILINE)
    rows = re.findall(r"^\| ((?:`[a-z0-9-]+`(?:, )?)+) \|", _read("CONTRIBUTING.md"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert phony
    assert sorted(["test", "check", "format", *named]) == sorted(phony[1].split())


def test_the_workflow_runs_what_a_contributor_can_run() -> None:
    """Continuous integration could check something else than `.ci/run` and the targets of make do."""
    phony = set(re.findall(r"[\w-]+", _read("Makefile").partition("\n.PHONY:")[2].partition("\n")[0]))
    commands = {step["run"] for job in _jobs().values() for step in job["steps"] if "run" in step}
    assert "bash .ci/run" in commands
    assert {command.removeprefix("make ") for command in commands} - phony == {"bash .ci/run"}


def test_the_workflow_tests_the_promised_python_versions() -> None:
    """A version that pyproject.toml promises could break without notice."""
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', _read("pyproject.toml"))
    assert [job["strategy"]["matrix"]["python"] for job in _jobs().values() if "strategy" in job] == [
        promised,
        promised,
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    """The documentation would refer to code that does not exist."""
    named = re.findall(
        r"`((?:rocketpy|rocketpy_broker|tests|tools|docs|examples)/[\w/.-]+)`", page.read_text("utf-8")
    )
    assert [path for path in named if not (ROOT / path).exists()] == []


def _first_screen() -> str:
    return "\n".join((ROOT / "README.md").read_text("utf-8").splitlines()[:FIRST_SCREEN_LINES])


def _differences() -> str:
    return _read("docs/differences.md")


def _jobs() -> dict[str, Any]:
    jobs: dict[str, Any] = yaml.safe_load(_read(".github/workflows/ci.yml"))["jobs"]
    return jobs


def _read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def _quirks_cited(path: Path) -> set[int]:
    """Numbers after the word QUIRKS, such as `QUIRKS 8, 9, 11-15`."""
    cited: set[int] = set()
    for text in re.findall(r"QUIRKS? ([0-9]+(?:(?:, ?|-| and )[0-9]+)*)", path.read_text("utf-8")):
        for first, last in re.findall(r"([0-9]+)(?:-([0-9]+))?", text):
            cited.update(range(int(first), int(last or first) + 1))
    return cited
