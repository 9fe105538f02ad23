"""Settings read and changed remotely: only if the server's own file allows it, and only harmless ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from rocketpy.protocol.bodies import DataVersion, TopicRouteData
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    GetBrokerConfigResponseHeader,
    GetRouteInfoRequestHeader,
    PutKVConfigRequestHeader,
    SendMessageRequestHeaderV2,
)
from rocketpy_broker import Broker, NameServer, load_broker_config, load_namesrv_config
from rocketpy_broker.config.keys import BROKER_KEYS, STORE_KEYS
from rocketpy_broker.config.live import broker_live_config
from rocketpy_broker.store.setting import Change
from rocketpy_broker.store.upkeep.cleaner import DiskUse
from tests.integration.raw_client import RawClient
from tests.mqproducer.place import eventually
from tests.unit.config.test_defaults import RECORDED
from tests.waiting import until

SMALL = "mappedFileSizeCommitLog=1048576\nmaxHashSlotNum=1000\nmaxIndexNum=4000\n"
ALLOWED = "# a comment\nremoteConfigUpdateEnable=true\n"
CHANGEABLE = {
    name: key.change for name, key in {**BROKER_KEYS, **STORE_KEYS}.items() if key.change is not Change.NEVER
}


@asynccontextmanager
async def servers(directory: Path, text: str) -> AsyncIterator[tuple[NameServer, Broker]]:
    """A name server and a broker with files of their own."""
    names_file, broker_file = directory / "namesrv.conf", directory / "broker.conf"
    names_file.write_text(f"{text}listenPort=0\nkvConfigPath={directory}/kv.json\n")
    names = NameServer(load_namesrv_config(names_file))
    await names.start()
    broker_file.write_text(f"{text}{SMALL}listenPort=0\nstorePathRootDir={directory}/store\n")
    broker = Broker(load_broker_config(broker_file, {"namesrvAddr": str(names.address)}))
    await broker.start()
    try:
        yield names, broker
    finally:
        await broker.close()
        await names.close()


async def update(
    client: RawClient, text: str, code: int = RequestCode.UPDATE_BROKER_CONFIG
) -> tuple[int, str]:
    response = await client.call(code, None, text.encode())
    return response.code, response.remark or ""


def conf_files(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.glob("*.conf")}


async def settings_of(client: RawClient) -> dict[str, str]:
    return settings_in((await client.call(RequestCode.GET_BROKER_CONFIG)).body)


def settings_in(body: bytes) -> dict[str, str]:
    return dict(line.split("=", 1) for line in body.decode().splitlines())


async def send(client: RawClient, topic: str) -> int:
    header = SendMessageRequestHeaderV2(
        producer_group="g", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=1, flag=0,
    )  # fmt: skip
    return (await client.call(RequestCode.SEND_MESSAGE_V2, header, b"x")).code


@pytest.mark.parametrize("text", ["", "remoteConfigUpdateEnable=false\n"])
async def test_nothing_is_changed_unless_the_file_allows_it(tmp_path: Path, text: str) -> None:
    """CVE-2023-33246: each client that reaches a broker could change its settings."""
    async with servers(tmp_path, text) as (names, broker):
        before = (tmp_path / "broker.conf").read_text()
        async with await RawClient.open(broker.address) as client:
            code, remark = await update(client, "brokerPermission=4\n")
            assert code == ResponseCode.NO_PERMISSION
            assert "remoteConfigUpdateEnable" in remark
            assert (await settings_of(client))["brokerPermission"] == "6"
        async with await RawClient.open(names.address) as client:
            refused = await update(client, "orderMessageEnable=true\n", RequestCode.UPDATE_NAMESRV_CONFIG)
            assert refused[0] == ResponseCode.NO_PERMISSION
        assert (tmp_path / "broker.conf").read_text() == before


async def test_a_changed_interval_applies_after_the_next_call(tmp_path: Path) -> None:
    """Mqadmin reported success, but tables and retention kept the intervals that they had at the start."""
    fast = "flushConsumerOffsetInterval=20\ncleanResourceInterval=20\n"
    async with servers(tmp_path, ALLOWED + fast) as (_, broker):
        calls: Counter[str] = Counter()
        measure, save = broker._driver.cleaner.measure, broker.consumers.save

        def counted_measure() -> DiskUse:
            calls["retention"] += 1
            return measure()

        async def counted_save() -> None:
            calls["tables"] += 1
            await save()

        broker._driver.cleaner.measure = counted_measure  # type: ignore[method-assign]
        broker.consumers.save = counted_save  # type: ignore[method-assign]
        await until(lambda: min(calls["retention"], calls["tables"]) > 2)
        async with await RawClient.open(broker.address) as client:
            slow = "flushConsumerOffsetInterval=3600000\ncleanResourceInterval=3600000\n"
            assert await update(client, slow) == (0, "")
        before = calls.copy()
        broker.tasks.every(0.02, partial(calls.update, ["clock"]), "clock of the test")
        await until(lambda: calls["clock"] > 10)
        assert all(calls[name] <= before[name] + 1 for name in before)


def test_the_command_line_cannot_allow_it(tmp_path: Path) -> None:
    """A start script that many servers share would allow remote changes on all of them."""
    config = load_broker_config(None, {"remoteConfigUpdateEnable": "true", "storePathRootDir": str(tmp_path)})
    assert config.updatable_file is None


async def test_an_allowed_change_has_effect_and_is_kept(tmp_path: Path) -> None:
    """Mqadmin's updateBrokerConfig would change nothing, or only until the next start."""
    async with servers(tmp_path, ALLOWED) as (names, broker):
        async with await RawClient.open(broker.address) as client:
            assert await send(client, "Made") == 0
            assert await update(client, "autoCreateTopicEnable=false\nfileReservedTime = 48\n") == (0, "")
            assert await send(client, "NotMade") == ResponseCode.TOPIC_NOT_EXIST
            shown = await settings_of(client)
            assert (shown["autoCreateTopicEnable"], shown["fileReservedTime"]) == ("false", "48")
            response = await client.call(RequestCode.GET_BROKER_CONFIG)
            version = response.header_as(GetBrokerConfigResponseHeader).version
            assert DataVersion.decode(version.encode()).counter == 1
        async with await RawClient.open(names.address) as client:
            code = RequestCode.UPDATE_NAMESRV_CONFIG
            assert await update(client, "orderMessageEnable=true\n", code) == (0, "")
            body = (await client.call(RequestCode.GET_NAMESRV_CONFIG)).body
            assert b"orderMessageEnable=true\n" in body
    again = load_broker_config(tmp_path / "broker.conf")
    assert (again.topics.auto_create, again.store.retention.reserved_hours) == (False, 48)
    assert (tmp_path / "broker.conf").read_text().startswith(ALLOWED + SMALL)
    assert load_namesrv_config(tmp_path / "namesrv.conf").order_message_enable


async def test_a_changed_permission_reaches_the_routes(tmp_path: Path) -> None:
    """Producers would go on choosing a broker that accepts no messages."""
    async with servers(tmp_path, ALLOWED) as (names, broker):
        async with await RawClient.open(broker.address) as client:
            await send(client, "T")
            assert await update(client, "brokerPermission=4\n") == (0, "")
        async with await RawClient.open(names.address) as client:

            async def is_limited() -> bool | None:
                header = GetRouteInfoRequestHeader(topic="T")
                response = await client.call(RequestCode.GET_ROUTEINTO_BY_TOPIC, header)
                return [queue.perm for queue in TopicRouteData.decode(response.body).queue_datas] == [
                    4
                ] or None

            await eventually(is_limited)


async def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    """One of two concurrent changes would be lost after the next start."""
    wanted = ("fileReservedTime=48\n", "autoCreateTopicEnable=false\n", "longPollingEnable=false\n")
    async with servers(tmp_path, ALLOWED) as (_, broker), contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await RawClient.open(broker.address)) for _ in wanted]
        responses = await asyncio.gather(
            *(update(one, text) for one, text in zip(clients, wanted, strict=True))
        )
        assert responses == [(0, "")] * 3
    assert [text in conf_files(tmp_path)["broker.conf"] for text in wanted] == [True] * 3


async def test_server_settings_are_shown_and_not_changed(tmp_path: Path) -> None:
    """An operator would not see on which port and with which limits a server listens."""
    async with servers(tmp_path, ALLOWED + "serverChannelMaxIdleTimeSeconds=77\n") as (names, broker):
        for server, code in (
            (broker, RequestCode.GET_BROKER_CONFIG),
            (names, RequestCode.GET_NAMESRV_CONFIG),
        ):
            async with await RawClient.open(server.address) as client:
                shown = settings_in((await client.call(code)).body)
            wanted = {
                "bindAddress": "127.0.0.1", "listenPort": "0", "serverChannelMaxIdleTimeSeconds": "77",
                "aclEnable": "false", "tls.server.mode": "disabled",
                "com.rocketmq.remoting.frameMaxLength": "16777216",
            }  # fmt: skip
            assert wanted.items() <= shown.items()
        async with await RawClient.open(broker.address) as client:
            shown = settings_in((await client.call(RequestCode.GET_BROKER_CONFIG)).body)
            assert shown["brokerRole"] == "ASYNC_MASTER"
            assert "haSecret" not in shown
            response, remark = await update(client, "serverChannelMaxIdleTimeSeconds=5\n")
            assert response == ResponseCode.NO_PERMISSION
            assert "serverChannelMaxIdleTimeSeconds cannot be changed remotely" in remark


async def test_tuning_keys_are_taken_with_a_note(tmp_path: Path) -> None:
    """A harmless key would be rejected, or an operator believe that it has effect at once."""
    async with servers(tmp_path, ALLOWED) as (_, broker), await RawClient.open(broker.address) as client:
        text = "waitTimeMillsInSendQueue=500\ntransactionCheckMax=7\nsendMessageThreadPoolNums=16\n"
        code, remark = await update(client, text)
        assert code == 0
        assert "transactionCheckMax: written to the file, applies at the next start" in remark
        assert "sendMessageThreadPoolNums has no effect: one event loop" in remark
        shown = await settings_of(client)
        assert (shown["waitTimeMillsInSendQueue"], shown["transactionCheckMax"]) == ("500", "15")
        assert broker.config.store.busy.wait_ms == 500
        assert (await update(client, "transactionCheckMax=many\n"))[0] == ResponseCode.NO_PERMISSION
    again = load_broker_config(tmp_path / "broker.conf")
    assert (again.store.busy.wait_ms, again.transactions.check_max) == (500, 7)
    shown = settings_in(broker_live_config(again).text().encode())
    assert shown["sendMessageThreadPoolNums"] == "16"


@pytest.mark.parametrize("name", sorted(CHANGEABLE))
async def test_each_key_on_a_list_can_be_set(tmp_path: Path, name: str) -> None:
    """A key on the list of changeable settings would be rejected, not be kept, or not be shown."""
    path = tmp_path / "broker.conf"
    path.write_text(f"{ALLOWED}storePathRootDir={tmp_path}/store\n")
    live = broker_live_config(load_broker_config(path))
    shown = settings_in(live.text().encode())
    words = {"true": "false", "false": "true", "PULL": "POP"}
    value = {"deleteWhen": "05", "brokerPermission": "4"}.get(name) or words.get(shown[name])
    value = value or str(int(shown[name]) + 1)
    done = await live.update(f"{name}={value}\n")
    assert bool(done.changed) == (CHANGEABLE[name] is Change.LIVE)
    assert bool(done.notes) == (CHANGEABLE[name] is Change.NEXT_START)
    again = broker_live_config(load_broker_config(path))
    assert settings_in(again.text().encode())[name] == value


@pytest.mark.parametrize(
    "text",
    [
        "storePathRootDir=/tmp/elsewhere\n",
        "brokerPermission=4\nrocketmqHome=/tmp/elsewhere\n",
        "aclEnable=false\n",
        "remoteConfigUpdateEnable=false\n",
        "namesrvAddr=192.0.2.1:9876\n",
        "listenPort=1\n",
        "kvConfigPath=/tmp/elsewhere\n",
        "filterServerNums=1\n",
        "messageStorePlugIn=com.example.Store\n",
        "tls.client.authServer=false\n",
        "flushDiskType=SYNC_FLUSH\n",
        "brokerRole=SLAVE\n",
        "haSecret=mine\n",
        "checkCRCOnRecover=false\n",
        "cleanFileForciblyEnable=true\n",
        "mappedFileSizeCommitLog=1000\n",
        "waitTimeMillsInSendQueue=500\nlistenPort=1\n",
        "brokerPermission=99\n",
        "brokerPermission=write\n",
        "autoCreateTopicEnable=perhaps\n",
        "deleteWhen=4\\nstorePathRootDir\\=/tmp\n",
        "brokerPermission=4\nnonsense\n",
        "\\u12",
        "x" * 10_000,
    ],
)
async def test_keys_outside_the_list_are_rejected_as_a_whole(tmp_path: Path, text: str) -> None:
    """CVE-2023-37582: a setting could name a file to write, a program to run, or a foreign server."""
    async with servers(tmp_path, ALLOWED) as (_, broker):
        kept = conf_files(tmp_path)
        async with await RawClient.open(broker.address) as client:
            before = await settings_of(client)
            assert (await update(client, text))[0] == ResponseCode.NO_PERMISSION
            assert await settings_of(client) == before
        assert conf_files(tmp_path) == kept


def test_no_secret_is_shown(tmp_path: Path) -> None:
    """A reader of the settings would learn secrets, or where they are stored."""
    path = tmp_path / "broker.conf"
    secrets = "haSecret=not-for-others\nrocketmq.acl.plain.file=/etc/accounts.yml\nrocketmqHome=/etc/home\n"
    path.write_text(f"{secrets}storePathRootDir={tmp_path}/store\n")
    text = broker_live_config(load_broker_config(path)).text()
    assert "flushDiskType=ASYNC_FLUSH\n" in text
    assert [part for part in ("not-for-others", "/etc") if part in text] == []


async def test_each_key_of_rocketmq_is_shown(tmp_path: Path) -> None:
    """A tool would fail, such as exportConfigs of mqadmin 4.9.7, which needs filterServerNums."""
    text = "sendMessageThreadPoolNums=7\n"
    async with servers(tmp_path, text) as (names, broker), await RawClient.open(broker.address) as client:
        shown = await settings_of(client)
        assert set(RECORDED) - set(shown) == {"rocketmqHome"}  # the accounts are below it
        assert (shown["sendMessageThreadPoolNums"], shown["filterServerNums"]) == ("7", "0")
        assert shown["namesrvAddr"] == str(names.address)
        assert shown["storePathRootDir"] == f"{tmp_path}/store"
        assert shown["storePathCommitLog"] == f"{tmp_path}/store/commitlog"
        async with await RawClient.open(names.address) as operator:
            shown = settings_in((await operator.call(RequestCode.GET_NAMESRV_CONFIG)).body)
        wanted = {"kvConfigPath": f"{tmp_path}/kv.json", "clusterTest": "false", "productEnvName": "center"}
        assert wanted.items() <= shown.items()


async def test_order_configurations_are_switched_on_and_off(tmp_path: Path) -> None:
    """Clients would keep getting the route that was encoded before the change."""

    async def conf(client: RawClient) -> str | None:
        header = GetRouteInfoRequestHeader(topic="T")
        return TopicRouteData.decode(
            (await client.call(RequestCode.GET_ROUTEINTO_BY_TOPIC, header)).body
        ).order_topic_conf

    async with servers(tmp_path, ALLOWED) as (names, broker), await RawClient.open(names.address) as client:
        async with await RawClient.open(broker.address) as sender:
            await send(sender, "T")
        order = PutKVConfigRequestHeader(namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
        assert (await client.call(RequestCode.PUT_KV_CONFIG, order)).code == 0
        for value, wanted in (
            ("false", None),
            ("true", "broker-a:4"),
            ("false", None),
            ("true", "broker-a:4"),
        ):
            code = RequestCode.UPDATE_NAMESRV_CONFIG
            assert await update(client, f"orderMessageEnable={value}\n", code) == (0, "")
            assert [await conf(client) for _ in range(2)] == [wanted] * 2


async def test_keys_of_name_servers_without_effect_are_taken_with_a_note(tmp_path: Path) -> None:
    """A script that sets a key of RocketMQ would fail."""
    code = RequestCode.UPDATE_NAMESRV_CONFIG
    async with servers(tmp_path, ALLOWED) as (names, _), await RawClient.open(names.address) as client:
        status, remark = await update(client, "clusterTest=true\nproductEnvName=other\n", code)
        assert status == 0
        assert "clusterTest has no effect" in remark
        shown = settings_in((await client.call(RequestCode.GET_NAMESRV_CONFIG)).body)
        assert (shown["clusterTest"], shown["productEnvName"]) == ("true", "other")
