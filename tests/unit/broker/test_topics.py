"""TopicTable: the topics of a broker and their file."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from rocketpy.errors import StoreDamaged, TopicInvalid
from rocketpy.protocol.bodies import RegisterBrokerBody, TopicConfig
from rocketpy_broker.config import BrokerConfig, TopicsConfig
from rocketpy_broker.services.topics import TopicTable, check_topic_name, perm_text
from rocketpy_broker.store import StoreConfig
from tests.golden_data import frames


def table(tmp_path: Path, *, auto_create: bool = True) -> TopicTable:
    config = BrokerConfig(
        store=StoreConfig(root=tmp_path),
        name="broker-a",
        cluster_name="GoldenCluster",
        topics=TopicsConfig(auto_create=auto_create),
    )
    return TopicTable(config, tmp_path / "config" / "topics.json", clock=lambda: 1000)


def test_a_new_broker_has_the_topics_of_4_6_0(tmp_path: Path) -> None:
    """QUIRKS 17: without this tools and clients miss topics that they take for granted."""
    request = next(f for f in frames("boot") if f.info["codeName"] == "REGISTER_BROKER")
    length = request.info["bodyLength"]
    recorded = RegisterBrokerBody.decode(request.data[-length:])
    theirs = dict(recorded.topic_config_serialize_wrapper.topic_config_table)
    theirs.pop("RMQ_SYS_TRANS_HALF_TOPIC", None)
    assert table(tmp_path).snapshot().topic_config_table == theirs


def test_topics_survive_a_restart(tmp_path: Path) -> None:
    """Without this a restart would hide every topic that somebody made."""
    first = table(tmp_path)
    first.update(TopicConfig(topic_name="Mine", read_queue_nums=3, write_queue_nums=3))
    again = table(tmp_path)
    again.load()
    mine = again.get("Mine")
    assert mine is not None
    assert mine.read_queue_nums == 3
    assert (again.version.counter, again.version.timestamp) == (1, 1000)
    assert again.plain_queues["Mine"] == 3


def test_a_damaged_file_stops_the_start(tmp_path: Path) -> None:
    """Without this all topics would be forgotten, and then overwritten."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_bytes(b"{rubbish")
    with pytest.raises(StoreDamaged):
        table(tmp_path).load()


@pytest.mark.parametrize(("wanted", "gets"), [(4, 4), (16, 8), (-1, 0)])
def test_a_send_makes_its_topic(tmp_path: Path, wanted: int, gets: int) -> None:
    """Without this the first message to a new topic would be refused."""
    topics = table(tmp_path)
    heard: list[Mapping[str, TopicConfig]] = []
    topics.on_change = heard.append
    made = topics.create_for_send("New", "TBW102", wanted)
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (gets, gets, 6)
    assert topics.create_for_send("New", "TBW102", 1) is made
    assert heard == [{"New": made}]


def test_no_topic_is_made_where_that_is_off(tmp_path: Path) -> None:
    """Without this a misspelt topic name would create a topic on a broker that forbids it."""
    assert table(tmp_path, auto_create=False).create_for_send("New", "TBW102", 4) is None
    assert table(tmp_path).create_for_send("New", "NoModel", 4) is None
    assert table(tmp_path).create_for_send("New", "SELF_TEST_TOPIC", 4) is None
    table(tmp_path).update(TopicConfig(topic_name="Other"))  # saves TBW102 too
    later = table(tmp_path, auto_create=False)
    later.load()
    assert later.create_for_send("New", "TBW102", 4) is None


@pytest.mark.parametrize("name", ["", "a b", "../../etc", "a/b", "topic\n", "x" * 128, "ü", "a.b"])
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    """CVE-2019-17572: without this a topic's name could lead out of the store's directory."""
    with pytest.raises(TopicInvalid):
        check_topic_name(name)
    with pytest.raises(TopicInvalid):
        table(tmp_path).create_for_send(name, "TBW102", 4)
    with pytest.raises(TopicInvalid):
        table(tmp_path).update(TopicConfig(topic_name=name))


def test_counts_of_queues_are_checked(tmp_path: Path) -> None:
    """Without this one request could fill a disk with directories."""
    for count in (-1, 100_000):
        with pytest.raises(TopicInvalid, match="queues"):
            table(tmp_path).update(TopicConfig(topic_name="T", read_queue_nums=count))


def test_a_name_servers_order_config_is_taken_over(tmp_path: Path) -> None:
    """Without this an ordered topic would lose its order when a broker is read-only."""
    topics = table(tmp_path)
    topics.update(TopicConfig(topic_name="Ordered"))
    topics.apply_order_config({"Ordered": "broker-a:4"})
    assert topics.snapshot({"Ordered": 1}).topic_config_table["Ordered"].order
    assert "Ordered" not in topics.plain_queues
    version = topics.version
    topics.apply_order_config({"Ordered": "broker-a:4"})
    assert topics.version == version
    topics.apply_order_config({})
    assert topics.plain_queues["Ordered"] == 16


def test_permissions_are_printed_as_rocketmq_does() -> None:
    """Without this remarks would differ from what operators grep for."""
    assert [perm_text(perm) for perm in (7, 6, 4, 0)] == ["RWX", "RW-", "R--", "---"]
