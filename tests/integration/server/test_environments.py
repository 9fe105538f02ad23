"""Other systems and other packages, each in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import rocketpy
import rocketpy_broker
from tests.waiting import LIMIT_S
from tools.import_map import ROOT

WITHOUT = """
import sys
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
import os
for name in ("fdatasync", "posix_fallocate", "pread", "pwrite", "register_at_fork", "statvfs"):
    delattr(os, name)
sys.platform = "win32"
"""
"""Hides modules that Windows lacks. asyncio is imported first: Linux has no Windows event loop."""

SENDS = """
from rocketpy import Message
from rocketpy.sync import Producer
with Producer("g", sys.argv[1]) as producer:
    print(producer.send(Message("T", b"x")).status.name)
"""


def python(code: str, *arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program that finds only required packages. path: the directory of rocketpy's packages."""
    command = [
        sys.executable,
        *(["-S"] if path else []),
        "-c",
        f"import asyncio, tempfile\n{code}",
        *arguments,
    ]
    environment = os.environ.copy()
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join((str(path), str(Path(msgspec.__file__).parents[1])))
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, cwd=path, check=False
    )


def last_line(result: subprocess.CompletedProcess[str]) -> str:
    """The text of an error."""
    assert result.returncode == 1, result
    return result.stderr.splitlines()[-1]


def test_the_broker_reports_unsupported_platforms() -> None:
    """A program on Windows would end with: No module named 'fcntl'."""
    said = (
        "rocketpy_broker and the address embedded: run on Linux only, and this is win32. The client runs here"
    )
    assert last_line(python(WITHOUT + "import rocketpy_broker")).startswith(f"ImportError: {said}")
    text = last_line(python(WITHOUT + SENDS, "embedded:"))
    assert text.startswith(f"rocketpy.errors.ConfigInvalid: the address embedded: cannot be used: {said}")


def test_the_client_sends_without_modules_that_windows_lacks() -> None:
    """The client would only work where the broker works."""
    command = [
        sys.executable,
        "-m",
        "rocketpy_broker",
        "dev",
        "--listen",
        "127.0.0.1:0",
        "--set",
        "listenPort=0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as servers:
        assert servers.stdout is not None
        address = servers.stdout.readline().split()[-1]
        assert "ready" in servers.stdout.readline()
        result = python(WITHOUT + SENDS, address)
        servers.terminate()
    assert (result.stdout, result.returncode) == ("SEND_OK\n", 0), result.stderr


def test_tests_that_need_the_broker_are_skipped_elsewhere(tmp_path: Path) -> None:
    """A contributor with macOS or Windows would see errors in place of the client's tests."""
    (tmp_path / "elsewhere.py").write_text(
        "import sys, sysconfig, pytest\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_sessionstart():\n"
        "    sysconfig.get_config_vars()  # cached: Linux lacks those of another system\n"
        "    sys.platform = 'darwin'\n"
    )
    files = [f"tests/unit/protocol/{name}.py" for name in ("test_settings_text", "test_java")]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "elsewhere", "-p", "no:cacheprovider", "-n", "0", *files],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert result.returncode == 0, result
    assert (
        "SKIPPED [1] tests/unit/protocol/test_settings_text.py:0: the broker runs on Linux" in result.stdout
    )
    assert " passed, 1 skipped in " in result.stdout


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A directory with rocketpy's packages, as pip installs them."""
    for package in (rocketpy, rocketpy_broker):
        source = Path(str(package.__file__)).parent
        shutil.copytree(source, tmp_path / source.name)
    return tmp_path


def test_the_flight_simulator_is_noticed(packages: Path) -> None:
    """One of two packages with the same import name would be broken, without a visible reason."""
    quiet = python("import rocketpy, rocketpy_broker; print(rocketpy.__file__)", path=packages)
    assert (quiet.stdout, quiet.stderr) == (f"{packages}/rocketpy/__init__.py\n", "")
    (packages / "rocketpy" / "simulation").mkdir()
    (packages / "rocketpy" / "simulation" / "flight.py").touch()
    warned = python("import rocketpy", path=packages)
    assert warned.returncode == 0
    assert "RuntimeWarning: two packages share" in warned.stderr
    assert "pip uninstall rocketpy rocketpy-mq, then pip install rocketpy-mq" in warned.stderr


@pytest.mark.parametrize("lost", [False, True])
def test_a_client_that_was_overwritten_is_noticed(packages: Path, *, lost: bool) -> None:
    """The broker would end with an ImportError that does not name the cause."""
    init = packages / "rocketpy" / "__init__.py"
    if lost:  # the simulator was uninstalled, with the file that both have
        init.unlink()
    else:
        init.write_text("class Rocket: pass\n")
    text = last_line(python("import rocketpy_broker", path=packages))
    assert text.startswith(
        "ImportError: the package rocketpy is not the client of rocketpy-mq, or is damaged"
    )
    assert "pip uninstall rocketpy rocketpy-mq, then pip install rocketpy-mq" in text
