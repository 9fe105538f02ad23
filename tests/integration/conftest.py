"""Fixtures for the tests of producers and consumers with rocketpy's servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final

import pytest

from rocketpy import AdminClient, Producer, ProducerConfig
from rocketpy.client.instance import ClientInstance
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.sdk_groups import SETTINGS

LATER_MS: Final = 200_000
"""Longer than any limit of clients for an operation without a success."""


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """One name server, one broker, with topic T of four queues."""
    async with EmbeddedCluster(settings=SETTINGS) as running:
        async with AdminClient(running.namesrv_address) as admin:
            await admin.create_topic("T", 4)
        yield running


@pytest.fixture
async def producer(cluster: EmbeddedCluster) -> AsyncIterator[Producer]:
    """A producer of that cluster, without batching: its messages go to the queues in turn."""
    config = ProducerConfig(batching=False)
    async with Producer("senders", cluster.namesrv_address, config=config) as started:
        yield started


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Set the clock of clients ahead, each time by more than any limit."""
    now_ms = ClientInstance.now_ms
    ahead_ms = 0.0

    def jump() -> None:
        nonlocal ahead_ms
        ahead_ms += LATER_MS

    monkeypatch.setattr(ClientInstance, "now_ms", lambda self: now_ms(self) + ahead_ms)
    return jump
