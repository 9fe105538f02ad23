"""Java brokers and RocketMQ's admin tool around a name server of either make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.broker.test_many_topics import COUNT, many_topics
from tests.interop import probe
from tests.interop.cluster import Cluster, Make, cluster, name_server, new_broker, stopping
from tests.interop.java_peer import JavaPeer
from tests.interop.processes import DEFAULT_TOPIC, JavaBroker
from tests.interop.sides import NAME_SERVERS, Side

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module", params=NAME_SERVERS, ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A name server of either make with a Java broker."""
    side: Side = request.param
    with cluster(peer, tmp_path_factory.mktemp("names"), namesrv=side.namesrv, conf=MASTER) as running:
        yield running


MASTER = {"brokerName": "pair"}


def other_broker(servers: Cluster, run: Path, name: str, **conf: Any) -> JavaBroker:
    """One more Java broker at the same name server, not started."""
    return JavaBroker(servers.peer, run, servers.namesrv.address, name=name, conf=conf)


def masters_of(servers: Cluster, topic: str = DEFAULT_TOPIC) -> dict[str, dict[str, str]]:
    """Broker names and their addresses by id, as in the route of a topic."""
    found = probe.route(servers.namesrv.address, topic)
    return {b["brokerName"]: b["brokerAddrs"] for b in found["brokerDatas"]} if found else {}


def test_an_unregistered_broker_is_removed(servers: Cluster, tmp_path: Path) -> None:
    """After a clean stop of a broker, clients would still get its address."""
    with other_broker(servers, tmp_path, "leaving") as broker:
        assert "leaving" in masters_of(servers)
        broker.stop()
        assert set(masters_of(servers)) == {"pair"}
        assert broker.address not in probe.broker_addresses(servers.namesrv.address)


def test_a_killed_broker_is_removed_at_once(servers: Cluster, tmp_path: Path) -> None:
    """After a crash of a broker, clients would get its address for two minutes."""
    with stopping([broker := other_broker(servers, tmp_path, "crashing").start()]):
        broker.kill()
        probe.wait_until(
            lambda: set(masters_of(servers)) == {"pair"}, "the broker to be dropped", timeout_s=5
        )


def test_a_restarted_broker_has_its_new_address(servers: Cluster, tmp_path: Path) -> None:
    """A broker that restarts at another port would not be found."""
    for _ in range(2):
        with stopping([broker := other_broker(servers, tmp_path, "moving").start()]):
            assert masters_of(servers)["moving"] == {"0": broker.address}
            broker.kill()
        probe.wait_until(lambda: "moving" not in masters_of(servers), "the broker to be dropped")


def test_a_slave_finds_its_master(servers: Cluster, tmp_path: Path) -> None:
    """A Java slave would not learn its master's HA address from the name server and replicate nothing."""
    topic = servers.topic("slave")
    steps = [{"how": "sync", "topic": topic, "body": f"{n}".encode().hex()} for n in range(50)]
    assert {a["status"] for a in servers.produce(*steps)} == {"SEND_OK"}
    slave = other_broker(servers, tmp_path, "slave", brokerName="pair", brokerId=1, brokerRole="SLAVE")
    with stopping([slave.start()]):
        assert masters_of(servers)["pair"] == {"0": servers.broker.address, "1": slave.address}
        listed = servers.admin("clusterList")
        assert servers.broker.address in listed
        assert slave.address in listed
        probe.wait_until(lambda: stored(slave.address, topic) == 50, "the slave to have 50 messages")
        slave.kill()
    probe.wait_until(lambda: "1" not in masters_of(servers)["pair"], "the slave to be dropped")


def test_key_value_settings(servers: Cluster) -> None:
    """Settings made with mqadmin would be lost or unreadable."""
    setting = ("-s", "INTEROP", "-k", "key")
    assert "success" in servers.admin("updateKvConfig", *setting, "-v", "a value")
    assert kv(servers) == (0, "a value")
    assert "success" in servers.admin("updateKvConfig", *setting, "-v", "another")
    assert kv(servers) == (0, "another")
    assert "success" in servers.admin("deleteKvConfig", *setting)
    assert kv(servers)[0] == 22  # QUERY_NOT_FOUND


def test_order_configuration(servers: Cluster) -> None:
    """`mqadmin updateOrderConf` would not keep which brokers hold an ordered topic's queues."""
    topic = servers.topic("ordered")
    servers.admin("updateOrderConf", "-t", topic, "-m", "put", "-v", "pair:4")
    assert "pair:4" in servers.admin("updateOrderConf", "-t", topic, "-m", "get")
    assert "success" in servers.admin("updateOrderConf", "-t", topic, "-m", "delete")


def test_topics_of_a_cluster(servers: Cluster) -> None:
    """`mqadmin topicList -c` and `topicClusterList` would miss topics or clusters."""
    topic = servers.topic("listed")
    servers.make_topic(topic)
    assert topic in servers.admin("topicList")
    assert "InteropCluster" in servers.admin("topicClusterList", "-t", topic)


def test_a_deleted_topic_has_no_route(servers: Cluster) -> None:
    """A topic deleted with mqadmin would still be routed."""
    topic = servers.topic("deleted")
    servers.make_topic(topic)
    servers.admin("deleteTopic", "-c", "InteropCluster", "-t", topic)
    assert probe.route(servers.namesrv.address, topic) is None


def test_wiped_write_permission(servers: Cluster, tmp_path: Path) -> None:
    """Producers would still send to a broker whose write permission was wiped for maintenance."""
    with stopping([other_broker(servers, tmp_path, "wiped").start()]):
        assert "OK, " in servers.admin("wipeWritePerm", "-b", "wiped")
        found = probe.route(servers.namesrv.address, DEFAULT_TOPIC)
        assert found is not None
        perms = {queue["brokerName"]: queue["perm"] & 2 for queue in found["queueDatas"]}
        assert perms == {"pair": 2, "wiped": 0}


@pytest.mark.parametrize(
    ("names_of", "broker_of", "compressed"),
    [
        ("java", "our", "false"),
        ("java", "our", "true"),
        ("our", "our", "false"),
        ("our", "our", "true"),
        ("our", "java", "true"),  # RocketMQ's uncompressed registration would not fit a frame
    ],
)
def test_many_topics(
    peer: JavaPeer, tmp_path: Path, names_of: Make, broker_of: Make, compressed: str
) -> None:
    """A broker with 90,000 topics could not be registered, or some of its topics would have no route."""
    many_topics(tmp_path / "store")
    conf = {"compressedRegister": compressed, "storePathRootDir": str(tmp_path / "store")}
    with name_server(peer, tmp_path, names_of) as names:
        at = names.address
        broker = new_broker(broker_of, peer, tmp_path / "broker", at, store=tmp_path / "store", conf=conf)
        with stopping([broker.start()]):
            probe.wait_until(lambda: probe.route(at, f"topic-{COUNT - 1}") is not None, "the last topic")
            assert all(probe.route(at, f"topic-{number}") for number in range(0, COUNT, 9973))


def kv(servers: Cluster) -> tuple[int, str | None]:
    """Response code and value of the one setting these cases use."""
    code, fields, _ = probe.ask(servers.namesrv.address, 101, namespace="INTEROP", key="key")
    return code, fields.get("value")


def stored(address: str, topic: str) -> int:
    """Messages of a topic with four queues on one broker."""
    return sum(probe.offset(address, probe.MAX_OFFSET, topic, queue_id) for queue_id in range(4))
