"""How the parts of the admin client reach brokers and name servers."""

from __future__ import annotations

import pickle

import pytest

from rocketpy import AdminClient
from rocketpy.errors import BrokerError, BrokersFailed, ConfigInvalid, ConnectFailed, RouteNotFound
from rocketpy.protocol.codes import RequestCode
from rocketpy_broker import EmbeddedCluster
from tests.integration.client.admin.admin_place import CLUSTER, missing_broker


async def test_requests_reach_each_broker(cluster: EmbeddedCluster) -> None:
    """A broker would be left out, silently."""
    async with AdminClient(cluster.namesrv_address) as admin:
        requests = admin.topics._requests
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        alone = await requests.masters(CLUSTER)
        assert alone == {"broker-a": str(cluster.brokers[0].address)}
        with pytest.raises(BrokerError, match="broker-a responded with code 3"):
            await requests.call_all(alone, 9999, decode=lambda _: None)
        with pytest.raises(ConfigInvalid, match=f"no cluster 'Nowhere'; the name server knows: {CLUSTER}"):
            await requests.masters("Nowhere")
        async with missing_broker(cluster):
            masters = await requests.masters()
            assert masters == {**alone, "broker-z": "127.0.0.1:1"}
            with pytest.raises(BrokersFailed, match="1 of 2 servers failed: broker-z: ") as failed:
                await requests.call_all(masters, code, decode=lambda response: len(response.body) > 0)
            assert failed.value.results == {"broker-a": True}
            assert isinstance(failed.value.errors["broker-z"], ConnectFailed)
            again = pickle.loads(pickle.dumps(failed.value))  # noqa: S301 - written here
            assert (str(again), again.results) == (str(failed.value), failed.value.results)
        async with missing_broker(cluster, broker_id=1):
            masters = await requests.masters()
            with pytest.raises(BrokersFailed, match="broker-z has no master now") as failed:
                await requests.call_all(masters, code, decode=lambda _: None)
            assert isinstance(failed.value.errors["broker-z"], RouteNotFound)


async def test_requests_reach_each_name_server(cluster: EmbeddedCluster) -> None:
    """A name server would keep what was deleted at the others."""
    async with AdminClient(f"{cluster.namesrv_address};127.0.0.1:1") as admin:
        requests = admin.topics._requests
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        with pytest.raises(
            BrokersFailed, match=r"failed: name server 127.0.0.1:1 cannot be reached"
        ) as failed:
            await requests.call_all_namesrv(code)
        assert list(failed.value.results) == [f"name server {cluster.namesrv_address}"]
    async with AdminClient(cluster.namesrv_address) as admin:
        assert list(await admin.topics._requests.call_all_namesrv(code)) == [
            f"name server {cluster.namesrv_address}"
        ]
        with pytest.raises(BrokerError, match="code 3"):
            await admin.topics._requests.call_all_namesrv(9999)


async def test_no_broker_at_all_is_an_error() -> None:
    """A change on no broker would look like a success."""
    async with EmbeddedCluster() as cluster, AdminClient(cluster.namesrv_address) as admin:
        await cluster.brokers[0].close()
        with pytest.raises(RouteNotFound, match="knows no broker"):
            await admin.topics._requests.masters()
