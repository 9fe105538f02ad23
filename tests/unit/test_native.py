"""Which form of a function runs, and what says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rocketpy
from tools.import_map import ROOT

SHOW = "from rocketpy.native import native_form; print(native_form())"


def shown(folder: Path, package: str | None, wanted: str | None, script: str = SHOW) -> str:
    """The last line that a script prints in a new interpreter, whose rocketpy_native has this text."""
    if package is not None:
        (folder / "rocketpy_native.py").write_text(package, "utf-8")
    environment = {name: text for name, text in os.environ.items() if name != "ROCKETPY_NATIVE"}
    if wanted is not None:
        environment["ROCKETPY_NATIVE"] = wanted
    environment["PYTHONPATH"] = f"{folder}{os.pathsep}{ROOT}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=folder,
    )
    return (done.stdout or done.stderr).splitlines()[-1]


MISSING = "raise ModuleNotFoundError(name='rocketpy_native')"
FITS = re.search(r"_INTERFACE: Final = (\d+)", (ROOT / "rocketpy/native.py").read_text("utf-8"))


@pytest.mark.parametrize(
    ("package", "wanted", "text"),
    [
        (MISSING, None, "pure Python: rocketpy-mq-native is not installed"),
        (MISSING, "", "pure Python: rocketpy-mq-native is not installed"),
        (MISSING, "0", "pure Python: ROCKETPY_NATIVE=0"),
        (
            MISSING,
            "1",
            (
                "ImportError: ROCKETPY_NATIVE=1 requires native forms, but rocketpy-mq-native is not "
                "installed; unset the variable to use Python forms"
            ),
        ),
        (
            "raise ImportError('GLIBC_9 not found')",
            None,
            "pure Python: rocketpy-mq-native is installed but cannot be imported (GLIBC_9 not found)",
        ),
        ("INTERFACE = 1000", "0", "pure Python: ROCKETPY_NATIVE=0"),
        (
            None,
            "no",
            "ImportError: ROCKETPY_NATIVE='no'; set it to 0 (Python forms) or 1 (native), or unset it",
        ),
        (f"INTERFACE = {FITS and FITS[1]}", None, "native"),
        (f"INTERFACE = {FITS and FITS[1]}", "1", "native"),
    ],
)
def test_the_form_that_runs(tmp_path: Path, package: str | None, wanted: str | None, text: str) -> None:
    """A user could not tell why a server is slower than another."""
    assert shown(tmp_path, package, wanted) == text


def test_a_package_of_another_version_is_not_used(tmp_path: Path) -> None:
    """Its functions might take other arguments."""
    assert re.fullmatch(
        r"pure Python: rocketpy-mq-native has interface 1000 and this rocketpy-mq needs \d+; "
        "install both in the same version",
        shown(tmp_path, "INTERFACE = 1000", None),
    )


def test_a_function_that_the_package_lacks_runs_in_python(tmp_path: Path) -> None:
    """A package that was built before the function was added would prevent every import."""
    use = "from rocketpy_broker.store.index.index_hash import index_hash; index_hash(b'Orders', b'k')\n"
    package = f"INTERFACE = {FITS and FITS[1]}"
    assert shown(tmp_path, package, None, use + SHOW).startswith("partly native: rocketpy-mq-native lacks ")
    assert "ROCKETPY_NATIVE=1 requires native forms, but partly" in shown(tmp_path, package, "1", use + SHOW)


def test_both_distributions_have_one_version() -> None:
    """The extra would install a package that does not fit."""
    crate = tomllib.loads((ROOT / "native/Cargo.toml").read_text("utf-8"))["package"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert crate["version"] == rocketpy.__version__
    assert project["optional-dependencies"]["native"] == [f"rocketpy-mq-native=={rocketpy.__version__}"]


def test_both_distributions_name_one_interface() -> None:
    """A build of this checkout would not be used."""
    crate = re.search(r"const INTERFACE: u32 = (\d+);", (ROOT / "native/src/lib.rs").read_text("utf-8"))
    assert crate is not None
    assert FITS is not None
    assert crate[1] == FITS[1]
