"""Builds wheel and sdist, and checks that they contain exactly the packages' files in git."""

from __future__ import annotations

import email
import hashlib
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from configparser import ConfigParser
from pathlib import Path, PurePosixPath
from typing import Any, Final

from tools import crates
from tools.import_map import ROOT, SOURCES

_DOCUMENTS: Final = frozenset({"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"})
_MADE: Final = frozenset({"PKG-INFO", ".gitignore"})
"""Files that hatchling adds to an sdist."""


class PackageError(Exception):
    """A check of a distribution failed; the text says which."""


def ensure(holds: object, problem: str) -> None:
    """Raise `PackageError` with the text `problem` unless `holds` is true."""
    if not holds:
        raise PackageError(problem)


def build(folder: Path, source: Path = ROOT) -> tuple[Path, Path]:
    """Build a wheel and an sdist with this environment's hatchling; return their paths.

    Raises PackageError if the build fails.
    """
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    ensure(done.returncode == 0, f"the build failed:\n{done.stderr}")
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def build_native(folder: Path) -> tuple[Path, Path]:
    """Build wheel and sdist of rocketpy-mq-native with this environment's maturin; return their paths.

    Raises PackageError if the build fails.
    """
    try:
        crates.lock()
    except crates.CratesDiffer as error:
        raise PackageError(str(error)) from None
    command = [sys.executable, "-m", "maturin", "build", "--release", "--sdist", "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT / "native", capture_output=True, text=True, check=False)
    ensure(done.returncode == 0, f"the build of native/ failed:\n{done.stderr}")
    [wheel], [sdist] = folder.glob("rocketpy_mq_native*.whl"), folder.glob("rocketpy_mq_native*.tar.gz")
    return wheel, sdist


def check_native(wheel: Path, sdist: Path) -> str:
    """Compare the distributions of native/ with the repository; return a summary. Raises PackageError."""
    ensure("-cp311-abi3-" in wheel.name, f"{wheel.name} is not for all Pythons from 3.11 on")
    with zipfile.ZipFile(wheel) as packaged:
        names = set(packaged.namelist())
    [info] = {name.partition("/")[0] for name in names if ".dist-info/" in name}
    for part in ("licenses/LICENSE", "sboms/rocketpy-native.cyclonedx.json"):
        ensure(f"{info}/{part}" in names, f"{wheel.name} has no {part}")
    with tarfile.open(sdist) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    expected = {name.removeprefix("native/") for name in tracked(ROOT / "native")} | {"Cargo.lock"}
    ensure(names - _MADE == expected, f"{sdist.name} and git differ: {sorted(names - _MADE ^ expected)}")
    return f"{wheel.name} is for all Pythons from 3.11 on, {sdist.name} has {len(names)} files"


def tracked(*folders: Path) -> set[str]:
    """Return the files below these folders that git tracks, relative to the repository."""
    command = ["git", "ls-files", "-z", "--", *map(str, folders)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.rstrip("\0").split("\0"))


def check_wheel(path: Path) -> str:
    """Compare a wheel with the repository; return a summary. Raises PackageError."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    expected = {
        f"{package}/{PurePosixPath(file).relative_to(folder.relative_to(ROOT))}"
        for package, folder in SOURCES.items()
        for file in tracked(folder)
    }
    ensure(path.name.endswith("-py3-none-any.whl"), f"{path.name} is not for every platform")
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
        [info] = {name.partition("/")[0] for name in names if ".dist-info/" in name}
        metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
        entries = ConfigParser()
        entries.optionxform = str  # type: ignore[assignment,method-assign] # keeps capitals
        entries.read_string(wheel.read(f"{info}/entry_points.txt").decode())
    packaged = {name for name in names if not name.startswith(f"{info}/")}
    ensure(packaged == expected, f"{path.name} and git differ: {sorted(packaged ^ expected)}")
    ensure(f"{info}/licenses/LICENSE" in names, f"{path.name} has no licence")
    page = str(metadata.get_payload())
    ensure("pip install rocketpy-mq`" in page, "the page in a package index does not say how to install it")
    relative = re.findall(r"\]\((?!https?://)[^)]*\)", page)
    ensure(not relative, f"the page in a package index has relative links, which lead nowhere: {relative}")
    extras = {name.lower() for name in metadata.get_all("Provides-Extra", [])}
    ensure(extras == set(project["optional-dependencies"]), f"the extras of {path.name} are {sorted(extras)}")
    ensure(metadata["Requires-Python"] == project["requires-python"], "Requires-Python differs")
    declared = {"console_scripts": project["scripts"]} | project["entry-points"]
    found = {section: dict(entries[section]) for section in entries.sections()}
    ensure(found == declared, f"the entry points of {path.name} are {found}")
    return f"{path.name} has the {len(packaged)} files that git tracks, and {len(extras)} extras"


def check_sdist(path: Path, wheel: Path, folder: Path) -> str:
    """Compare an sdist with the repository, and the wheel built from it with `wheel`. Unpacks into `folder`.

    Returns a summary. Raises PackageError.
    """
    with tarfile.open(path) as sdist:
        sdist.extractall(folder, filter="data")
    [top] = folder.iterdir()
    names = {str(file.relative_to(top)) for file in top.rglob("*") if file.is_file()}
    expected = tracked(ROOT / "integrations", ROOT / "rocketpy", ROOT / "rocketpy_broker") | _DOCUMENTS
    ensure(names - _MADE == expected, f"{path.name} and git differ: {sorted(names - _MADE ^ expected)}")
    again, _ = build(folder / "dist", top)
    ensure(
        _digest(again) == _digest(wheel),
        f"{path.name} builds a {wheel.name} that differs from the repository's",
    )
    return f"{path.name} has {len(names)} files, and builds the same wheel: {_digest(wheel)[:12]}"


def check_tag(wheel: Path) -> str:
    """Compare the version with the tags of this commit; return a summary. Raises PackageError."""
    version = wheel.name.split("-")[1]
    command = ["git", "tag", "--points-at", "HEAD", "--list", "v[0-9]*"]
    tags = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    ensure(tags in ([], [f"v{version}"]), f"version {version} is built from a commit with the tags {tags}")
    return f"version {version}" + (f", as the tag {tags[0]} says" if tags else ", not a tagged commit")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
