"""A name server and a broker for each test. The tests are collected only on request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_rocketpy.cluster import ClusterThread


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Without the frameworks these files cannot be imported."""
    chosen = str(config.getoption("markexpr"))
    return True if "frameworks" not in chosen or "not frameworks" in chosen else None


@pytest.fixture
def namesrv() -> Iterator[str]:
    """The address of the name server."""
    with ClusterThread({}) as servers:
        yield servers.cluster.namesrv_address
