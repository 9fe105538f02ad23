"""Java clients with vipChannelEnabled, which connect to a broker's listenPort - 2."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.interop import probe
from tests.interop.cluster import cluster
from tests.interop.java_member import JavaMember
from tests.interop.java_peer import JavaPeer

pytestmark = pytest.mark.interop

DIRECTION = "Java client with vipChannelEnabled -> our servers"
VIP = {"com.rocketmq.sendMessageWithVIPChannel": "true"}
TOPIC = "Vip"
STEPS = [{"how": "sync", "topic": TOPIC, "body": (b"%d" % number).hex()} for number in range(20)]


def test_they_send_and_consume(peer: JavaPeer, tmp_path: Path) -> None:
    """Clients before 4.5 use that port by default: none of their sends would succeed."""
    with cluster(peer, tmp_path, namesrv="our", broker="our", client=VIP) as servers:
        assert {result["status"] for result in servers.produce(*STEPS)} == {"SEND_OK"}
        bodies = {step["body"] for step in STEPS}
        assert {one["body"] for one in servers.pull_all(TOPIC)} == bodies
        home, address = tmp_path / "consumer", servers.namesrv.address
        with peer.running("Push", address, "vips", TOPIC, "AVG", "false", home=home, properties=VIP):
            found = JavaMember(home / "console.log").bodies
            probe.wait_until(lambda: {body.hex() for body in found()} == bodies, "all messages")


def test_they_need_the_second_port(peer: JavaPeer, tmp_path: Path) -> None:
    """The case above would prove nothing if these clients used the first port."""
    conf = {"vipChannelEnable": "false"}
    with cluster(peer, tmp_path, namesrv="our", broker="our", client=VIP, conf=conf) as servers:
        (refused,) = servers.produce(STEPS[0])
        assert "still failed" in refused["message"]
        (sent,) = replace(servers, java_properties={}).produce(STEPS[0])
        assert sent["status"] == "SEND_OK"
