"""A broker in memory for the tests of consumers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rocketpy_broker import EmbeddedCluster


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """A cluster in memory, whose new topics have four queues. Retries are delivered at once."""
    settings = {"messageDelayLevel": "1s 0s"}  # a level above the last one counts as the last
    async with EmbeddedCluster(transport="memory", settings=settings) as made:
        yield made
