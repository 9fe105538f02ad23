"""EmbeddedCluster: a whole RocketMQ in this process, over sockets or without."""

import asyncio
from pathlib import Path

import pytest

from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.bodies import TopicRouteData
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.command import Command
from rocketpy.protocol.headers import GetRouteInfoRequestHeader, SendMessageRequestHeaderV2
from rocketpy.transport import Channel, connect
from rocketpy_broker import EmbeddedCluster
from rocketpy_broker.config_keys import Value
from rocketpy_broker.embedded import open_embedded


class Silent:
    """The endpoint of a client that is never asked anything."""

    def channel_opened(self, channel: Channel) -> None: ...

    def handle(self, channel: Channel, request: Command) -> Command:
        return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    def end_of_buffer(self) -> None: ...

    def channel_closed(self, channel: Channel, error: Exception | None) -> None: ...


async def test_nothing_is_left_behind() -> None:
    """Without this every test run of an application would leave a store in /tmp."""
    cluster = EmbeddedCluster()
    async with cluster:
        root = cluster.brokers[0].config.store.root
        assert (root / "abort").exists()
    assert not root.exists()
    with pytest.raises(ConfigInvalid, match="not started"):
        assert cluster.namesrv_address


async def test_memory_clusters_have_no_ports_and_do_not_meet() -> None:
    """Without this two tests of one process would see each other's messages."""
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
        answer = await broker.request(Command.request(RequestCode.SEND_MESSAGE_V2, header, b"x"), 3000)
        assert answer.code == 0
        assert two.brokers[0].store.max_physical_offset == 0


async def test_the_address_of_the_sdk_keeps_a_named_store(tmp_path: Path) -> None:
    """Without this embedded:///path would forget its messages."""
    for _ in range(2):
        cluster = await open_embedded(str(tmp_path / "store"))
        await cluster.close()
    assert (tmp_path / "store" / "commitlog").is_dir()


async def test_a_failed_start_leaves_nothing_running(tmp_path: Path) -> None:
    """Without this a second try would meet ports and locks of the first."""
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


async def test_settings_are_numbers_and_booleans_too() -> None:
    """Python's own values would fail with an AttributeError about strip."""
    settings: dict[str, Value] = {
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
    """Whoever wrote settings= would be sent to a command line that is not there, or read a traceback."""
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
def test_wrong_wishes_are_refused(wrong: dict[str, object]) -> None:
    """Without this they would fail later, with a text about something else, or count for nothing."""
    with pytest.raises(ConfigInvalid):
        EmbeddedCluster(**wrong)  # type: ignore[arg-type] # wrong on purpose
