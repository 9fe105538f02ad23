"""SimpleConsumer, over real sockets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.pop_cases import CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_simple_consumers(cluster: EmbeddedCluster, case: Callable[[str], Awaitable[None]]) -> None:
    """A job would be lost, done twice at the same time, or be delivered for ever."""
    await case(cluster.namesrv_address)
