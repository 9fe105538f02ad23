"""Users and policies (ACL 2.0): our AdminClient on RocketMQ 5.x, and its mqadmin on our broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rocketpy import AdminClient, ClientConfig, Message, Outcome, Producer, PullConsumer
from rocketpy.admin import Policy, User
from rocketpy.config import Credentials
from rocketpy.errors import BrokerError
from tests.interop import probe
from tests.interop.accounts import ACL_2, as_operator
from tests.interop.cluster import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import NEWER_VERSIONS, OPERATOR, Side, serve

pytestmark = pytest.mark.interop

VERSIONS = [version for version in NEWER_VERSIONS if version.startswith("5.")]
JAVA = [Side("our SDK", "java", "java", version=version) for version in VERSIONS]
OURS = [Side("mqadmin", "our", "our", client_version=version) for version in VERSIONS]
APP = Credentials(access_key="app", secret_key="app-secret")
OPERATOR_USER: Mapping[str, object] = {
    **ACL_2,
    "initAuthenticationUser": f'{{"username":"{OPERATOR.access_key}","password":"{OPERATOR.secret_key}"}}',
}
"""broker.conf with one user of the type Super."""


@pytest.fixture(scope="module", params=JAVA, ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """RocketMQ's servers of 5.x, with ACL 2.0."""
    with serve(request.param, peer, tmp_path_factory.mktemp("users"), conf=OPERATOR_USER) as running:
        yield running


@pytest.fixture(scope="module", params=OURS, ids=lambda side: side.direction)
def ours(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Our servers with ACL 2.0, for mqadmin of 5.x, which signs as the operator."""
    side: Side = request.param
    with serve(side, peer, tmp_path_factory.mktemp("users"), conf=OPERATOR_USER) as running:
        yield as_operator(running, peer.of_version(side.client_version))


def client(servers: Cluster, keys: Credentials) -> ClientConfig:
    """A client's settings with these keys."""
    return ClientConfig(namesrv=servers.namesrv.address, credentials=keys)


async def test_our_client_manages_users_and_policies(servers: Cluster) -> None:
    """Operators of a 5.x cluster would need its mqadmin."""
    async with AdminClient(client=client(servers, OPERATOR)) as admin:
        accounts = admin.accounts
        topic = servers.topic("users")
        await admin.create_topic(topic, 1)
        (broker,) = await accounts.users()
        await accounts.put_user("app", "app-secret")
        await accounts.put_user("other", "other-secret", is_super=True, is_enabled=False)
        users = (await accounts.users())[broker]
        assert users["app"] == User("app", is_super=False, is_enabled=True)
        assert users["other"] == User("other", is_super=True, is_enabled=False)
        assert users[OPERATOR.access_key].is_super
        async with Producer("g", client=client(servers, APP)) as producer:
            with pytest.raises(BrokerError, match="no permission") as caught:
                await producer.send(Message(topic, b"refused"))
            assert caught.value.outcome is Outcome.NOT_SENT
            policies = (
                Policy("app", f"Topic:{topic[:-1]}*", ("Pub", "Sub", "Get"), allows=True),
                Policy("app", "Group:readers", ("Sub", "Get"), allows=True, source_ips=("127.0.0.0/8",)),
                Policy("app", "*", ("All",), allows=False, is_default=True),
            )
            for policy in policies:
                await accounts.put_policy(policy)
            assert set((await accounts.policies("app"))[broker]) == set(policies)
            sent = await producer.send(Message(topic, b"accepted"))
            async with PullConsumer("readers", client=client(servers, APP)) as reader:
                assert (await reader.pull(sent.queue, sent.queue_offset)).messages[0].body == b"accepted"
            await accounts.put_policy(Policy("app", policies[0].resource, ("Pub",), allows=False))
            with pytest.raises(BrokerError, match="the decision is deny"):
                await producer.send(Message(topic, b"denied"))
            await accounts.delete_policies("app", policies[0].resource)
            assert len((await accounts.policies())[broker]) == 2
            await accounts.put_user("app", is_enabled=False)
            with pytest.raises(BrokerError, match="disabled"):
                await producer.send(Message(topic, b"disabled"))
        await accounts.delete_policies("app")
        assert (await accounts.policies("app"))[broker] == ()
        for name in ("app", "other"):
            await accounts.delete_user(name)
        assert set((await accounts.users())[broker]) == {OPERATOR.access_key}


def test_mqadmin_manages_users_and_policies_of_our_broker(ours: Cluster) -> None:
    """Operators could not use their scripts on our broker, or would see success where nothing has changed."""
    to = ("-b", ours.broker.address)
    topic = ours.topic("mqadmin_users")
    ours.make_topic(topic, 1)
    assert "success" in ours.admin("createUser", *to, "-u", "app", "-p", "app-secret", "-t", "Normal")
    assert "The user is existed" in ours.admin("createUser", *to, "-u", "app", "-p", "app-secret")
    shown = ours.admin("getUser", *to, "-u", "app").split()
    assert shown[-4:] == ["app", "app-secret", "Normal", "enable"]
    assert "success" in ours.admin("updateUser", *to, "-u", "app", "-s", "disable")
    listed = ours.admin("listUser", *to)
    assert {"app", "disable", OPERATOR.access_key, "Super"} <= set(listed.split())
    assert OPERATOR.access_key not in ours.admin("listUser", *to, "-f", "app")
    rights = ("-s", "User:app", "-r", f"Topic:{topic},Topic:Or*", "-a", "Pub,Sub", "-d", "Allow")
    assert "success" in ours.admin("createAcl", *to, *rights, "-i", "127.0.0.1,10.0.0.0/8")
    rules = ours.admin("getAcl", *to, "-s", "User:app")
    assert {"User:app", "Custom", f"Topic:{topic}", "Topic:Or*", "Allow"} <= set(rules.split())
    denied = ("-s", "User:app", "-r", "Topic:Or*", "-a", "All", "-d", "Deny")
    assert "success" in ours.admin("updateAcl", *to, *denied)
    assert "Deny" in ours.admin("listAcl", *to, "-r", "Topic:Or")
    assert "success" in ours.admin("deleteAcl", *to, "-s", "User:app", "-r", "Topic:Or*")
    assert "Topic:Or*" not in ours.admin("listAcl", *to)
    assert "Publish" in ours.admin(
        "createAcl", *to, "-s", "User:app", "-r", "Topic:A", "-a", "Publish", "-d", "Allow"
    )
    assert "success" in ours.admin("deleteUser", *to, "-u", "app")
    assert "app-secret" not in ours.admin("listUser", *to)


def test_mqadmin_copies_users_from_rocketmq_to_our_broker(
    servers: Cluster, peer: JavaPeer, tmp_path: Path
) -> None:
    """The users of a 5.x cluster would have to be written again, without knowing their passwords."""
    source = as_operator(servers, peer.of_version(servers.version))
    rights = ("-s", "User:copied", "-r", "Topic:*", "-a", "Pub,Get", "-d", "Allow")
    created = (
        "createUser",
        "-b",
        source.broker.address,
        "-u",
        "copied",
        "-p",
        "copied-secret",
        "-t",
        "Normal",
    )
    assert "success" in source.admin(*created)
    assert "success" in source.admin("createAcl", "-b", source.broker.address, *rights)
    side = Side("mqadmin", "our", "our", client_version=servers.version)
    with serve(side, peer, tmp_path, conf=OPERATOR_USER) as target:
        ours = as_operator(target, peer.of_version(servers.version))
        both = ("-f", source.broker.address, "-t", ours.broker.address)
        assert "success" in ours.admin("copyUser", *both, "-u", "copied")
        assert "success" in ours.admin("copyAcl", *both, "-s", "User:copied")
        shown = ours.admin("getUser", "-b", ours.broker.address, "-u", "copied").split()
        assert shown[-4:] == ["copied", "copied-secret", "Normal", "enable"]
        assert {"Topic:*", "Allow"} <= set(
            ours.admin("getAcl", "-b", ours.broker.address, "-s", "User:copied").split()
        )
        back = ("-f", ours.broker.address, "-t", source.broker.address)
        assert "success" in ours.admin("copyUser", *back, "-u", "copied")


def test_a_java_client_of_rocketmq_5_uses_our_broker_as_a_user(ours: Cluster) -> None:
    """Java applications could not sign in, although they sign as with ACL 1.0."""
    to = ("-b", ours.broker.address)
    topic, closed = ours.topic("java_users"), ours.topic("java_closed")
    for name in (topic, closed):
        ours.make_topic(name, 1)
    assert "success" in ours.admin("createUser", *to, "-u", "java", "-p", "java-secret", "-t", "Normal")
    for resource in (f"Topic:{topic}", "Group:*"):
        rights = ("-s", "User:java", "-r", resource, "-a", "Pub,Sub", "-d", "Allow")
        assert "success" in ours.admin("createAcl", *to, *rights)
    mine, wrong = (
        replace(ours, java_properties={**ours.java_properties, "interop.keys": keys})
        for keys in ("java:java-secret", "java:wrong-secret")
    )
    steps = [{"how": how, "topic": topic, "body": b"x".hex()} for how in ("sync", "async")]
    batch = {"how": "batch", "messages": [{"topic": topic, "body": b"x".hex()}] * 2}
    results = mine.produce(*steps, batch)
    assert [result.get("status") for result in results] == ["SEND_OK"] * 3, results
    probe.wait_until(lambda: len(mine.pull_all(topic)) == 4, "four messages", step_s=1)
    (refused,) = mine.produce({"how": "sync", "topic": closed, "body": b"x".hex()})
    assert f"User:java has no permission to access Topic:{closed}" in str(refused)
    (refused,) = wrong.produce({"how": "sync", "topic": topic, "body": b"x".hex()})
    assert "Check signature failed" in str(refused)
