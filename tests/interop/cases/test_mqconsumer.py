"""The rows of docs/reference/mqconsumer.md against RocketMQ's servers; the cases are in tests/mqconsumer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.java_peer import JavaPeer
from tests.interop.sides import ALL_VERSIONS, OUR_SDK, serve
from tests.mqconsumer import CASES
from tests.mqconsumer.group import BROKER_SETTINGS
from tests.mqproducer.place import Place

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module", params=[*OUR_SDK[:1], *ALL_VERSIONS], ids=lambda side: side.direction)
def place(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """RocketMQ's servers."""
    with serve(request.param, peer, tmp_path_factory.mktemp("mqconsumer"), conf=BROKER_SETTINGS) as running:
        yield Place(running.namesrv.address)


globals().update(CASES)
