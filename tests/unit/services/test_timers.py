"""Timers: when messages are delivered, with a clock that the test sets, over kills and lost files."""

import os
import random
import shutil
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocketpy.errors import MessageInvalid, StoreError
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.record import HEAD_BYTES, decode
from rocketpy_broker.services.timers.messages import TIMER_TOPIC, due_time, is_timed, to_timer_message
from rocketpy_broker.store import FlushDiskType, MessageInner
from rocketpy_broker.store.config import IndexConfig
from rocketpy_broker.store.upkeep.cleaner import Cleaner
from tests.unit.services.timer_world import DAY_MS, START_MS, TimerWorld
from tests.unit.store.faulty_disk import FaultyDisk
from tests.unit.store.helpers import small_config


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TimerWorld]:
    """A small store at a quarter past a second."""
    made = TimerWorld(tmp_path / "store")
    yield made
    made.files.close()
    made.store.close()


def test_messages_are_delivered_at_their_millisecond(world: TimerWorld) -> None:
    """RocketMQ delivers up to a second late."""
    world.send("delay", TIMER_DELAY_MS=1500)
    world.send("seconds", TIMER_DELAY_SEC=2)
    world.send("at", TIMER_DELIVER_MS=START_MS + 3001)
    world.send("whole", TIMER_DELIVER_MS=(START_MS // 1000 + 4) * 1000)
    world.send("soon", TIMER_DELAY_MS=1)
    world.send("hour", TIMER_DELAY_SEC=3600)
    world.run(START_MS + 4_000_000)
    assert world.late() == dict.fromkeys(["soon", "delay", "seconds", "at", "whole", "hour"], 0)
    assert world.timers.waiting == 0
    assert world.timers.deliver(world.now, 10) == (0, None)


def test_a_message_is_not_early(world: TimerWorld) -> None:
    """A consumer would act before the time that the sender asked for."""
    world.send("at", TIMER_DELIVER_MS=START_MS + 3000)
    world.run(START_MS + 2999)
    assert world.late() == {}
    world.run(START_MS + 3000)
    assert world.late() == {"at": 0}


def test_the_delivered_message_has_the_properties_of_rocketmq(world: TimerWorld) -> None:
    """QUIRKS 70, 72: a consumer would see other properties."""
    world.send("m", TIMER_DELAY_MS=1500, queue_id=3)
    stored = world.store.units(TIMER_TOPIC, 0, 0, 1)[0]
    data = world.store.look_message(*stored[:2])
    assert data is not None
    waiting = {"UNIQ_KEY": "m", "TIMER_DELAY_MS": "1500", "REAL_TOPIC": "Real", "REAL_QID": "3"}
    out = {"TIMER_OUT_MS": str((START_MS + 1500) // 1000 * 1000)}
    assert props.decode(decode(data).properties) == {
        **waiting, **out, "__TIMER_DUE_MS": str(START_MS + 1500)
    }  # fmt: skip
    world.run(START_MS + 2000)
    (record,) = world.delivered(queue_id=3)
    times = {"TIMER_ENQUEUE_MS": str(START_MS), "TIMER_DEQUEUE_MS": str(START_MS + 1500)}
    assert props.decode(record.properties) == {**waiting, **out, **times}
    assert (record.body, record.born_timestamp) == (b"m", START_MS)


def test_messages_of_java_are_delivered_at_the_end_of_their_second(world: TimerWorld) -> None:
    """Without milliseconds they could be early."""
    text = props.encode({"UNIQ_KEY": "java", "TIMER_DELIVER_MS": str(START_MS + 2100)})
    message = MessageInner("Real", 0, b"java", text.encode())
    to_timer_message(message, START_MS + 2100)
    properties = props.decode(message.properties)
    del properties["__TIMER_DUE_MS"]
    message.properties = props.encode(properties).encode()
    world.dues["java"] = START_MS + 2100
    world.store.put_message(message)
    world.run(START_MS + 5000)
    assert world.late() == {"java": 650}


def test_a_long_delay_rolls(tmp_path: Path) -> None:
    """The log would delete a message that waits longer than files are kept."""
    world = TimerWorld(tmp_path, window_s=100)
    world.send("long", TIMER_DELAY_SEC=1000)
    world.send("almost", TIMER_DELAY_SEC=120)
    world.run(START_MS + 2_000_000)
    assert world.late() == {"long": 0, "almost": 0}
    assert world.rolled() == 2 + 10 + 1
    (long, almost) = sorted(world.delivered(), key=lambda record: record.body, reverse=True)
    assert props.decode(long.properties)["TIMER_ROLL_TIMES"] == "10"
    assert props.decode(almost.properties)["TIMER_ROLL_TIMES"] == "1"
    world.stop()


def test_forty_days(tmp_path: Path) -> None:
    """A delay beyond the wheel would be taken for a shorter one."""
    world = TimerWorld(tmp_path)
    for days in (1, 6, 7, 13, 14, 15, 28, 40):
        world.send(f"{days}", TIMER_DELAY_MS=days * DAY_MS + days)
    world.run(START_MS + 41 * DAY_MS)
    assert world.late() == dict.fromkeys(["1", "6", "7", "13", "14", "15", "28", "40"], 0)
    world.stop()


def test_recalled_messages_are_not_delivered(world: TimerWorld) -> None:
    """QUIRKS 74: the recall would have no effect, or take other messages along."""
    for name in ("a", "b", "c", "d"):
        world.send(name, TIMER_DELIVER_MS=START_MS + 5100)
    world.send("a2", topic="Other", TIMER_DELIVER_MS=START_MS + 5100)
    world.recall("b")
    world.run(START_MS + 4900)
    world.recall("d", prefix="")  # of RocketMQ 5.5.0
    world.run(START_MS + 6000)
    assert sorted(world.late()) == ["a", "c"]
    assert sorted(world.late("Other")) == ["a2"]
    assert world.timers.waiting == 0


def test_recalls_count_before_the_first_delivery_after_a_start(world: TimerWorld) -> None:
    """A recalled message would be delivered if its recall is far behind it in the queue."""
    for number in range(150):
        world.send(f"{number}", TIMER_DELIVER_MS=START_MS + 5100)
    world.recall("3")
    world.restart(crash=True)
    world.now += 10_000
    assert 0 < world.timers.enqueue(world.now, 100) < 150
    assert world.timers.deliver(world.now, 100) == (0, world.now)
    world.run(world.now + 1000)
    assert sorted(map(int, world.late())) == [number for number in range(150) if number != 3]


def test_a_recall_of_a_rolling_message_rolls_too(tmp_path: Path) -> None:
    """It would be read before the message is in its last slot."""
    world = TimerWorld(tmp_path, window_s=100)
    world.send("kept", TIMER_DELAY_SEC=1000)
    world.send("gone", TIMER_DELAY_SEC=1000)
    world.run(START_MS + 50_000)
    world.recall("gone")
    world.run(START_MS + 2_000_000)
    assert world.late() == {"kept": 0}
    world.stop()


@pytest.mark.parametrize("disk_type", FlushDiskType)
@pytest.mark.parametrize("recalled_s", [20, 95])
def test_recalls_reach_messages_that_roll_after_a_long_stop(
    tmp_path: Path, disk_type: FlushDiskType, recalled_s: int
) -> None:
    """A recalled message would be delivered: the slot of its recall was passed before its copy was readable.

    The copy of a rolled message is readable after a flush, an acknowledgement or a commit.
    """
    config = small_config(tmp_path)
    config = replace(config, flush=replace(config.flush, disk_type=disk_type))
    world = TimerWorld(tmp_path, window_s=60, config=config)

    def flush() -> None:
        world.store.flush(thorough=True)
        world.store.dispatch()

    def turn() -> None:
        world.timers.enqueue(world.now, 250)
        world.timers.deliver(world.now, 250)

    world.send("gone", TIMER_DELAY_SEC=recalled_s + 75)
    world.send("kept", TIMER_DELAY_SEC=recalled_s + 76)
    flush()
    turn()
    world.now += 40_000  # the recall waits longer than the window, too, or it does not
    world.recall("gone")
    flush()
    turn()
    world.save()
    world.restart(crash=False)
    world.files.close()
    world.store.close()
    world.now = START_MS + 300_000
    world._open()
    for number in range(200):
        turn()
        if number % 6 == 5:
            flush()
    flush()
    turn()
    flush()
    assert sorted(world.late()) == ["kept"]
    assert world.timers.waiting == 0
    world.stop()


def test_a_recall_counts_before_its_flush(tmp_path: Path) -> None:
    """A recall just before the due time would be accepted, and the message delivered during its flush."""
    config = small_config(tmp_path)
    config = replace(config, flush=replace(config.flush, disk_type=FlushDiskType.SYNC_FLUSH))
    world = TimerWorld(tmp_path, config=config)
    for name in ("gone", "kept"):
        world.send(name, TIMER_DELAY_MS=1000)
    world.send("soon", TIMER_DELAY_MS=998)
    world.store.flush(thorough=True)
    world.run(START_MS + 997)
    world.recall("gone")
    world.timers.enqueue_first(world.dues["gone"])
    world.run(START_MS + 998)
    assert world.store.appended_in_queue("Real", 0) == 1
    world.now = START_MS + 1005
    assert world.timers.deliver(world.now, 100) == (0, world.now + 10)
    world.store.flush(thorough=True)
    world.run(START_MS + 1005)
    world.store.flush(thorough=True)
    assert world.late() == {"soon": 0, "kept": 5}
    world.stop()


def test_recalls_one_after_the_other_delay_no_other_timers(tmp_path: Path) -> None:
    """Some client may always have a recall that is not flushed; no timer at all would be delivered."""
    config = small_config(tmp_path)
    config = replace(config, flush=replace(config.flush, disk_type=FlushDiskType.SYNC_FLUSH))
    world = TimerWorld(tmp_path, config=config)
    for number in range(100):
        world.send(f"gone {number}", TIMER_DELAY_MS=2000 + number * 20)
    for number in range(30):
        world.send(f"kept {number}", TIMER_DELAY_MS=1010 + number * 100)
    world.store.flush(thorough=True)
    world.timers.enqueue(world.now, 250)
    world.timers.deliver(world.now, 250)
    world.now = START_MS + 1500
    for number in range(
        100
    ):  # a flush ends every 20 ms, and the recall that came meanwhile is in the next one
        plan = world.store.plan_flush()
        world.recall(f"gone {number}")
        world.timers.enqueue_first(world.dues[f"gone {number}"])
        world.now += 20
        world.store.run_flush(plan)
        world.store.finish_flush(plan)
        world.store.dispatch()
        world.timers.enqueue(world.now, 250)
        world.timers.deliver(world.now, 250)
        assert world.timers.late_ms(world.now) == 0
    world.store.flush(thorough=True)
    assert sorted(world.late()) == sorted(f"kept {n}" for n in range(30) if 1010 + n * 100 <= 3500)
    world.stop()


def test_a_recall_that_could_not_be_written_delays_no_timer(world: TimerWorld) -> None:
    """Delivery would wait for it until another message takes its place."""
    world.send("kept", TIMER_DELAY_MS=1000)
    world.run(world.now)
    message = MessageInner("Real", 0, b"0", properties=b"UNIQ_KEY\x01kept\x02")
    to_timer_message(message, world.dues["kept"])
    world.store.append(message)
    world.timers.enqueue_first(world.dues["kept"])
    disk = FaultyDisk(only="pwrite")
    disk.fail_at = 1
    for file in world.store.commit_log.files.mapped_files:
        file._disk = disk
    with pytest.raises(StoreError):
        world.store.write_out()
    world.run(START_MS + 1000)
    assert world.late() == {"kept": 0}


def test_a_flush_of_rolled_messages_delays_no_others(tmp_path: Path) -> None:
    """Each second with rolls would make the messages behind it late by a flush."""
    config = small_config(tmp_path)
    config = replace(config, flush=replace(config.flush, disk_type=FlushDiskType.SYNC_FLUSH))
    world = TimerWorld(tmp_path, window_s=60, config=config)
    world.send("rolls", TIMER_DELAY_SEC=1000)
    world.now += 1500
    world.send("due", TIMER_DELAY_MS=59_000)
    world.store.flush(thorough=True)
    world.run(START_MS + 60_500)
    assert world.store.appended_in_queue(TIMER_TOPIC, 0) > world.timers.queue_offset  # rolled, not flushed
    assert world.store.appended_in_queue("Real", 0) == 1
    world.store.flush(thorough=True)
    assert world.late() == {"due": 0}
    world.stop()


def test_waiting_for_a_flush_does_not_spin(tmp_path: Path) -> None:
    """The broker would use a whole core until the flush, acknowledgement or commit."""
    config = small_config(tmp_path)
    config = replace(config, flush=replace(config.flush, disk_type=FlushDiskType.SYNC_FLUSH))
    world = TimerWorld(tmp_path, window_s=60, config=config)
    world.send("long", TIMER_DELAY_SEC=75)
    world.store.flush(thorough=True)
    world.timers.enqueue(world.now, 100)
    world.now += 200_000
    calls = []
    for _ in range(20):
        world.timers.enqueue(world.now, 100)
        _, next_ms = world.timers.deliver(world.now, 100)
        calls.append(next_ms)
    assert calls[-1] == world.now + 10
    world.store.flush(thorough=True)
    world.run(world.now + 100)
    world.store.flush(thorough=True)
    assert list(world.late()) == ["long"]
    world.stop()


def test_many_messages_of_one_second_are_delivered_in_parts(world: TimerWorld) -> None:
    """A million messages due at once would stop the broker for seconds."""
    for number in range(300):
        world.send(f"{number}", TIMER_DELIVER_MS=START_MS + 5000 + number % 3)
    world.run(START_MS + 4990)
    world.now = START_MS + 5001
    assert world.timers.deliver(world.now, 70)[0] == 70
    assert len(world.delivered()) == 70
    world.run(START_MS + 6000, count_max=70)
    names = [int(record.body) for record in world.delivered()]
    assert names == sorted(range(300), key=lambda number: (number % 3, number))


def test_messages_arrive_while_their_slot_is_read(world: TimerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be lost, delivered twice, or before those that were sent earlier."""
    monkeypatch.setattr("rocketpy_broker.services.timers.timers._WALK_UNITS", 10)
    for number in range(35):
        world.send(f"{number}", TIMER_DELIVER_MS=START_MS + 5000 + number % 3)
    world.run(START_MS + 4700)
    world.now = START_MS + 4800
    assert world.timers.deliver(world.now, 100) == (0, world.now)  # opens the slot
    assert world.timers.deliver(world.now, 100) == (0, world.now)  # reads some of its units
    assert world.timers.late_ms(world.now) == 0
    for number in range(35, 40):
        world.send(f"{number}", TIMER_DELIVER_MS=START_MS + 5000 + number % 3)
    world.recall("7")
    assert world.timers.enqueue(world.now, 100) == 6
    assert world.timers.deliver(world.now, 100) == (0, world.now)
    world.run(START_MS + 6000)
    names = [int(record.body) for record in world.delivered()]
    assert names == sorted(set(range(40)) - {7}, key=lambda number: (number % 3, number))


def test_an_idle_wheel_has_no_files_and_no_next_call(world: TimerWorld) -> None:
    """A broker without timers would wake, and write files."""
    assert world.timers.enqueue(world.now, 10) == 0
    assert world.timers.deliver(world.now, 10) == (0, None)
    assert not (world.root / "timerwheel").exists()
    assert not (world.root / "timerlog").exists()
    first = world.timers.checkpoint
    world.now += 100_000
    world.timers.enqueue(world.now, 10)
    assert world.timers.progress(world.now) == first  # nothing to save
    world.send("m", TIMER_DELAY_MS=700)
    world.run(world.now + 700)
    assert world.late() == {"m": 0}


def test_a_clock_that_was_set_back_delays_no_new_message(world: TimerWorld) -> None:
    """New messages would wait until the clock is at the time again where it was before."""
    world.send("before", TIMER_DELAY_MS=3_600_000)
    world.run(world.now + 3_500_000)
    world.now -= 3_000_000
    world.send("after", TIMER_DELAY_MS=1500)
    world.run(world.now + 2000)
    assert world.late() == {"after": 0}
    world.run(world.now + 4_000_000)
    assert world.late() == {"after": 0, "before": 0}


def test_a_clean_stop_leaves_no_delivered_timer_to_java(world: TimerWorld) -> None:
    """RocketMQ reads the slot of the checkpoint again, and does not look for copies."""
    world.send("early", TIMER_DELAY_MS=1000)
    world.run(world.now + 1000)
    world.send("late", TIMER_DELAY_MS=90)
    world.stop()
    assert world.timers.read_ms == (START_MS + 1000) // 1000 * 1000
    world._open()
    world.run(world.now + 100)
    world.stop()
    assert world.timers.read_ms == (START_MS + 1000) // 1000 * 1000 + 1000
    world._open()
    world.send("same second", TIMER_DELAY_MS=5)
    world.run(world.now + 3000)
    assert world.late() == {"early": 0, "late": 0, "same second": 0}


def test_a_clock_that_was_set_back_makes_calls_no_slower(world: TimerWorld) -> None:
    """All new timers share the slot that is being read: each call looked at all of them."""

    class Due(dict[int, "array[int]"]):
        reads = 0

        def __iter__(self) -> Iterator[int]:
            for key in super().__iter__():
                self.reads += 1
                yield key

    world.send("before", TIMER_DELAY_SEC=7200)
    world.run(world.now + 3_600_000)
    world.now -= 3_600_000
    for number in random.Random(1).sample(range(300), 300):
        world.send(f"{number:03}", TIMER_DELAY_MS=1000 + number)
    while world.timers.enqueue(world.now, 100):
        pass
    assert len(world.timers._due) == 300
    due = world.timers._due = Due(world.timers._due)
    world.run(world.now + 1100, count_max=7)
    assert world.timers.late_ms(world.now) == 0
    assert due.reads == 0
    assert [record.body.decode() for record in world.delivered()] == [f"{n:03}" for n in range(101)]
    world.run(world.now + 8_000_000, count_max=7)
    assert world.late() == dict.fromkeys([*(f"{number:03}" for number in range(300)), "before"], 0)


class Retention:
    """Keeps the files of a world for some hours, and half of that is the window of its timers."""

    def __init__(self, root: Path, hours: int, **changes: Any) -> None:
        self.world = TimerWorld(root, config=small_config(root, **changes))
        self.fillers = 0
        self.keep(hours)

    def keep(self, hours: int) -> None:
        """Change fileReservedTime, as `config set` does."""
        self.world.window_s = hours * 1800
        object.__setattr__(self.world.config.retention, "reserved_hours", hours)

    def fill(self) -> None:
        """Fill a file of the log, which was last written now."""
        end = self.world.store.max_physical_offset + 70_000
        while self.world.store.max_physical_offset < end:
            self.world.store.put_message(MessageInner("Other", 0, bytes(4000)))
            self.fillers += 1
        self.world.store.dispatch()
        for path in (self.world.root / "commitlog").iterdir():
            if path.stat().st_mtime > self.world.now / 1000:
                os.utime(path, (self.world.now / 1000,) * 2)

    def stop_for(self, days: int, *, delivers: bool = True) -> None:
        """Stop for some days, start again, and fill a file."""
        self.world.stop()
        self.world.now += days * DAY_MS
        self.world._open(delivers=delivers)
        self.fill()

    def begin(self) -> None:
        """Begin to deliver; expired files are deleted after that, and not before."""
        assert self.clean() == 0
        self.world.timers.begin(self.world.now)
        assert self.clean() == 0
        self.world.run(self.world.now + 5000)
        assert self.clean() > 0

    def clean(self) -> int:
        """Delete expired files, which has the disk at 80 %; return the first offset of the log."""
        store = self.world.store
        store.flush(thorough=True)
        cleaner = Cleaner(store, use=lambda _: 0.8)
        cleaner.keeps_expired = lambda: self.world.timers.needs_files
        cleaner.run(self.world.now)
        return store.min_physical_offset


@pytest.fixture
def retention(tmp_path: Path) -> Iterator[Retention]:
    """Files are kept for 72 hours."""
    made = Retention(tmp_path / "store", 72)
    yield made
    made.world.files.close()
    made.world.store.close()


HOUR_MS = 3_600_000


@pytest.mark.parametrize("restarts", [None, "stop", "crash"])
def test_timers_survive_a_shorter_time_that_files_are_kept(
    retention: Retention, restarts: str | None
) -> None:
    """Their slots were chosen for the longer time: their file would be deleted before they are due."""
    world = retention.world
    world.send("early", TIMER_DELAY_MS=HOUR_MS // 2)
    world.send("late", TIMER_DELAY_MS=30 * HOUR_MS)
    world.send("gone", TIMER_DELAY_MS=30 * HOUR_MS)
    retention.fill()
    world.run(START_MS + HOUR_MS)
    world.save()
    retention.keep(24)
    if restarts:
        world.restart(crash=restarts == "crash")
    world.run(world.now + 1000)
    assert world.late() == {"early": 0}
    world.recall("gone")
    for hour in (2, 13, 25, 29):
        world.run(START_MS + hour * HOUR_MS)
        retention.fill()
        begin = retention.clean()
    assert begin > 0  # the file of the timers is deleted
    world.run(START_MS + 31 * HOUR_MS)
    assert world.late() == {"late": 0}
    assert world.timers.waiting == 0


def test_timers_that_are_too_old_roll_before_their_file_is_deleted(retention: Retention) -> None:
    """The time is shortened to get space: files that expire with it are deleted by the next check."""
    world = retention.world
    world.send("late", TIMER_DELAY_MS=30 * HOUR_MS)
    for number in range(200):
        world.send(f"{number}", TIMER_DELAY_MS=31 * HOUR_MS)
    retention.fill()
    world.run(START_MS + 28 * HOUR_MS)
    retention.fill()
    assert retention.clean() == 0
    retention.keep(24)
    assert retention.clean() == 0
    calls = 0
    while world.timers.needs_files:
        world.timers.enqueue(world.now, 50)
        world.timers.deliver(world.now, 50)
        assert retention.clean() == 0 or not world.timers.needs_files
        world.now += 100
        calls += 1
    assert calls > 4  # in slices
    assert world.timers.waiting == 201
    assert retention.clean() > 0
    world.run(START_MS + 32 * HOUR_MS)
    assert world.late() == dict.fromkeys(["late", *map(str, range(200))], 0)


def test_files_of_rolled_timers_are_kept_until_their_copies_are_flushed(retention: Retention) -> None:
    """Power loss would take the copies, while the messages are deleted."""
    world = retention.world
    world.send("late", TIMER_DELAY_MS=30 * HOUR_MS)
    world.run(START_MS + 28 * HOUR_MS)
    world.store.flush(thorough=True)
    assert not world.timers.needs_files
    retention.keep(24)
    world.run(world.now + 5000)
    assert world.rolled() == 2
    assert world.timers.needs_files
    world.store.flush(thorough=True)
    assert not world.timers.needs_files


@pytest.mark.parametrize("days", [4, 9])
def test_a_long_stop_loses_no_timer(retention: Retention, days: int) -> None:
    """The first check after the start would delete the files of those that are due, or have to roll."""
    world = retention.world
    world.send("due", TIMER_DELAY_MS=30 * HOUR_MS)
    world.send("waits", TIMER_DELAY_MS=300 * HOUR_MS)
    retention.fill()
    world.run(START_MS + HOUR_MS)
    retention.stop_for(days, delivers=False)
    retention.begin()
    world.run(START_MS + 301 * HOUR_MS)
    late = world.late()
    assert sorted(late) == ["due", "waits"]
    assert late["waits"] == 0


def test_files_are_kept_until_all_late_timers_are_delivered(retention: Retention) -> None:
    """A check between the slots of a long stop would delete the files of the next ones."""
    world = retention.world
    for hours in (20, 30):
        world.send(f"{hours}", TIMER_DELAY_MS=hours * HOUR_MS)
    retention.fill()
    world.run(START_MS + HOUR_MS)
    retention.stop_for(4)
    due_ms: int | None = 0
    while due_ms is not None:
        assert retention.clean() == 0
        world.timers.enqueue(world.now, 250)
        _, due_ms = world.timers.deliver(world.now, 250)
    assert sorted(world.late()) == ["20", "30"]
    world.store.flush(thorough=True)
    assert retention.clean() > 0


@pytest.mark.parametrize("crash", [True, False])
def test_a_kill_while_timers_are_moved_keeps_their_files(retention: Retention, crash: bool) -> None:
    """The next start would delete the files of those that have not rolled yet."""
    world = retention.world
    for number in range(50):
        world.send(f"{number}", TIMER_DELAY_MS=30 * HOUR_MS)
    retention.fill()
    world.run(START_MS + 28 * HOUR_MS)
    retention.fill()
    retention.keep(24)
    for _ in range(3):
        world.timers.enqueue(world.now, 10)
        world.timers.deliver(world.now, 10)
        world.save()
    assert world.timers.queue_offset == 20
    if crash:
        world.restart(crash=True, delivers=False)
    else:
        world.files.close()
        world.store.close()
        world._open(delivers=False)
    retention.begin()
    world.run(START_MS + 32 * HOUR_MS)
    assert world.late() == dict.fromkeys(map(str, range(50)), 0)


def test_moved_timers_repeat_no_delivered_ones_without_a_key_index(tmp_path: Path) -> None:
    """A shorter time would deliver again what was delivered within the longer one."""
    index = IndexConfig(slots=100, entries=400, enabled=False)
    retention = Retention(tmp_path, 72, index=index)
    world = retention.world
    for number in range(20):
        world.send(f"{number}", TIMER_DELAY_MS=number * HOUR_MS + number)
    world.run(START_MS + 10 * HOUR_MS + 500)
    world.send("now", TIMER_DELAY_MS=0)
    retention.keep(24)
    world.run(START_MS + 40 * HOUR_MS)
    assert world.late() == dict.fromkeys(["now", *map(str, range(20))], 0)
    world.stop()


def test_a_window_that_grows_and_shrinks_moves_timers_once(
    retention: Retention, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that wait nearer than the new window allows would be read again with each change."""
    world = retention.world
    world.send("late", TIMER_DELAY_MS=30 * HOUR_MS)
    world.run(START_MS + HOUR_MS)
    first = world.timers.checkpoint
    retention.keep(100)
    world.run(START_MS + 2 * HOUR_MS)
    retention.keep(72)
    world.run(START_MS + 3 * HOUR_MS)
    world.save()
    assert world.timers.progress(world.now).counter <= first.counter + 2
    assert world.timers.checkpoint.window_ms == 36 * HOUR_MS
    retention.keep(24)
    world.run(START_MS + 4 * HOUR_MS)
    world.save()
    assert world.timers.checkpoint.window_ms == 12 * HOUR_MS
    world.run(START_MS + 31 * HOUR_MS)
    assert world.late() == {"late": 0}
    world.run(START_MS + 32 * HOUR_MS)
    retention.keep(10)
    assert not world.timers.needs_files  # none waits
    world.send("next", TIMER_DELAY_MS=HOUR_MS)
    world.run(START_MS + 34 * HOUR_MS)
    assert world.late() == {"late": 0, "next": 0}
    assert caplog.text.count("read again") == 1


@pytest.mark.parametrize("crash", [True, False])
def test_a_topic_with_fewer_queues_repeats_no_message(world: TimerWorld, crash: bool) -> None:
    """Its messages are in other queues than they were sent to, where their copies were not found."""
    world.queue_count = 2
    world.send("early", queue_id=5, TIMER_DELAY_MS=2000)
    world.send("late", queue_id=5, TIMER_DELAY_MS=900_000)
    world.run(world.now)
    world.save()
    world.run(world.now + 2900)
    world.restart(crash=crash)
    if not crash:
        world.timers.rebuild(world.now, "test")
    world.run(world.now + 1_000_000)
    assert world.late(queue_id=1) == {"early": 0, "late": 0}
    assert world.delivered(queue_id=5) == []


@pytest.mark.parametrize("lost", ["timerwheel", "timerlog", "config/timercheck"])
def test_lost_files_are_built_again_from_the_log(world: TimerWorld, lost: str) -> None:
    """Timers would be lost, or delivered a second time."""
    world.send("early", TIMER_DELAY_MS=1000)
    world.send("late", TIMER_DELAY_MS=900_000)
    world.run(world.now + 2000)
    world.stop()
    path = world.root / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    world._open()
    world.run(world.now + 1_000_000)
    assert world.late() == {"early": 0, "late": 0}


def test_damaged_files_are_built_again_from_the_log(world: TimerWorld) -> None:
    """A damaged unit ends the chain of its slot: the messages before it would be lost."""
    for number in range(5):
        world.send(f"{number}", TIMER_DELAY_MS=900_000)
    world.run(world.now + 2000)
    world.stop()
    with (world.root / "timerlog" / f"{0:020}").open("r+b") as file:
        file.seek(2 * 52 + 16)
        file.write(b"\1" * 8)
    world._open()
    with pytest.raises(StoreError, match="another slot"):
        world.run(world.now + 1_000_000)
    world.timers.rebuild(world.now, "test")
    world.run(world.now + 1_000_000)
    assert sorted(world.late()) == ["0", "1", "2", "3", "4"]


def test_a_damaged_record_repeats_no_message_of_its_slot(world: TimerWorld) -> None:
    """Messages before it in the slot are delivered, and the rebuild looks for their copies."""
    for number in range(5):
        world.send(f"{number}", TIMER_DELAY_MS=900_000)
    world.run(world.now + 2000)
    physical, _, _ = world.store.units(TIMER_TOPIC, 0, 3, 1)[0]
    with min((world.root / "commitlog").iterdir()).open("r+b") as file:
        file.seek(physical + HEAD_BYTES)
        file.write(b"?")
    with pytest.raises(StoreError, match="no timer"):
        world.run(world.now + 1_000_000)
    world.timers.rebuild(world.now, "test")
    world.run(world.now + 1_000_000)
    assert [record.body for record in world.delivered()] == [b"0", b"1", b"2", b"4"]


def test_a_truncated_log_is_read_again(world: TimerWorld) -> None:
    """A slave that follows another master has other messages at the offsets of its units."""
    world.send("kept", TIMER_DELAY_MS=5000)
    world.run(world.now + 1000)
    world.store.truncations += 1
    world.send("new", TIMER_DELAY_MS=5000)
    with pytest.raises(StoreError, match="truncated"):
        world.timers.enqueue(world.now, 100)
    world.timers.rebuild(world.now, "test")
    world.run(world.now + 10_000)
    assert world.late() == {"kept": 0, "new": 0}


def test_messages_that_were_due_while_the_broker_was_stopped_are_delivered(world: TimerWorld) -> None:
    """Also after more days than the wheel has."""
    for days in (1, 3, 5):
        world.send(f"{days}", TIMER_DELAY_MS=days * DAY_MS)
    world.run(world.now)
    world.stop()
    world.now += 20 * DAY_MS
    world._open()
    world.run(world.now)
    assert sorted(world.late()) == ["1", "3", "5"]


def test_a_full_disk_delays_timers_and_loses_none(tmp_path: Path) -> None:
    """A failed write would lose the messages of its batch, or deliver them twice."""
    for fail_at in range(1, 40):
        world = TimerWorld(tmp_path / f"{fail_at}")
        disk = FaultyDisk(only="pwrite")
        world.files.close()
        world.store.close()
        world.store.disk = disk
        world._open()
        world.files.wheel._disk = world.files.log._disk = disk
        world.files.log._files._disk = disk
        for number in range(10):
            world.send(f"{number}", TIMER_DELAY_MS=900 + 300 * number)
        disk.calls, disk.fail_at = 0, fail_at
        until = world.now + 5000
        for _ in range(3):
            try:
                world.run(until)
            except StoreError:
                continue
        disk.fail_at = 0
        world.run(until + 1)
        assert len(world.late()) == 10
        world.stop()


def test_what_is_timed() -> None:
    """QUIRKS 70, 71."""
    assert due_time({"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "9", "TIMER_DELIVER_MS": "5"}, 1000) == 3000
    assert due_time({"TIMER_DELAY_MS": "9", "TIMER_DELIVER_MS": "5"}, 1000) == 1009
    assert due_time({"TIMER_DELIVER_MS": "-5"}, 1000) == -5
    for text in ("", "x", "1_0", "1.5", "9" * 30):
        with pytest.raises(MessageInvalid, match="whole number"):
            due_time({"TIMER_DELAY_MS": text}, 1000)
    assert is_timed({"TIMER_DELAY_MS": "9"})
    assert not is_timed({"TIMER_DELAY_MS": "9", "TIMER_OUT_MS": "1000"})
    assert not is_timed({"DELAY": "3"})


def test_properties_must_leave_room(world: TimerWorld) -> None:
    """A message whose properties grow too long would be lost when it is due."""
    with pytest.raises(MessageInvalid, match="32467"):
        to_timer_message(MessageInner("T", 0, b"", b"A\x01%b\x02" % (b"x" * 32_400)), START_MS)
    world.dues["A"] = START_MS + 1000
    text = props.encode({"A": "x" * 32_300, "TIMER_DELAY_MS": "1000"})
    message = MessageInner("Real", 0, b"A", text.encode())
    to_timer_message(message, START_MS + 1000)
    world.store.put_message(message)
    world.run(START_MS + 2000)
    assert world.late() == {"A": 0}


def simulate(root: Path, seed: int) -> None:
    """Timed messages from 0.5 s to 40 days, with saves, kills, stops, recalls and changed windows."""
    rng = random.Random(seed)
    window_s = rng.choice([20, 3600, 172_800])
    world = TimerWorld(root, window_s=window_s)
    world.log_bytes = 52 * 7 + 16
    world.restart(crash=False)
    recalled: set[str] = set()
    count = 0
    for _ in range(rng.randrange(10, 40)):
        step = rng.random()
        if rng.random() < 0.1:
            world.window_s = max(window_s // rng.choice([1, 2, 3]), 2)
        if step < 0.4:
            for _ in range(rng.randrange(1, 8)):
                longest = 40 * DAY_MS if window_s > 3600 else 200_000
                delay = min(int(500 * 10 ** rng.uniform(0, 7)), longest)
                world.send(f"{count}", TIMER_DELAY_MS=delay)
                count += 1
        elif step < 0.7:
            world.run(world.now + int(10 ** rng.uniform(1, 6)), count_max=rng.choice([1, 3, 100]))
        elif step < 0.8:
            world.save()
        elif step < 0.87 and count:
            name = f"{rng.randrange(count)}"
            if world.dues[name] > world.now + 2000 and name not in recalled:
                world.recall(name)
                recalled.add(name)
        else:
            world.restart(crash=step < 0.95)
    world.run(world.now + 41 * DAY_MS)
    late = world.late()
    assert sorted(late) == sorted(set(world.dues) - recalled)
    assert min(late.values(), default=0) >= 0
    world.stop()


@pytest.mark.parametrize("seeds", [range(10), range(10, 20), range(20, 30)])
def test_nothing_is_lost_early_or_repeated_over_kills(tmp_path: Path, seeds: range) -> None:
    """The promise of timers."""
    for seed in seeds:
        simulate(tmp_path / f"{seed}", seed)
        shutil.rmtree(tmp_path / f"{seed}")


def test_a_small_window_in_a_small_store_needs_no_long_files(tmp_path: Path) -> None:
    """Files of the timer log are deleted when their messages are."""
    world = TimerWorld(tmp_path, config=small_config(tmp_path), window_s=20)
    for number in range(500):
        world.send(f"{number}", TIMER_DELAY_MS=1000)
        world.run(world.now + 1500)
    assert len(world.late()) == 500
    physical, _, _ = world.store.units(TIMER_TOPIC, 0, 450, 1)[0]
    for delete in world.files.log.delete_expired(physical):
        delete()
    assert world.files.log.begin > 0
    world.send("last", TIMER_DELAY_MS=1000)
    world.run(world.now + 1500)
    world.restart(crash=True)
    assert world.late()["last"] == 0
    world.stop()
