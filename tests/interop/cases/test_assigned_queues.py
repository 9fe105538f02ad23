"""Push consumers of RocketMQ 5 whose queues the broker assigns, with our broker and RocketMQ's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.interop import probe
from tests.interop.cluster import Cluster
from tests.interop.java_member import JavaMember
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import Side, serve

pytestmark = pytest.mark.interop

SIDES = (
    Side("Java client", "our", "our", client_version="5.3.3"),
    Side("Java client", "our", "our", client_version="5.5.0"),
    Side("Java client", "java", "java", version="5.3.3", client_version="5.5.0"),  # checks the test setup
)


@pytest.fixture(params=SIDES, ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A name server and a broker."""
    with serve(request.param, peer, tmp_path_factory.mktemp("assigned")) as running:
        running.make_topic("Assigned", 4)
        yield running


@pytest.mark.parametrize("mode", ["default", "PULL"])
def test_members_share_queues_that_the_broker_assigns(servers: Cluster, mode: str) -> None:
    """Members with clientRebalance=false would get no messages, or get them twice; retries would be lost."""
    if mode != "default":
        group = ("updateSubGroup", "-b", servers.broker.address, "-g", "assigned")
        servers.admin_shows("success", *group)
        change = ("-b", servers.broker.address, "-t", "Assigned", "-g", "assigned", "-m", mode)
        servers.admin_shows(f"consume mode[{mode}]", "setConsumeMode", *change)
    with ExitStack() as stack:
        members = []
        for number in range(2):
            home = servers.run / f"{mode}-{number}"
            arguments = (servers.namesrv.address, "assigned", "Assigned", "AVG", "false", "true")
            stack.enter_context(
                servers.peer.running("Push", *arguments, home=home, properties=servers.java_properties)
            )
            members.append(JavaMember(home / "console.log"))

        def received() -> Counter[bytes]:
            return Counter(body for member in members for body in member.bodies())

        def both_receive() -> bool:
            servers.produce_bodies("Assigned", 4, "probe", "probe", "probe", "probe")
            return all(member.bodies() for member in members)

        probe.wait_until(both_receive, "messages at both members", step_s=1)
        bodies = [f"{number}" for number in range(40)]
        servers.produce_bodies("Assigned", 4, *bodies, "later")
        probe.wait_until(lambda: received()[b"later"] == 2, "the retry", step_s=1)
        probe.wait_until(lambda: len(received()) == 42, "all messages", step_s=1)
        assert [count for body, count in received().items() if body.isdigit()] == [1] * 40
