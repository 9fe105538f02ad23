"""Browsers at consoles for a real cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.console.browser import Browser, browsing


@pytest.fixture
async def browser(cluster: EmbeddedCluster) -> AsyncIterator[Browser]:
    """A browser that is logged in, at a console that allows changes."""
    async with browsing(cluster.namesrv_address, allow_changes=True) as made:
        await made.log_in()
        yield made


@pytest.fixture
async def reader(cluster: EmbeddedCluster) -> AsyncIterator[Browser]:
    """A browser that is logged in, at a console that is read-only."""
    async with browsing(cluster.namesrv_address) as made:
        await made.log_in()
        yield made
