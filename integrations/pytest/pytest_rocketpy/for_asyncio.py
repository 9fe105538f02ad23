"""The producer fixture for pytest-asyncio, whose strict mode requires its own fixture decorator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest_asyncio

if TYPE_CHECKING:
    from pytest_rocketpy.cluster import RocketMQ
    from rocketpy import Producer


@pytest_asyncio.fixture
async def _rocketmq_asyncio_producer(rocketmq: RocketMQ) -> AsyncIterator[Producer]:
    async with rocketmq.producer() as producer:
        yield producer
