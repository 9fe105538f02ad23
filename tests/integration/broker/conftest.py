"""One broker, and a connection to it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rocketpy.protocol.codes import RequestCode
from rocketpy_broker import Broker, EmbeddedCluster
from tests.integration.broker.pop_workers import Workers
from tests.integration.raw_client import RawClient, new_topic
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


@pytest.fixture
async def pop_broker() -> AsyncIterator[Broker]:
    """A broker with topic T of 4 queues, where groups may filter by SQL92."""
    async with EmbeddedCluster(settings={**SMALL, "enablePropertyFilter": "true"}) as cluster:
        async with await RawClient.open(cluster.brokers[0].address) as client:
            await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("T", 4))
        yield cluster.brokers[0]


@pytest.fixture
async def workers(pop_broker: Broker) -> AsyncIterator[Workers]:
    """Connections, which are closed at the end."""
    async with AsyncExitStack() as stack:
        yield Workers(pop_broker, stack)


@pytest.fixture
def patient_pops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pop read all queues, also if this process is paused between two of them."""
    monkeypatch.setattr("rocketpy_broker.handlers.pop.pop._READ_MS", 60_000)
