"""Moves messages from the timer topic into the wheel, and due ones to their real topics.

`enqueue` follows the consume queue of the timer topic, `deliver` the slots. Only the slot that is being read
is in memory. No I/O of its own or clock: the store, the files and `now_ms` are arguments. See decision 0030.
Source: TimerMessageStore of RocketMQ 5.3.3.
"""

from __future__ import annotations

import heapq
import logging
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rocketpy.errors import RemoteProtocolError, StoreError, UsageError
from rocketpy.protocol.java import utf8_hash
from rocketpy.protocol.message.record import Record, decode, intact_properties
from rocketpy_broker.services.delay.copies import has_copy
from rocketpy_broker.services.delay.topic_rewrite import real_queue
from rocketpy_broker.services.timers.batches import (
    DueMessage,
    NewInSlot,
    NewOfTopic,
    due_messages,
    timer_units,
)
from rocketpy_broker.services.timers.files import TimerFiles, TimerFilesDamaged
from rocketpy_broker.services.timers.formats import (
    NO_UNIT,
    PRECISION_MS,
    UNIT,
    WHEEL_MS,
    WHEEL_SLOTS,
    TimerCheckpoint,
    Unit,
)
from rocketpy_broker.services.timers.messages import (
    TIMER_TOPIC,
    Timer,
    delivered,
    own_key,
    recalled_key,
    rolled,
)
from rocketpy_broker.store import MessageInner, MessageStore
from rocketpy_broker.store.log.messages import peek_message

log = logging.getLogger("rocketpy.broker.timers")

WINDOW_SLOTS_MAX: Final = WHEEL_SLOTS // 2 - 60
"""Longest time in slots that a message waits before it rolls."""
_READ_UNITS: Final = 256
"""Consume queue entries read together."""
_NOT_READABLE_YET_MS: Final = 10
"""When to look again for messages that are not flushed, acknowledged or committed yet."""
_UNKNOWN_WINDOW_MS: Final = 24 * 3600 * 1000
"""For files that RocketMQ wrote. Its window is two days, so timers are moved if messages are kept for less,
that is, if the window here is less than a day."""
_WALK_UNITS: Final = 5000
"""Units of a slot that one call reads, which takes some milliseconds."""

_Units = tuple[bytes, list[NewInSlot], list[NewOfTopic]]
"""What `timer_units` returns."""


class Timers:
    """The timers of one store. Call `load` first, and `begin` before `deliver`.

    window_slots: returns after how many seconds a message rolls. When it becomes less, those that wait in
    later slots are moved. queue_to_deliver: see `TopicTable.queue_to_deliver`.
    """

    def __init__(
        self,
        store: MessageStore,
        files: TimerFiles,
        window_slots: Callable[[], int],
        queue_to_deliver: Callable[[str, int, int], int],
    ) -> None:
        self._store = store
        self._files = files
        self._window_slots = window_slots
        self._queue_to_deliver = queue_to_deliver
        self.checkpoint = TimerCheckpoint()
        """The last loaded, saved or copied checkpoint."""
        self.read_ms = 0
        """Time of the slot that is being read; the timers of earlier slots are delivered."""
        self.queue_offset = 0
        """Queue offset of the first message that is not enqueued."""
        self.waiting = 0
        """Number of timers that are enqueued and not delivered. A slot counts until its last one is."""
        self.counts: Counter[str] = Counter()
        """Topic -> number of its timers that are not delivered, on a master. They count until their slot is
        left, as in `waiting`; a recall counts -1. Below 0 if a message was recalled more than once."""
        self._topics: dict[int, str] = {}
        """Java's hash of a topic, as units have it -> its name."""
        self._rolls_ms: int | None = None
        """When the first of the messages that one call rolls is due."""
        self._leaving: Counter[int] = Counter()
        """Java's hash of a topic -> what its units of the slot that is being read have added to `counts`."""
        self._built_ms = 0
        """Longest window with which messages were enqueued that wait."""
        self._is_behind = False
        """Whether messages may be due, or may have to roll, since before `begin`."""
        self._behind_until = 0
        """Time of the last slot that has them."""
        self._caught_up_at = 0
        """End of the log when they were no longer."""
        self._done: tuple[int, int, int] = 0, 0, 0
        """Messages before this queue offset, of slots up to this time, due until this time are delivered."""
        self._delivers = False
        self._slots = 0
        """Number of slots with timers from `read_ms` on."""
        self._due: dict[int, array[int]] = {}
        """Of the slot that is being read: when units are due, in ms -> their positions in the timer log."""
        self._order: list[int] = []
        """Heap of the keys of `_due`. After the clock was set back, they may be many."""
        self._started: dict[int, int] = {}
        """Of the same slot: how many of these positions are delivered."""
        self._recalled: set[bytes] = set()
        """Keys of the messages that units of this slot recall."""
        self._walk_at = NO_UNIT
        """Position of the next unit of this slot to be read; units are read from the last to the first."""
        self._later: dict[int, array[int]] = {}
        """As `_due`, of the units that were added to the slot meanwhile."""
        self._truncations = store.truncations
        """Number of truncations of the log that the files know about."""
        self._pending: deque[tuple[int, int]] = deque()
        """What to enqueue first: an end of the timer topic, and from what time on. Both increase."""
        self._copies_below = 0
        """End of the log at `begin`: records before it may have been delivered before."""
        self._copies_until_ms = 0
        """Store time of the last record before it: none that is due later was delivered before."""

    # -- starting -----------------------------------------------------------------------------

    def load(self, now_ms: int) -> None:
        """Read the checkpoint, and recover the files. Files that are damaged are built again.

        The store must be dispatched. Raises StoreError, and StoreDamaged for a timer log with another file
        size than configured.
        """
        store = self._store
        self._delivers = False
        self._built_ms = 0
        self._truncations = store.truncations
        try:
            saved = self._files.checkpoint_file.load()
            self.checkpoint = saved or TimerCheckpoint()
            last = self._files.recover(self.checkpoint, store.max_physical_offset)
            offset = self.checkpoint.queue_offset if last is None else self._offset_after(last)
        except (TimerFilesDamaged, RemoteProtocolError) as error:
            self.rebuild(now_ms, str(error))
            return
        if last is not None and saved is None:
            self.rebuild(now_ms, f"{self._files.checkpoint_file.path} is missing")
            return
        if last is None:
            self.read_ms = _second(now_ms)
            self.queue_offset = store.min_offset_in_queue(TIMER_TOPIC, 0)
            return
        self._built_ms = self.checkpoint.window_ms or _UNKNOWN_WINDOW_MS
        self.read_ms = _second(self.checkpoint.read_ms)
        self.queue_offset = min(offset, store.appended_in_queue(TIMER_TOPIC, 0))
        self._count_unsaved(now_ms)

    def _offset_after(self, unit: Unit) -> int:
        """Return the queue offset after the message of a unit, the last one that was enqueued."""
        data = self._store.look_message(unit.physical_offset, unit.size)
        view = None if data is None else peek_message(data)
        if view is not None and view.topic == TIMER_TOPIC:
            return view.queue_offset + 1
        if unit.physical_offset >= self._store.min_physical_offset:
            raise TimerFilesDamaged("the last unit of the timer log is of another commit log")
        return self.checkpoint.queue_offset

    def _count_unsaved(self, now_ms: int) -> None:
        """Count the timers that were enqueued since the checkpoint, as `counts` are saved with it."""
        begin = self.checkpoint.queue_offset
        while begin < self.queue_offset:
            count = min(self.queue_offset - begin, _READ_UNITS)
            batches, count = self._read(begin, count, self._files.log.begin, now_ms)
            if not count:
                return
            begin += count
            self._count_new(batches)

    def rebuild(self, now_ms: int, reason: str) -> None:
        """Delete wheel and timer log, and enqueue all messages again. Raises StoreError."""
        self._store.dispatch()  # the index must have the copies of what was delivered just before
        if self._store.appended_in_queue(TIMER_TOPIC, 0):
            log.warning("timers are read again from the log: %s", reason)
        self._files.reset()
        self._built_ms = 0
        self._truncations = self._store.truncations
        self.checkpoint = TimerCheckpoint(counter=self.checkpoint.counter)
        self.read_ms = _second(now_ms)
        self.queue_offset = self._store.min_offset_in_queue(TIMER_TOPIC, 0)
        self.counts.clear()
        if self._delivers:
            self.begin(now_ms)

    def begin(self, now_ms: int) -> None:
        """Prepare to deliver, on a master. Raises StoreError.

        Messages that were due before are searched in the log, since they may have been delivered. None is
        delivered until all messages so far are enqueued: one of them may be a recall.
        """
        store = self._store
        self._delivers = self._is_behind = True
        self._behind_until = _second(now_ms)
        self._done = 0, 0, 0
        self._pending.clear()
        self.enqueue_first(0)
        self._copies_below = store.max_physical_offset
        self._copies_until_ms = max(
            store.commit_log.last_store_timestamp, store.dispatcher.last_store_timestamp
        )
        self._slots = self.waiting = 0
        for slot in self._files.wheel.slots(self.read_ms // PRECISION_MS):
            self._slots += 1
            self.waiting += max(slot.timers, 0)
        if self.read_ms < now_ms - WHEEL_MS // 2:
            if self._slots:
                self.rebuild(now_ms, "no timer was delivered for more than seven days")
                return
            self.read_ms = _second(now_ms)
        self._move_to(self.read_ms)

    def finish_slot(self) -> None:
        """Leave the slot before its second is over if all its timers are delivered.

        Call it before a clean stop: RocketMQ, which does not look for copies, would deliver them again.
        """
        if self._delivers and not self._due and not self._is_loading:
            slot = self._files.wheel.slot(self.read_ms // PRECISION_MS)
            if slot.last != NO_UNIT:
                self._leave_slot(self.read_ms + PRECISION_MS)

    def end(self) -> None:
        """Stop delivering: another broker is the master."""
        self._delivers = False
        self._clear()

    # -- the checkpoint -----------------------------------------------------------------------

    def progress(self, now_ms: int) -> TimerCheckpoint:
        """Return the checkpoint of the current state. Save it after a flush of log and files.

        It is the last one if nothing has changed since, or if there has never been a timer.
        """
        self._files.wheel.put(())  # those that could not be written
        last, log_end = self.checkpoint, self._files.log.end
        state = self.read_ms, log_end, self.queue_offset
        if state == (last.read_ms, last.log_flushed, last.queue_offset) or not (log_end or self.queue_offset):
            return last
        return replace(
            last, read_ms=self.read_ms, log_flushed=log_end, queue_offset=self.queue_offset,
            master_queue_offset=self.queue_offset if self._delivers else last.master_queue_offset,
            timestamp=now_ms, counter=last.counter + 1, window_ms=self._built_ms,
        )  # fmt: skip

    def adopt(self, master: TimerCheckpoint, counts: Mapping[str, int] | None = None) -> None:
        """Take over the checkpoint of the master, on a slave; see `enqueue`. counts: of topics, if known.

        One that is behind this broker's own progress, as after a change of the master, is ignored.
        """
        if master.master_queue_offset >= self.queue_offset and not self._delivers:
            self.read_ms = max(self.read_ms, _second(master.read_ms))
            self.checkpoint = replace(self.checkpoint, master_queue_offset=master.master_queue_offset)
            if counts is not None:
                self.load_counts(counts)

    @property
    def slots(self) -> int:
        """Number of slots with timers that are not all delivered."""
        return self._slots

    @property
    def not_enqueued(self) -> int:
        """Number of messages of the timer topic that are not enqueued."""
        return max(self._store.max_offset_in_queue(TIMER_TOPIC, 0) - self.queue_offset, 0)

    def late_ms(self, now_ms: int) -> int:
        """Return for how long a timer has been due; 0 if none is."""
        if self._order:
            return max(now_ms - self._order[0], 0)
        # Seconds without timers are passed together, up to a second later.
        return max(now_ms - self.read_ms - 2 * PRECISION_MS, 0) if self._slots else 0

    # -- enqueueing ---------------------------------------------------------------------------

    def enqueue(self, now_ms: int, count_max: int) -> int:
        """Move up to `count_max` messages from the timer topic into the wheel; return their number.

        A slave stops at the queue offset of its master's checkpoint: a message that the master has not
        enqueued there may be in a slot that the master reads later than its own. Raises StoreError. Raises
        TimerFilesDamaged; call `rebuild` then.
        """
        store = self._store
        if self._truncations != store.truncations:
            raise TimerFilesDamaged("the log was truncated, and may have other messages now")
        first = store.min_offset_in_queue(TIMER_TOPIC, 0)
        if self.queue_offset < first:
            log.error("timers %d to %d were deleted before they were enqueued", self.queue_offset, first - 1)
            self.queue_offset = first
        count = min(count_max, self.not_enqueued)
        if not self._delivers:
            count = min(count, self.checkpoint.master_queue_offset - self.queue_offset)
        if count <= 0:
            return 0
        if self._delivers and not self._slots and _second(now_ms) > self.read_ms:
            self._move_to(_second(now_ms))
        self._built_ms = max(self._built_ms, self._window_ms)
        begin, (position, room) = self.queue_offset, self._files.log.room()
        batches, count = self._read(begin, min(count, _READ_UNITS, room), position, now_ms)
        self._add(batches, position, now_ms, begin + count)
        return count

    def _read(self, begin: int, count: int, position: int, now_ms: int) -> tuple[list[_Units], int]:
        """Read messages of the timer topic; return their units, and the number of messages.

        begin: queue offset. position: of the first unit in the timer log.
        """
        store = self._store
        entries = store.units(TIMER_TOPIC, 0, begin, count)
        places = [(physical, size) for physical, size, _ in entries]
        batches: list[_Units] = []
        at, done = position, 0
        for number, data in store.read_together(places):
            start, end = places[done][0], done + number
            while done < end:
                batch = self._units(data, start, places[done:end], at, now_ms)
                done += len(batch[0]) // UNIT.size
                if not batch[0]:
                    batch = self._unit_alone(*places[done], at, now_ms)
                    done += 1
                at += len(batch[0])
                batches.append(batch)
        return batches, len(places)

    def _add(self, batches: Sequence[_Units], position: int, now_ms: int, queue_offset: int) -> None:
        """Add units to the wheel. queue_offset: after their messages."""
        units = b"".join([encoded for encoded, _, _ in batches])
        slots = [slot for _, slots, _ in batches for slot in slots]
        taken: list[tuple[int, Unit]] = []
        if self._delivers and any(second * PRECISION_MS == self.read_ms for second, *_ in slots):
            taken = self._in_slot(units, position)
        if units:
            self._slots += self._files.add(units, slots)
        self.queue_offset = queue_offset
        for at, unit in taken:
            self._take(at, unit, now_ms, is_new=True)
        if self._delivers:
            self._count_new(batches)

    def _count_new(self, batches: Sequence[_Units]) -> None:
        for _, _, topics in batches:
            for topic, topic_hash, change in topics:
                self._topics[topic_hash] = topic.decode(errors="replace")
                self._count(topic_hash, change)
                self.waiting += change

    def _in_slot(self, units: bytes, position: int) -> list[tuple[int, Unit]]:
        """Return the positions and units of the slot that is being read; recalls are noted at once."""
        taken = []
        for at in range(0, len(units), UNIT.size):
            unit = Unit.decode(units, at)
            if unit is not None and unit.slot_ms == self.read_ms:
                if unit.recalls and not unit.rolls:
                    self._note_recall(unit)
                else:
                    taken.append((position + at, unit))
        return taken

    def load_counts(self, counts: Mapping[str, int]) -> None:
        """Set the counts of topics, as they were saved."""
        self.counts = Counter(counts)
        self._topics.update((utf8_hash(topic.encode()), topic) for topic in counts)

    def _count(self, topic_hash: int, change: int) -> None:
        topic = self._topics.get(topic_hash)
        if topic is not None:
            self.counts[topic] += change
            if not self.counts[topic]:
                del self.counts[topic]

    def _units(
        self, data: bytes, begin: int, places: Sequence[tuple[int, int]], position: int, now_ms: int
    ) -> _Units:
        return timer_units(data, begin, places, position, now_ms, self.read_ms, self._window_ms)

    def _unit_alone(self, physical: int, size: int, position: int, now_ms: int) -> _Units:
        """Return the unit of a message that could not be read with others, or is no timer; that is logged."""
        data = self._store.look_message(physical, size)
        if data is None:
            log.error("the timer at offset %d cannot be read; it is lost", physical)
            return b"", [], []
        batch = self._units(data, physical, [(physical, size)], position, now_ms)
        if not batch[0]:
            reason = "it is at another offset"
            try:
                Timer.read(intact_properties(data))
            except UsageError as error:
                reason = str(error)
            log.error("the timer at offset %d is never due, and is dropped: %s", physical, reason)
        return batch

    # -- the window ---------------------------------------------------------------------------

    @property
    def _window_ms(self) -> int:
        """After how long a message rolls."""
        return min(self._window_slots(), WINDOW_SLOTS_MAX) * PRECISION_MS

    @property
    def needs_files(self) -> bool:
        """Whether the log must keep all files, also expired ones.

        That is from a start, or a change of the window, until all messages that are due are stored again, and
        flushed.
        """
        if not self._delivers or self._is_behind or self._store.flushed_offset < self._caught_up_at:
            return True
        return self._slots > 0 and self._window_ms < self._built_ms

    def _caught_up(self, now_ms: int) -> bool:
        """Note that nothing is due; move the waiting messages if the window has become shorter.

        Returns False then: those that have waited too long roll now.
        """
        window_ms = self._window_ms
        if self._slots and window_ms < self._built_ms:
            done = self.queue_offset, self.read_ms, now_ms
            was = self._built_ms // PRECISION_MS
            self.rebuild(now_ms, f"they roll after {window_ms // PRECISION_MS} s now, instead of {was} s")
            self._done = done
            return False
        if not self._slots:
            self._built_ms = 0
        is_late = self._slots and self.read_ms < self._behind_until
        if self._is_behind and not is_late and not self._has_pending():
            self._is_behind = False
            self._caught_up_at = self._store.max_physical_offset
        return True

    # -- delivering ---------------------------------------------------------------------------

    def deliver(self, now_ms: int, count_max: int) -> tuple[int, int | None]:
        """Append up to `count_max` due messages to their topics, and write them.

        Returns their number, and the time of the next call in ms; None if no timer waits. If there is more
        to do already, that time is not later than `now_ms`. Raises TimerFilesDamaged; call `rebuild` then.
        Raises StoreError; the next call tries again.
        """
        if self._must_enqueue(now_ms):
            return 0, self._next_enqueue(now_ms)
        if self._is_loading:
            self._walk(now_ms)
            if self._is_loading:
                return 0, now_ms
        count = self._deliver_due(now_ms, count_max)
        if self._must_enqueue(now_ms):  # one that has rolled may belong to this slot, as its recall does
            return count, self._next_enqueue(now_ms)
        is_done = not self._order or self._order[0] > now_ms
        if is_done and not self._caught_up(now_ms):
            return count, now_ms
        if self._order:
            return count, self._order[0]
        if now_ms >= self.read_ms + PRECISION_MS and self._slots:
            self._leave_slot(now_ms)
            if self._slots:
                return count, now_ms if self.read_ms <= now_ms else self._next_due()
            self._caught_up(now_ms)
        return count, self._next_due()

    def enqueue_first(self, due_ms: int) -> None:
        """Deliver nothing from `due_ms` on until all messages so far are enqueued.

        Call it after a recall or a copy of a rolled message was appended that is due then. It is readable
        only after a flush, an acknowledgement or a commit. Before that, the recalled message would be
        delivered, or the slot of the recall passed.
        """
        pending = self._pending
        while pending and pending[-1][1] >= due_ms:
            pending.pop()
        pending.append((self._store.appended_in_queue(TIMER_TOPIC, 0), due_ms))

    def _must_enqueue(self, now_ms: int) -> bool:
        return self._has_pending() and self._pending[0][1] <= now_ms

    def _has_pending(self) -> bool:
        """Whether messages have to be enqueued first, now or later."""
        pending = self._pending
        while pending and pending[0][0] <= self.queue_offset:
            pending.popleft()
        if pending and self.queue_offset >= self._store.appended_in_queue(TIMER_TOPIC, 0):
            pending.clear()  # the write has failed
        return bool(pending)

    def _next_enqueue(self, now_ms: int) -> int:
        return now_ms if self.not_enqueued else now_ms + _NOT_READABLE_YET_MS

    def _next_due(self) -> int | None:
        return self.read_ms + PRECISION_MS if self._slots else None

    def _deliver_due(self, now_ms: int, count_max: int) -> int:
        taken: dict[int, int] = {}
        self._rolls_ms = None
        count, failure = 0, None
        keys: list[int] = []
        try:
            while count < count_max and self._order and self._order[0] <= now_ms:
                key_ms = heapq.heappop(self._order)
                keys.append(key_ms)
                start = self._started.get(key_ms, 0)
                positions = self._due[key_ms][start : start + count_max - count]
                for message in self._messages(positions, now_ms):
                    if message is not None:
                        self._append(message)
                    count += 1
                    taken[key_ms] = taken.get(key_ms, start) + 1
        except StoreError as error:
            failure = error  # messages appended before the error are still written
        try:
            if taken:
                self._store.write_out()
            for key_ms, end in taken.items():
                self._started[key_ms] = end
                if end == len(self._due[key_ms]):
                    del self._due[key_ms], self._started[key_ms]
        finally:
            for key_ms in keys:
                if key_ms in self._due:
                    heapq.heappush(self._order, key_ms)
        if taken and self._rolls_ms is not None:
            self.enqueue_first(self._rolls_ms)
        if failure is not None:
            raise failure
        return count

    def _messages(self, positions: Sequence[int], now_ms: int) -> Iterator[MessageInner | None]:
        """Yield what to append for each unit; see `_message`."""
        units, places = self._files.log.encoded(positions), []
        for position, fields in zip(positions, UNIT.iter_unpack(units), strict=True):
            if fields[0] != UNIT.size or fields[5] < 0 or fields[6] <= 0:
                raise TimerFilesDamaged(f"the timer log has no unit at {position}")
            places.append(fields[5:7])
        done = 0
        for number, data in self._store.read_together(places):
            begin, end = places[done][0], done + number
            while done < end:
                part = units[done * UNIT.size : end * UNIT.size]
                for fields in due_messages(part, data, begin, self._copies_below, now_ms):
                    done += 1
                    yield self._due_message(fields)
                if done < end:
                    unit = self._unit_at(positions[done])
                    done += 1
                    record = self._store.look_message(unit.physical_offset, unit.size)
                    yield self._message(unit, record, now_ms)

    def _due_message(self, fields: DueMessage) -> MessageInner | None:
        """Return the message to append for a usual timer; None if it was recalled."""
        (
            physical, _, topic, queue_id, body, properties, flag, sys_flag, born_ms, born_host,
            times,
        ) = fields  # fmt: skip
        if self._recalled and own_key(properties) in self._recalled:
            return None
        queue_id = self._queue_to_deliver(topic, queue_id, physical)
        return MessageInner(
            topic, queue_id, body, properties, flag, sys_flag, born_ms, born_host, times, is_copy=True
        )

    def _append(self, message: MessageInner) -> None:
        try:
            self._store.append(message)
        except UsageError as error:
            log.error("a timer of topic %s cannot be delivered and is dropped: %s", message.topic, error)

    def _message(self, unit: Unit, data: bytes | None, now_ms: int) -> MessageInner | None:
        """Return the message to append for a unit; None if it was recalled, delivered before, or is lost."""
        if unit.recalls and not unit.rolls:
            return None
        record = None if data is None else decode(data, check_crc=False)
        if record is None or record.topic != TIMER_TOPIC:
            if unit.physical_offset >= self._store.min_physical_offset:
                raise TimerFilesDamaged(f"the record at {unit.physical_offset} is no timer")
            log.error("the timer at offset %d was deleted before it was due", unit.physical_offset)
            return None
        if not unit.rolls and self._recalled and own_key(record.properties) in self._recalled:
            return None
        try:
            if self._was_delivered(unit, record):
                return None
            if unit.rolls:
                out_ms = Timer.read(record.properties).out_ms
                self._rolls_ms = out_ms if self._rolls_ms is None else min(self._rolls_ms, out_ms)
                return rolled(record, unit.enqueued_ms, now_ms)
            topic, queue_id = real_queue(record.properties)
            queue_id = self._queue_to_deliver(topic, queue_id, unit.physical_offset)
            return delivered(record, topic, queue_id, unit.enqueued_ms, now_ms)
        except UsageError as error:
            log.error(
                "the timer at offset %d cannot be delivered and is dropped: %s", unit.physical_offset, error
            )
            return None

    def _was_delivered(self, unit: Unit, record: Record) -> bool:
        """Whether a message was delivered or rolled before the start, or before messages were moved."""
        if unit.physical_offset >= self._copies_below:  # all but those from before the start
            return False
        timer = Timer.read(record.properties)
        before, read_ms, until_ms = self._done
        if (
            record.queue_offset < before
            and timer.out_ms <= read_ms
            and (timer.due_ms or read_ms + PRECISION_MS) <= until_ms
        ):
            return True
        due_ms = (unit.due_ms or unit.slot_ms) if unit.rolls else timer.out_ms
        return due_ms <= self._copies_until_ms and self._has_copy(record)

    def _has_copy(self, record: Record) -> bool:
        """Whether a message was delivered or rolled already."""
        store = self._store
        topic, _ = real_queue(record.properties)
        return has_copy(store, record, TIMER_TOPIC) or has_copy(store, record, topic)

    # -- the slot that is being read ----------------------------------------------------------

    def _clear(self) -> None:
        self._due.clear()
        self._order.clear()
        self._started.clear()
        self._recalled.clear()
        self._later.clear()
        self._leaving.clear()
        self._walk_at = NO_UNIT

    def _move_to(self, time_ms: int) -> None:
        """Begin to read the slot of a time. Raises StoreError; nothing has changed then."""
        last = self._files.wheel.slot(time_ms // PRECISION_MS).last
        self._clear()
        self.read_ms, self._walk_at = time_ms, last

    def _leave_slot(self, now_ms: int) -> None:
        """Go to the next slot with timers, or to the current time. Raises StoreError; it stays then."""
        second = self.read_ms // PRECISION_MS
        slot = self._files.wheel.slot(second)
        slots = self._slots - (slot.last != NO_UNIT)
        end = now_ms // PRECISION_MS
        if slots:
            end = self._files.wheel.next_second(second + 1, end)
        leaving = [*self._leaving.items()]
        self._move_to(end * PRECISION_MS)
        self._slots = slots
        self.waiting = max(self.waiting - slot.timers, 0) if slots else 0
        for topic_hash, number in leaving:
            self._count(topic_hash, -number)
        if not slots:  # an inexact count, as of a slave that became the master, ends here
            self.counts.clear()

    @property
    def _is_loading(self) -> bool:
        """Whether units of the slot are not known yet. One may be a recall, so none is delivered."""
        return self._walk_at != NO_UNIT

    def _walk(self, now_ms: int) -> None:
        """Read units of the slot, from the last to the first, and note when they are due."""
        second = self.read_ms // PRECISION_MS
        begin, left = self._files.log.begin, _WALK_UNITS
        while self._walk_at >= begin and left:
            unit = self._unit_at(self._walk_at)
            if unit.slot_ms // PRECISION_MS != second or unit.previous >= self._walk_at:
                raise TimerFilesDamaged(f"the unit at {self._walk_at} of the timer log is of another slot")
            self._take(self._walk_at, unit, now_ms)
            self._walk_at = unit.previous
            left -= 1
        if self._walk_at >= begin:
            return
        self._walk_at = NO_UNIT
        for positions in self._due.values():
            positions.reverse()
        for due_ms, positions in self._later.items():
            self._due.setdefault(due_ms, array("q")).extend(positions)
        self._later.clear()
        self._order = list(self._due)
        heapq.heapify(self._order)

    def _unit_at(self, position: int) -> Unit:
        unit = self._files.log.unit(position)
        if unit is None:
            raise TimerFilesDamaged(f"the timer log has no unit at {position}")
        return unit

    def _take(self, position: int, unit: Unit, now_ms: int, *, is_new: bool = False) -> None:
        """Note when a unit of the slot is due. is_new: whether it was added since the slot is being read."""
        if unit.recalls and not unit.rolls:
            self._note_recall(unit)
            return
        self._leaving[unit.topic_hash] += -1 if unit.recalls else 1
        due_ms = unit.due_ms or unit.slot_ms + PRECISION_MS
        if due_ms <= now_ms:  # one time for all of them, since there may be many after a stop
            due_ms = min(now_ms, self.read_ms)
        due = self._later if is_new and self._is_loading else self._due
        positions = due.get(due_ms)
        if positions is None:
            positions = due[due_ms] = array("q")
            if not self._is_loading:
                heapq.heappush(self._order, due_ms)
        positions.append(position)

    def _note_recall(self, unit: Unit) -> None:
        """Note which message of the slot a unit recalls."""
        self._leaving[unit.topic_hash] -= 1
        data = self._store.look_message(unit.physical_offset, unit.size)
        key = None if data is None else recalled_key(intact_properties(data))
        if key is not None:
            self._recalled.add(key)


def _second(time_ms: int) -> int:
    """Return the beginning of a second."""
    return time_ms // PRECISION_MS * PRECISION_MS
