"""A broker in memory for the tests of consumers."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rocketpy_broker import EmbeddedCluster


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """A cluster in memory, whose new topics have four queues. Retries are delivered at once."""
    if sys.platform != "linux":
        pytest.skip("the broker runs on Linux only")
    from rocketpy_broker import EmbeddedCluster  # noqa: PLC0415 - other tests here run on other systems, too

    settings = {"messageDelayLevel": "1s 0s"}  # a level above the last one counts as the last
    async with EmbeddedCluster(transport="memory", settings=settings) as made:
        yield made
