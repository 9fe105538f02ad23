"""The rows of docs/reference/mqproducer.md with rocketpy's servers; the cases are in tests/mqproducer."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rocketpy_broker.embedded import EmbeddedCluster
from tests.mqproducer import cases
from tests.mqproducer.place import BROKER_SETTINGS, Place


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """A name server and a broker of rocketpy."""
    async with EmbeddedCluster(settings=BROKER_SETTINGS) as cluster:
        yield Place(cluster.namesrv_address)


globals().update({name: case for name, case in vars(cases).items() if name.startswith("test_")})
