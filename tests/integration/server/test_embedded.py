"""EmbeddedCluster: a whole RocketMQ in this process, over sockets or without."""

import asyncio
from pathlib import Path
from typing import Literal

import pytest

from rocketpy import Message, Producer, PullConsumer, SendResult, SendStatus
from rocketpy.client.embedded_lease import lease
from rocketpy.errors import ConfigInvalid, StoreError
from rocketpy.protocol.bodies import TopicRouteData
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import GetRouteInfoRequestHeader, SendMessageRequestHeaderV2
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel, connect
from rocketpy_broker import EmbeddedCluster
from rocketpy_broker.broker.broker import Broker
from rocketpy_broker.config.file import load_broker_config
from rocketpy_broker.config.keys import SettingValue
from rocketpy_broker.embedded import open_embedded
from tests.integration.ha_pair import caught_up
from tests.waiting import until


class Silent:
    """The endpoint of a client that gets no requests."""

    def channel_opened(self, channel: Channel) -> None: ...

    def handle(self, channel: Channel, request: Command) -> Command:
        return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    def end_of_buffer(self) -> None: ...

    def channel_closed(self, channel: Channel, error: Exception | None) -> None: ...


async def test_nothing_is_left_behind() -> None:
    """Each test run of an application would leave a store in /tmp."""
    cluster = EmbeddedCluster()
    async with cluster:
        root = cluster.brokers[0].config.store.root
        assert (root / "abort").exists()
    assert not root.exists()
    with pytest.raises(ConfigInvalid, match="not started"):
        assert cluster.namesrv_address


async def test_a_temporary_store_takes_little_space() -> None:
    """Each test of an application would fill 64 MiB of a temporary directory, which is often in memory."""
    async with EmbeddedCluster() as cluster, Producer("senders", cluster.namesrv_address) as producer:
        await producer.send(Message("T", b"x"))
        files = list(cluster.brokers[0].config.store.commit_log_directory.iterdir())
        assert 0 < sum(path.stat().st_blocks for path in files) * 512 < 16 << 20


async def test_memory_clusters_have_no_ports_and_do_not_meet() -> None:
    """Two tests of one process would see each other's messages."""
    async with EmbeddedCluster(transport="memory") as one, EmbeddedCluster(transport="memory") as two:
        assert one.namesrv_address.startswith("memory://")
        assert one.namesrv_address != two.namesrv_address
        namesrv = await connect(one.namesrv_address, Silent())
        request = Command.request(
            RequestCode.GET_ROUTEINTO_BY_TOPIC, GetRouteInfoRequestHeader(topic="TBW102")
        )
        route = TopicRouteData.decode((await namesrv.request(request, 3000)).body)
        broker = await connect(route.broker_datas[0].broker_addrs[0], Silent())
        header = SendMessageRequestHeaderV2(
            producer_group="g", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
            sys_flag=0, born_timestamp=1, flag=0,
        )  # fmt: skip
        response = await broker.request(Command.request(RequestCode.SEND_MESSAGE_V2, header, b"x"), 3000)
        assert response.code == 0
        assert two.brokers[0].store.max_physical_offset == 0


async def test_an_embedded_address_with_a_path_keeps_its_store(tmp_path: Path) -> None:
    """With embedded:///path, messages would not survive the process."""
    for _ in range(2):
        cluster = await open_embedded(str(tmp_path / "store"), {})
        await cluster.close()
    assert (tmp_path / "store" / "commitlog").is_dir()


async def test_a_failed_start_leaves_nothing_running(tmp_path: Path) -> None:
    """A second attempt would fail because of ports and locks of the first."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text("{")
    cluster = EmbeddedCluster(tmp_path)
    with pytest.raises(Exception, match=r"topics\.json"):
        await cluster.start()
    (tmp_path / "config" / "topics.json").unlink()
    async with EmbeddedCluster(tmp_path):
        pass
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1


async def test_one_broker_that_fails_to_close_does_not_stop_the_others(tmp_path: Path) -> None:
    """Their stores would stay locked and their ports open."""

    class Failing(Broker):
        async def close(self) -> None:
            await super().close()
            raise StoreError("the last flush failed")

    cluster = EmbeddedCluster(brokers=2)
    await cluster.start()
    roots = [broker.config.store.root for broker in cluster.brokers]
    cluster.brokers.append(Failing(load_broker_config(overrides={"storePathRootDir": str(tmp_path)})))
    with pytest.raises(StoreError, match="last flush"):
        await cluster.close()
    assert cluster.namesrv is None
    assert not any(root.exists() for root in roots)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_settings_are_numbers_and_booleans_too() -> None:
    """Python's own values would fail with an AttributeError about strip."""
    settings: dict[str, SettingValue] = {
        "enablePropertyFilter": True,
        "autoCreateTopicEnable": False,
        "maxMessageSize": 1024,
        "rocketmq.broker.diskSpaceWarningLevelRatio": 0.95,
        "flushDiskType": "SYNC_FLUSH",
    }
    async with EmbeddedCluster(transport="memory", settings=settings) as cluster:
        config = cluster.brokers[0].config
    assert (config.consume.property_filter, config.topics.auto_create) == (True, False)
    assert config.store.commit_log.message_bytes_max == 1024
    assert config.store.retention.refuse_percent == 95


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (["true"], "settings: enablePropertyFilter: a text, a number, True or False is expected, not list"),
        (None, "settings: enablePropertyFilter: a text, a number, True or False is expected, not NoneType"),
        (1, "settings: enablePropertyFilter=1: true or false is expected"),
    ],
)
async def test_a_bad_setting_is_named(value: object, says: str) -> None:
    """A user of settings= would be referred to a command line, or get a traceback."""
    with pytest.raises(ConfigInvalid) as failure:
        await EmbeddedCluster(settings={"enablePropertyFilter": value}).start()  # type: ignore[dict-item] # on purpose
    assert str(failure.value) == says


@pytest.mark.parametrize(
    "wrong",
    [
        {"brokers": 0},
        {"brokers": 27},
        {"transport": "quic"},
        {"brokers": 2, "settings": {"listenPort": 10911}},
        {"replicas": 3, "settings": {"brokerName": "b"}},
        {"transport": "memory", "settings": {"listenPort": 10911}},
        {"settings": {"storePathRootDir": "store"}},
        {"settings": {"namesrvAddr": "127.0.0.1:9876"}},
    ],
)
def test_invalid_arguments_are_rejected(wrong: dict[str, object]) -> None:
    """Such settings would fail later, with an unrelated error, or have no effect."""
    with pytest.raises(ConfigInvalid):
        EmbeddedCluster(**wrong)  # type: ignore[arg-type] # wrong on purpose


async def read(cluster: EmbeddedCluster, result: SendResult) -> bytes:
    async with PullConsumer("c", namesrv=cluster.namesrv_address) as consumer:
        return (await consumer.pull(result.queue, result.queue_offset)).messages[0].body


@pytest.mark.parametrize("transport", ["tcp", "memory"])
async def test_a_master_with_slaves(transport: Literal["tcp", "memory"]) -> None:
    """Applications could not test their behaviour with a SYNC_MASTER, or after its loss."""
    settings: dict[str, SettingValue] = {"brokerRole": "SYNC_MASTER"}
    async with EmbeddedCluster(transport=transport, brokers=2, slaves=2, settings=settings) as cluster:
        roles = [(broker.config.name, broker.config.broker_id) for broker in cluster.brokers]
        assert roles == [(name, number) for name in ("broker-a", "broker-b") for number in range(3)]
        masters = [broker for broker in cluster.brokers if broker.is_master]
        assert {broker.config.ha.role.name for broker in masters} == {"SYNC_MASTER"}
        async with Producer("g", namesrv=cluster.namesrv_address) as producer:
            result = await producer.send(Message("Pairs", b"kept"))
        assert result.status is SendStatus.SEND_OK  # with no slave it would be SLAVE_NOT_AVAILABLE
        copies = [
            b for b in cluster.brokers if b.config.is_slave and b.config.name == result.queue.broker_name
        ]
        await until(lambda: all(slave.topics.get("Pairs") is not None for slave in copies))
        (master,) = (broker for broker in masters if broker.config.name == result.queue.broker_name)
        cluster.brokers.remove(master)
        await master.close()
        assert await read(cluster, result) == b"kept"


async def test_a_kept_store_is_reopened_with_its_slaves(tmp_path: Path) -> None:
    """Messages would be missing when slaves are added to a store, or its slaves would be rejected."""
    address = f"embedded://{tmp_path}"
    async with Producer("g", address) as producer:
        result = await producer.send(Message("Kept", b"still here"))
    for _ in range(2):
        async with EmbeddedCluster(tmp_path, slaves=1) as cluster:
            assert await read(cluster, result) == b"still here"
            master, slave = cluster.brokers
            await caught_up(master, slave)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({}, {"brokers": 2}),
        ({}, {"replicas": 3}),
        ({"brokers": 3}, {"brokers": 2}),
        ({"brokers": 2}, {}),
        ({"replicas": 3}, {}),
        ({"replicas": 3}, {"replicas": 5}),
    ],
)
async def test_a_store_of_another_cluster_is_rejected(
    tmp_path: Path, first: dict[str, int], then: dict[str, int]
) -> None:
    """Its messages would seem to be lost."""
    async with EmbeddedCluster(tmp_path, transport="memory", **first):  # type: ignore[arg-type] # numbers only
        pass
    with pytest.raises(ConfigInvalid, match="other numbers of brokers or replicas"):
        await EmbeddedCluster(tmp_path, transport="memory", **then).start()  # type: ignore[arg-type]
    async with EmbeddedCluster(tmp_path, transport="memory", **first):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        ({"flush": "sync"}, "flushDiskType", "SYNC_FLUSH"),
        ({"flush": "async"}, "flushDiskType", "ASYNC_FLUSH"),
        ({"enablePropertyFilter": "true"}, "enablePropertyFilter", "true"),
    ],
)
async def test_options_of_an_address(options: dict[str, str], key: str, value: str) -> None:
    """An application could not choose the settings of its servers by the address alone."""
    cluster = await open_embedded(None, options)
    try:
        expected = load_broker_config(overrides={key: value})
        (config,) = (broker.config for broker in cluster.brokers)
        assert config.store.flush == expected.store.flush
        assert config.consume == expected.consume
    finally:
        await cluster.close()


async def test_numbers_in_an_address() -> None:
    """An application could not choose the durability of its messages by the address alone."""
    for options, members, is_ledger in (
        ("brokers=2&slaves=1", 4, False),
        ("replicas=3&flush=async", 3, True),
    ):
        async with Producer("g", f"embedded:?{options}") as producer:
            assert (await producer.send(Message("T", b"x"))).status is SendStatus.SEND_OK
        cluster = await open_embedded(None, dict(part.split("=") for part in options.split("&")))
        try:
            assert len(cluster.brokers) == members
            assert {broker.config.dledger.enabled for broker in cluster.brokers} == {is_ledger}
            assert {broker.config.dledger.flush for broker in cluster.brokers} == {not is_ledger}
        finally:
            await cluster.close()


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("embedded:?replica=3", "embedded: has no option 'replica'; did you mean replicas?"),
        ("embedded:?flushDiskTyp=SYNC_FLUSH", "did you mean flushDiskType?"),
        ("embedded:?replicas=three", "embedded:?replicas=three: a whole number is expected"),
        ("embedded:?replicas=4", "1, 3 or 5 replicas, not 4"),
        ("embedded:?replicas=3&slaves=1", "so they have no slaves"),
        ("embedded:?flush=now", "embedded:?flush=now: sync or async is expected"),
        ("embedded:?flushDiskType=NOW", "flushDiskType=NOW: one of"),
        ("embedded:?brokerRole=SLAVE", "slaves=1 adds a slave to each of them"),
        ("embedded:?slaves=1&slaves=2", "gives an option twice"),
        ("embedded:?slaves", "options are written ?name=value&name=value"),
    ],
)
async def test_wrong_options_of_an_address(address: str, says: str) -> None:
    """A misspelt option would leave messages less safe than the address says."""
    with pytest.raises(ConfigInvalid) as failure:
        await lease(address)
    assert says in str(failure.value)


async def test_one_store_is_not_opened_with_two_sets_of_options(tmp_path: Path) -> None:
    """The second client would get servers without its settings."""
    address = f"embedded://{tmp_path}/store"
    first = await lease(f"{address}?flush=sync&slaves=1")
    try:
        again = await lease(f"{address}?slaves=1&flush=sync")
        assert again.namesrv_address == first.namesrv_address
        await again.close()
        with pytest.raises(
            ConfigInvalid, match=r"open with other options, as embedded:///.*\?flush=sync&slaves=1"
        ):
            await lease(address)
    finally:
        await first.close()
    await (await lease(address)).close()
