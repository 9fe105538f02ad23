"""A name server over real sockets: cases without a recording."""

import asyncio
import errno
from pathlib import Path

import pytest

from rocketpy.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicRouteData,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    GetKVConfigRequestHeader,
    GetRouteInfoRequestHeader,
    PutKVConfigRequestHeader,
    RegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
)
from rocketpy.protocol.message.checksum import crc32
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Address
from rocketpy_broker import NameServer, NamesrvConfig
from rocketpy_broker.config.model import ListenConfig
from tests.integration.raw_client import RawClient
from tests.waiting import LIMIT_S

LISTEN = ListenConfig(address=Address("tcp", "127.0.0.1", 0))


async def register(client: RawClient, *, crc: int | None = None, compressed: bool = False) -> Command:
    """Register broker-a with one topic, T."""
    topics = TopicConfigSerializeWrapper(
        topic_config_table={"T": TopicConfig(topic_name="T")},
        data_version=DataVersion(timestamp=1, counter=1),
    )
    body = RegisterBrokerBody(topic_config_serialize_wrapper=topics).encode(compressed)
    header = RegisterBrokerRequestHeader(
        broker_name="broker-a", broker_addr="127.0.0.1:10911", cluster_name="C",
        ha_server_addr="127.0.0.1:10912", broker_id=0, compressed=compressed,
        body_crc32=crc32(body) if crc is None else crc,
    )  # fmt: skip
    return await client.call(RequestCode.REGISTER_BROKER, header, body)


async def route(client: RawClient) -> TopicRouteData | None:
    response = await client.call(RequestCode.GET_ROUTEINTO_BY_TOPIC, GetRouteInfoRequestHeader(topic="T"))
    return TopicRouteData.decode(response.body) if response.code == 0 else None


async def until_no_route(client: RawClient) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await route(client) is not None:
            pass


async def test_a_broker_is_dropped_with_its_connection() -> None:
    """Clients would be sent to a dead broker for two minutes."""
    server = NameServer(NamesrvConfig(listen=LISTEN))
    await server.start()
    async with await RawClient.open(server.address) as client:
        async with await RawClient.open(server.address) as broker:
            assert (await register(broker)).code == 0
            assert await route(client) is not None
        await until_no_route(client)
    await server.close()


async def test_a_port_that_is_in_use_is_named_with_what_helps() -> None:
    """A user who starts `rocketpy dev` twice would get an error about `bind`, without a remedy."""
    server = NameServer(NamesrvConfig(listen=LISTEN))
    await server.start()
    second = NameServer(NamesrvConfig(listen=ListenConfig(address=server.address)))
    with pytest.raises(OSError, match=rf"{server.address} is in use.* with --listen HOST:PORT") as failure:
        await second.start()
    assert failure.value.errno == errno.EADDRINUSE
    await server.close()


async def test_a_silent_broker_is_dropped_and_disconnected() -> None:
    """A hanging broker would stay in routes forever."""
    server = NameServer(NamesrvConfig(listen=LISTEN, broker_expired_ms=50, scan_interval_ms=20))
    await server.start()
    async with await RawClient.open(server.address) as client, await RawClient.open(server.address) as broker:
        assert (await register(broker, compressed=True)).code == 0
        await until_no_route(client)
        assert await broker.reader.read() == b""  # the connection was closed
    await server.close()


async def test_a_damaged_registration_is_rejected() -> None:
    """QUIRKS 11: a broker would be listed with topics that it does not have."""
    server = NameServer(NamesrvConfig(listen=LISTEN))
    await server.start()
    async with await RawClient.open(server.address) as client:
        response = await register(client, crc=7)
        assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
        assert await route(client) is None
    await server.close()


async def test_settings_are_kept_and_order_is_in_routes(tmp_path: Path) -> None:
    """Ordered topics would lose their layout when the name server restarts."""
    config = NamesrvConfig(listen=LISTEN, kv_config_path=tmp_path / "kv.json", order_message_enable=True)
    for start in range(2):
        server = NameServer(config)
        await server.start()
        async with await RawClient.open(server.address) as client:
            put = PutKVConfigRequestHeader(namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
            if start == 0:
                assert (await client.call(RequestCode.PUT_KV_CONFIG, put)).code == 0
            get = GetKVConfigRequestHeader(namespace="ORDER_TOPIC_CONFIG", key="T")
            assert (await client.call(RequestCode.GET_KV_CONFIG, get)).ext_fields() == {"value": "broker-a:4"}
            registered = await register(client)
            assert registered.body == b'{"table":{"T":"broker-a:4"}}'
            found = await route(client)
            assert found is not None
            assert found.order_topic_conf == "broker-a:4"
        await server.close()


async def test_unknown_requests_and_remote_configuration_are_rejected() -> None:
    """Clients would run into timeouts (QUIRKS 6), or requests could change files (CVE-2023-37582)."""
    server = NameServer(NamesrvConfig(listen=LISTEN))
    await server.start()
    async with await RawClient.open(server.address) as client:
        assert (await client.call(9999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        update = await client.call(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"kvConfigPath=/tmp/x")
        assert update.code == ResponseCode.NO_PERMISSION
        assert (await client.call(RequestCode.REGISTER_BROKER)).code == ResponseCode.SYSTEM_ERROR
        await register(client)
        header = WipeWritePermOfBrokerRequestHeader(broker_name="broker-a")
        wiped = await client.call(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
        assert wiped.ext_fields() == {"wipeTopicCount": "1"}
        assert (await client.call(327, header)).ext_fields() == {"addTopicCount": "1"}
    await server.close()
