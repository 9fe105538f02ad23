"""Clusters for the tests of the admin client: several brokers, some offline, some in another cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rocketpy.protocol.bodies import RegisterBrokerBody, TopicConfig, TopicConfigSerializeWrapper
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import RegisterBrokerRequestHeader
from rocketpy_broker import Broker, EmbeddedCluster, load_broker_config
from tests.integration.raw_client import RawClient
from tests.integration.small import SMALL

CLUSTER = "DefaultCluster"
OTHER = "OtherCluster"


@asynccontextmanager
async def missing_broker(
    cluster: EmbeddedCluster, *topics: str, broker_id: int = 0, address: str = "127.0.0.1:1"
) -> AsyncIterator[None]:
    """Inside the block, a broker-z that does not listen is registered. broker_id: 1 for a slave."""
    header = RegisterBrokerRequestHeader(
        broker_name="broker-z",
        broker_addr=address,
        cluster_name=CLUSTER,
        ha_server_addr="127.0.0.1:2",
        broker_id=broker_id,
    )
    wrapper = TopicConfigSerializeWrapper(
        topic_config_table={topic: TopicConfig(topic_name=topic) for topic in topics}
    )
    body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper).encode()
    async with await RawClient.open(cluster.namesrv_address) as client:
        assert (await client.call(RequestCode.REGISTER_BROKER, header, body)).code == 0
        yield


@asynccontextmanager
async def other_cluster(cluster: EmbeddedCluster, path: Path) -> AsyncIterator[Broker]:
    """A broker of another cluster, with the same name server."""
    settings = {
        "brokerName": "other-a",
        "brokerClusterName": OTHER,
        "namesrvAddr": cluster.namesrv_address,
        "storePathRootDir": str(path / "other"),
        "listen": "127.0.0.1:0",
    }
    broker = Broker(load_broker_config(overrides=SMALL | settings))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()
