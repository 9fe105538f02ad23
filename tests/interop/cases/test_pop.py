"""Message-level sharing (POP): our consumers with brokers of RocketMQ 5."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.pop_cases import CASES
from tests.interop.cluster import stopping
from tests.interop.java_peer import JavaPeer
from tests.interop.processes import BrokerProcess, JavaBroker, OurNameServer

pytestmark = pytest.mark.interop
DIRECTION = "our client with Java servers"


@pytest.fixture(scope="module", params=["5.3.3", "5.5.0"])
def broker(request: pytest.FixtureRequest, peer: JavaPeer, run_directory: Path) -> Iterator[BrokerProcess]:
    """A broker of RocketMQ 5, and its name server."""
    names = OurNameServer(run_directory / request.param).start()
    conf = {"brokerName": "pop", "mappedFileSizeCommitLog": 1 << 20, "enablePropertyFilter": "true"}
    java = JavaBroker(
        peer.of_version(request.param), run_directory / request.param, names.address, name="java", conf=conf
    )
    with stopping([names, java]):
        yield java.start()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_simple_consumers(broker: BrokerProcess, case: Callable[[str], Awaitable[None]]) -> None:
    """A job would be lost, done twice at the same time, or be delivered for ever."""

    async def run() -> None:
        await case(broker.namesrv)

    asyncio.run(run())
