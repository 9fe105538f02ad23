"""DelayQueues: which delayed messages are due, with a clock that the test sets."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpy.errors import MessageInvalid, StoreError
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC, DelayLevels
from rocketpy.protocol.message.record import Record, decode_all
from rocketpy_broker.services.delay.queues import DelayQueues
from rocketpy_broker.services.delay.topic_rewrite import real_queue, to_delayed_message
from rocketpy_broker.store import MessageInner, MessageStore, RetentionConfig
from rocketpy_broker.store.config import IndexConfig
from rocketpy_broker.store.message_store import finish
from rocketpy_broker.store.upkeep.cleaner import Cleaner
from tests.unit.store.faulty_disk import FaultyDisk, UnreadableDisk
from tests.unit.store.helpers import bodies, kill, put, small_config

LEVELS = DelayLevels("1s 5s 10s")
START = 1_000_000


class World:
    """A store and its delay queues under one clock."""

    def __init__(self, root: Path) -> None:
        self.now = START
        self.root = root
        self.disk = FaultyDisk(only="pwrite")
        self.store = self._open()
        self.queues = DelayQueues(self.store, LEVELS)
        self.queues.load({})

    def _open(self) -> MessageStore:
        config = small_config(self.root, retention=RetentionConfig(clean_forcibly=True))
        store = MessageStore(config, clock=lambda: self.now, disk=self.disk)
        store.open()
        return store

    def send(self, level: int, body: bytes = b"", *, queue_id: int = 0) -> None:
        message = MessageInner("Real", queue_id, body, born_timestamp=7)
        to_delayed_message(message, {"KEYS": "k", "DELAY": "0"}, level, LEVELS.level_max)
        self.store.put_message(message)

    def deliver(self, at_ms: int, count_max: int = 100) -> tuple[int, int | None]:
        self.now = START + at_ms
        count, due_ms = self.queues.deliver(self.now, count_max)
        return count, due_ms - START if due_ms is not None else None

    def delivered(self, queue_id: int = 0) -> list[Record]:
        result = self.store.get_message("Real", queue_id, 0, 100)
        return decode_all(result.body)

    def restart(self, saved: dict[int, int], *, crash: bool) -> None:
        if crash:
            kill(self.store)
        else:
            self.store.close()
        self.store = self._open()
        self.queues = DelayQueues(self.store, LEVELS)
        self.queues.load(saved)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A small store at time 0."""
    made = World(tmp_path)
    yield made
    made.store.close()


def test_due_times_are_exact(world: World) -> None:
    """A delayed message would be delivered early, or late without a reason."""
    world.send(2, b"five")
    world.now += 100
    world.send(1, b"one")
    assert world.deliver(100) == (0, 1100)
    assert world.deliver(1099) == (0, 1100)
    assert world.deliver(1100) == (1, 5000)
    assert world.deliver(4999) == (0, 5000)
    assert world.deliver(5000) == (1, None)
    assert [record.body for record in world.delivered()] == [b"one", b"five"]
    assert world.queues.offsets() == {1: 1, 2: 1}


def test_the_delivered_message_equals_the_sent_one(world: World) -> None:
    """QUIRKS 29, 44: a consumer would see other properties than with RocketMQ."""
    world.send(99, b"body", queue_id=3)
    assert world.store.units(SCHEDULE_TOPIC, 2, 0, 9)[0][2] == START + 10_000
    world.deliver(10_000)
    (record,) = world.delivered(queue_id=3)
    assert (record.body, record.born_timestamp, record.store_timestamp) == (b"body", 7, START + 10_000)
    expected = {"KEYS": "k", "DELAY": "3", "REAL_TOPIC": "Real", "REAL_QID": "3"}
    assert props.decode(record.properties) == expected


def test_a_flood_is_delivered_in_parts(world: World) -> None:
    """A million messages due at once would stop the broker for seconds."""
    for number in range(150):
        world.send(1 + number % 2, b"%d" % number)
    assert world.deliver(5000, 60) == (60, 1000)
    assert world.deliver(5000, 60) == (60, 1000)
    assert world.queues.waiting() == {1: 15, 2: 15}, "one level would wait until another has none left"
    assert world.deliver(5000, 60) == (30, None)
    assert world.queues.waiting() == {1: 0, 2: 0}
    assert sorted(map(int, bodies(world.store, "Real"))) == list(range(150))


@pytest.mark.parametrize("count_max", [10, 100])
def test_an_unreadable_level_does_not_stop_the_others(tmp_path: Path, count_max: int) -> None:
    """Delayed messages of all levels would wait until one file of one level can be read again."""
    disk = UnreadableDisk()
    store = MessageStore(small_config(tmp_path), clock=lambda: START, disk=disk)
    with store:
        queues = DelayQueues(store, LEVELS)
        queues.load({})
        for number in range(90):
            message = MessageInner("Real", 0, b"%d" % number, born_timestamp=7)
            to_delayed_message(message, {"DELAY": "0"}, 1 + number % 3, LEVELS.level_max)
            store.put_message(message)
        store.dispatch()
        store.flush(thorough=True)
        disk.unreadable = f"{SCHEDULE_TOPIC}/0/"
        for _ in range(60 // count_max):
            assert queues.deliver(START + 10_000, count_max) == (count_max, START + 10_000)
        with pytest.raises(StoreError, match="planned failure"):
            queues.deliver(START + 10_000, count_max)
        assert queues.waiting() == {1: 30, 2: 0, 3: 0}
        disk.unreadable = ""
        assert sum(queues.deliver(START + 10_000, count_max)[0] for _ in range(30)) == 30
        assert sorted(map(int, bodies(store, "Real"))) == list(range(90))


def test_messages_deleted_before_they_were_due_do_not_block_their_level(world: World) -> None:
    """After a full disk took undelivered messages, its level would deliver no more and take a whole CPU."""
    world.send(3, b"deleted")
    assert world.deliver(0) == (0, 10_000)
    while len(world.store.commit_log.files.mapped_files) < 3:
        put(world.store, 0, topic="Other", body=b"x" * 1000)
    world.now += 500
    world.send(3, b"kept")
    world.store.dispatch()
    world.store.flush(thorough=True)
    Cleaner(world.store, use=lambda _: 0.88).run(world.now)
    assert world.store.min_offset_in_queue(SCHEDULE_TOPIC, 2) == 1
    assert world.deliver(10_000) == (0, 10_000)
    assert world.deliver(10_000) == (0, 10_500)
    assert world.deliver(10_500) == (1, None)
    assert [record.body for record in world.delivered()] == [b"kept"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_level_whose_messages_were_all_deleted_continues(world: World, restarted: bool) -> None:
    """With a file of its queue deleted, a level would deliver nothing until the next deletion."""
    for _ in range(60):  # a file and a bit of the level's queue
        world.send(3, b"deleted")
    world.store.dispatch()
    while len(world.store.commit_log.files.mapped_files) < 3:
        put(world.store, 0, topic="Other", body=b"x" * 1000)
    world.store.flush(thorough=True)
    Cleaner(world.store, use=lambda _: 0.88).run(world.now)
    if restarted:
        world.restart({}, crash=False)
    assert world.store.min_offset_in_queue(SCHEDULE_TOPIC, 2) == 50
    world.send(3, b"new")
    assert world.deliver(10_000) == (11, None)
    assert [record.body for record in world.delivered()] == [b"new"]


@pytest.mark.parametrize("crash", [True, False])
def test_a_restart_continues_at_the_saved_offsets(world: World, crash: bool) -> None:
    """A restart would lose delayed messages, or deliver them twice."""
    world.send(1, b"a")
    world.deliver(1000)
    world.send(1, b"b")
    world.send(3, b"c")
    world.restart(world.queues.offsets(), crash=crash)
    assert world.deliver(1999) == (0, 2000)
    assert world.deliver(2000) == (1, 11_000)
    assert world.deliver(11_000) == (1, None)
    assert [record.body for record in world.delivered()] == [b"a", b"b", b"c"]


def test_offsets_beyond_the_queue_are_lowered(world: World) -> None:
    """Messages sent after a power loss would be skipped, for the saved offset was ahead of the log."""
    world.send(1, b"a")
    world.restart({1: 50, 2: 7}, crash=True)
    world.send(1, b"b")
    world.send(2, b"c")
    assert world.deliver(9000)[0] == 2
    assert [record.body for record in world.delivered()] == [b"b", b"c"]


def test_a_failed_write_delivers_nothing_and_the_next_all(world: World) -> None:
    """A full disk would lose delayed messages, or deliver them twice."""
    for number in range(3):
        world.send(1, b"%d" % number)
    world.store.dispatch()
    world.store.flush(thorough=True)
    world.disk.calls, world.disk.fail_at = 0, 1
    with pytest.raises(StoreError):
        world.deliver(1000)
    assert world.queues.offsets() == {1: 0}
    assert world.deliver(1001) == (3, None)
    assert [record.body for record in world.delivered()] == [b"0", b"1", b"2"]


def test_a_message_without_a_real_queue_does_not_block_others(world: World) -> None:
    """One bad record would stop its delay level."""
    for properties in (b"REAL_TOPIC\x01T\x02REAL_QID\x01x\x02", b"REAL_QID\x010\x02", b"REAL_TOPIC\x01T\x02"):
        world.store.put_message(MessageInner(SCHEDULE_TOPIC, 0, b"lost", b"DELAY\x011\x02" + properties))
        with pytest.raises(MessageInvalid, match="name no queue"):
            real_queue(properties)
    world.send(1, b"good")
    assert world.deliver(1000) == (4, None)
    assert [record.body for record in world.delivered()] == [b"good"]


def test_a_level_that_is_configured_no_more_still_delivers(world: World) -> None:
    """A shorter messageDelayLevel would swallow messages."""
    world.send(3, b"x")
    world.queues = DelayQueues(world.store, DelayLevels("1s"))
    world.queues.load({})
    assert world.deliver(9_999) == (0, 10_000)
    assert world.deliver(10_000) == (1, None)


def test_a_clock_set_back_delays_no_message_twice(world: World) -> None:
    """After the clock was set back by an hour, messages would wait an hour longer, or be delivered early."""
    world.send(2, b"a")
    world.now += 1000
    world.send(2, b"b")
    hour = 3_600_000
    assert world.deliver(-hour) == (0, 5000 - hour)
    assert world.deliver(4999 - hour) == (0, 5000 - hour)
    assert world.deliver(5000 - hour) == (1, 6000 - hour)
    world.send(2, b"c")
    assert world.deliver(5999 - hour) == (0, 6000 - hour)
    assert world.deliver(6000 - hour) == (1, 10_000 - hour)
    assert world.deliver(10_000 - hour) == (1, None)
    # the clock is set back once more, by less
    world.send(2, b"d")
    assert world.deliver(-hour - 50_000) == (0, -hour - 45_000)
    assert world.deliver(-hour - 45_001) == (0, -hour - 45_000)
    assert world.deliver(-hour - 45_000) == (1, None)
    assert [record.body for record in world.delivered()] == [b"a", b"b", b"c", b"d"]


def test_messages_of_a_lost_queue_are_delivered_to_another(world: World) -> None:
    """A topic has lost queues while messages waited: consumers would not read them."""
    world.queues = DelayQueues(world.store, LEVELS, lambda _, queue_id, __: queue_id % 2)
    world.queues.load({})
    for queue_id in range(4):
        world.send(1, b"%d" % queue_id, queue_id=queue_id)
    assert world.deliver(1000) == (4, None)
    assert [record.body for record in world.delivered(0)] == [b"0", b"2"]
    assert [record.body for record in world.delivered(1)] == [b"1", b"3"]


def test_messages_in_other_queues_are_skipped_after_a_kill(tmp_path: Path) -> None:
    """They would be delivered again, and all messages behind them, since the topic has lost their queues."""
    with MessageStore(small_config(tmp_path)) as store:
        for number in range(3):
            message = MessageInner("Real", 5, b"", born_timestamp=7)
            to_delayed_message(message, {"UNIQ_KEY": f"{number}", "DELAY": "0"}, 1, LEVELS.level_max)
            store.put_message(message)
        store.dispatch()
        queues = DelayQueues(store, LEVELS, lambda _, queue_id, __: queue_id % 4)
        queues.load({})
        assert queues.deliver(store.clock() + 10_000, 2)[0] == 2
        store.dispatch()
        again = DelayQueues(store, LEVELS)
        again.load({})
        assert finish(again.skip_delivered()) == {1: (2, 1)}


@pytest.mark.parametrize("enabled", [True, False])
def test_an_older_copy_of_the_offsets_without_a_key_index(tmp_path: Path, enabled: bool) -> None:
    """A broker without the key index would not start again after its newest delay offsets were lost."""
    store = MessageStore(small_config(tmp_path, index=IndexConfig(slots=100, entries=400, enabled=enabled)))
    with store:
        message = MessageInner("Real", 0, b"", born_timestamp=7)
        to_delayed_message(message, {"UNIQ_KEY": "id", "DELAY": "0"}, 1, LEVELS.level_max)
        store.put_message(message)
        store.dispatch()
        queues = DelayQueues(store, LEVELS)
        queues.load({})
        assert queues.deliver(store.clock() + 10_000, 10)[0] == 1
        store.dispatch()
        again = DelayQueues(store, LEVELS)
        again.load({})
        assert finish(again.skip_delivered()) == {1: (1, 0) if enabled else (0, 1)}
