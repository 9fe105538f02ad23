"""Accounts and TLS: Java's client, mqadmin and rocketpy's client, and brokers of both with access control."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from rocketpy import ClientConfig, Message, Producer, PullConsumer
from rocketpy.config import Credentials
from rocketpy.errors import BrokerError
from tests.interop import probe
from tests.interop.certificates import issue
from tests.interop.cluster import BINARY_HEADERS, Cluster
from tests.interop.java_member import JavaMember
from tests.interop.java_peer import JavaPeer, make_home
from tests.interop.processes import JavaBroker
from tests.interop.sides import NEWER_VERSIONS, Side, serve

pytestmark = pytest.mark.interop

ACCOUNTS = """
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: application
  secretKey: its-secret
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - Orders=PUB|SUB
  - News=SUB
  groupPerms:
  - java-members=SUB
- accessKey: operator
  secretKey: other-secret
  admin: true
"""
SIDES = (
    Side("clients with keys", "java", "java"),
    Side("clients with keys", "our", "our"),
    Side("clients with keys", "our", "our", BINARY_HEADERS),
    Side("clients with keys", "java", "our"),
    *(
        Side("clients with keys", "our", "our", codec, client_version=version)
        for version in NEWER_VERSIONS
        for codec in ({}, BINARY_HEADERS)
    ),
)
APPLICATION, WRONG_SECRET = "application:its-secret", "application:wrong-secret"


@pytest.fixture(
    scope="module", params=SIDES, ids=lambda side: f"{side.direction}{'-bin' * bool(side.client)}"
)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A broker with access control, and two topics made by its operator."""
    side: Side = request.param
    run = tmp_path_factory.mktemp("access")
    home = run / f"{side.broker}-broker"
    conf = make_home(home) / "conf" if side.broker == "java" else home
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "plain_acl.yml").write_text(ACCOUNTS)
    tools = make_home(run / "mqadmin") / "conf" / "tools.yml"
    tools.write_text("accessKey: operator\nsecretKey: other-secret\n")
    with serve(side, peer, run, conf={"aclEnable": "true"}) as plain:
        # RocketMQ's tools look for their account once in the life of a JVM.
        ours_alone = {**plain.java_properties, "rocketmq.home.dir": str(run / "mqadmin")}
        running = replace(plain, java_properties=ours_alone)
        for topic in ("Orders", "News"):
            running.make_topic(topic, 2)
        yield running


def as_account(servers: Cluster, keys: str) -> Cluster:
    """The same servers, with Java clients that sign with these keys."""
    return replace(servers, java_properties={**servers.java_properties, "interop.keys": keys})


def test_an_account_sends_and_reads(servers: Cluster) -> None:
    """Java's clients could not be used with access control."""
    mine = as_account(servers, APPLICATION)
    steps = [{"how": how, "topic": "Orders", "body": b"x".hex()} for how in ("sync", "async", "oneway")]
    batch = {"how": "batch", "messages": [{"topic": "Orders", "body": b"x".hex()}] * 2}
    results = mine.produce(*steps, batch)
    assert [result.get("status") for result in results if "sent" not in result] == ["SEND_OK"] * 3, results
    probe.wait_until(lambda: len(mine.pull_all("Orders")) == 5, "five messages", step_s=1)


def test_messages_are_found_by_key_and_unique_id(servers: Cluster) -> None:
    """Look-ups would be rejected: Java clients up to 4.9.3 do not sign one of their fields, later ones do."""
    mine = as_account(servers, APPLICATION)
    key = f"k-{servers.topic('by')}"
    (sent,) = mine.produce({"how": "sync", "topic": "Orders", "body": b"x".hex(), "keys": key})
    assert sent.get("status") == "SEND_OK", sent
    look_up = {"do": "key", "topic": "Orders", "key": key}
    if isinstance(servers.broker, JavaBroker):
        (refused,) = mine.drive("Consume", look_up)
        assert "but no message" in refused["message"]  # 4.6.0's broker rejects the signature of its client
        return
    by_key, by_id = mine.consume(look_up, {"do": "view", "topic": "Orders", "id": sent["msgId"]})
    assert by_key["msgId"] == by_id["msgId"] == sent["msgId"]


@pytest.mark.parametrize(
    ("keys", "topic", "says"),
    [
        ("", "Orders", "No accessKey is configured"),
        ("somebody:its-secret", "Orders", "No acl config for somebody"),
        (WRONG_SECRET, "Orders", "Check signature failed for accessKey=application"),
        (APPLICATION, "News", "No default permission for topic:News"),
    ],
    ids=["no keys", "no account", "wrong secret", "no right"],
)
def test_rejections_have_the_same_text(servers: Cluster, keys: str, topic: str, says: str) -> None:
    """A client would mistake a rejection for an outage and retry without end."""
    (result,) = as_account(servers, keys).produce({"how": "sync", "topic": topic, "body": b"x".hex()})
    assert result["code"] == 1, result
    assert f"AclException: {says}" in result["remark"], result


async def test_rocketpys_client_sends_and_reads(servers: Cluster) -> None:
    """The client could not be used with servers that require signatures."""
    keys = Credentials(access_key="application", secret_key="its-secret")
    client = ClientConfig(namesrv=servers.namesrv.address, credentials=keys)
    async with Producer("p", client=client) as producer, PullConsumer("c", client=client) as consumer:
        result = await producer.send(Message("Orders", b"ours"))
        found = await consumer.pull(result.queue, result.queue_offset)
        assert [message.body for message in found.messages] == [b"ours"]
        with pytest.raises(BrokerError, match="No default permission for topic:News"):
            await producer.send(Message("News", b"x"), timeout_ms=3000)
    wrong = replace(client, credentials=Credentials(access_key="application", secret_key="wrong"))
    async with Producer("p", client=wrong) as producer:
        with pytest.raises(BrokerError, match="Check signature failed"):
            await producer.send(Message("Orders", b"x"), timeout_ms=3000)


@pytest.mark.parametrize("order", ["false", "true"], ids=["concurrently", "in order"])
def test_java_consumers_read_lock_and_send_back(servers: Cluster, order: str) -> None:
    """A consumer of Java's could not join its group, or would lose the messages that it could not handle."""
    mine = as_account(servers, APPLICATION)
    home = servers.run / f"member-{order}"
    arguments = (servers.namesrv.address, "java-members", "Orders", "AVG", order)
    with servers.peer.running("Push", *arguments, home=home, properties=mine.java_properties):
        member = JavaMember(home / "console.log")
        marks = [f"{order}-{number}".encode() for number in range(8)]
        later = [b"later"] * (order == "false")
        steps = [{"how": "sync", "topic": "Orders", "body": body.hex()} for body in marks + later]
        assert [result.get("status") for result in mine.produce(*steps)] == ["SEND_OK"] * len(steps)
        probe.wait_until(lambda: set(marks) <= set(member.bodies()), "all messages", step_s=1)
        if later:
            probe.wait_until(lambda: member.bodies().count(b"later") == 2, "the retry", step_s=1)


def test_operators_manage_accounts(servers: Cluster) -> None:
    """Mqadmin's commands for accounts would fail, or change nothing."""
    broker = servers.broker.address
    if servers.peer.version.startswith("5."):
        assert "not exist" in servers.admin("updateAclConfig")  # it has commands for ACL 2.0 only
        return
    made = servers.admin(
        "updateAclConfig",
        "-b",
        broker,
        "-a",
        "newcomer",
        "-s",
        "fresh-secret",
        "-t",
        "News=PUB",
        "-m",
        "false",
    )
    assert f"create or update plain access config to {broker} success" in made
    newcomer = as_account(servers, "newcomer:fresh-secret")

    def is_known() -> bool:
        (result,) = newcomer.produce({"how": "sync", "topic": "News", "body": b"x".hex()})
        return result.get("status") == "SEND_OK"

    probe.wait_until(is_known, "the new account", step_s=1)
    listed = servers.admin("getAccessConfigSubCommand", "-b", broker)
    assert re.findall(r"accessKey +: (\S+)", listed) == ["application", "operator", "newcomer"]
    shown = re.findall(r"secretKey +: (\S+)", listed)
    assert shown == ([] if "our" in str(servers.broker.conf["brokerName"]) else shown)
    version = servers.admin("clusterAclConfigVersion", "-c", "InteropCluster")
    assert str(servers.broker.conf["brokerName"]) in version
    gone = servers.admin("deleteAccessConfig", "-b", broker, "-a", "newcomer")
    assert re.search(f"delete plain access config account (to|from) {broker} success", gone), gone
    white = servers.admin("updateGlobalWhiteAddr", "-b", broker, "-g", "10.10.1.1,127.0.0.1")
    assert f"update global white remote addresses to {broker} success" in white

    def is_white() -> bool:
        (result,) = as_account(servers, "").produce({"how": "sync", "topic": "News", "body": b"x".hex()})
        return result.get("status") == "SEND_OK"

    probe.wait_until(is_white, "the white address", step_s=1)


TLS_SIDE = Side("Java client with TLS", "our", "our", {"tls.enable": "true", "tls.test.mode.enable": "true"})


@pytest.mark.parametrize("side", [TLS_SIDE], ids=lambda side: side.direction)
def test_java_clients_speak_tls(peer: JavaPeer, tmp_path: Path, side: Side) -> None:
    """A RocketMQ client with tls.enable would not reach rocketpy's servers."""
    authority = trustme.CA()
    cert = authority.issue_cert("127.0.0.1")
    cert.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    conf = tmp_path / "tls.properties"
    conf.write_text(
        f"tls.server.mode=permissive\ntls.server.certPath={tmp_path}/server.pem\n"
        f"tls.server.keyPath={tmp_path}/server.pem\n"
    )
    settings = {"tls.config.file": conf}
    with serve(side, peer, tmp_path, conf=settings, names_conf=settings) as servers:
        steps = [{"how": "sync", "topic": "Sealed", "body": (b"x" * 50_000).hex()} for _ in range(4)]
        assert [result.get("status") for result in servers.produce(*steps)] == ["SEND_OK"] * 4
        probe.wait_until(lambda: len(servers.pull_all("Sealed")) == 4, "the messages", step_s=1)


def test_java_clients_show_certificates(peer: JavaPeer, tmp_path: Path) -> None:
    """RocketMQ's clients with certificates would be rejected, or be accepted without one."""
    settings = {"tls.config.file": issue(trustme.CA(), tmp_path)}
    wrong = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": f"{tmp_path}/ca.pem",
    }
    known = {
        **wrong,
        "tls.client.certPath": f"{tmp_path}/client.pem",
        "tls.client.keyPath": f"{tmp_path}/client.key",
    }
    step = {"how": "sync", "topic": "Sealed", "body": b"x".hex()}
    side = Side("Java client with a certificate", "our", "our", known)
    with serve(side, peer, tmp_path / "known", conf=settings, names_conf=settings) as servers:
        assert servers.produce(step)[0].get("status") == "SEND_OK"
        assert replace(servers, java_properties=wrong).produce(step)[0].get("status") != "SEND_OK"
