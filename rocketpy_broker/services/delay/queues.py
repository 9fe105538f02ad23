"""Moves due messages from the delay queues to their real topics.

Each delay level is a queue of SCHEDULE_TOPIC_XXXX. All messages of a level have the same delay, so the first
one is due first. The consume queue contains the due time (QUIRKS 44), so records are read only when they are
due. No I/O or clock: the store and `now_ms` are arguments. Source: ScheduleMessageService of RocketMQ 4.6.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Final

from rocketpy.errors import StoreError, UsageError
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC, DelayLevels
from rocketpy.protocol.message.record import decode
from rocketpy_broker.services.delay.copies import has_copy
from rocketpy_broker.services.delay.topic_rewrite import copy_to, real_queue
from rocketpy_broker.store import MessageStore

log = logging.getLogger("rocketpy.broker.delay")

_UNITS: Final = 64
"""Consume queue entries read together."""
_NOT_READABLE_YET_MS: Final = 10
"""When to try again to read a message that is not flushed yet (SYNC_FLUSH)."""


@dataclass(slots=True)
class _Level:
    """One delay level."""

    queue_id: int
    delay_ms: int | None
    """None for a level that was removed from the configuration."""
    offset: int = 0
    """Queue offset of the first undelivered message."""
    head_due_ms: int | None = None
    """When the message at `offset` is due; None if unknown."""
    shift_ms: int = 0
    """How far stored due times are ahead, because the clock was set back after the messages were stored."""
    taken: int = 0
    """Number of messages from `offset` on that were appended to their real queues and are not written yet."""

    def due(self, unit_due_ms: int, now_ms: int) -> int:
        """Return when a message is due; `unit_due_ms`: its due time in the consume queue.

        No message waits longer than its level: a later due time comes from a clock that was ahead. The first
        such message is due after the level's delay from now, and the following ones keep their distance to
        it.
        """
        if self.delay_ms is None or unit_due_ms <= now_ms + self.delay_ms:
            self.shift_ms = 0
            return unit_due_ms
        if unit_due_ms - self.shift_ms > now_ms + self.delay_ms:
            self.shift_ms = unit_due_ms - now_ms - self.delay_ms
        return unit_due_ms - self.shift_ms


def _same_queue(_topic: str, queue_id: int, _offset: int) -> int:
    return queue_id


class DelayQueues:
    """The delay levels of one store. Call `load` before use, and when the log was replaced.

    queue_to_deliver: see `TopicTable.queue_to_deliver`.
    """

    def __init__(
        self,
        store: MessageStore,
        levels: DelayLevels,
        queue_to_deliver: Callable[[str, int, int], int] = _same_queue,
    ) -> None:
        self._store = store
        self._queue_to_deliver = queue_to_deliver
        self._delays_ms = levels.delays_ms
        self._levels: list[_Level] = []
        self._turn = -1

    def load(self, saved: Mapping[int, int]) -> None:
        """Start at the saved offsets: level -> next offset.

        An offset beyond the end of its queue is set to the end. Recovery has truncated the queue, and new
        messages at these offsets must be delivered.
        """
        stored = {queue_id + 1 for topic, queue_id in self._store.table if topic == SCHEDULE_TOPIC}
        numbers = range(1, len(self._delays_ms) + 1)
        self._levels = [self._level(number, saved.get(number, 0)) for number in sorted({*numbers, *stored})]

    def _level(self, number: int, offset: int) -> _Level:
        queue_id = number - 1
        end = self._store.appended_in_queue(SCHEDULE_TOPIC, queue_id)
        if offset > end:
            log.warning("delay level %d: offset %d is beyond the queue's end, %d", number, offset, end)
            offset = end
        delay_ms = self._delays_ms[queue_id] if queue_id < len(self._delays_ms) else None
        return _Level(queue_id, delay_ms, offset)

    def offsets(self) -> dict[int, int]:
        """Return level -> next offset, of all levels with messages so far."""
        store = self._store
        return {
            level.queue_id + 1: level.offset
            for level in self._levels
            if level.offset or store.appended_in_queue(SCHEDULE_TOPIC, level.queue_id)
        }

    def waiting(self) -> dict[int, int]:
        """Return level -> number of undelivered messages, of the same levels."""
        store = self._store
        return {
            level: max(store.appended_in_queue(SCHEDULE_TOPIC, level - 1) - offset, 0)
            for level, offset in self.offsets().items()
        }

    def skip_delivered(self) -> Generator[None, None, dict[int, tuple[int, int]]]:
        """Advance each level beyond the messages whose copies are in the log. Yields after each message.

        Returns level -> (number of skipped messages, number of waiting ones), of levels with messages.
        """
        found: dict[int, tuple[int, int]] = {}
        for level in self._levels:
            first, end = level.offset, self._store.appended_in_queue(SCHEDULE_TOPIC, level.queue_id)
            while units := self._store.units(SCHEDULE_TOPIC, level.queue_id, level.offset, 1):
                if not self._is_delivered(*units[0][:2]):
                    break
                level.offset += 1
                yield
            if end > first:
                found[level.queue_id + 1] = level.offset - first, end - level.offset
        return found

    def _is_delivered(self, physical: int, size: int) -> bool:
        """Whether the key index finds the copy of a delayed message behind it in the log."""
        data = self._store.look_message(physical, size)
        if data is None:
            return False
        record = decode(data, check_crc=False)
        try:
            return has_copy(self._store, record, real_queue(record.properties)[0])
        except UsageError:
            return False

    def deliver(self, now_ms: int, count_max: int) -> tuple[int, int | None]:
        """Move up to `count_max` due messages to their real queues, and write them.

        Returns their number, and the time of the next call in ms; None if no message waits. If more messages
        are due already, that time is not later than `now_ms`. Raises StoreError when no other level has
        more; the next call tries again.
        """
        failure = None
        first = self._turn = (self._turn + 1) % len(self._levels) if self._levels else 0
        for level in (*self._levels[first:], *self._levels[:first]):  # in turn: one may have a large backlog
            try:
                self._take_due(level, now_ms, count_max - sum(other.taken for other in self._levels))
            except StoreError as error:  # maybe of one level: messages appended before it are still written
                failure = error
        count = self._write()
        if failure is not None and count < count_max:
            raise failure
        return count, now_ms if failure is not None else self._next_due(now_ms)

    def _write(self) -> int:
        count = 0
        try:
            self._store.write_out()
        except StoreError:
            for level in self._levels:
                level.taken = 0
            raise
        for level in self._levels:
            if level.taken:
                level.offset += level.taken
                count += level.taken
                level.taken, level.head_due_ms = 0, None
        return count

    def _take_due(self, level: _Level, now_ms: int, count_max: int) -> None:
        """Append the due messages of a level."""
        due_ms = self._head_due(level, now_ms)
        if due_ms is None or due_ms > now_ms:
            return
        while level.taken < count_max:
            first, count = level.offset + level.taken, min(_UNITS, count_max - level.taken)
            units = self._store.units(SCHEDULE_TOPIC, level.queue_id, first, count)
            due: list[tuple[int, int]] = []
            for physical, size, unit_due_ms in units:
                if (level.taken or due) and level.due(unit_due_ms, now_ms) > now_ms:
                    break
                due.append((physical, size))
            for (physical, _), data in zip(due, self._store.look_messages(due), strict=True):
                self._append(level, physical, data)
                level.taken += 1
            if len(due) < len(units):
                return
            if not units:
                level.head_due_ms = None  # the first message was deleted since its due time was read
                return

    def _append(self, level: _Level, physical: int, data: bytes | None) -> None:
        """Append one message to its real queue. An undeliverable message is logged and skipped."""
        if data is None:
            log.error(
                "delay level %d: the message at offset %d cannot be read; it is lost",
                level.queue_id + 1,
                physical,
            )
            return
        try:
            record = decode(data, check_crc=False)
            topic, queue_id = real_queue(record.properties)
            queue_id = self._queue_to_deliver(topic, queue_id, physical)
            self._store.append(copy_to(record, topic, queue_id))
        except UsageError as error:
            log.error("delayed message at offset %d cannot be delivered and is dropped: %s", physical, error)

    def _head_due(self, level: _Level, now_ms: int) -> int | None:
        """Return when the first message of a level is due; None if no message waits."""
        due_ms = level.head_due_ms
        if due_ms is not None and (level.delay_ms is None or due_ms <= now_ms + level.delay_ms):
            return due_ms
        if level.offset >= self._store.appended_in_queue(SCHEDULE_TOPIC, level.queue_id):
            return None
        units = self._store.units(SCHEDULE_TOPIC, level.queue_id, level.offset, 1)
        if not units:
            return self._without_head(level, now_ms)
        _, _, tags_code = units[0]
        level.head_due_ms = level.due(tags_code, now_ms)
        return level.head_due_ms

    def _without_head(self, level: _Level, now_ms: int) -> int:
        """Handle an unreadable first message: its file was deleted, or it is not dispatched yet."""
        first = self._store.min_offset_in_queue(SCHEDULE_TOPIC, level.queue_id)
        if level.offset < first:
            log.error(
                "delay level %d: messages %d to %d were deleted before they were due",
                level.queue_id + 1, level.offset, first - 1,
            )  # fmt: skip
            level.offset = first
            return now_ms
        return now_ms + _NOT_READABLE_YET_MS

    def _next_due(self, now_ms: int) -> int | None:
        dues = (self._head_due(level, now_ms) for level in self._levels)
        return min((due for due in dues if due is not None), default=None)
