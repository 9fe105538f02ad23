"""The messages in flight: check points by key, by the time of their revive, and by revive queue. No I/O."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Final

from rocketpy_broker.services.pop.formats import CheckPoint, PointKey

PRECISION_MS: Final = 100
"""Check points whose time ends in the same interval are revived together, at its end."""
_DUE_MAX: Final = 1000
"""Consumers choose when invisible times end: any number may end together."""
TIMERS_MS: Final = 2000
"""How long after its time a check point is revived whose acknowledgements may be timers."""


class InFlight:
    """Check points with messages that are neither acknowledged nor revived."""

    def __init__(self) -> None:
        self.points: dict[PointKey, CheckPoint] = {}
        self.counts: dict[tuple[str, str, int], int] = {}
        """(topic, group, queue id) -> number of messages in flight."""
        self._slots: dict[int, dict[PointKey, CheckPoint]] = {}
        """Number of an interval of `PRECISION_MS` -> check points that are due in it."""
        self._order: list[int] = []
        """Heap of the keys of `_slots`, and of some that are gone."""
        self._queues: dict[int, dict[int, CheckPoint]] = {}
        """Revive queue -> offset of the newest record of each check point."""
        self._offsets: dict[int, list[int]] = {}
        """Heaps of the keys of `_queues`, and of some that are gone."""

    def __len__(self) -> int:
        return len(self.points)

    def add(self, point: CheckPoint, offset: int, now_ms: int) -> None:
        """Add a check point that has its record at an offset of its revive queue."""
        self.points[point.key] = point
        self._count(point, point.left_count)
        self.move(point, offset, now_ms)
        self._schedule(point)

    def move(self, point: CheckPoint, offset: int, now_ms: int) -> None:
        """Note that a check point has a newer record."""
        records = self._queues.setdefault(point.revive_queue, {})
        records.pop(point.offset, None)
        point.offset, point.appended_ms = offset, now_ms
        records[offset] = point
        heapq.heappush(self._offsets.setdefault(point.revive_queue, []), offset)

    def done(self, point: CheckPoint, bits: int) -> int:
        """Note that messages are acknowledged or revived; return how many were not before."""
        new = bits & ~point.done
        count = new.bit_count()
        if count:
            point.done |= new
            self._count(point, -count)
        if point.is_done:
            self.remove(point)
        return count

    def remove(self, point: CheckPoint) -> None:
        """Forget a check point."""
        if self.points.get(point.key) is not point:
            return
        del self.points[point.key]
        self._count(point, -point.left_count)
        self._queues[point.revive_queue].pop(point.offset, None)
        self._unschedule(point)

    def postpone(self, point: CheckPoint, until_ms: int) -> None:
        """Revive a check point not before a time."""
        self._unschedule(point)
        point.postponed_ms = until_ms
        self._schedule(point)

    def _count(self, point: CheckPoint, change: int) -> None:
        queue = point.key[:3]
        count = self.counts.get(queue, 0) + change
        if count:
            self.counts[queue] = count
        else:
            self.counts.pop(queue, None)

    def _unschedule(self, point: CheckPoint) -> None:
        number = _slot_of(point)
        slot = self._slots.get(number, {})
        slot.pop(point.key, None)
        if not slot:
            self._slots.pop(number, None)

    def _schedule(self, point: CheckPoint) -> None:
        number = _slot_of(point)
        if number not in self._slots:
            self._slots[number] = {}
            heapq.heappush(self._order, number)
        self._slots[number][point.key] = point

    def due(self, now_ms: int) -> Iterator[CheckPoint]:
        """Yield the check points whose time is over, in the order of their times.

        Between two of them, the caller may remove or postpone the one that it has got. The next call yields
        those behind the first `_DUE_MAX`.
        """
        left = _DUE_MAX
        while left and (number := self._first_slot()) is not None and (number + 1) * PRECISION_MS <= now_ms:
            points = list(islice(self._slots[number].values(), left))
            yield from sorted(points, key=lambda point: point.revive_ms)
            left -= len(points)
            if self._slots.get(number):
                return  # the caller could not handle all of them

    def due_ms(self) -> int | None:
        """Return when `due` has the next check point; None without one."""
        number = self._first_slot()
        return None if number is None else (number + 1) * PRECISION_MS

    def _first_slot(self) -> int | None:
        while self._order and self._order[0] not in self._slots:
            heapq.heappop(self._order)
        return self._order[0] if self._order else None

    def first_of(self, revive_queue: int) -> CheckPoint | None:
        """Return the check point with the oldest record of a revive queue; None without one."""
        records, offsets = self._queues.get(revive_queue, {}), self._offsets.get(revive_queue, [])
        while offsets and offsets[0] not in records:
            heapq.heappop(offsets)
        return records[offsets[0]] if offsets else None


def _slot_of(point: CheckPoint) -> int:
    late_ms = TIMERS_MS if point.may_have_timers else 0
    return max(point.revive_ms + late_ms, point.postponed_ms) // PRECISION_MS
