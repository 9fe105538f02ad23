"""RocketMQ's DefaultLitePullConsumer with our servers. From 5.0 on, its pulls have their own request code."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpy import AdminClient, ClientConfig
from tests.interop import probe
from tests.interop.cluster import Cluster
from tests.interop.java_member import JavaMember
from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer
from tests.interop.sides import NEWER_VERSIONS, OPERATOR, OPERATOR_ACL, Side, serve
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.interop

DIRECTION = "Java lite pull consumer -> our servers"
READERS = """
- accessKey: lite-reader
  secretKey: its-secret
  admin: false
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""


@pytest.fixture(scope="module")
def servers(peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Our servers, with access control."""
    run = tmp_path_factory.mktemp("lite-pull")
    (run / "our-broker").mkdir()
    (run / "our-broker" / "plain_acl.yml").write_text(OPERATOR_ACL + READERS.lstrip())
    keys = {"interop.keys": "lite-reader:its-secret"}
    side = Side("Java lite pull consumer", "our", "our", client=keys)
    with serve(side, peer, run, conf={"aclEnable": "true"}) as running:
        yield running


@pytest.mark.parametrize("how", ["subscribe", "assign"])
@pytest.mark.parametrize("version", [DEFAULT_VERSION, *NEWER_VERSIONS])
async def test_every_message_arrives(
    servers: Cluster, peer: JavaPeer, tmp_path: Path, version: str, how: str
) -> None:
    """A consumer of RocketMQ 5.x would receive nothing, and log that its request is not supported."""
    topic, group = servers.topic("lite"), f"lite_{how}_{version.replace('.', '_')}"
    first, later = (
        [{"how": "sync", "topic": topic, "body": f"{n}".encode().hex()} for n in numbers]
        for numbers in (range(20), range(20, 40))
    )
    servers.produce(*first)
    arguments = ("LitePull", servers.namesrv.address, group, topic, how)
    reader = peer.of_version(version)
    with reader.running(*arguments, home=tmp_path, properties=servers.java_properties):
        member = JavaMember(tmp_path / "console.log")

        def found() -> set[bytes]:
            return set(member.bodies())  # some may come twice, as a queue is read before its seek

        probe.wait_until(lambda: len(found()) >= 20, "the messages that were stored before")
        servers.produce(*later)  # for pulls that the broker holds
        probe.wait_until(lambda: len(found()) >= 40, "the messages that came later")
        assert found() == {b"%d" % n for n in range(40)}
        config = ClientConfig(namesrv=servers.namesrv.address, credentials=OPERATOR)
        async with AdminClient(client=config) as admin:
            async with asyncio.timeout(LIMIT_S):
                while (await admin.groups.lag(group, topic)).total:  # noqa: ASYNC110 - another process commits
                    await asyncio.sleep(0.1)
