"""Check points without one of their rules: the seeds must catch each defect, or they prove nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from rocketpy_broker.services.pop import check_points, in_flight
from rocketpy_broker.services.pop.check_points import CheckPoints
from rocketpy_broker.services.pop.formats import CheckPoint
from rocketpy_broker.services.pop.in_flight import InFlight
from tests.sim.planted import Defects

DEFECTS = defect = Defects()


@defect
def acknowledgements_are_only_in_memory() -> Iterator[None]:
    """A kill forgets them, as in RocketMQ 5.0."""
    with patch.object(CheckPoints, "_append_ack", lambda *_: None):
        yield


@defect
def messages_are_revived_before_all_records_are_read() -> Iterator[None]:
    """Their acknowledgements may be among the others."""
    original = CheckPoints.revive

    def revive(self: CheckPoints, now_ms: int, count_max: int) -> int:
        with patch.object(CheckPoints, "is_behind", property(lambda _: False)):
            return original(self, now_ms, count_max)

    with patch.object(CheckPoints, "revive", revive):
        yield


@defect
def copies_are_not_looked_for() -> Iterator[None]:
    """A kill in the middle of a revive makes a second copy."""
    with patch.object(check_points, "has_copy", lambda *_: False):
        yield


@defect
def stored_again_without_acknowledgements() -> Iterator[None]:
    """They are before the record from which the next start reads."""
    original = CheckPoint.encode

    def encode(self: CheckPoint, *, is_pop: bool = True) -> bytes:
        done, self.done = self.done, 0
        try:
            return original(self, is_pop=is_pop)
        finally:
            self.done = done

    with patch.object(CheckPoint, "encode", encode):
        yield


@defect
def revived_at_the_beginning_of_the_interval() -> Iterator[None]:
    """Up to 100 ms too early."""
    original = InFlight.due

    def due(self: InFlight, now_ms: int) -> Iterator[CheckPoint]:
        return original(self, now_ms + in_flight.PRECISION_MS)

    with patch.object(InFlight, "due", due):
        yield


@defect
def offsets_ignore_the_check_points_of_before_the_start() -> Iterator[None]:
    """Messages that are in flight are popped again."""
    original = CheckPoints.popped

    def popped(self: CheckPoints, topic: str, group: str, queue_id: int, next_offset: int) -> None:
        if not self.is_loading:
            original(self, topic, group, queue_id, next_offset)

    with patch.object(CheckPoints, "popped", popped):
        yield


@defect
def every_receipt_is_accepted() -> Iterator[None]:
    """As in RocketMQ: a worker does not learn that its message was delivered again."""
    original = CheckPoints.acknowledge

    def acknowledge(self: CheckPoints, *arguments: Any) -> list[int]:
        original(self, *arguments)
        return []

    with patch.object(CheckPoints, "acknowledge", acknowledge):
        yield


@defect
def done_up_to_the_newest_check_point() -> Iterator[None]:
    """The next start does not read those before it."""

    def first_of(self: InFlight, revive_queue: int) -> CheckPoint | None:
        records = self._queues.get(revive_queue, {})
        return records[max(records)] if records else None

    with patch.object(InFlight, "first_of", first_of):
        yield
