"""A missing file of the config directory must not lose messages, topics or offsets without a report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rocketpy import AdminClient, LocalTransactionState, Message, Producer
from rocketpy.errors import StoreDamaged
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.ha_pair import caught_up, pair
from tests.integration.sdk_groups import SETTINGS, Seen, committed, consuming, send
from tests.waiting import until


async def used(root: Path) -> None:
    """A store whose topics T (8 queues) and U have messages; group g has consumed those of T."""
    async with EmbeddedCluster(root, settings=SETTINGS) as cluster:
        async with AdminClient(cluster.namesrv_address) as admin:
            await admin.create_topic("T", 8)
            await admin.create_topic("Empty", 1)
        async with Producer("senders", cluster.namesrv_address) as producer:
            for number in range(16):
                await send(producer, f"first {number}")
            await send(producer, "of U", topic="U")
            await producer.send(Message("T", b"delayed", delay_level=2))
        seen = Seen()
        async with consuming(cluster, seen):
            await seen.until(17)
        assert committed(cluster) == 17


def lose(root: Path, *names: str) -> None:
    """Remove these files and their backups."""
    for name in names:
        for path in (root / "config").glob(f"{name}*"):
            path.unlink()


async def test_topics_are_restored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A store without topics.json would start without topics and without a warning."""
    await used(tmp_path)
    lose(tmp_path, "topics.json")
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster:
        topics = cluster.brokers[0].topics
        found = topics.get("T")
        assert found is not None
        assert found.read_queue_nums == found.write_queue_nums == 8
        assert topics.get("SCHEDULE_TOPIC_XXXX") is None
        assert topics.get("Empty") is None
        [line] = [record.getMessage() for record in caplog.records if "topics.json" in record.getMessage()]
        for part in ("is missing", "restored 2 topics", "(T, U)", "restore it"):
            assert part in line
        async with Producer("senders", cluster.namesrv_address) as producer:
            await send(producer, "second")
        seen, of_u = Seen(), Seen()
        async with consuming(cluster, seen), consuming(cluster, of_u, topic="U", group="other"):
            await seen.until(1)
            await of_u.until(1)
        assert (list(seen.bodies), list(of_u.bodies)) == ([b"second"], [b"of U"])
    caplog.clear()
    async with EmbeddedCluster(tmp_path, settings=SETTINGS):
        assert "made" not in caplog.text


@pytest.mark.parametrize("kind", ["delayed", "half"])
@pytest.mark.parametrize("copy", ["older", "none"])
async def test_a_topic_without_visible_messages_is_restored(
    tmp_path: Path, kind: str, copy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Delayed messages, or those of open transactions, would go to a topic that no consumer finds."""
    settings = {**SETTINGS, "messageDelayLevel": "2h"}
    async with (
        EmbeddedCluster(tmp_path, settings=settings) as cluster,
        AdminClient(cluster.namesrv_address) as admin,
        Producer("senders", cluster.namesrv_address) as producer,
    ):
        await send(producer, "first", topic="First")
        await admin.create_topic("T", 8)
        producer.check_transactions(lambda _: LocalTransactionState.UNKNOWN)
        for number in range(8):
            message = Message("T", b"%d" % number, delay_level=int(kind == "delayed"))
            if kind == "delayed":
                await producer.send(message)
            else:
                await producer.send_in_transaction(
                    message, local_transaction=lambda _: LocalTransactionState.UNKNOWN
                )
    path = tmp_path / "config" / "topics.json"
    tables = json.loads(path.read_text())
    del tables["topicConfigTable"]["T"]
    path.unlink()
    path.with_name("topics.json.bak").unlink()
    if copy == "older":
        path.with_name("topics.json.bak").write_text(json.dumps(tables))
    soon = {
        **SETTINGS,
        "messageDelayLevel": "0s",
        "transactionTimeOut": "0",
        "transactionCheckInterval": "50",
    }
    async with EmbeddedCluster(tmp_path, settings=soon) as cluster:
        async with Producer("senders", cluster.namesrv_address) as producer:
            producer.check_transactions(lambda _: LocalTransactionState.COMMIT)
            await until(lambda: cluster.brokers[0].topics.get("T") is not None)
            seen = Seen()
            async with consuming(cluster, seen):
                await seen.until(8)
        assert set(seen.bodies.values()) == {1}
    [line] = [text for text in caplog.messages if "topic T is unknown" in text]
    assert "created it with" in line


async def test_a_deleted_topic_stays_deleted(tmp_path: Path) -> None:
    """A message that was delayed before the deletion would bring the topic back."""
    settings = {**SETTINGS, "messageDelayLevel": "2h"}
    async with (
        EmbeddedCluster(tmp_path, settings=settings) as cluster,
        AdminClient(cluster.namesrv_address) as admin,
        Producer("senders", cluster.namesrv_address) as producer,
    ):
        await admin.create_topic("T", 1)
        await producer.send(Message("T", b"x", delay_level=1))
        await admin.topics.delete("T")
    async with EmbeddedCluster(tmp_path, settings={**SETTINGS, "messageDelayLevel": "0s"}) as cluster:
        await until(lambda: not any(cluster.brokers[0].delivery.delay.waiting().values()))
        assert cluster.brokers[0].topics.get("T") is None


async def test_groups_are_restored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where groups are not created automatically, no consumer could continue."""
    await used(tmp_path)
    lose(tmp_path, "subscriptionGroup.json")
    settings = {**SETTINGS, "autoCreateSubscriptionGroup": "false"}
    async with EmbeddedCluster(tmp_path, settings=settings) as cluster:
        assert "restored 1 consumer groups" in caplog.text
        async with Producer("senders", cluster.namesrv_address) as producer:
            await send(producer, "second")
        seen = Seen()
        async with consuming(cluster, seen):
            await seen.until(1)
        assert list(seen.bodies) == [b"second"]


@pytest.mark.parametrize("name", ["consumerOffset.json", "delayOffset.json"])
async def test_without_offsets_the_start_is_rejected(tmp_path: Path, name: str) -> None:
    """Groups would skip unread messages, or get all of them twice; so would delayed messages."""
    await used(tmp_path)
    lose(tmp_path, name)
    with pytest.raises(StoreDamaged, match=f"{name} is missing.*create it with the content") as caught:
        async with EmbeddedCluster(tmp_path, settings=SETTINGS):
            pass
    content = str(caught.value).rpartition(" ")[2]
    (tmp_path / "config" / name).write_text(content)
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster:
        seen = Seen()
        async with Producer("senders", cluster.namesrv_address) as producer:
            await send(producer, "last")
        async with consuming(cluster, seen):  # the copies of delivered messages are found
            count = 18 if name == "consumerOffset.json" else 1
            await seen.until(count)
        assert len(seen.bodies) == count


async def test_a_store_of_an_early_version_starts_without_offsets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An upgrade would stop a broker to which no group had committed an offset yet."""
    await used(tmp_path)
    lose(tmp_path, "consumerOffset.json", "delayOffset.json")
    (tmp_path / "queuesums").unlink()
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster:
        assert "consumerOffset.json is missing" in caplog.text
        seen = Seen()
        async with consuming(cluster, seen):
            await seen.until(17)


async def test_the_backup_is_used_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An operator would not learn that groups continue from older offsets."""
    await used(tmp_path)
    path = tmp_path / "config" / "consumerOffset.json"
    path.rename(path.with_name("consumerOffset.json.bak"))
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster:
        assert committed(cluster) == 17
    for part in (
        f"older {path}.bak, since {path} is missing",
        f"{path}: 1 groups get the messages again that they consumed since its last but one save",
    ):
        assert part in caplog.text
    assert path.exists()


async def test_a_first_start_writes_the_files(tmp_path: Path) -> None:
    """A broker that is killed before it saves would look like one whose files were removed."""
    async with EmbeddedCluster(tmp_path, settings=SETTINGS):
        assert (tmp_path / "config" / "consumerOffset.json").exists()
        assert (tmp_path / "config" / "delayOffset.json").exists()


async def test_a_slave_gets_them_from_its_master(tmp_path: Path) -> None:
    """A slave would not start, although it can copy the missing files from its master."""
    async with pair(tmp_path) as both:
        master, slave = await both.master(), await both.slave()
        async with Producer("senders", both.namesrv_address) as producer:
            await send(producer, "one")
        master.consumers.offsets.commit("g", "T", 0, 1)
        await until(lambda: slave.consumers.offsets.get("g", "T", 0) == 1)
        await until(lambda: slave.store.max_physical_offset == master.store.max_physical_offset)
        await both.stop(slave)
        lose(tmp_path / "slave", "consumerOffset.json", "topics.json")
        slave = await both.slave()
        assert slave.topics.get("T") is not None
        await until(lambda: slave.consumers.offsets.get("g", "T", 0) == 1)
        await until(lambda: slave.topics.version == master.topics.version)
        assert slave.topics.get("T") == master.topics.get("T")


def damage(path: Path, way: str) -> None:
    """Remove a file, or leave a part of it."""
    if way == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20])


WAYS = pytest.mark.parametrize("way", ["missing", "damaged"])


@WAYS
async def test_the_newest_topic_is_restored_if_the_backup_lacks_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """Its messages would vanish, and a producer would create it again with fewer queues."""
    path = tmp_path / "config" / "topics.json"
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster:
        async with AdminClient(cluster.namesrv_address) as admin:
            await admin.create_topic("Other", 2)
            await admin.create_topic("T", 16)
        async with Producer("senders", cluster.namesrv_address) as producer:
            for queue in await producer.fetch_publish_message_queues("T"):
                await producer.send(Message("T", b"%d" % queue.queue_id), queue=queue)
    damage(path, way)
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster:
        topics = cluster.brokers[0].topics
        found = topics.get("T")
        assert found is not None
        assert found.read_queue_nums == found.write_queue_nums == 16
        assert topics.get("Other") is not None
        seen = Seen()
        async with consuming(cluster, seen):
            await seen.until(16)
    for part in ("restored 1 topics", "(T)", "permissions, settings, deletions, and topics without messages"):
        assert part in caplog.text
    caplog.clear()
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster:
        assert cluster.brokers[0].topics.get("T") == found
    assert "topics.json" not in caplog.text


@WAYS
async def test_a_topic_gets_its_queues_again_if_the_backup_has_fewer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """Messages in its newer queues would never be consumed."""
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster:
        async with AdminClient(cluster.namesrv_address) as admin:
            await admin.create_topic("T", 2)
            await admin.topics.alter("T", read_queues=6, write_queues=6)
        async with Producer("senders", cluster.namesrv_address) as producer:
            for queue in await producer.fetch_publish_message_queues("T"):
                await producer.send(Message("T", b"%d" % queue.queue_id), queue=queue)
    damage(tmp_path / "config" / "topics.json", way)
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster:
        found = cluster.brokers[0].topics.get("T")
        assert found is not None
        assert found.read_queue_nums == found.write_queue_nums == 6
        seen = Seen()
        async with consuming(cluster, seen):
            await seen.until(6)
    assert "restored 1 topics, with the queues that have messages (T)" in caplog.text


async def test_a_deletion_and_fewer_queues_are_not_undone(tmp_path: Path) -> None:
    """Each restart would bring back topics and queues that an operator has removed."""
    async with (
        EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster,
        AdminClient(cluster.namesrv_address) as admin,
        Producer("senders", cluster.namesrv_address) as producer,
    ):
        await admin.create_topic("T", 6)
        await admin.create_topic("Gone", 2)
        for queue in await producer.fetch_publish_message_queues("T"):
            await producer.send(Message("T", b"%d" % queue.queue_id), queue=queue)
        await producer.send(Message("Gone", b"x"))
        await admin.topics.alter("T", read_queues=2, write_queues=2)
        await admin.topics.delete("Gone")
    shutil.rmtree(tmp_path / "consumequeue" / "T")  # the queues are rebuilt from the log, those of Gone, too
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster:
        topics = cluster.brokers[0].topics
        found = topics.get("T")
        assert found is not None
        assert found.read_queue_nums == found.write_queue_nums == 2
        assert topics.get("Gone") is None


@WAYS
async def test_delivered_messages_are_not_delivered_again_from_an_older_delay_offset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """Consumers would get all delayed messages since the last but one save a second time."""
    path = tmp_path / "config" / "delayOffset.json"
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster:
        async with Producer("senders", cluster.namesrv_address) as producer:
            for number in range(20):
                await producer.send(Message("T", b"%d" % number, delay_level=2))
        seen = Seen()
        async with consuming(cluster, seen):
            await seen.until(20)
    path.with_name("delayOffset.json.bak").write_text('{"offsetTable":{2:5}}')
    damage(path, way)
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster:
        broker = cluster.brokers[0]
        assert broker.delivery.delay.offsets() == {2: 20}
        async with Producer("senders", cluster.namesrv_address) as producer:
            await producer.send(Message("T", b"later", delay_level=2))
        again = Seen()
        async with consuming(cluster, again, group="again"):
            await until(lambda: again.bodies[b"later"] > 0)
        assert max(again.bodies.values()) == 1
    assert "delay level 2: skipped 15 delivered messages, 0 of the others" in caplog.text


async def test_an_older_offset_beyond_the_end_of_a_new_queue_skips_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A group would never get the messages of a topic that was deleted and created again."""
    await used(tmp_path)
    path = tmp_path / "config" / "consumerOffset.json"
    path.unlink()
    path.with_name("consumerOffset.json.bak").write_text('{"offsetTable":{"T@g":{0:1000,1:0},"T@h":{0:1}}}')
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as cluster:
        offsets = cluster.brokers[0].consumers.offsets
        assert [offsets.get("g", "T", 0), offsets.get("g", "T", 1), offsets.get("h", "T", 0)] == [0, 0, 1]
        seen = Seen()
        async with consuming(cluster, seen):
            await seen.until(17)
    assert "group g continues queue T/0 at 0: its older offset, 1000, is beyond the end" in caplog.text


async def test_groups_without_an_older_offset_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator would not see that a group starts without offsets, and may skip messages."""
    await used(tmp_path)
    path = tmp_path / "config" / "consumerOffset.json"
    path.unlink()
    path.with_name("consumerOffset.json.bak").write_text('{"offsetTable":{"T@other":{0:1}}}')
    async with EmbeddedCluster(tmp_path, settings=SETTINGS):
        assert f"{path}: it has no offsets of these groups, which begin as new groups: g" in caplog.text


async def test_the_newest_group_is_restored_if_the_backup_lacks_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where groups are not created automatically, its consumers could not continue."""
    await used(tmp_path)
    path = tmp_path / "config" / "subscriptionGroup.json"
    table = json.loads(path.read_text())
    del table["subscriptionGroupTable"]["g"]
    path.with_name("subscriptionGroup.json.bak").write_text(json.dumps(table))
    path.write_text("{")
    async with EmbeddedCluster(
        tmp_path, settings=SETTINGS | {"autoCreateSubscriptionGroup": "false"}
    ) as cluster:
        assert cluster.brokers[0].consumers.groups.get("g") is not None
    assert "is an older copy, but the store holds messages: restored 1 consumer groups" in caplog.text


async def test_a_promoted_slave_knows_topics_that_it_has_not_copied(tmp_path: Path) -> None:
    """The newest topic would vanish with its acknowledged messages when its master fails."""
    async with pair(tmp_path) as both:
        master, slave = await both.master(), await both.slave()
        await until(lambda: slave.topics.version == master.topics.version)
        await slave._sync.close()
        async with AdminClient(both.namesrv_address) as admin:
            await admin.create_topic("New", 9)
        async with Producer("senders", both.namesrv_address) as producer:
            for queue in await producer.fetch_publish_message_queues("New"):
                await producer.send(Message("New", b"x"), queue=queue)
        await until(lambda: slave.store.max_physical_offset == master.store.max_physical_offset)
        assert slave.topics.get("New") is None
        await both.stop(master)
        await both.stop(slave)
        found = (await both.start("slave")).topics.get("New")
        assert found is not None
        assert found.read_queue_nums == 9


@WAYS
async def test_a_slave_does_not_start_with_older_epochs(tmp_path: Path, way: str) -> None:
    """It could follow a stale master, and truncate the acknowledged messages of the newer one."""
    async with pair(tmp_path) as both:
        master, slave = await both.master(), await both.slave()
        path = tmp_path / "slave" / "config" / "haEpochs.json"
        await until(path.exists)
        await both.stop(slave)
        path.with_name("haEpochs.json.bak").write_bytes(path.read_bytes())
        damage(path, way)
        with pytest.raises(StoreDamaged, match=r"haEpochs\.json is missing or damaged.*empty store"):
            await both.slave()
        shutil.rmtree(tmp_path / "slave")
        slave = await both.slave()
        await caught_up(master, slave)


@WAYS
async def test_a_master_with_older_epochs_starts_a_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """Its slaves could not join it, or would take its bytes for those of an older epoch."""
    async with pair(tmp_path) as both:
        master, slave = await both.master(), await both.slave()
        await caught_up(master, slave)
        before = master.replication.epochs.state
        path = tmp_path / "master" / "config" / "haEpochs.json"
        await both.stop(master)
        path.with_name("haEpochs.json.bak").write_bytes(path.read_bytes())
        damage(path, way)
        master = await both.master()
        assert "the epochs are an older copy, so a new epoch starts" in caplog.text
        assert master.replication.epochs.state.epochs[-1].number > before.epochs[-1].number
        assert slave._registrar is not None
        slave._registrar.refresh(1)  # the next registration tells it the master's new address
        async with Producer("senders", both.namesrv_address) as producer:
            await send(producer, "after")
        await caught_up(master, slave)
