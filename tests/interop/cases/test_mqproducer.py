"""The rows of docs/reference/mqproducer.md against RocketMQ's servers; the cases are in tests/mqproducer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.java_peer import JavaPeer
from tests.interop.sides import NEWER, OUR_SDK, serve
from tests.mqproducer import cases
from tests.mqproducer.place import BROKER_SETTINGS, Place

pytestmark = pytest.mark.interop

SIDES = (OUR_SDK[0], *NEWER)


@pytest.fixture(scope="module", params=SIDES, ids=lambda side: side.direction)
def place(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """RocketMQ's servers."""
    conf = {**BROKER_SETTINGS, "recallMessageEnable": "true"}  # which 5.x does not enable by default
    with serve(request.param, peer, tmp_path_factory.mktemp("mqproducer"), conf=conf) as running:
        yield Place(running.namesrv.address)


globals().update({name: case for name, case in vars(cases).items() if name.startswith("test_")})
