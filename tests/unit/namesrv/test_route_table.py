"""RouteTable: registrations and removals of brokers change the routes."""

from contextlib import nullcontext
from typing import Any

import pytest

from rocketpy.client.routing.routes import QUEUES_MAX
from rocketpy.errors import UsageError
from rocketpy.protocol.bodies import DataVersion, TopicConfig
from rocketpy_broker.namesrv.registration_checks import check_registration
from rocketpy_broker.namesrv.route_table import BrokerIdentity, MasterHint, RouteTable


def identity(name: str = "broker-a", broker_id: int = 0, address: str = "h:1", cluster: str = "C") -> Any:
    return BrokerIdentity(cluster=cluster, name=name, broker_id=broker_id, address=address)


def register(table: RouteTable, broker: BrokerIdentity | None = None, **changes: Any) -> MasterHint:
    """Register with one topic T of four queues, unless given otherwise."""
    settings: dict[str, Any] = {
        "ha_address": "h:2",
        "topics": topics("T"),
        "data_version": DataVersion(timestamp=5, counter=1),
        "filter_servers": [],
        "channel": "channel",
        "now_ms": 0,
    }
    return table.register(broker or identity(), **{**settings, **changes})


def topics(*names: str, queues: int = 4, flag: int = 0, perm: int = 6) -> dict[str, TopicConfig]:
    return {
        name: TopicConfig(
            topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm, topic_sys_flag=flag
        )
        for name in names
    }


def queues_of(table: RouteTable, topic: str) -> dict[str, int]:
    route = table.route(topic)
    return {} if route is None else {q.broker_name: q.write_queue_nums for q in route.queue_datas}


def test_a_registered_topic_is_found() -> None:
    """No client would find a broker."""
    table = RouteTable()
    register(table)
    route = table.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "h:1"}
    assert route.queue_datas[0].perm == 6
    assert table.route("other") is None


def test_topics_of_two_brokers_are_joined() -> None:
    """Half of a topic's queues would never be used."""
    table = RouteTable()
    register(table)
    register(table, identity("broker-b", address="h:3"), topics=topics("T", queues=8))
    assert queues_of(table, "T") == {"broker-a": 4, "broker-b": 8}


def test_an_unchanged_version_changes_nothing() -> None:
    """A permission that an operator removed would come back with the next heartbeat."""
    table = RouteTable()
    register(table)
    assert table.set_write_perm("broker-a", is_writable=False) == 1
    register(table)
    assert _perm(table) == 4
    register(table, data_version=DataVersion(timestamp=6, counter=2))
    assert _perm(table) == 6


def test_write_permission_can_be_given_back() -> None:
    """A broker taken out for maintenance would stay out until its topics change."""
    table = RouteTable()
    register(table)
    table.set_write_perm("broker-a", is_writable=False)
    assert table.set_write_perm("broker-a", is_writable=True) == 1
    assert _perm(table) == 6
    assert table.set_write_perm("nobody", is_writable=False) == 0


def _perm(table: RouteTable) -> int:
    route = table.route("T")
    assert route is not None
    return route.queue_datas[0].perm


def test_a_response_already_given_does_not_change() -> None:
    """A route on its way to a client would change under the encoder."""
    table = RouteTable()
    register(table)
    route = table.route("T")
    assert route is not None
    table.set_write_perm("broker-a", is_writable=False)
    assert route.queue_datas[0].perm == 6


def test_one_changed_topic_leaves_the_others() -> None:
    """QUIRKS 13: creating a topic would hide all others of the broker."""
    table = RouteTable()
    register(table)
    register(table, topics=topics("New"), data_version=DataVersion(timestamp=6, counter=2))
    assert sorted(table.topics()) == ["New", "T"]
    register(table, topics=topics("T", queues=16), data_version=DataVersion(timestamp=7, counter=3))
    assert queues_of(table, "T") == {"broker-a": 16}


def test_a_slave_learns_its_master_but_brings_no_topics() -> None:
    """QUIRKS 15: a slave would not know its master."""
    table = RouteTable()
    slave = identity(broker_id=1, address="h:9")
    assert register(table, slave) == MasterHint()
    assert table.route("T") is None
    assert register(table) == MasterHint()
    assert register(table, slave) == MasterHint("h:1", "h:2")
    route = table.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "h:1", 1: "h:9"}


def test_a_slave_that_became_master_has_one_entry() -> None:
    """Clients would use one broker in two roles."""
    table = RouteTable()
    register(table, identity(broker_id=1, address="h:9"))
    register(table, identity(broker_id=0, address="h:9"))
    assert table.cluster_info().broker_addr_table["broker-a"].broker_addrs == {0: "h:9"}


def test_silence_drops_a_broker() -> None:
    """Producers would send to a machine that is offline."""
    table = RouteTable()
    register(table, now_ms=1000)
    assert table.drop_inactive(121_000, 120_000) == []
    table.touch("h:1", 2000)
    assert table.drop_inactive(121_001, 120_000) == []
    assert [live.identity.name for live in table.drop_inactive(122_001, 120_000)] == ["broker-a"]
    assert table.route("T") is None
    assert table.cluster_info().cluster_addr_table == {}


def test_a_lost_connection_drops_its_broker_at_once() -> None:
    """A killed broker would be offered for two minutes."""
    table = RouteTable()
    register(table, channel="one")
    register(table, identity("broker-b", address="h:3"), channel="two")
    assert [live.identity.address for live in table.drop_channel("one")] == ["h:1"]
    assert queues_of(table, "T") == {"broker-b": 4}


def test_an_old_connection_does_not_drop_a_broker_that_reconnected() -> None:
    """A reconnecting broker would vanish when its first connection times out."""
    table = RouteTable()
    register(table, channel="old")
    register(table, channel="new")
    assert table.drop_channel("old") == []
    assert table.route("T") is not None


def test_a_master_that_goes_leaves_its_slave() -> None:
    """Consumers could not read from the slave."""
    table = RouteTable()
    register(table)
    register(table, identity(broker_id=1, address="h:9"), channel="slave")
    table.unregister(identity())
    table.unregister(identity())
    route = table.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {1: "h:9"}


def test_an_unregistration_of_a_predecessor_does_not_end_the_successor() -> None:
    """A slow shutdown would unregister the broker that took over its id."""
    table = RouteTable()
    register(table)
    register(table, identity(address="h:7"), channel="new")
    table.unregister(identity(address="h:1"))
    route = table.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "h:7"}


def test_a_second_broker_with_the_same_name_and_id_is_found() -> None:
    """Two brokers with one configuration would replace each other without a report."""
    table = RouteTable()
    assert table.find_duplicate(identity()) is None
    register(table)
    assert table.find_duplicate(identity()) is None
    found = table.find_duplicate(identity(address="h:7"))
    assert found is not None
    assert found.identity == identity()


def test_a_deleted_topic_has_no_route() -> None:
    """A deleted topic would be offered until every broker restarted."""
    table = RouteTable()
    register(table)
    table.delete_topic("T")
    table.delete_topic("T")
    assert table.topics() == []


def test_filter_servers_are_in_routes() -> None:
    """A 4.x broker with filter servers would lose them here."""
    table = RouteTable()
    register(table, filter_servers=["f:1"])
    register(table, filter_servers=None)
    route = table.route("T")
    assert route is not None
    assert route.filter_server_table == {"h:1": ["f:1"]}
    changes = table.changes
    register(table, filter_servers=["f:1"])
    assert table.changes == changes
    register(table, filter_servers=[])
    assert table.changes == changes + 1
    route = table.route("T")
    assert route is not None
    assert route.filter_server_table == {}


def test_listings() -> None:
    """The tools topicList and clusterList, and the lists of unit topics, would be wrong."""
    table = RouteTable()
    register(table, topics={**topics("Unit", flag=1), **topics("Sub", flag=2), **topics("Both", flag=3)})
    assert table.unit_topics() == ["Unit", "Both"]
    assert table.unit_sub_topics() == ["Sub", "Both"]
    assert table.unit_sub_un_unit_topics() == ["Sub"]
    assert table.topics_of_cluster("C") == ["Unit", "Sub", "Both"]
    assert table.topics_of_cluster("nowhere") == []
    assert table.system_topics() == (["C", "broker-a"], "h:1")
    assert table.cluster_info().cluster_addr_table == {"C": ["broker-a"]}


def test_names_and_clusters_of_one_address_are_bounded() -> None:
    """A client that registered many names, or clusters, with one address and no topics passed maxRoutes."""
    table = RouteTable()
    assert table.count_new(identity(), ("T", "U")) == 4  # the broker, its cluster, its topics
    for number in range(5):
        register(table, identity(f"b{number}"))
    assert set(table.cluster_info().broker_addr_table) == {"b4"}
    assert set(queues_of(table, "T")) == {"b4"}
    assert table.entries == 3  # the broker, its cluster, its topic
    register(table, identity("b4", broker_id=1, address="h:5"))
    for number in range(5):
        broker = identity("b4", cluster=f"D{number}")
        assert table.count_new(broker, "T") == 1
        register(table, broker)
    assert table.entries == 4 + 5
    table.drop_channel("channel")
    assert table.entries == 0
    assert not table.cluster_info().cluster_addr_table


def test_a_peer_without_a_role_learns_the_master() -> None:
    """A DLedger peer that has not learnt its role (id -1) would not find the master of its group."""
    table = RouteTable()
    assert register(table) == MasterHint()
    assert register(table, identity(broker_id=1, address="h:3")) == MasterHint("h:1", "h:2")
    assert register(table, identity(broker_id=-1, address="h:4")) == MasterHint("h:1", "h:2")


@pytest.mark.parametrize("count", [-1, 0, QUEUES_MAX, QUEUES_MAX + 1])
def test_a_topic_may_have_no_queues(count: int) -> None:
    """A topic without queues for sends, as while it is drained, would keep its broker from registering."""
    (topic,) = topics("T", queues=count).values()
    is_allowed = 0 <= count <= QUEUES_MAX
    with nullcontext() if is_allowed else pytest.raises(UsageError, match=r"0 to \d+ are allowed"):
        check_registration(identity(), "h:2", [topic], [])
