"""Locks, held pulls, groups, offsets and statistics: the tables behind a consumer's requests."""

import asyncio
import threading
import tracemalloc
from pathlib import Path

import pytest

from rocketpy.errors import GroupInvalid
from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies import SYSTEM_GROUPS, MessageQueue, SubscriptionGroupConfig
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.config.model import ConsumeConfig
from rocketpy_broker.handlers.pull.long_polling import (
    HELD_BYTES,
    HELD_PER_QUEUE_MAX,
    HeldRequest,
    HoldTable,
)
from rocketpy_broker.services.metadata.groups import SubscriptionGroupTable
from rocketpy_broker.services.metadata.locks import LOCK_MS, QueueLocks
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.runtime_info import DayTotals
from rocketpy_broker.services.stats import BROKER_PUT_NUMS, BrokerStats
from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.files.state_file import save_state

QUEUES = [MessageQueue("T", "b", number) for number in range(3)]


NO_AUTO_CREATE = ConsumeConfig(auto_create_group=False)


def groups_at(
    path: Path, config: ConsumeConfig | None = None, disk: OsDisk | None = None
) -> SubscriptionGroupTable:
    """The groups that a file holds, to be loaded."""
    return SubscriptionGroupTable(
        path, Tasks("the test"), config or ConsumeConfig(), retry_queues_max=1024, disk=disk
    )


def test_a_lock_ends_a_minute_after_its_renewal() -> None:
    """A queue would stay locked by an orderly consumer that died, or lose the lock of a live one."""
    locks = QueueLocks()
    assert locks.lock("g", "one", QUEUES[:2], 0) == QUEUES[:2]
    assert locks.lock("g", "one", QUEUES[:1], 30_000) == QUEUES[:1]
    assert locks.lock("g", "two", QUEUES, LOCK_MS) == QUEUES[2:]
    assert locks.lock("g", "two", QUEUES, LOCK_MS + 1) == QUEUES[1:]
    assert locks.lock("other", "two", QUEUES[:1], 0) == QUEUES[:1]


def test_only_the_owner_unlocks_and_expired_locks_are_dropped() -> None:
    """A member could take the queues of another, and locks of groups that are gone would stay in memory."""
    locks = QueueLocks()
    locks.lock("g", "one", QUEUES, 0)
    locks.unlock("g", "two", QUEUES)
    assert len(locks) == 3
    locks.unlock("g", "one", QUEUES[:1])
    assert len(locks) == 2
    list(locks.drop_expired(LOCK_MS))
    assert len(locks) == 2
    list(locks.drop_expired(LOCK_MS + 1))
    assert len(locks) == 0
    locks.unlock("nobody", "one", QUEUES)


def held(channel: str, deadline_ms: float = 100, **more: object) -> HeldRequest[tuple[str, int]]:
    return HeldRequest(channel, "owner", deadline_ms, None, **more)  # type: ignore[arg-type]


def test_locks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of invented queues could fill the memory within the minute that they last."""
    monkeypatch.setattr("rocketpy_broker.services.metadata.locks.LOCK_BYTES_MAX", 1000)
    locks = QueueLocks()
    queues = [MessageQueue("T", "b", queue_id) for queue_id in range(5)]
    assert locks.lock("g", "one", queues, 0) == queues[:3]
    assert locks.lock("h", "one", queues, 0) == []
    assert locks.lock("g", "one", queues, 1) == queues[:3]
    locks.unlock("g", "one", queues[:1])
    assert locks.lock("h", "one", queues, 1) == queues[:1]
    list(locks.drop_expired(1 + LOCK_MS + 1))
    assert len(locks) == 0
    assert locks.lock("h", "one", queues, 0) == queues[:3]


def test_the_memory_of_locks_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """200,000 locks of queues with long names took 444 MB; or later locks would be rejected for nothing."""
    limit = 1 << 20
    monkeypatch.setattr("rocketpy_broker.services.metadata.locks.LOCK_BYTES_MAX", limit)
    locks, long = QueueLocks(), "\U0001f600" * 1000
    tracemalloc.start()
    for number in range(2000):
        locks.lock("g", f"{number}", [MessageQueue(f"{long}{number}", f"{number}{long}", 0)], 0)
        locks.lock(f"{number}g", f"{number}", [MessageQueue(f"T{number}", "b", number)], 0)
        locks.lock(f"group without a lock {number}", "a", [], 0)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.5 * limit < kept < 1.5 * limit
    list(locks.drop_expired(LOCK_MS + 1))
    assert (len(locks), locks._groups, locks._bytes) == (0, {}, 0)


def test_locks_keep_no_long_names() -> None:
    """A request of 16 MB would stay in memory for a minute, and a thousand of them would fill it."""
    locks, queue, long = QueueLocks(), MessageQueue("T", "b", 0), "x" * 1025
    tracemalloc.start()
    for number in range(2000):
        name = f"{number}{long}"
        assert locks.lock(name, "one", [queue], 0) == []
        assert locks.lock("g", name, [queue], 0) == []
        others = [MessageQueue(name, "b", 0), MessageQueue("T", name, 0)]
        assert locks.lock("g", "one", others, 0) == []
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1_000_000
    assert len(locks) == 0
    assert locks.lock("g", "one", [queue], 0) == [queue]


def test_held_pulls_are_found_by_queue_time_and_channel() -> None:
    """A pull would get two responses, none, or one on a closed connection."""
    holds: HoldTable[tuple[str, int]] = HoldTable()
    one, two, late = held("a"), held("b"), held("a", deadline_ms=200)
    places = [(one, 0, 5), (two, 0, 6), (late, 1, 5)]
    assert all(holds.hold(pull, ("T", queue_id), offset) for pull, queue_id, offset in places)
    assert set(holds.queues) == {("T", 0), ("T", 1)}
    assert [(group.offset, list(group.requests)) for group in holds.groups(("T", 0))] == [
        (5, [one]),
        (6, [two]),
    ]
    assert holds.groups(("U", 0)) == []
    assert list(holds.expired(99)) == []
    assert list(holds.expired(100)) == [one, two]
    for pull in (one, two):
        holds.release(pull)
    assert (len(holds), set(holds.queues), list(holds.expired(100))) == (1, {("T", 1)}, [])
    assert holds.requests_of("a") == [late]
    holds.release(late)
    assert (len(holds), set(holds.queues), list(holds.expired(200))) == (0, set(), [])
    holds.release(late)  # a second time is no error


def test_pulls_that_read_the_same_messages_are_one_group() -> None:
    """A message would be filtered once for each of a thousand pulls that wait for the same tag."""
    holds: HoldTable[tuple[str, int]] = HoldTable()
    tag = object()
    pulls = [held(name, filtered_by=tag) for name in "abcd"]
    for pull in pulls[:2]:
        assert holds.hold(pull, ("T", 0), 5)
    (group,) = holds.groups(("T", 0))
    assert list(group.requests) == pulls[:2]
    assert holds.hold(pulls[2], ("T", 0), 7)
    assert holds.hold(held("e", filtered_by=object()), ("T", 0), 5)
    assert holds.hold(held("f", filtered_by=tag, count_max=1), ("T", 0), 5)
    assert len(holds.groups(("T", 0))) == 4
    merged = holds.advance(group, 7)
    assert (merged.offset, set(merged.requests)) == (7, set(pulls[:3]))
    assert len(holds.groups(("T", 0))) == 3
    for pull in pulls[:3]:
        assert pull.group is merged
        holds.release(pull)
    assert len(holds) == 2


def test_the_held_pulls_of_an_owner_in_a_queue_are_limited() -> None:
    """An account with many connections could make each message of a queue cost a second of CPU time."""
    holds: HoldTable[tuple[str, int]] = HoldTable()
    pulls = [held(f"channel {number % 7}") for number in range(HELD_PER_QUEUE_MAX)]
    assert all(holds.hold(pull, ("T", 0), 5) for pull in pulls)
    assert not holds.hold(held("another"), ("T", 0), 5)
    assert holds.hold(held("another"), ("T", 1), 5)
    assert holds.hold(HeldRequest("another", "another owner", 100, None), ("T", 0), 5)
    holds.release(pulls[0])
    assert holds.hold(held("another"), ("T", 0), 5)


async def test_groups_are_made_and_kept(tmp_path: Path) -> None:
    """QUIRKS 49: a restart would forget the groups that an operator created."""
    path = tmp_path / "subscriptionGroup.json"
    groups = groups_at(path)
    groups.load()
    assert set(groups.names) == set(SYSTEM_GROUPS)
    await groups.save()
    assert not path.exists()
    made = groups.find("g")
    assert made is not None
    assert (made.retry_queue_nums, made.retry_max_times, made.which_broker_when_consume_slowly) == (1, 16, 1)
    assert groups.find("no/group") is None
    assert not path.exists()
    await groups.save()
    assert path.exists()
    await groups.update(SubscriptionGroupConfig(group_name="h", consume_enable=False))
    with pytest.raises(GroupInvalid):
        await groups.update(SubscriptionGroupConfig(group_name="../h"))
    again = groups_at(path, NO_AUTO_CREATE)
    again.load()
    assert again.version == groups.version
    assert again.find("h") == SubscriptionGroupConfig(group_name="h", consume_enable=False)
    assert again.find("unknown") is None
    assert again.find("CID_RMQ_SYS_TRANS") is not None
    assert await again.delete("h")
    assert not await again.delete("h")


async def test_groups_of_operators_and_of_a_master_at_the_same_moment(tmp_path: Path) -> None:
    """Operators could exceed the limit of groups, or a slave would keep groups that its master lacks."""
    groups = groups_at(tmp_path / "groups.json", ConsumeConfig(groups_max=2))
    updates = (groups.update(SubscriptionGroupConfig(group_name=name)) for name in "abac")
    results = await asyncio.gather(*updates, return_exceptions=True)
    assert [isinstance(result, GroupInvalid) for result in results] == [False, False, False, True]
    assert {"a", "b"} <= set(groups.names)
    master = groups_at(tmp_path / "master.json")
    await master.update(SubscriptionGroupConfig(group_name="d"))
    slave = groups_at(tmp_path / "slave.json")
    changing = asyncio.create_task(slave.update(SubscriptionGroupConfig(group_name="e")))
    await asyncio.sleep(0)
    await slave.adopt(master.snapshot())
    await changing
    assert slave.snapshot() == master.snapshot()


async def test_no_more_groups_than_the_limit(tmp_path: Path) -> None:
    """A client that names many groups could fill memory and the disk."""
    groups = groups_at(tmp_path / "subscriptionGroup.json", ConsumeConfig(groups_max=2))
    assert [groups.find(name) is not None for name in "abc"] == [True, True, False]
    with pytest.raises(GroupInvalid, match=r"has 2 groups .*maxConsumerGroups is 2"):
        await groups.update(SubscriptionGroupConfig(group_name="d"))
    await groups.update(SubscriptionGroupConfig(group_name="a", consume_enable=False))
    with pytest.raises(GroupInvalid, match="maxTopicQueues"):
        await groups.update(SubscriptionGroupConfig(group_name="a", retry_queue_nums=1025))
    fewer = groups_at(groups.path, ConsumeConfig(groups_max=1))
    fewer.load()
    assert {"a", "b"} <= set(fewer.names)


async def test_no_more_offsets_than_the_limit(tmp_path: Path) -> None:
    """Commits to invented queues could fill the memory, and make each save take seconds."""
    offsets = ConsumerOffsets(tmp_path / "consumerOffset.json", offsets_max=3)
    for queue_id in range(3):
        offsets.commit("g", "T", queue_id, 1)
    for group, queue_id in (("g", 3), ("h", 0)):
        with pytest.raises(GroupInvalid, match="maxConsumerOffsets"):
            offsets.commit(group, "T", queue_id, 1)
    with pytest.raises(GroupInvalid, match="maxConsumerOffsets"):
        offsets.clone("g", "h", "T")
    offsets.commit("g", "T", 2, 9)
    await offsets.save()
    again = ConsumerOffsets(offsets.path, offsets_max=3)
    again.load()
    assert again.queues("g", "T") == {0: 1, 1: 1, 2: 9}
    with pytest.raises(GroupInvalid):
        again.commit("g", "T", 3, 1)


async def test_a_negative_offset_or_queue_id_adds_nothing(tmp_path: Path) -> None:
    """Commits of invented groups with offset -1 could fill the memory in spite of maxConsumerOffsets."""
    offsets = ConsumerOffsets(tmp_path / "consumerOffset.json", offsets_max=1)
    for number in range(3):
        offsets.commit(f"g{number}", "T", 0, -1)
        offsets.commit(f"g{number}", "T", -1, 0)
    assert offsets.groups == []
    offsets.commit("g", "T", 0, 5)
    offsets.commit("g", "T", 0, -1)
    assert offsets.queues("g", "T") == {0: 5}
    with pytest.raises(GroupInvalid, match="group 'g:'"):
        offsets.commit("g:", "T", 0, -1)


async def test_offsets_are_written_as_java_writes_them(tmp_path: Path) -> None:
    """QUIRKS 8: the groups would start again from the beginning when a Java broker takes over the store."""
    path = tmp_path / "consumerOffset.json"
    offsets = ConsumerOffsets(path)
    offsets.commit("g", "T", 1, 7)
    offsets.commit("g", "T", 0, 3)
    offsets.commit("h", "%RETRY%h", 0, 0)
    await offsets.save()
    assert b'"T@g":{0:3,1:7' in path.read_bytes()
    again = ConsumerOffsets(path)
    again.load()
    assert again.queues("g", "T") == {0: 3, 1: 7}
    assert fastjson.loads(again.encode(with_times=True)) == fastjson.loads(path.read_bytes())


class SlowDisk(OsDisk):
    """Blocks the first call of `exists` until the test sets `may_go_on`."""

    def __init__(self) -> None:
        self.started, self.may_go_on = threading.Event(), threading.Event()

    def exists(self, path: Path) -> bool:
        """Wait at the first call."""
        if not self.started.is_set():
            self.started.set()
            assert self.may_go_on.wait(30)
        return super().exists(path)


async def test_a_cancelled_save_does_not_overwrite_the_next(tmp_path: Path) -> None:
    """A broker that stops while offsets are saved would load older offsets at its next start."""
    disk = SlowDisk()
    offsets = ConsumerOffsets(tmp_path / "consumerOffset.json", disk=disk)
    offsets.commit("g", "T", 0, 7)
    given_up = asyncio.create_task(offsets.save())
    await asyncio.to_thread(disk.started.wait, 30)
    given_up.cancel()
    offsets.commit("g", "T", 0, 8)
    last = asyncio.create_task(offsets.save())
    await asyncio.wait({last}, timeout=0.3)  # it must not overtake the first save
    disk.may_go_on.set()
    await asyncio.wait({last, given_up})
    await asyncio.get_running_loop().shutdown_default_executor()
    assert given_up.cancelled()
    again = ConsumerOffsets(tmp_path / "consumerOffset.json")
    again.load()
    assert again.get("g", "T", 0) == 8


async def test_a_save_does_not_overwrite_a_concurrent_update(tmp_path: Path) -> None:
    """A change that was reported to mqadmin as done would be lost at the next start."""
    path, disk = tmp_path / "subscriptionGroup.json", SlowDisk()
    groups = groups_at(path, disk=disk)
    groups.find("g")
    saving = asyncio.create_task(groups.save())
    await asyncio.to_thread(disk.started.wait, 30)
    wanted = SubscriptionGroupConfig(group_name="h", consume_enable=False)
    updating = asyncio.create_task(groups.update(wanted))
    await asyncio.wait({updating}, timeout=0.3)  # it must not overtake the save
    disk.may_go_on.set()
    await asyncio.gather(saving, updating)
    again = groups_at(path)
    again.load()
    assert again.get("h") == wanted
    assert again.get("g") is not None


async def test_a_damaged_file_of_offsets_falls_back(tmp_path: Path) -> None:
    """All groups would start again from the beginning after a torn write."""
    path = tmp_path / "consumerOffset.json"
    offsets = ConsumerOffsets(path)
    for offset in (1, 2):
        offsets.commit("g", "T", 0, offset)
        await offsets.save()
    path.write_bytes(b'{"offsetTable":{"T@g":{0:')
    again = ConsumerOffsets(path)
    again.load()
    assert again.get("g", "T", 0) == 1


def test_offsets_are_found_by_group_and_topic(tmp_path: Path) -> None:
    """Operators could not see who consumes what."""
    offsets = ConsumerOffsets(tmp_path / "o.json")
    offsets.commit("g", "T", 0, 5)
    offsets.commit("g", "U", 0, 6)
    offsets.commit("h", "T", 0, 4)
    assert offsets.topics_of("g") == ["T", "U"]
    assert offsets.groups_of("T") == ["g", "h"]
    assert offsets.lowest("T", []) == {0: 4}
    assert offsets.lowest("T", ["h"]) == {0: 5}
    offsets.clone("g", "new", "T")
    offsets.commit("g", "T", 0, 9)
    assert offsets.queues("new", "T") == {0: 5}
    with pytest.raises(GroupInvalid):
        offsets.clone("g", "no/group", "T")


def test_rates_are_over_the_last_minute() -> None:
    """The tool statsAll would show a rate since the start, or nothing."""
    stats = BrokerStats("cluster")
    stats.sample(0, [("T", 0, 0)])
    for second in range(10, 130, 10):
        stats.count_pulled("T", "g", 50, 5000)
        stats.sample(second * 1000, [("T", second * 100, second * 20_000)])
    assert stats.rate("TOPIC_PUT_NUMS", "T", 120_000) == 100
    assert stats.rate("GROUP_GET_NUMS", "T@g", 120_000) == 5
    assert stats.rate("GROUP_GET_NUMS", "nobody", 120_000) == 0
    counter = stats.find("GROUP_GET_SIZE", "T@g")
    assert counter is not None
    minute = counter.over("minute", 120_000)
    assert (minute.sum, minute.avgpt) == (30_000, 5000)
    assert counter.over("day", 120_000).sum == 55_000
    put = stats.find("TOPIC_PUT_SIZE", "T")
    assert put is not None
    assert (put.over("minute", 120_000).sum, put.over("minute", 120_000).avgpt) == (1_200_000, 200)
    assert stats.find("GROUP_GET_SIZE", "nobody") is None


def test_the_rate_of_a_steady_load_is_steady() -> None:
    """The charts of the console would be a sawtooth: the rate fell to half between two samples."""
    stats = BrokerStats("cluster")
    for second in range(600):
        if second % 10 == 0:
            stats.sample(second * 1000, [("T", second * 100, second * 20_000)])
        if second > 20:
            assert stats.rates(BROKER_PUT_NUMS, second * 100, second * 1000) == "100.0 100.0 100.0 "
    stats.sample(600_000, [("T", 60_000, 12_000_000)])
    assert stats.rates(BROKER_PUT_NUMS, 60_000, 609_000).split()[0] == str(100 * 10 / 19)
    stats.sample(610_000, [("T", 60_000, 12_000_000)])
    assert stats.rates(BROKER_PUT_NUMS, 60_000, 610_000).split()[0] == "0.0"


def test_totals_roll_over_at_midnight() -> None:
    """The totals of today and of yesterday would be one number."""
    days = DayTotals()
    days.update("mon", 10, 5)
    days.update("mon", 20, 9)
    assert (days.put_today, days.got_today) == (0, 0)
    days.update("tue", 30, 15)
    days.update("wed", 70, 20)
    assert (days.put_yesterday, days.put_today, days.got_yesterday, days.got_today) == (30, 70, 15, 20)


async def test_a_file_of_groups_from_java_is_read(tmp_path: Path) -> None:
    """This broker could not take over a store of RocketMQ."""
    path = tmp_path / "subscriptionGroup.json"
    text = b'{"dataVersion":{"counter":4,"timestamp":9},"subscriptionGroupTable":{"g":{"brokerId":0,'
    text += b'"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,"groupName":"g",'
    text += b'"notifyConsumerIdsChangedEnable":false,"retryMaxTimes":3,"retryQueueNums":2,'
    text += b'"whichBrokerWhenConsumeSlowly":1}}}'
    save_state(OsDisk(), path, text)
    groups = groups_at(path)
    groups.load()
    found = groups.get("g")
    assert found is not None
    assert (found.retry_max_times, found.notify_consumer_ids_changed_enable) == (3, False)
    assert groups.version.counter == 4


@pytest.mark.parametrize("shared", [False, True])
def test_a_filter_counts_as_long_as_a_pull_has_it(shared: bool) -> None:
    """The memory of a connection would seem used up after a while, and its pulls no longer be held."""
    used = 0

    def count(_: object, size: int) -> bool:
        nonlocal used
        used += size
        return True

    holds: HoldTable[tuple[str, int]] = HoldTable(count)
    one, two = object(), object()
    pulls = [
        held("c", filtered_by=one if shared else (one, two)[queue], filter_bytes=500) for queue in range(2)
    ]
    for queue, pull in enumerate(pulls):
        assert holds.hold(pull, ("T", queue), 0)
    both = 2 * HELD_BYTES + (500 if shared else 1000)
    assert used == both
    holds.release(pulls[0])
    assert used == HELD_BYTES + 500
    assert holds.hold(pulls[0], ("T", 0), 0)
    assert used == both
    for pull in pulls:
        holds.release(pull)
    assert used == 0
