"""The rows of docs/reference/mqconsumer.md with rocketpy's servers; the cases are in tests/mqconsumer."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rocketpy_broker.embedded import EmbeddedCluster
from tests.mqconsumer import CASES
from tests.mqconsumer.group import BROKER_SETTINGS
from tests.mqproducer.place import Place


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """A name server and a broker of rocketpy."""
    async with EmbeddedCluster(settings=BROKER_SETTINGS) as cluster:
        yield Place(cluster.namesrv_address)


globals().update(CASES)
