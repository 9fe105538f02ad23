"""A missing file of the config directory must not lose messages, topics or offsets without a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpy import AdminClient, Message, Producer
from rocketpy.errors import StoreDamaged
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.ha_pair import pair
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
        async with consuming(cluster, seen):
            count = 17 if name == "consumerOffset.json" else 1
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
    assert f"consumerOffset.json.bak, since {path} is missing" in caplog.text


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
