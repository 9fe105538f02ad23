"""Settings shared by every test."""

import gc
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from rocketpy.native import native_form

_MEMORY = Path("/dev/shm")  # noqa: S108 - directories in it are made by tempfile and pytest, which are private
_MEMORY_BYTES = 4 << 30

# Stores flush thousands of times; on a disk, tests would mostly wait for that. TMPDIR chooses another place.
if "TMPDIR" not in os.environ and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES:
    os.environ["TMPDIR"] = str(_MEMORY)
    tempfile.tempdir = None

# A shell ignores SIGINT in its background jobs, and the processes that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_MODULE_MARK = re.compile(r"^pytestmark = pytest\.mark\.(\w+)$", re.MULTILINE)

# Two busy cores make single examples slow without anything being wrong, so no deadline.
settings.register_profile("rocketpy", deadline=None, print_blob=True)
settings.load_profile("rocketpy")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip modules whose only mark the option -m excludes: each worker would import PySpark, for example.

    Returns True for such a module, and None to leave the decision to others.
    """
    if not collection_path.name.startswith("test_") or not collection_path.is_file():
        return None
    mark = _MODULE_MARK.search(collection_path.read_text("utf-8"))
    return True if mark and mark[1] in _excluded_marks(str(config.option.markexpr)) else None


def pytest_report_header() -> str:
    """Say whether native forms are tested; see rocketpy/native.py."""
    return f"rocketpy: hot functions run in this form: {native_form()}"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip modules that import the broker where it does not run; `make test-client` runs the others."""
    report = yield
    if sys.platform != "linux" and report.failed and "run on Linux only" in str(report.longrepr):
        report.outcome = "skipped"
        report.longrepr = (report.nodeid, 0, "Skipped: the broker runs on Linux only")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Switch the garbage collector off while pytest collects tests; it would take a tenth of that time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exempt the objects made so far from garbage collection, and collect garbage less often.

    A full garbage collection took 0.1 s, and tests spent 7 % of their time on them.
    """
    gc.freeze()
    gc.set_threshold(5000, 20, 20)


def _excluded_marks(expression: str) -> set[str]:
    """The marks that ``a and not b and not c`` excludes; empty for expressions with "or" or parentheses."""
    if re.search(r"\bor\b|\(", expression):
        return set()
    return {term.removeprefix("not ") for term in expression.split(" and ") if term.startswith("not ")}


@pytest.fixture(autouse=True)
def _no_signal_stays_blocked() -> Iterator[None]:
    """Fail a test that leaves signals blocked: processes that later tests start would ignore them."""
    yield
    if sys.platform == "win32":
        return
    if blocked := signal.pthread_sigmask(signal.SIG_SETMASK, ()):
        pytest.fail(f"the test left signals blocked: {blocked}")


@pytest.fixture(autouse=True)
def _no_log_level_stays_changed() -> Iterator[None]:
    """Fail a test that leaves the level of rocketpy's loggers changed: later tests would miss warnings."""
    loggers = [logging.getLogger(name) for name in ("rocketpy", "rocketpy.cli", "rocketpy.consumer")]
    before = [logger.level for logger in loggers]
    yield
    after = [logger.level for logger in loggers]
    if after != before:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
        pytest.fail(f"the test left levels of loggers changed: {after}, which were {before}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Start four workers more than there are cores for ``-n auto``; with slow tests, two for each core.

    Quick tests wait more than half of their time. Each worker takes 3 s of a core to collect them.
    """
    cores = os.cpu_count() or 1
    return cores + 4 if "slow" in _excluded_marks(str(config.option.markexpr)) else 2 * cores
