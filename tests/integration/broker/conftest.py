"""One broker, and a connection to it."""

from collections.abc import AsyncIterator

import pytest

from rocketpy_broker import Broker, EmbeddedCluster
from tests.integration.raw_client import RawClient
from tests.integration.small import SMALL


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """One broker."""
    async with EmbeddedCluster(settings=SMALL) as cluster:
        yield cluster.brokers[0]


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[RawClient]:
    """A connection to the broker."""
    async with await RawClient.open(broker.address) as raw:
        yield raw
