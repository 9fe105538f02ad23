"""Searches by time in a log whose clock was set back must skip no message."""

from __future__ import annotations

import shutil
from itertools import accumulate
from pathlib import Path
from random import Random

import pytest

from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.replica.replica_log import ReplicaLog
from tests.unit.store.helpers import message, small_config


class Clock:
    """A clock that shows what a test has set."""

    now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


def fill(store: MessageStore, clock: Clock, seed: int, count: int = 60) -> None:
    """Store messages in two queues, while the clock is set back now and then."""
    random = Random(seed)
    for number in range(count):
        clock.now += random.choice((0, 0, 1, 500, 5000, 60_000))
        if random.random() < 0.1:
            clock.now -= random.choice((3, 2000, 100_000, 10**9))
        store.append(message(number, queue_id=random.randrange(2)))
        if random.random() < 0.7:
            store.write_out()
    store.write_out()
    store.dispatch()


def check(store: MessageStore) -> None:
    """Compare searches with a look at all store times."""
    for queue_id in range(2):
        end = store.max_offset_in_queue("T", queue_id)
        first = store.min_offset_in_queue("T", queue_id)
        times = [store.store_timestamp("T", queue_id, number) for number in range(first, end)]
        highest = list(accumulate(times, max))  # of the messages up to each one
        for time in {time + delta for time in times for delta in (-1, 0, 1)}:
            expected = first + sum(newest < time for newest in highest)
            assert store.offset_by_time("T", queue_id, time) == expected
            upto = [number for number, stored_ms in enumerate(times, first) if stored_ms <= time]
            assert store.last_offset_by_time("T", queue_id, time) == (upto[-1] if upto else first)


@pytest.mark.parametrize("seed", range(20))
def test_no_message_of_a_time_is_skipped(tmp_path: Path, seed: int) -> None:
    """A consumer that is reset to a time would skip messages stored before the clock was set back."""
    clock = Clock()
    store = MessageStore(small_config(tmp_path), clock=clock)
    store.open()
    fill(store, clock, seed)
    check(store)
    steps = store.dispatcher.clock.steps
    assert steps
    store.close()
    with MessageStore(store.config, clock=clock) as again:
        assert again.dispatcher.clock.steps == steps
        check(again)
        fill(again, clock, seed + 1000)
        check(again)


def test_the_steps_are_found_again_when_their_file_is_lost(tmp_path: Path) -> None:
    """A store whose queues are rebuilt from the log would search as if its times increased."""
    clock = Clock()
    with MessageStore(small_config(tmp_path), clock=clock) as store:
        fill(store, clock, 3)
        steps = store.dispatcher.clock.steps
    (tmp_path / "clocksteps").unlink()
    (tmp_path / "clocksteps.bak").unlink(missing_ok=True)
    for file in sorted((tmp_path / "consumequeue").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    with MessageStore(store.config, clock=clock) as again:
        assert again.dispatcher.clock.steps == steps
        check(again)


def test_a_damaged_file_of_steps_does_not_stop_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker would not start without a list that only makes searches exact."""
    with MessageStore(small_config(tmp_path)):
        pass
    (tmp_path / "clocksteps").write_text("[[1")
    with MessageStore(small_config(tmp_path)) as store:
        assert store.dispatcher.clock.steps == []
    assert "searches by time assume that store times increase" in caplog.text


def test_a_slave_and_a_truncated_log_have_the_steps_of_their_records(tmp_path: Path) -> None:
    """A search at a slave would skip messages that one at its master finds."""
    clock = Clock()
    with MessageStore(small_config(tmp_path / "a"), clock=clock) as master:
        fill(master, clock, 7)
        data = master.read_log(0, min(master.max_physical_offset, 4096)) or b""
        with MessageStore(small_config(tmp_path / "b")) as slave:
            copy = ReplicaLog(slave)
            for at in range(0, len(data), 999):
                copy.append(at, data[at : at + 999])
            slave.dispatch()
            end = slave.max_physical_offset
            assert slave.dispatcher.clock.steps == [
                step for step in master.dispatcher.clock.steps if step[0] < end
            ]
            assert slave.dispatcher.clock.steps
            check(slave)
            last = slave.dispatcher.clock.steps[-1][0]
            copy.truncate(last, tmp_path / "cut")
            assert last not in dict(slave.dispatcher.clock.steps)
            copy = ReplicaLog(slave)
            copy.append(last, data[last:end])
            slave.dispatch()
            assert last in dict(slave.dispatcher.clock.steps)
            check(slave)


def test_a_new_log_has_no_steps_of_the_old_one(tmp_path: Path) -> None:
    """A search would leave out a part of the log because of times that it does not have."""
    clock = Clock()
    with MessageStore(small_config(tmp_path), clock=clock) as store:
        fill(store, clock, 5)
        assert store.dispatcher.clock.steps
    for name in ("commitlog", "consumequeue", "index", "checkpoint", "queuesums"):
        path = tmp_path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for _ in range(2):
        with MessageStore(store.config, clock=clock) as again:
            fill(again, Clock(), 6)
            check(again)
