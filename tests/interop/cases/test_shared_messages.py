"""A group of RocketMQ's push consumers in POP mode and our consumers, on RocketMQ's broker and ours."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta

import pytest

from rocketpy import MessageExt, PushConfig, PushConsumer, Sharing, SimpleConsumer
from tests.interop.cluster import Cluster
from tests.interop.java_member import JavaMember
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import Side, serve
from tests.waiting import until

pytestmark = pytest.mark.interop

SIDES = (
    Side("Java client", "our", "our", client_version="5.3.3"),
    Side("Java client", "our", "our", client_version="5.5.0"),
    Side("Java client", "java", "java", version="5.3.3", client_version="5.5.0"),
    Side("Java client", "java", "java", version="5.5.0", client_version="5.5.0"),
)
COUNT = 60
LIMIT_S = 240
"""As the case starts a JVM on a busy machine."""
WAIT = timedelta(seconds=2)

Member = Callable[[str, Counter[str]], contextlib.AbstractAsyncContextManager[None]]
"""A member of ours; it counts what it receives."""


@pytest.fixture(params=SIDES, ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A name server and a broker, where group `shared` pops topic Shared of 2 queues."""
    with serve(request.param, peer, tmp_path_factory.mktemp("shared")) as running:
        running.make_topic("Shared", 2)
        running.admin_shows("success", "updateSubGroup", "-b", running.broker.address, "-g", "shared")
        mode = ("-b", running.broker.address, "-t", "Shared", "-g", "shared", "-m", "POP", "-q", "0")
        running.admin_shows("consume mode[POP]", "setConsumeMode", *mode)
        yield running


@contextlib.asynccontextmanager
async def simple_member(namesrv: str, received: Counter[str]) -> AsyncIterator[None]:
    """A SimpleConsumer that acknowledges what it receives."""
    async with SimpleConsumer("shared", namesrv) as consumer:
        consumer.subscribe("Shared")

        async def take() -> None:
            while True:
                for message in await consumer.receive(4, timedelta(seconds=60), WAIT):
                    received[message.body.decode()] += 1
                    await consumer.ack(message)

        taking = asyncio.create_task(take())
        try:
            yield
        finally:
            taking.cancel()
            await asyncio.wait([taking])
        if not taking.cancelled():
            taking.result()


@contextlib.asynccontextmanager
async def push_member(namesrv: str, received: Counter[str]) -> AsyncIterator[None]:
    """A PushConsumer that shares messages."""

    async def handle(message: MessageExt) -> None:
        received[message.body.decode()] += 1

    config = PushConfig(sharing=Sharing.MESSAGES)
    consumer = PushConsumer("shared", namesrv, handle, config=config)
    consumer.subscribe("Shared")
    async with consumer:
        yield


@pytest.mark.parametrize("member", [simple_member, push_member], ids=lambda member: member.__name__)
def test_java_members_and_ours_share_the_messages(servers: Cluster, member: Member) -> None:
    """A message would reach both, or none; or one kind of member would get no work."""
    home = servers.run / member.__name__
    arguments = (servers.namesrv.address, "shared", "Shared", "AVG", "false", "true")
    ours: Counter[str] = Counter()
    theirs = JavaMember(home / "console.log")

    def received() -> Counter[str]:
        found = ours + Counter(body.decode() for body in theirs.bodies())
        return Counter({body: count for body, count in found.items() if body.isdecimal()})

    async def run() -> None:
        async with asyncio.timeout(LIMIT_S), member(servers.namesrv.address, ours):
            while not (ours and theirs.bodies()):
                await asyncio.to_thread(servers.produce_bodies, "Shared", 2, *["early"] * 8)
            bodies = [f"{number}" for number in range(COUNT)]
            await asyncio.to_thread(servers.produce_bodies, "Shared", 2, *bodies)
            await until(lambda: received().total() >= COUNT)
            assert received() == Counter(bodies)

    with servers.peer.running("Push", *arguments, home=home, properties=servers.java_properties):
        asyncio.run(run())
