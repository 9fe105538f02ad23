"""Users and policies (ACL 2.0): a broker and a name server that share them, with real clients."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocketpy import (
    ConsumeFrom,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
)
from rocketpy.admin import Policy, User
from rocketpy.errors import BrokerError, BrokersFailed, ConfigInvalid, RocketError, RouteNotFound
from rocketpy.protocol.bodies import UserInfo
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import ListUsersRequestHeader, UserRequestHeader
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy.transport import Address
from rocketpy_broker import Broker, load_broker_config
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.security.allowed_callers import BROKER_CALLERS
from tests.integration.cli.commands import Done, run
from tests.integration.raw_client import RawClient
from tests.integration.small import SMALL
from tests.integration.users_place import BOSS, Servers, servers_at
from tests.mqproducer.place import eventually


async def is_accepted(servers: Servers, name: str, password: str, topic: str) -> bool:
    """Whether a user may send to a topic."""
    async with Producer("g", client=servers.client(name, password)) as producer:
        try:
            await producer.send(Message(topic, b"x"), timeout_ms=3000)
        except BrokerError:
            return False
        return True


async def test_a_user_sends_and_consumes_what_its_policies_allow(tmp_path: Path) -> None:
    """An application could not use its topics, or use those of others."""
    async with servers_at(tmp_path) as servers, servers.admin() as admin:
        for topic in ("Orders", "Secret"):
            await admin.create_topic(topic)
        await admin.accounts.put_user("app", "app-secret")
        assert not await is_accepted(servers, "app", "app-secret", "Orders")
        await admin.accounts.put_policy(Policy("app", "Topic:Ord*", ("Pub", "Sub"), allows=True))
        await admin.accounts.put_policy(Policy("app", "Group:workers", ("Sub",), allows=True))

        async def accepted() -> bool | None:
            return await is_accepted(servers, "app", "app-secret", "Orders") or None

        assert await eventually(accepted)  # after the name server, too, has read the file
        assert not await is_accepted(servers, "app", "app-secret", "Secret")
        assert not await is_accepted(servers, "app", "wrong-secret", "Orders")
        received: asyncio.Queue[bytes] = asyncio.Queue()

        async def take(message: MessageExt) -> None:
            received.put_nowait(message.body)

        config = PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer = PushConsumer(
            "workers", handler=take, config=config, client=servers.client("app", "app-secret")
        )
        consumer.subscribe("Orders")
        async with consumer:
            assert await asyncio.wait_for(received.get(), 60) == b"x"
            async with Producer("g", client=servers.client("app", "app-secret")) as producer:
                await producer.send_in_transaction(
                    Message("Orders", b"committed"),
                    local_transaction=lambda _: LocalTransactionState.COMMIT,
                    check=lambda _: LocalTransactionState.UNKNOWN,
                )
            assert await asyncio.wait_for(received.get(), 60) == b"committed"
        await admin.accounts.put_user("app", is_enabled=False)
        assert not await is_accepted(servers, "app", "app-secret", "Orders")
        response = await servers.ask(("app", "app-secret"), RequestCode.GET_BROKER_CONFIG, {})
        assert (response.code, response.remark) == (ResponseCode.NO_PERMISSION, "User:app is disabled.")


async def test_users_and_policies_are_listed_changed_and_deleted(tmp_path: Path) -> None:
    """An operator would not see who may do what, or could not change it."""
    async with servers_at(tmp_path) as servers, servers.admin(namespace="ns") as admin:
        accounts, name = admin.accounts, servers.broker.config.name
        with pytest.raises(ConfigInvalid, match="a new user needs a password"):
            await accounts.put_user("app")
        await accounts.put_user("app", "app-secret")
        for blank in ("", " "):
            with pytest.raises(ConfigInvalid, match="password is blank: brokers would keep the old value"):
                await accounts.put_user("app", blank)
        await accounts.put_user("app", is_super=False)
        assert (await accounts.users())[name] == {
            "app": User("app", is_super=False, is_enabled=True),
            "boss": User("boss", is_super=True, is_enabled=True),
            "inner": User("inner", is_super=True, is_enabled=True),
        }
        policies = (
            Policy("app", "Topic:Orders", ("Pub", "Sub"), allows=True, source_ips=("10.0.0.0/8",)),
            Policy("app", "*", ("All",), allows=False, is_default=True),
        )
        for policy in policies:
            await accounts.put_policy(policy)
        assert (await accounts.policies("app"))[name] == policies
        assert (await accounts.policies("ap"))[name] == ()
        assert "Topic:ns%Orders" in (tmp_path / "store" / "config" / "auth.json").read_text()
        await accounts.delete_policies("app", "Topic:Orders")
        assert (await accounts.policies())[name] == policies[1:]
        await accounts.delete_policies("app", "*", is_default=True)
        assert (await accounts.policies())[name] == ()
        await accounts.delete_user("app")
        assert "app" not in (await accounts.users())[name]
        with pytest.raises(BrokerError, match="has users and policies"):
            await accounts.list()


async def test_a_request_keeps_what_was_written_to_the_file(tmp_path: Path) -> None:
    """A request just after a person had disabled a user in the file would enable it again."""
    async with servers_at(tmp_path) as servers, servers.admin() as admin:
        accounts, file = admin.accounts, tmp_path / "store" / "config" / "auth.json"
        await accounts.put_user("app", "app-secret")
        contents = json.loads(file.read_text())
        contents["users"][0]["userStatus"] = "disable"
        file.write_text(json.dumps(contents))
        await accounts.put_user("other", "other-secret")
        assert not (await accounts.users())[servers.broker.config.name]["app"].is_enabled
        broken = file.read_text()[:-3]
        file.write_text(broken)
        with pytest.raises(BrokerError, match=r"the change would replace a file: .*auth\.json") as caught:
            await accounts.put_user("third", "third-secret")
        assert "secret" not in str(caught.value)
        assert file.read_text() == broken


async def test_users_are_copied_to_another_broker(tmp_path: Path) -> None:
    """A new slave would reject the clients of its master."""
    async with servers_at(tmp_path, has_slave=True) as servers, servers.admin() as admin:
        name = servers.broker.config.name
        request = UserInfo(username="app", password="app-secret")
        header = UserRequestHeader(username="app").ext_fields()
        assert not (await servers.ask(BOSS, RequestCode.AUTH_CREATE_USER, header, request.encode())).code

        async def registered() -> bool | None:
            return len(await admin.accounts.users()) == 2 or None

        assert await eventually(registered)
        found = await admin.accounts.users()
        assert ("app" in found[name], "app" in found[f"{name}/1"]) == (True, False)
        assert await admin.accounts.copy_users(name, f"{name}/1") == ("app", "boss", "inner")
        policy = Policy("app", "Topic:A", ("Pub",), allows=True)
        await admin.accounts.put_policy(policy)
        assert await admin.accounts.policies("app") == {name: (policy,), f"{name}/1": (policy,)}
        with pytest.raises(ConfigInvalid, match="there is no broker nowhere"):
            await admin.accounts.copy_users(name, "nowhere")


async def test_rights_to_administrate_can_be_given(tmp_path: Path) -> None:
    """Every operator would need the rights of a Super user, or a Normal one could make itself Super."""
    async with servers_at(tmp_path) as servers, servers.admin() as admin:
        await admin.accounts.put_user("ops", "ops-secret")
        ops = ("ops", "ops-secret")
        config = {"code": RequestCode.GET_BROKER_CONFIG, "fields": {}}
        assert (await servers.ask(ops, **config)).code == ResponseCode.NO_PERMISSION  # type: ignore[arg-type]
        for resource, actions in (("Cluster:*", ("Get", "Update")), ("Topic:Ops*", ("Create", "Get"))):
            await admin.accounts.put_policy(Policy("ops", resource, actions, allows=True))
        assert not (await servers.ask(ops, **config)).code  # type: ignore[arg-type]
        create = {
            "topic": "OpsTopic", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
            "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        assert not (await servers.ask(ops, RequestCode.UPDATE_AND_CREATE_TOPIC, create)).code
        other = create | {"topic": "Orders"}
        response = await servers.ask(ops, RequestCode.UPDATE_AND_CREATE_TOPIC, other)
        assert response.code == ResponseCode.NO_PERMISSION
        assert "User:ops has no permission to access Topic:Orders from 127.0.0.1" in (response.remark or "")
        # no way to more rights, and no passwords
        for code, name, change in (
            (RequestCode.AUTH_CREATE_USER, "new", UserInfo(password="p", user_type="super")),
            (RequestCode.AUTH_UPDATE_USER, "ops", UserInfo(user_type="Super")),
            (RequestCode.AUTH_UPDATE_USER, "boss", UserInfo(password="mine")),
            (RequestCode.AUTH_DELETE_USER, "boss", UserInfo()),
        ):
            fields = UserRequestHeader(username=name).ext_fields()
            refused = await servers.ask(ops, code, fields, change.encode())
            assert (refused.code, "super user can only be" in (refused.remark or "")) == (1, True)
        listing = ListUsersRequestHeader().ext_fields()
        seen = {by: (await servers.ask(by, RequestCode.AUTH_LIST_USER, listing)).body for by in (BOSS, ops)}
        assert {user["username"] for user in json.loads(seen[ops])} == {"boss", "inner", "ops"}
        assert (b"secret" in seen[BOSS], b"secret" in seen[ops]) == (True, False)
        # requests of brokers stay with Super users
        assert (await servers.ask(ops, RequestCode.GET_ALL_TOPIC_CONFIG, {})).code == 0
        assert (
            await servers.ask(None, RequestCode.GET_BROKER_CONFIG, {})
        ).remark == "username cannot be null."


async def test_a_change_that_a_master_does_not_get_fails(tmp_path: Path) -> None:
    """A user that an operator has disabled could still sign in at a master that was away meanwhile."""
    async with servers_at(tmp_path, has_slave=True) as servers, servers.admin() as admin:
        accounts, name = admin.accounts, servers.broker.config.name
        assert set(await accounts.users()) == {name, f"{name}/1"}
        await servers.broker.close()
        with pytest.raises(BrokersFailed, match="has no master now; repeat the call") as failure:
            await accounts.put_user("app", "app-secret")
        assert (set(failure.value.errors), set(failure.value.results)) == ({name}, {f"{name}/1"})
        with pytest.raises(RouteNotFound, match=f"broker {name} has no master now"):
            await accounts.copy_users(f"{name}/1", name)
        assert servers.slave is not None
        await servers.slave.close()
        for call in (accounts.users(), accounts.put_user("app", is_enabled=False), accounts.list()):
            with pytest.raises(RouteNotFound, match="the name server knows no broker"):
                await call


async def test_rights_are_taken_away_although_a_broker_is_away(tmp_path: Path) -> None:
    """An application would keep its rights at all brokers for as long as one of them is down."""
    async with servers_at(tmp_path, has_slave=True) as servers, servers.admin() as admin:
        await admin.accounts.put_user("app", "app-secret")
        await admin.accounts.put_policy(Policy("app", "Topic:A", ("Pub",), allows=True))
        await servers.broker.close()
        file = tmp_path / "slave" / "config" / "auth.json"
        keys = {"ROCKETPY_ACCESS_KEY": BOSS[0], "ROCKETPY_SECRET_KEY": BOSS[1]}

        async def fails(*words: str) -> Done:
            done = await run("--namesrv", str(servers.names.address), *words, "--yes", given=b"", **keys)
            assert (done.status, "has no master now" in done.err) == (1, True)
            return done

        await fails("policy", "delete", "app", "Topic:B")
        assert "Topic:A" in file.read_text()
        await fails("policy", "delete", "app", "Topic:A")
        assert "Topic:A" not in file.read_text()
        assert "app" in (await fails("user", "delete", "app", "--dry-run")).out
        await fails("user", "delete", "app")
        assert '"app"' not in file.read_text()


async def test_a_denial_for_the_cluster_applies_at_name_servers(tmp_path: Path) -> None:
    """A user who must not read the settings of a cluster could read those of its name servers."""
    async with servers_at(tmp_path) as servers, servers.admin() as admin:
        await admin.accounts.put_user("ops", "ops-secret")

        async def is_served(*, expected: bool) -> bool | None:
            response = await servers.ask(
                ("ops", "ops-secret"), RequestCode.GET_NAMESRV_CONFIG, {}, at=servers.names.address
            )
            return (response.code == ResponseCode.SUCCESS) is expected or None

        await admin.accounts.put_policy(Policy("ops", "Cluster:*", ("Get",), allows=True))
        assert await eventually(lambda: is_served(expected=True))
        denied = Policy("ops", f"Cluster:{servers.broker.config.cluster_name}", ("Get",), allows=False)
        await admin.accounts.put_policy(denied)
        assert await eventually(lambda: is_served(expected=False))


async def test_a_consumer_sends_back_with_the_right_to_read_only(tmp_path: Path) -> None:
    """With the policies of a 5.x cluster, a message whose handler failed would not be delivered again."""
    conf = "messageDelayLevel=1s 1s 1s 1s\n"
    async with servers_at(tmp_path, conf=conf) as servers, servers.admin() as admin:
        await admin.create_topic("Orders", 1)
        await admin.accounts.put_user("reader", "reader-secret")
        for resource in ("Topic:Orders", "Group:workers"):
            await admin.accounts.put_policy(Policy("reader", resource, ("Sub",), allows=True))
        reader = servers.client("reader", "reader-secret")

        async def known() -> bool | None:
            response = await servers.ask(
                ("reader", "reader-secret"), RequestCode.GET_MAX_OFFSET, {"topic": "Orders", "queueId": "0"}
            )
            return response.code == 0 or None

        assert await eventually(known)
        async with Producer("g", client=servers.client(*BOSS)) as producer:
            await producer.send(Message("Orders", b"x"))
        attempts: asyncio.Queue[int] = asyncio.Queue()

        async def fail_once(message: MessageExt) -> None:
            attempts.put_nowait(message.reconsume_times)
            if not message.reconsume_times:
                raise ValueError

        config = PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer = PushConsumer("workers", handler=fail_once, config=config, client=reader)
        consumer.subscribe("Orders")
        async with consumer:
            assert [await asyncio.wait_for(attempts.get(), 60) for _ in range(2)] == [0, 1]


async def test_a_user_without_policies_may_use_no_request(tmp_path: Path) -> None:
    """A request code whose rule asks for nothing of users would be open to each of them."""
    names = ("topic", "b", "originTopic", "group", "consumerGroup", "producerGroup", "compareGroup")
    fields = dict.fromkeys((*names, "groupName", "srcGroup", "destGroup"), "Name")
    async with servers_at(tmp_path) as servers, servers.admin() as admin:
        await admin.accounts.put_user("nobody", "nobody-secret")
        accepted = set()
        for code in BROKER_CALLERS:
            response = await servers.ask(("nobody", "nobody-secret"), code, fields)
            if response.code != ResponseCode.NO_PERMISSION:
                accepted.add(RequestCode(code).name)
        assert accepted == {"GET_SYSTEM_TOPIC_LIST_FROM_BROKER"}


async def test_without_authorization_every_user_may_do_everything(tmp_path: Path) -> None:
    """AuthenticationEnabled alone asks only who somebody is, as in RocketMQ 5."""
    async with servers_at(tmp_path, conf="authorizationEnabled=false\n") as servers, servers.admin() as admin:
        await admin.accounts.put_user("app", "app-secret")
        assert not (await servers.ask(("app", "app-secret"), RequestCode.GET_BROKER_CONFIG, {})).code
        assert (await servers.ask(("app", "wrong"), RequestCode.GET_BROKER_CONFIG, {})).code


async def test_a_name_cannot_forge_a_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody could write lines into the log of a broker, without an account."""
    caplog.set_level("INFO", "rocketpy.broker.access")
    async with servers_at(tmp_path) as servers:
        name = "x\nrequest from 10.0.0.1 accepted" + "y" * 5000
        assert (
            await servers.ask((name, "s"), RequestCode.GET_BROKER_CONFIG, {})
        ).code != ResponseCode.SUCCESS
    (found,) = [text for text in caplog.messages if "rejected: User:x" in text]
    assert "\n" not in found
    assert len(found) < 1200


async def test_the_configuration_does_not_show_passwords(tmp_path: Path) -> None:
    """Everybody who may read settings could act as a Super user."""
    async with servers_at(tmp_path) as servers:
        config = (await servers.ask(BOSS, RequestCode.GET_BROKER_CONFIG, {})).body
        assert b"authenticationEnabled=true" in config
        assert b"secret" not in config


@pytest.mark.parametrize("code", [3001, 3005, 3010])
async def test_a_broker_without_users_says_so(tmp_path: Path, code: int) -> None:
    """Mqadmin of 5.x would report success where nothing is protected."""
    settings = {**SMALL, "storePathRootDir": str(tmp_path), "listenPort": "0"}
    broker = Broker(load_broker_config(None, settings))
    await broker.start()
    try:
        async with await RawClient.open(Address.parse(str(broker.address))) as client:
            response = await client.call_frame(encode_command(Command.request(code, None, b"{}")))
        assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "authenticationEnabled=false" in (response.remark or "")
    finally:
        await broker.close()


def test_the_command_copies_accounts(tmp_path: Path) -> None:
    """Operators would have to write all users by hand, or lose the way back to accounts."""
    plain, target = tmp_path / "plain_acl.yml", tmp_path / "config"
    text = "accounts:\n- {accessKey: operator, secretKey: operator-secret, admin: true}\n"
    text += (
        "- {accessKey: my-account, secretKey: my-secret, topicPerms: [A=PUB], whiteRemoteAddress: 10.*.*.*}\n"
    )
    plain.write_text(text)
    command = [sys.executable, "-m", "rocketpy_broker", "migrate-acl", str(plain), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "copied operator",
        "copied my-account",
        "not copied: whiteRemoteAddress of my-account",
        f"{target}/auth.json has 2 users",
    ]
    assert plain.read_text() == text
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "kept the user operator, which exists" in again.stdout
    wrong = [*command[:-2], str(tmp_path / "none"), str(target)]
    failed = subprocess.run(wrong, capture_output=True, text=True, check=False)
    assert (failed.returncode, "none: " in failed.stderr) == (1, True)


async def test_commands_manage_users_and_policies(tmp_path: Path) -> None:
    """Operators would need Java's mqadmin."""
    async with servers_at(tmp_path) as servers:
        keys = {"ROCKETPY_ACCESS_KEY": BOSS[0], "ROCKETPY_SECRET_KEY": BOSS[1]}

        async def shell(*words: str, given: bytes = b"") -> Done:
            return await run("--namesrv", str(servers.names.address), *words, given=given, **keys)

        async def rows(*words: str) -> list[dict[str, object]]:
            done = await shell(*words, "--json")
            assert done.status == 0, done.err
            return [json.loads(line) for line in done.out.splitlines()]

        put = await shell("user", "put", "app", "--password-file", "-", "--yes", given=b"app-secret\n")
        assert put.status == 0, put.err
        blank = await shell("user", "put", "app", "--password-file", "-", "--yes", given=b" \nsecret\n")
        assert (blank.status, "the first line of stdin is blank" in blank.err) == (2, True)
        given = ("Topic:Ord*", "--action", "Pub", "--action", "Sub", "--from", "127.0.0.0/8", "--yes")
        assert (await shell("policy", "put", "app", *given)).status == 0
        assert (
            await shell("policy", "put", "app", "*", "--action", "All", "--deny", "--default", "--yes")
        ).status == 0
        name = servers.broker.config.name
        assert (await rows("user", "list"))[0] == {
            "broker_name": name, "user": "app", "type": "Normal", "enabled": True,
        }  # fmt: skip
        assert await rows("policy", "list", "--user", "app") == [
            {
                "broker_name": name, "user": "app", "resource": "Topic:Ord*", "actions": ["Pub", "Sub"],
                "decision": "Allow", "from": ["127.0.0.0/8"], "default": False,
            },
            {
                "broker_name": name, "user": "app", "resource": "*", "actions": ["All"], "decision": "Deny",
                "from": [], "default": True,
            },
        ]  # fmt: skip
        assert (await shell("user", "put", "app", "--disable", "--yes")).status == 0
        assert not (await rows("user", "list"))[0]["enabled"]
        for words, hint in (
            (("Topic:Orders",), "has no policy of the kind Custom for Topic:Orders; rocketpy policy list"),
            (("Topic:Ord*", "--default"), "for Topic:Ord*; there is one of the kind Custom"),
        ):
            kept = await shell("policy", "delete", "app", *words, "--yes")
            assert (kept.status, hint in kept.err) == (1, True)
        assert len(await rows("policy", "list")) == 2
        assert (await shell("policy", "delete", "app", "topic:Ord*", "--yes")).status == 0
        assert len(await rows("policy", "list")) == 1
        wrong = await shell("policy", "put", "app", "Topic:A", "--action", "Publish", "--yes")
        assert (wrong.status, "'Publish' is unknown; expected one of All, Pub" in wrong.err) == (1, True)
        assert "has access control" in (await run("doctor", "--namesrv", str(servers.names.address))).out
        assert (await shell("user", "delete", "app", "--dry-run")).status == 0
        assert (await shell("user", "delete", "app", "--yes")).status == 0
        again = await shell("user", "delete", "app", "--yes")
        assert (again.status, "there is no user app" in again.err) == (1, True)


def conf_of(path: Path, first_user: str) -> BrokerConfig:
    """The configuration of a broker whose store is below `path`, and which creates this user."""
    file = path / f"{first_user}.conf"
    file.write_text(
        "listenPort=0\nauthenticationEnabled=true\n"
        f'initAuthenticationUser={{"username":"{first_user}","password":"{first_user}-secret"}}\n'
    )
    return load_broker_config(file, {**SMALL, "storePathRootDir": str(path / "deep" / "store")})


async def test_a_broker_started_by_mistake_changes_no_users(tmp_path: Path) -> None:
    """The Super user of a wrong configuration could sign in at the broker that runs."""
    broker = Broker(conf_of(tmp_path, "boss"))
    await broker.start()
    try:
        file = tmp_path / "deep" / "store" / "config" / "auth.json"
        before = file.read_text()
        with pytest.raises(RocketError, match="already open"):
            await Broker(conf_of(tmp_path, "intruder")).start()
        assert file.read_text() == before
    finally:
        await broker.close()


async def test_the_directories_of_a_store_with_users_are_private(tmp_path: Path) -> None:
    """Others on the machine could read messages and the names of users: SECURITY.md promises 0700."""
    old = os.umask(0o022)
    try:
        broker = Broker(conf_of(tmp_path, "boss"))
        await broker.start()
        await broker.close()
    finally:
        os.umask(old)
    found = [path for path in (tmp_path / "deep").rglob("*") if path.is_dir()]
    assert len(found) > 3
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "deep", *found)} == {0o700}
