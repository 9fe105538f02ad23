"""TopicTable: the topics of a broker and their file."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from rocketpy.errors import DiskFull, RocketError, StoreDamaged, TopicInvalid
from rocketpy.protocol.bodies import RegisterBrokerBody, TopicConfig
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.config.model import BrokerConfig, TopicsConfig
from rocketpy_broker.services.metadata.topics import TopicTable, check_topic_name, ensure_topic, perm_text
from rocketpy_broker.store import StoreConfig
from rocketpy_broker.store.files.batch_saver import ChangePending
from rocketpy_broker.store.files.disk import OsDisk
from tests.golden_data import frames


def table(tmp_path: Path, *, topics: TopicsConfig | None = None, disk: OsDisk | None = None) -> TopicTable:
    config = BrokerConfig(
        store=StoreConfig(root=tmp_path),
        name="broker-a",
        cluster_name="GoldenCluster",
        topics=topics or TopicsConfig(),
    )
    path = tmp_path / "config" / "topics.json"
    return TopicTable(config, path, Tasks("the test"), clock=lambda: 1000, disk=disk)


NO_AUTO_CREATE = TopicsConfig(auto_create=False)


async def created(
    topics: TopicTable, name: str, model: str = "TBW102", queues: int = 4
) -> TopicConfig | None:
    """Return the topic that a send gets, after the save that it waits for. Raises the error of the save."""
    try:
        return topics.create_for_send(name, model, queues)
    except ChangePending as waiting:
        done: asyncio.Future[RocketError | None] = asyncio.get_running_loop().create_future()
        waiting.wait(done.set_result)
        error = await done
        if error is not None:
            raise error from None
        return topics.create_for_send(name, model, queues)


async def test_a_new_broker_has_the_topics_of_4_6_0(tmp_path: Path) -> None:
    """QUIRKS 17: tools and clients would miss topics that they rely on."""
    request = next(f for f in frames("boot") if f.info["codeName"] == "REGISTER_BROKER")
    length = request.info["bodyLength"]
    recorded = RegisterBrokerBody.decode(request.data[-length:])
    theirs = dict(recorded.topic_config_serialize_wrapper.topic_config_table)
    theirs.pop("RMQ_SYS_TRANS_HALF_TOPIC", None)
    assert table(tmp_path).snapshot().topic_config_table == theirs


@pytest.mark.parametrize(
    ("reads", "writes", "found"),
    [
        (4, 4, [0, 1, 2, 3, 0, 1]),
        (2, 2, [0, 1, 0, 1, 0, 1]),
        (4, 2, [0, 1, 0, 1, 0, 1]),  # an operator lowers the queues for reading soon
        (2, 4, [0, 1, 0, 1, 0, 1]),
        (3, 0, [0, 1, 2, 0, 1, 2]),
        (0, 3, [0, 1, 2, 3, 4, 5]),  # there is no better one
    ],
)
async def test_lost_queues_are_replaced(tmp_path: Path, reads: int, writes: int, found: list[int]) -> None:
    """A delayed message, or one of a transaction, would go to a queue that no consumer reads any more."""
    topics = table(tmp_path)
    await topics.update(TopicConfig(topic_name="T", read_queue_nums=reads, write_queue_nums=writes))
    assert [topics.existing_queue("T", queue_id) for queue_id in range(6)] == found
    assert topics.existing_queue("Missing", 3) == 3


async def test_a_missing_topic_is_created_once(tmp_path: Path) -> None:
    """Of two that create a topic at the same time, one would replace the queues of the other."""
    topics = table(tmp_path)
    sent = asyncio.ensure_future(created(topics, "T", queues=4))
    await asyncio.sleep(0)  # the send has begun to create it
    assert "T" not in topics.names
    many = [TopicConfig(topic_name="T", read_queue_nums=n, write_queue_nums=n) for n in (1, 2)]
    assert await asyncio.gather(*map(topics.create_missing, many)) == [False, False]
    found = topics.get("T")
    assert found == await sent
    assert found is not None
    assert found.write_queue_nums == 4


async def test_topics_survive_a_restart(tmp_path: Path) -> None:
    """A restart would hide every topic that was created."""
    first = table(tmp_path)
    await first.update(TopicConfig(topic_name="Mine", read_queue_nums=3, write_queue_nums=3))
    again = table(tmp_path)
    again.load()
    mine = again.get("Mine")
    assert mine is not None
    assert mine.read_queue_nums == 3
    assert (again.version.counter, again.version.timestamp) == (1, 1000)
    assert again.plain_queues["Mine"] == 3


async def test_a_damaged_file_stops_the_start(tmp_path: Path) -> None:
    """All topics would be forgotten, and then overwritten."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_bytes(b"{rubbish")
    with pytest.raises(StoreDamaged):
        table(tmp_path).load()


@pytest.mark.parametrize(("wanted", "gets"), [(4, 4), (16, 8), (-1, 0)])
async def test_a_send_makes_its_topic(tmp_path: Path, wanted: int, gets: int) -> None:
    """The first message to a new topic would be rejected."""
    topics = table(tmp_path)
    changes: list[Mapping[str, TopicConfig]] = []
    topics.on_change = changes.append
    made = await created(topics, "New", queues=wanted)
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (gets, gets, 6)
    assert topics.create_for_send("New", "TBW102", 1) is made
    assert changes == [{"New": made}]
    again = table(tmp_path)
    again.load()
    assert again.get("New") == made


async def test_topics_made_in_a_burst_are_saved_together(tmp_path: Path) -> None:
    """3,000 new groups in one heartbeat stopped the broker for 81 s: each saved the whole table."""
    topics = table(tmp_path)
    changes: list[Mapping[str, TopicConfig]] = []
    topics.on_change = changes.append
    names = [f"T{number}" for number in range(3000)]
    await asyncio.gather(*(created(topics, name) for name in names))
    assert topics.saver.saves <= 2
    assert [len(changed) for changed in changes] == [3000]
    again = table(tmp_path)
    again.load()
    assert set(names) <= set(again.names)


class FullDisk(OsDisk):
    """Has no room for a file while it is full."""

    is_full = True

    def pwrite(self, handle: int, data: bytes, offset: int) -> None:
        """Write, unless it is full."""
        if self.is_full:
            raise OSError(28, "No space left on device")
        super().pwrite(handle, data, offset)


async def test_a_topic_that_cannot_be_saved_is_not_there(tmp_path: Path) -> None:
    """A topic would be missing after a crash although its creation was acknowledged."""
    disk = FullDisk()
    topics = table(tmp_path, disk=disk)
    changes: list[Mapping[str, TopicConfig]] = []
    topics.on_change = changes.append
    version = topics.version
    with pytest.raises(DiskFull):
        await created(topics, "New")
    with pytest.raises(DiskFull):
        await topics.update(TopicConfig(topic_name="Other"))
    assert (topics.get("New"), topics.get("Other"), topics.version, changes) == (None, None, version, [])
    disk.is_full = False
    assert await created(topics, "New") is not None


async def test_changes_are_saved_in_order(tmp_path: Path) -> None:
    """After several changes by an operator, a restart would load one that is not the last."""
    topics = table(tmp_path)
    changes = [
        topics.update(TopicConfig(topic_name="T", read_queue_nums=1)),
        topics.update(TopicConfig(topic_name="T", read_queue_nums=2)),
        topics.update(TopicConfig(topic_name="T", read_queue_nums=3)),
    ]
    await asyncio.gather(*changes)
    deleting = asyncio.create_task(topics.delete("T"))
    await asyncio.sleep(0)
    await topics.update(TopicConfig(topic_name="T", read_queue_nums=4))
    assert await deleting
    again = table(tmp_path)
    again.load()
    for one in (topics, again):
        found = one.get("T")
        assert found is not None
        assert found.read_queue_nums == 4
    assert again.version == topics.version


async def test_an_update_outlives_concurrent_sends(tmp_path: Path) -> None:
    """A send gave the default queues to a topic that an operator was creating; both saw success."""
    topics = table(tmp_path)
    updating = asyncio.create_task(topics.update(TopicConfig(topic_name="T", write_queue_nums=16)))
    await asyncio.sleep(0)
    made = await created(topics, "T")
    await updating
    assert made is not None
    assert made.write_queue_nums == 16
    updating = asyncio.create_task(topics.update(TopicConfig(topic_name="T", write_queue_nums=32)))
    await asyncio.sleep(0)
    topics.apply_order_config({"T": "broker-a:4"})
    await updating
    await topics.all_changed()  # the save before it has ended then
    found = topics.get("T")
    assert found is not None
    assert (found.write_queue_nums, found.order) == (32, True)
    deleting = asyncio.create_task(topics.delete("T"))
    await asyncio.sleep(0)
    topics.apply_order_config({})
    assert await deleting
    await topics.all_changed()
    assert topics.get("T") is None


async def test_a_topic_that_is_being_made_can_be_deleted(tmp_path: Path) -> None:
    """A deleted topic would exist again a moment after the response to the deletion."""
    topics = table(tmp_path)
    with pytest.raises(ChangePending):
        topics.create_for_send("T", "TBW102", 4)
    assert await topics.delete("T")
    assert topics.get("T") is None


async def test_a_slave_drops_topics_changed_during_a_copy(tmp_path: Path) -> None:
    """The table would have its master's version, with another content, until the master's next change."""
    topics = table(tmp_path)
    (tmp_path / "master").mkdir()
    master = table(tmp_path / "master")
    await master.update(TopicConfig(topic_name="T"))
    changing = asyncio.create_task(topics.update(TopicConfig(topic_name="Other")))
    await asyncio.sleep(0)
    await topics.adopt(master.snapshot())
    await changing
    assert topics.snapshot() == master.snapshot()
    await master.update(TopicConfig(topic_name="U"))
    adopting = asyncio.create_task(topics.adopt(master.snapshot()))
    await asyncio.sleep(0)
    topics.add([TopicConfig(topic_name="Own")])  # it has just become a master
    await adopting
    await topics.all_changed()
    assert {"T", "U", "Own"} <= set(topics.names)


async def test_topics_used_at_once_are_saved_too(tmp_path: Path) -> None:
    """Topics found in the store of a broker that lost its file would have to be found at every start."""
    disk = FullDisk()
    topics = table(tmp_path, disk=disk)
    topics.add([TopicConfig(topic_name="Found")])
    assert topics.get("Found") is not None
    await topics.save()  # fails
    disk.is_full = False
    await topics.save()
    again = table(tmp_path)
    again.load()
    assert again.get("Found") is not None
    assert again.version != table(tmp_path).version


async def test_no_more_topics_than_the_limit(tmp_path: Path) -> None:
    """Random names in sends could fill memory, and registrations at name servers."""
    topics = table(tmp_path, topics=TopicsConfig(topics_max=2))
    results = await asyncio.gather(*(created(topics, name) for name in "abc"), return_exceptions=True)
    assert [isinstance(result, TopicConfig) for result in results] == [True, True, False]
    assert "has 2 topics besides the system topics, and 2 are allowed (maxTopics is 2)" in str(results[2])
    with pytest.raises(TopicInvalid, match="maxTopics"):
        await topics.update(TopicConfig(topic_name="d"))
    await topics.update(TopicConfig(topic_name="a", read_queue_nums=3))
    for name in ("%RETRY%g", "%DLQ%g"):
        with pytest.raises(ChangePending):
            ensure_topic(topics, name, 1, 6)
    with pytest.raises(TopicInvalid, match=r"has 4 topics .* 4 are allowed \(maxTopics is 2\)"):
        ensure_topic(topics, "%RETRY%h", 1, 6)
    (tmp_path / "other").mkdir()
    topics = table(tmp_path / "other", topics=TopicsConfig(topics_max=2))
    updates = await asyncio.gather(
        *(topics.update(TopicConfig(topic_name=name)) for name in "abac"), return_exceptions=True
    )
    assert [isinstance(result, TopicInvalid) for result in updates] == [False, False, False, True]
    fewer = table(tmp_path, topics=TopicsConfig(topics_max=1))
    fewer.load()
    assert {"a", "b"} <= set(fewer.names)


async def test_no_topic_is_made_where_that_is_off(tmp_path: Path) -> None:
    """A misspelt topic name would create a topic on a broker that forbids it."""
    assert await created(table(tmp_path, topics=NO_AUTO_CREATE), "New") is None
    assert await created(table(tmp_path), "New", "NoModel") is None
    assert await created(table(tmp_path), "New", "SELF_TEST_TOPIC") is None
    await table(tmp_path).update(TopicConfig(topic_name="Other"))  # saves TBW102 too
    later = table(tmp_path, topics=NO_AUTO_CREATE)
    later.load()
    assert await created(later, "New") is None


@pytest.mark.parametrize("name", ["", "a b", "../../etc", "a/b", "topic\n", "x" * 128, "ü", "a.b"])
async def test_bad_names_are_rejected(tmp_path: Path, name: str) -> None:
    """CVE-2019-17572: a topic's name could lead out of the store's directory."""
    with pytest.raises(TopicInvalid):
        check_topic_name(name)
    with pytest.raises(TopicInvalid):
        await created(table(tmp_path), name)
    with pytest.raises(TopicInvalid):
        await table(tmp_path).update(TopicConfig(topic_name=name))


async def test_counts_of_queues_are_checked(tmp_path: Path) -> None:
    """One request could fill a disk with directories, and many requests take seconds."""
    for count in (-1, 1025, 100_000):
        with pytest.raises(TopicInvalid, match="queues"):
            await table(tmp_path).update(TopicConfig(topic_name="T", read_queue_nums=count))
    large = TopicsConfig(queues_max=5000)
    await table(tmp_path, topics=large).update(TopicConfig(topic_name="T", read_queue_nums=5000))
    topics = table(tmp_path)
    topics.load()  # an existing topic stays
    await topics.update(TopicConfig(topic_name="T", read_queue_nums=5000, perm=4))
    with pytest.raises(TopicInvalid, match="maxTopicQueues"):
        await topics.update(TopicConfig(topic_name="T", read_queue_nums=5001))


async def test_a_name_servers_order_config_is_taken_over(tmp_path: Path) -> None:
    """An ordered topic would lose its order when a broker is read-only."""
    topics = table(tmp_path)
    await topics.update(TopicConfig(topic_name="Ordered"))
    topics.apply_order_config({"Ordered": "broker-a:4"})
    await topics.update(TopicConfig(topic_name="Later"))  # the save before it has ended then
    assert topics.snapshot({"Ordered": 1}).topic_config_table["Ordered"].order
    assert "Ordered" not in topics.plain_queues
    version = topics.version
    topics.apply_order_config({"Ordered": "broker-a:4"})
    await asyncio.sleep(0)
    assert (topics.version, topics.saver.saves) == (version, 2)
    topics.apply_order_config({})
    await topics.update(TopicConfig(topic_name="Later"))
    assert topics.plain_queues["Ordered"] == 16


def test_permissions_are_printed_as_rocketmq_does() -> None:
    """Remarks would differ from the texts that operators search for."""
    assert [perm_text(perm) for perm in (7, 6, 4, 0)] == ["RWX", "RW-", "R--", "---"]
