"""The numbers of timers that wait, of each topic: over recalls, kills, lost files and read errors."""

import contextlib
import errno
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpy.errors import StoreError
from rocketpy_broker.store.files.disk import OsDisk
from tests.unit.services.timer_world import START_MS, TimerWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TimerWorld]:
    """A small store with a timer that waits for long."""
    made = TimerWorld(tmp_path / "store")
    made.send("long", TIMER_DELAY_SEC=3600)
    yield made
    made.files.close()
    made.store.close()


def test_a_second_recall_of_a_message_does_not_count(world: TimerWorld) -> None:
    """The topic would have a timer less than it has until all are delivered."""
    for name in ("a", "b"):
        world.send(name, TIMER_DELAY_MS=2000)
    world.recall("a")
    world.recall("a")
    world.run(START_MS + 4000)
    assert sorted(world.late()) == ["b"]
    assert world.timers.counts == {"Real": 1}
    assert world.timers.waiting == 1


@pytest.mark.parametrize("saved", range(5))
def test_counts_are_exact_after_a_kill(world: TimerWorld, saved: int) -> None:
    """Timers that were enqueued or delivered since the last save would never count, or twice."""
    for number in range(6):
        world.send(f"{number}", topic=f"T{number % 2}", TIMER_DELAY_MS=400 * number)
        if number == saved:
            world.run(world.now + 50)
            world.save()
    world.recall("4", topic="T0", prefix="T0+")
    world.run(START_MS + 1400)
    world.restart(crash=True)
    world.send("new", topic="T0", TIMER_DELAY_MS=10_000)
    world.run(START_MS + 1500)
    world.run(START_MS + 5000)
    assert sorted(world.late("T0")) == ["0", "2"]
    assert sorted(world.late("T1")) == ["1", "3", "5"]
    assert world.timers.counts == {"Real": 1, "T0": 1}


class _BadSector(OsDisk):
    """A disk whose read number `fail_at` fails."""

    fail_at = calls = 0

    def pread(self, handle: int, size: int, position: int) -> bytes:
        """Read, unless this read fails."""
        self.calls += 1
        if self.calls == self.fail_at:
            raise OSError(errno.EIO, "planned failure of pread")
        return super().pread(handle, size, position)


def test_a_read_error_of_the_wheel_skips_no_slot(tmp_path: Path) -> None:
    """Its messages would be lost, or not be delivered until a restart."""
    for fail_at in itertools.count(1):
        world = TimerWorld(tmp_path / f"{fail_at}")
        disk = world.files.wheel._disk = _BadSector()
        for number in range(10):
            world.send(f"{number}", TIMER_DELAY_MS=900 + 700 * number)
        disk.fail_at = fail_at
        until = world.now + 9000
        for _ in range(2):
            with contextlib.suppress(StoreError):
                world.run(until)
        world.run(until + 1)
        has_failed, disk.fail_at = disk.calls >= fail_at, 0
        assert len(world.late()) == 10
        assert (world.timers.waiting, world.timers.counts) == (0, {})
        world.stop()
        if not has_failed:
            break
    assert fail_at > 15
