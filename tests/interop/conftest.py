"""Fixtures of the interop run, and a report of every server beside a failed case."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.cluster import Cluster, stopping
from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer, ToolsMissing
from tests.interop.processes import NameServerProcess, OurNameServer


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--direction TEXT`."""
    parser.addoption("--direction", default="", help="only interop cases whose direction contains this text")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Attach direction, name and first docstring line of each case for the table (see run.py)."""
    wanted = str(config.getoption("--direction", default=""))
    for item in items:
        if not isinstance(item, pytest.Function) or item.get_closest_marker("interop") is None:
            continue
        doc = (item.function.__doc__ or "").strip().splitlines()
        item.user_properties.append(("meaning", doc[0] if doc else item.name))
        direction, case = _direction_and_case(item)
        item.user_properties += [("direction", direction), ("case", case)]
    items[:] = [item for item in items if wanted in str(dict(item.user_properties).get("direction", wanted))]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed case shows the last log lines of its servers, and the stacks of their threads."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for value in item.funcargs.values():
            if isinstance(value, Cluster):
                report.sections.append(("servers", value.report()))
    return report


@pytest.fixture(scope="session")
def peer() -> Iterator[JavaPeer]:
    """The real RocketMQ; skips with the names of missing tools."""
    try:
        prepared = JavaPeer.prepare(DEFAULT_VERSION)
    except ToolsMissing as missing:
        pytest.skip(str(missing))
    yield prepared
    prepared.close()


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[NameServerProcess]:
    """Our name server; test_name_servers has cases with Java's, and with a pair."""
    server = OurNameServer(tmp_path).start()
    with stopping([server]):
        yield server


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for one module's servers and drivers."""
    return tmp_path_factory.mktemp("interop")


def _direction_and_case(item: pytest.Function) -> tuple[str, str]:
    """The direction of a case, from a parameter or its module, and its name with the other parameters."""
    callspec: Any = getattr(item, "callspec", None)
    values = list(callspec.params.values()) if callspec else []
    named = [value.direction for value in values if hasattr(value, "direction")]
    variants = [str(value) for value in values if not hasattr(value, "direction")]
    name = item.originalname.removeprefix("test_").replace("_", " ")
    direction: str = named[0] if named else getattr(item.module, "DIRECTION", "")
    return direction, ": ".join([name, *variants])
