"""A pytest plugin: a name server and a broker for tests, assertions on sent messages, and faults.

The fixtures are `rocketmq`, `rocketmq_producer`, `assert_sent` and `rocketmq_settings`. pytest loads this
module in every run, so it imports rocketpy only when a test uses a fixture.

pytest rewrites the assertions of all packages in the distribution of a plugin. `_PlainImports` excludes the
packages that contain no test assertions: rewriting them takes 1 s in each run without a bytecode cache.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from pytest_rocketpy.cluster import ClusterThread, RocketMQ
    from pytest_rocketpy.sent import AssertSent
    from rocketpy import Producer

__all__ = ["AssertSent", "RocketMQ"]

_NUMBERS: Final = itertools.count(1)
_PLAIN: Final = frozenset({
    "pyspark_rocketmq", "rocketpy", "rocketpy_broker", "rocketpy_kombu", "rocketpy_otel",
})  # fmt: skip


class _PlainImports:
    """Imports the packages of `_PLAIN` as Python does, ahead of pytest's finder."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module in one of the packages; None for any other module."""
        return PathFinder.find_spec(name, path, target) if name.partition(".")[0] in _PLAIN else None


sys.meta_path.insert(0, _PlainImports)


def __getattr__(name: str) -> Any:
    """Import the classes for annotations on first access."""
    if name == "RocketMQ":
        from pytest_rocketpy.cluster import RocketMQ  # noqa: PLC0415 - see the module's docstring

        return RocketMQ
    if name == "AssertSent":
        from pytest_rocketpy.sent import AssertSent  # noqa: PLC0415

        return AssertSent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixture for pytest-asyncio if that plugin is loaded."""
    if config.pluginmanager.hasplugin("asyncio"):
        from pytest_rocketpy import for_asyncio  # noqa: PLC0415 - it needs pytest-asyncio

        config.pluginmanager.register(for_asyncio)


@pytest.fixture(scope="session")
def rocketmq_settings() -> dict[str, Any]:
    """Keys of broker.conf for the broker of this session; override it in conftest.py."""
    return {}


@pytest.fixture(scope="session")
def _rocketmq_cluster(rocketmq_settings: dict[str, Any]) -> Iterator[ClusterThread]:
    from pytest_rocketpy.cluster import ClusterThread  # noqa: PLC0415

    with ClusterThread(rocketmq_settings) as cluster:
        yield cluster


@pytest.fixture
def rocketmq(_rocketmq_cluster: ClusterThread) -> Iterator[RocketMQ]:
    """A name server and a broker, with a namespace of its own for each test.

    The servers start with the first test that uses them, and run on a separate thread until the session
    ends. Give `rocketmq.client` to producers and consumers.
    """
    from pytest_rocketpy.cluster import RocketMQ  # noqa: PLC0415

    with RocketMQ(_rocketmq_cluster, f"test-{next(_NUMBERS)}") as view:
        yield view


@pytest.fixture
def assert_sent(rocketmq: RocketMQ) -> AssertSent:
    """Waits until a matching message is stored; see `AssertSent`."""
    from pytest_rocketpy.sent import AssertSent  # noqa: PLC0415

    return AssertSent(rocketmq.wait_stored, rocketmq.sent)


@pytest.fixture
def rocketmq_producer(request: pytest.FixtureRequest) -> Producer:
    """A started producer in the test's namespace, on the test's event loop.

    Needs pytest-asyncio or anyio; tests that are not async use `rocketmq.send`.
    """
    if "anyio_backend" in request.fixturenames:
        name = "_rocketmq_anyio_producer"
    elif request.config.pluginmanager.hasplugin("asyncio"):
        name = "_rocketmq_asyncio_producer"
    else:
        pytest.fail(
            "rocketmq_producer needs an event loop: install pytest-asyncio, or mark the test for anyio. "
            "A test that is not async uses rocketmq.send(message)",
            pytrace=False,
        )
    producer: Producer = request.getfixturevalue(name)
    return producer


@pytest.fixture
async def _rocketmq_anyio_producer(rocketmq: RocketMQ) -> AsyncIterator[Producer]:
    async with rocketmq.producer() as producer:
        yield producer
