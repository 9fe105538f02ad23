"""admin.accounts: who may use a broker with access control."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocketpy import AdminClient, ClientConfig, Message, Producer
from rocketpy.config import Credentials
from rocketpy.errors import BrokerError, BrokersFailed, ConfigInvalid
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.access_place import Servers, keys
from tests.integration.sdk_groups import SETTINGS
from tests.mqproducer.place import eventually
from tests.waiting import until


def admin_of(servers: Servers, *, account: str = "operator", namespace: str = "") -> AdminClient:
    client = ClientConfig(namesrv=str(servers.names), credentials=keys(account), namespace=namespace)
    return AdminClient(client=client)


async def is_accepted(servers: Servers, access_key: str, secret_key: str, topic: str) -> bool:
    """Whether an account may send to a topic."""
    own = Credentials(access_key=access_key, secret_key=secret_key)
    client = ClientConfig(namesrv=str(servers.names), credentials=own)
    async with Producer("newcomers", client=client) as producer:
        try:
            await producer.send(Message(topic, b"x"), timeout_ms=3000)
        except BrokerError:
            return False
        return True


async def test_accounts_are_added_changed_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application would keep rights that were taken from it, or not get those that it was given."""
    async with Servers(tmp_path, monkeypatch) as servers, admin_of(servers) as admin:
        await admin.create_topic("News")
        name = servers.broker.config.name
        before = (await admin.accounts.versions())[name]
        assert not await is_accepted(servers, "newcomer", "fresh-secret", "News")
        await admin.accounts.put(
            "newcomer", "fresh-secret", topic_perms={"News": "PUB"}, group_perms={"newcomers": "SUB"}
        )
        found = (await admin.accounts.list())[name].accounts
        assert set(found) > {"newcomer", "operator"}
        assert (found["newcomer"].topic_perms, found["newcomer"].admin) == ({"News": "PUB"}, False)
        assert found["operator"].admin
        assert "secret" not in repr(found)

        async def accepted() -> bool | None:
            return await is_accepted(servers, "newcomer", "fresh-secret", "News") or None

        assert await eventually(accepted)  # after the name server, too, has read the file
        await admin.accounts.put("newcomer", topic_perms={"News": "DENY"}, default_group_perm="SUB")
        changed = (await admin.accounts.list())[name].accounts["newcomer"]
        assert (changed.topic_perms, changed.group_perms) == ({"News": "DENY"}, {"newcomers": "SUB"})
        assert changed.default_group_perm == "SUB"
        assert not await is_accepted(servers, "newcomer", "fresh-secret", "News")
        after = (await admin.accounts.versions())[name]
        assert after.counter == before.counter + 2
        assert after.changed_ms > before.changed_ms
        await admin.accounts.delete("newcomer")
        assert "newcomer" not in (await admin.accounts.list())[name].accounts
        with pytest.raises(BrokerError, match="newcomer"):
            await admin.accounts.delete("newcomer")
        with pytest.raises(BrokerError):
            await admin.accounts.put("tiny", "x")
        with pytest.raises(ConfigInvalid, match="Nowhere"):
            await admin.accounts.list("Nowhere")


async def test_an_administrator_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new secret would take the rights of an administrator."""
    async with Servers(tmp_path, monkeypatch) as servers, admin_of(servers) as admin:
        name = servers.broker.config.name

        async def is_admin() -> bool:
            return (await admin.accounts.list())[name].accounts["newcomer"].admin

        for is_given, expected in ((True, True), (None, True), (False, False), (None, False)):
            await admin.accounts.put("newcomer", "fresh-secret", admin=is_given)
            assert await is_admin() == expected


@pytest.mark.parametrize(
    "given",
    [
        {"secret_key": ""},
        {"secret_key": " "},
        {"white_address": ""},
        {"default_topic_perm": ""},
        {"default_group_perm": " "},
        {"topic_perms": {}},
        {"group_perms": {}},
    ],
)
async def test_an_empty_value_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    """A secret that everybody knows, or an address without signature, would stay in force after a success."""
    async with Servers(tmp_path, monkeypatch) as servers, admin_of(servers) as admin:
        before = (await admin.accounts.versions())[servers.broker.config.name]
        with pytest.raises(ConfigInvalid, match=f"{next(iter(given))} is blank"):
            await admin.accounts.put("my-account", **given)
        assert (await admin.accounts.versions())[servers.broker.config.name] == before


async def test_a_request_keeps_what_was_written_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request just after a person had removed an account from the file would bring it back."""
    async with Servers(tmp_path, monkeypatch) as servers, admin_of(servers) as admin:
        file = tmp_path / "plain_acl.yml"
        lines = file.read_text().splitlines()
        kept = [line for line in lines if "all-defaults" not in line]
        assert len(kept) == len(lines) - 1
        file.write_text("\n".join(kept))
        await admin.accounts.put("newcomer", "fresh-secret")
        accounts = (await admin.accounts.list())[servers.broker.config.name].accounts
        assert "newcomer" in accounts
        assert "all-defaults" not in accounts


async def test_a_spoilt_file_is_kept_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change would replace what a person has written, and nobody would see that it has no effect."""
    async with Servers(tmp_path, monkeypatch) as servers, admin_of(servers) as admin:
        file, broker = tmp_path / "plain_acl.yml", servers.broker
        good = file.read_text()
        file.write_text(good + "- {accessKey: short\n")
        for _ in range(2):
            with pytest.raises(BrokerError, match=r"plain_acl\.yml: invalid YAML"):
                await admin.accounts.put("newcomer", "fresh-secret")
        assert file.read_text() == good + "- {accessKey: short\n"
        assert str(file) in broker.health().access_problem
        assert str(file) in (await admin.brokers.runtime(str(broker.address)))["brokerProblem"]
        await until(lambda: servers.name_server.access_problem)
        file.write_text(good)
        await until(lambda: not broker.health().access_problem and not servers.name_server.access_problem)
        await admin.accounts.put("newcomer", "fresh-secret")


async def test_white_addresses_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine would be let in without a signature, or be shut out."""
    async with Servers(tmp_path, monkeypatch) as servers, admin_of(servers) as admin:
        name = servers.broker.config.name
        await admin.accounts.set_white_addresses(["10.10.1.1", "192.168.0.*"])
        assert (await admin.accounts.list())[name].white_addresses == ["10.10.1.1", "192.168.0.*"]
        await admin.accounts.set_white_addresses([])
        assert (await admin.accounts.list())[name].white_addresses == []


async def test_rights_are_those_of_the_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant's account would get rights to another tenant's topics."""
    async with Servers(tmp_path, monkeypatch) as servers, admin_of(servers, namespace="tenant") as admin:
        await admin.accounts.put("newcomer", "fresh-secret", topic_perms={"News": "PUB"})
        (rules,) = (await admin.accounts.list()).values()
        assert rules.accounts["newcomer"].topic_perms == {"News": "PUB"}
        async with admin_of(servers) as outside:
            (rules,) = (await outside.accounts.list()).values()
            assert rules.accounts["newcomer"].topic_perms == {"tenant%News": "PUB"}


async def test_others_may_not_see_or_change_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An application could give itself any right."""
    async with Servers(tmp_path, monkeypatch) as servers, admin_of(servers, account="my-account") as admin:
        for call in (
            admin.accounts.list(),
            admin.accounts.put("my-account", admin=True),
            admin.accounts.delete("operator"),
            admin.accounts.set_white_addresses(["*.*.*.*"]),
        ):
            with pytest.raises(BrokerError, match="AclException"):
                await call


async def test_every_broker_is_changed() -> None:
    """A deleted account could still read from a slave, or from the broker of another name."""
    async with (
        EmbeddedCluster(brokers=2, slaves=1, settings=SETTINGS) as cluster,
        AdminClient(cluster.namesrv_address) as admin,
    ):
        with pytest.raises(BrokersFailed, match="access control is off") as failure:
            await admin.accounts.delete("newcomer")
        assert list(failure.value.errors) == ["broker-a", "broker-a/1", "broker-b", "broker-b/1"]


async def test_brokers_without_access_control_say_so(cluster: EmbeddedCluster) -> None:
    """An operator would believe that an account protects a broker that admits everyone."""
    async with AdminClient(cluster.namesrv_address) as admin:
        for call in (
            admin.accounts.list(),
            admin.accounts.versions(),
            admin.accounts.put("newcomer", "fresh-secret"),
            admin.accounts.delete("newcomer"),
        ):
            with pytest.raises(BrokerError, match="access control is off"):
                await call
