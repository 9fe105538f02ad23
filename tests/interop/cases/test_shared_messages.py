"""A group of RocketMQ's push consumers in POP mode and our SimpleConsumer, on RocketMQ's broker and ours."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest

from rocketpy import SimpleConsumer
from tests.interop.cluster import Cluster
from tests.interop.java_member import JavaMember
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import Side, serve

pytestmark = pytest.mark.interop

SIDES = (
    Side("Java client", "our", "our", client_version="5.3.3"),
    Side("Java client", "our", "our", client_version="5.5.0"),
    Side("Java client", "java", "java", version="5.3.3", client_version="5.5.0"),
)
COUNT = 60
LIMIT_S = 240
"""As the case starts a JVM on a busy machine."""
WAIT = timedelta(seconds=2)


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


def test_java_members_and_ours_share_the_messages(servers: Cluster) -> None:
    """A message would reach both, or none; or one kind of member would get no work."""
    home = servers.run / "member"
    arguments = (servers.namesrv.address, "shared", "Shared", "AVG", "false", "true")
    ours: Counter[str] = Counter()
    member = JavaMember(home / "console.log")

    def received() -> Counter[str]:
        found = ours + Counter(body.decode() for body in member.bodies())
        return Counter({body: count for body, count in found.items() if body.isdecimal()})

    async def run() -> None:
        async with (
            asyncio.timeout(LIMIT_S),
            SimpleConsumer("shared", servers.namesrv.address) as consumer,
        ):
            consumer.subscribe("Shared")

            async def take() -> None:
                for message in await consumer.receive(4, timedelta(seconds=60), WAIT):
                    ours[message.body.decode()] += 1
                    await consumer.ack(message)

            while not (ours and member.bodies()):
                await asyncio.to_thread(servers.produce_bodies, "Shared", 2, *["early"] * 8)
                await take()
            bodies = [f"{number}" for number in range(COUNT)]
            await asyncio.to_thread(servers.produce_bodies, "Shared", 2, *bodies)
            while received().total() < COUNT:
                await take()
            assert received() == Counter(bodies)

    with servers.peer.running("Push", *arguments, home=home, properties=servers.java_properties):
        asyncio.run(run())
