"""One broker, and a connection to it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpy_broker import Broker, EmbeddedCluster
from tests.integration.raw_client import RawClient
from tests.integration.sdk_groups import SETTINGS
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


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    """A name server and a broker with its files in `tmp_path`."""
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as running:
        yield running


@pytest.fixture
async def raw(cluster: EmbeddedCluster) -> AsyncIterator[RawClient]:
    """A connection to the broker of `cluster`."""
    async with await RawClient.open(cluster.brokers[0].address) as client:
        yield client
