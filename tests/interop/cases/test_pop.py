"""Message-level sharing (POP): our consumers with brokers of RocketMQ 5."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from rocketpy import (
    AdminClient,
    ConsumeFrom,
    Later,
    MessageExt,
    PushConfig,
    PushConsumer,
    Sharing,
    SimpleConsumer,
)
from tests.integration.pop_cases import CASES, FIRST, SECOND, send
from tests.interop.cluster import stopping
from tests.interop.java_peer import JavaPeer
from tests.interop.processes import BrokerProcess, JavaBroker, OurNameServer
from tests.waiting import until

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


@pytest.mark.parametrize("orderly", [False, True], ids=["at once", "in order"])
def test_push_consumers(broker: BrokerProcess, *, orderly: bool) -> None:
    """Handlers would miss a message, or get one of a queue before an earlier one has succeeded."""
    topic, handled, failed = f"Push{orderly}", list[bytes](), list[bytes]()

    async def handle(message: MessageExt) -> Later | None:
        if message.body == b"3" and not failed:
            failed.append(message.body)
            return Later(delay_level=1, suspend_ms=10)
        handled.append(message.body)
        return None

    async def run() -> None:
        async with AdminClient(broker.namesrv) as admin:
            await admin.create_topic(topic, 1)
        await send(broker.namesrv, topic, *map(str, range(9)))
        config = PushConfig(sharing=Sharing.MESSAGES, consume_from=ConsumeFrom.FIRST_OFFSET, orderly=orderly)
        group = f"push-{orderly}"
        consumer = PushConsumer(group, broker.namesrv, handle, config=config)
        consumer.subscribe(topic)
        async with consumer:
            await until(lambda: len(handled) == 9)
        expected = [str(number).encode() for number in range(9)]
        assert (handled if orderly else sorted(handled)) == expected
        async with SimpleConsumer(group, broker.namesrv, config=FIRST) as other:
            other.subscribe(topic)
            assert await other.receive(1, 10 * SECOND, 3 * SECOND) == []

    asyncio.run(run())
