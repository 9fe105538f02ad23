"""CheckPoints: what one revive queue, or one unreadable queue, means for the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpy.errors import StoreError
from rocketpy.protocol.bodies import SubscriptionGroupConfig
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.pop.check_points import CheckPoints
from rocketpy_broker.services.pop.formats import CheckPoint, PointKey, revive_topic
from rocketpy_broker.store import MessageStore
from tests.unit.store.faulty_disk import UnreadableDisk
from tests.unit.store.helpers import bodies, put, small_config

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
QUEUES = 3


class World:
    """Check points of group g, and a store with messages of topic T."""

    def __init__(self, root: Path) -> None:
        self.disk = UnreadableDisk()
        self.store = MessageStore(small_config(root), clock=lambda: START_MS, disk=self.disk)
        self.store.open()
        offsets = ConsumerOffsets(root / "consumerOffset.json", disk=self.disk)
        self.points = CheckPoints(
            self.store, offsets, revive_topic("c"), queues=QUEUES, broker_name="b",
            find_topic=lambda name: name,
            find_group=lambda name: SubscriptionGroupConfig(group_name=name),
            ensure_topic=lambda _: None,
            uses_retry_v2=lambda: False,
            timers_late=lambda: False,
            timers_wait=lambda: False,
        )  # fmt: skip
        self.points.load()
        self.points.read(1)

    def pop(self, queue_id: int, offset: int, revive_queue: int, invisible_ms: int = HOUR_MS) -> CheckPoint:
        """Pop a message; return its check point."""
        key = PointKey("T", "g", queue_id, offset, START_MS)
        point = CheckPoint(key, invisible_ms, [0], revive_queue, "b")
        self.points.append_point(point, START_MS, self.store.append)
        self.store.write_out()
        return point

    def revive(self, now_ms: int) -> None:
        """Revive what is due, for ten seconds. Raises StoreError."""
        for number in range(100):
            self.points.revive(now_ms + 100 * number, 10)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


def test_one_revive_queue_does_not_keep_others_from_being_stored_again(world: World) -> None:
    """The check points of other queues would expire with their records, and their messages be lost."""
    points = [world.pop(0, number, number // 50) for number in range(50 * QUEUES)]
    assert world.points.renew(START_MS + HOUR_MS, 30) == 30
    renewed = [point.key.start_offset for point in points if point.appended_ms > START_MS]
    assert renewed == [50 * queue + number for queue in range(QUEUES) for number in range(10)]


@pytest.mark.parametrize("unreadable", [1, 100])
def test_an_unreadable_queue_does_not_keep_others_from_being_revived(world: World, unreadable: int) -> None:
    """No message of any topic would come again until one file of one queue can be read."""
    put(world.store, *range(100), queue_id=0)
    put(world.store, *range(100, 200), queue_id=1)
    world.store.flush(thorough=True)
    for number in range(unreadable):
        world.pop(0, number, 0, 1000)
    for number in range(100):
        world.pop(1, number, 1, 2000)
    world.disk.unreadable = "T/0/"
    with pytest.raises(StoreError, match="planned failure"):
        world.revive(START_MS + 10_000)
    assert len(world.points.in_flight) == unreadable
    world.disk.unreadable = ""
    world.revive(START_MS + 20_000)
    world.store.dispatch()
    assert len(bodies(world.store, "%RETRY%g_T")) == 100 + unreadable
    assert not world.points.in_flight
