"""The check points of a broker: what is in flight, what is revived, and up to where groups have popped.

The revive topic is the journal: each pop appends a check point there, each acknowledgement a record behind
it. Memory has the same state, from these records. `read` reads them from the offset of `REVIVE_GROUP` on:
after the start all of them, later only those that timers deliver, since a record of this process counts when
it is appended. See docs/decisions/0032-pop.md.

Source: PopMessageProcessor, PopReviveService of RocketMQ 5.3.3. Differs: that stores check points and
acknowledgements as timers until the time of the check point is nearly over.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, NamedTuple

import msgspec

from rocketpy.errors import RemoteProtocolError, StoreError, UsageError
from rocketpy.protocol.bodies import SubscriptionGroupConfig
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.receipt import TopicKind
from rocketpy.protocol.message.record import Record, decode
from rocketpy_broker.services.delay.copies import has_copy
from rocketpy_broker.services.delay.topic_rewrite import copy_to
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.pop.formats import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CK_TAG,
    INVISIBLE_MS_MAX,
    REVIVE_GROUP,
    SEEN_GROUP,
    Acknowledgement,
    CheckPoint,
    PointKey,
    ack_properties,
    normal_topic,
    point_properties,
    revive_message,
    tag_of,
    was_timer,
)
from rocketpy_broker.services.pop.in_flight import InFlight
from rocketpy_broker.services.timers.messages import to_timer_message
from rocketpy_broker.store import AppendReceipt, MessageInner, MessageStore
from rocketpy_broker.store.log.messages import peek_message
from rocketpy_broker.store.queue.dispatch import Arrivals

log = logging.getLogger("rocketpy.broker.pop")

FIRST_POP_MS: Final = "1ST_POP_TIME"
"""Property of a revived message: when it was popped first, in ms since 1970."""
_READ_UNITS: Final = 64
_POSTPONE_MS: Final = 1000
_COMMITTED_AT_ONCE: Final = 2000
"""Offsets that are committed before others have a turn."""

Append = Callable[[MessageInner], AppendReceipt]
QueueKey = tuple[str, str, int]
"""Topic, group and queue id."""


class Progress(NamedTuple):
    """Offsets to commit once the log is flushed up to now."""

    popped: Sequence[tuple[QueueKey, int, int | None]]
    """Next offset of each queue, and its committed one."""
    done: dict[int, int]
    """Revive queue -> offset of the last record that is needed no more."""
    seen: dict[int, int]
    """Revive queue -> offset after its last record."""


class _Popped(NamedTuple):
    """How far a group has popped a queue."""

    next_offset: int
    committed: int | None
    """The committed offset at that time. Another one is a reset."""


@dataclass(eq=False)
class CheckPoints:
    """The check points of one broker. Call `load` before the first use.

    The caller appends with `store.append` or a function like it, and calls `MessageStore.write_out` later. If
    that fails, it calls `load` again.
    """

    store: MessageStore
    offsets: ConsumerOffsets
    topic: str
    """The revive topic."""
    _: KW_ONLY
    queues: int
    """Number of revive queues for new check points."""
    broker_name: str
    find_topic: Callable[[str], object | None]
    """Returns a topic by name; None without it."""
    find_group: Callable[[str], SubscriptionGroupConfig | None]
    ensure_topic: Callable[[str], None]
    """Creates a retry topic or a topic of dead letters, if it is missing."""
    uses_retry_v2: Callable[[], bool]
    timers_late: Callable[[], bool]
    """Returns whether timers are due that were not delivered."""
    timers_wait: Callable[[], bool]
    """Returns whether timers for the revive topic wait."""
    records_max: int = 50_000
    """A check point is stored again once so many records of its queue follow; a start reads them all."""
    age_max_ms: int = 3_600_000
    """A check point is stored again after this time, before its record expires."""
    host: bytes = bytes(8)
    """Address of the broker, as in records."""
    in_flight: InFlight = field(default_factory=InFlight)

    def __post_init__(self) -> None:
        self._popped: dict[QueueKey, _Popped] = {}
        self._poppers: set[tuple[str, str]] = set()
        """Topics and groups that have popped since the start."""
        self._reset: set[QueueKey] = set()
        """Queues that were reset since the last `progress`."""
        self._read_to: dict[int, int] = {}
        """Revive queue -> offset of the next record to read."""
        self._seen: dict[int, int] = {}
        """Revive queue -> offset of the first record whose pop the committed offsets may lack."""
        self._last_seen: dict[int, int] = {}
        self._committed_seen: dict[int, int] = {}
        self._next_queue = 0
        self._is_loading = True
        self._before_ms = 0
        """The latest time at which an earlier process has stored a record."""
        self.revived = self.dead_letters = 0
        """Totals since the start."""

    # -- loading ------------------------------------------------------------------------------

    def load(self) -> None:
        """Forget everything, and begin to read the revive topic from the committed offsets on."""
        self.clear()
        self._before_ms = self.store.dispatcher.last_store_timestamp
        for queue_id in range(self.queues):  # timers of RocketMQ may be the first records of a queue
            self._open(queue_id)

    def clear(self) -> None:
        """Forget everything, as this broker is no longer the master; call `load` before the next use."""
        self.in_flight = InFlight()
        self._popped.clear()
        self._read_to.clear()
        self._seen.clear()
        self._last_seen, self._committed_seen = {}, {}
        self._is_loading = True

    def _open(self, queue_id: int) -> int:
        """Begin to read a revive queue; return the offset of its next record."""
        if queue_id not in self._read_to:
            done = self.offsets.get(REVIVE_GROUP, self.topic, queue_id)
            seen = self.offsets.get(SEEN_GROUP, self.topic, queue_id)
            end = self.store.max_offset_in_queue(self.topic, queue_id)
            first = self.store.min_offset_in_queue(self.topic, queue_id)
            begin = 0 if done is None else done + 1
            if begin > end:  # power loss or a change of the master has taken records
                log.warning("revive queue %d ends at %d, before the committed %d", queue_id, end, begin)
            self._read_to[queue_id] = min(max(begin, first), end)
            if seen is None:
                seen = 0 if done is None else end  # a store of RocketMQ
            self._seen[queue_id] = self._last_seen[queue_id] = min(seen, end)
        return self._read_to[queue_id]

    @property
    def is_loading(self) -> bool:
        """Whether the records from before the start are not read yet. Meanwhile nothing may be popped."""
        return self._is_loading

    @property
    def is_behind(self) -> bool:
        """Whether records of the revive topic are not read yet."""
        end = self.store.max_offset_in_queue
        return self._is_loading or any(at < end(self.topic, number) for number, at in self._read_to.items())

    def is_behind_any(self, arrivals: Arrivals) -> bool:
        """Whether records of the revive topic have arrived that are not read yet."""
        read_to = self._read_to
        return self._is_loading or any(
            topic == self.topic and read_to.get(queue_id, end) < end
            for (topic, queue_id), end in arrivals.items()
        )

    def read(self, count_max: int) -> int:
        """Read up to `count_max` records of the revive topic; return their number. Raises StoreError."""
        count = 0
        for topic, queue_id in self.store.list_queues() if self._is_loading else ():
            if topic == self.topic:
                self._open(queue_id)
        for queue_id in self._read_to:
            while count < count_max:
                at = self._read_to[queue_id]
                first = self.store.min_offset_in_queue(self.topic, queue_id)
                if at < first:
                    log.error("revive records %d to %d of queue %d are deleted", at, first - 1, queue_id)
                    self._read_to[queue_id] = at = first
                units = self.store.units(self.topic, queue_id, at, min(_READ_UNITS, count_max - count))
                if not units:
                    break
                for physical, size, _ in units:
                    data = self.store.look_message(physical, size)
                    view = None if data is None else peek_message(data)
                    if view is None:
                        log.error("the record at offset %d of the revive topic cannot be read", physical)
                    else:
                        self._apply(queue_id, self._read_to[queue_id], decode(data or b"", check_crc=False))
                    self._read_to[queue_id] += 1
                count += len(units)
        if count < count_max:
            self._is_loading = False
        return count

    def _apply(self, queue_id: int, offset: int, record: Record) -> None:
        """Apply a record of the revive topic; it may have been applied before."""
        tag = tag_of(record.properties)
        if self._is_loading:
            self._before_ms = max(self._before_ms, record.store_timestamp)
        try:
            if tag == CK_TAG:
                self._apply_point(queue_id, offset, record)
            elif tag in (ACK_TAG, BATCH_ACK_TAG):
                ack = Acknowledgement.decode(tag, record.body)
                point = self.in_flight.points.get(ack.key)
                if point is not None:
                    self.in_flight.done(point, point.bits_of(ack.offsets))
        except RemoteProtocolError as error:
            log.warning("record %d of revive queue %d is skipped: %s", offset, queue_id, error)

    def _apply_point(self, queue_id: int, offset: int, record: Record) -> None:
        point = CheckPoint.decode(record.body, queue_id)
        is_foreign = was_timer(record.properties)
        point.may_have_timers = is_foreign or (self._is_loading and self.timers_wait())
        point.may_have_copies = self._is_loading
        key = point.key
        is_pop = not is_foreign and CheckPoint.is_of_pop(record.body)
        if self._is_loading and is_pop and offset >= self._seen[queue_id]:
            queue = key.topic, key.group, key.queue_id
            if point.end_offset > (self.next_offset(*queue) or 0):
                self.popped(*queue, point.end_offset)
        known = self.in_flight.points.get(key)
        if known is not None:
            if offset > known.offset and known.revive_queue == queue_id:
                self.in_flight.move(known, offset, record.store_timestamp)
            self.in_flight.done(known, point.done)
        elif not point.is_done:
            self.in_flight.add(point, offset, record.store_timestamp)

    # -- popping ------------------------------------------------------------------------------

    def next_offset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the offset of the next pop of a queue; None if the group has none."""
        committed = self.offsets.get(group, topic, queue_id)
        popped = self._popped.get((topic, group, queue_id))
        if popped is not None:
            if popped.committed == committed:
                return popped.next_offset
            del self._popped[topic, group, queue_id]  # it was reset
        return committed

    def has_popped(self, topic: str, group: str) -> bool:
        """Whether a group has popped messages of a topic since the start."""
        return (topic, group) in self._poppers

    def forget_topic(self, topic: str) -> None:
        """Forget which groups have popped messages of a deleted topic."""
        self._poppers = {popper for popper in self._poppers if popper[0] != topic}

    def reset(self, topic: str, group: str, queue_id: int) -> None:
        """Forget up to where a queue is popped: an operator has reset its offset, maybe to the same one."""
        self._popped.pop((topic, group, queue_id), None)
        self._reset.add((topic, group, queue_id))

    def popped(self, topic: str, group: str, queue_id: int, next_offset: int) -> None:
        """Note up to where a queue is popped. It is committed once the check point is flushed."""
        self._poppers.add((topic, group))
        self._popped[topic, group, queue_id] = _Popped(next_offset, self.offsets.get(group, topic, queue_id))

    def next_queue(self) -> int:
        """Return the revive queue for the next pop."""
        self._next_queue = (self._next_queue + 1) % self.queues
        return self._next_queue

    def free_key(self, key: PointKey, replaced: PointKey | None = None) -> PointKey:
        """Return a key for a new check point: another one may have been popped in the same millisecond.

        replaced: key of the check point that the new one replaces. It may be a timer that has not arrived.
        """
        while key in self.in_flight.points or key == replaced:
            key = key._replace(pop_ms=key.pop_ms + 1)
        return key

    def append_point(self, point: CheckPoint, now_ms: int, append: Append, *, is_pop: bool = True) -> None:
        """Append a new check point. Raises RocketError; then it does not count.

        is_pop: False for a changed invisible time.
        """
        self._open(point.revive_queue)
        self.in_flight.add(point, self._append_point(point, now_ms, append, is_pop=is_pop), now_ms)

    def _append_point(self, point: CheckPoint, now_ms: int, append: Append, *, is_pop: bool) -> int:
        message = revive_message(
            self.topic,
            point.revive_queue,
            point.encode(is_pop=is_pop),
            point_properties(point),
            self.host,
            now_ms,
        )
        return self._appended(message, append)

    def _appended(self, message: MessageInner, append: Append) -> int:
        """Append a record, and return its offset; it is not read again."""
        offset = append(message).queue_offset
        if self._read_to[message.queue_id] == offset:
            self._read_to[message.queue_id] += 1
        return offset

    # -- acknowledging ------------------------------------------------------------------------

    def acknowledge(
        self,
        key: PointKey,
        offsets: Sequence[int],
        revive_queue: int,
        invisible_ms: int,
        now_ms: int,
        append: Append,
    ) -> list[int]:
        """Acknowledge messages; return the offsets of those that were not in flight.

        An unknown check point whose time is not over may be a timer of RocketMQ: its acknowledgement becomes
        a timer, too. Raises RocketError; then nothing counts.
        """
        point = self.in_flight.points.get(key)
        if point is None:
            return self._acknowledge_unknown(key, offsets, revive_queue, invisible_ms, now_ms, append)
        left = self.left(point, offsets, now_ms)
        known: Sequence[int] = offsets
        if left.bit_count() < len(offsets):
            known = [offset for offset in offsets if point.bits_of([offset]) & left]
        if known:
            self._append_ack(
                Acknowledgement(key, known, self.broker_name), point.revive_queue, now_ms, append
            )
            self.in_flight.done(point, left)
        return [offset for offset in offsets if offset not in known] if len(known) < len(offsets) else []

    def left(self, point: CheckPoint, offsets: Sequence[int], now_ms: int) -> int:
        """Return the bits of those messages of a check point that may be acknowledged.

        A message whose time is over may be, until it is revived. After a kill, it may have a copy already.
        """
        if point.may_have_copies and max(now_ms, self._before_ms) >= point.revive_ms:
            return 0
        return point.bits_of(offsets) & ~point.done

    def _append_ack(self, ack: Acknowledgement, revive_queue: int, now_ms: int, append: Append) -> None:
        tag, body = ack.encode()
        properties = ack_properties(ack, tag)
        message = revive_message(self.topic, revive_queue, body, properties, self.host, now_ms)
        self._appended(message, append)

    def may_be_timer(self, key: PointKey, invisible_ms: int, now_ms: int) -> bool:
        """Whether an unknown check point may still be a timer, which RocketMQ has stored."""
        left_ms = key.pop_ms + invisible_ms - now_ms
        return 0 < left_ms <= INVISIBLE_MS_MAX and self.timers_wait()

    def _acknowledge_unknown(
        self,
        key: PointKey,
        offsets: Sequence[int],
        revive_queue: int,
        invisible_ms: int,
        now_ms: int,
        append: Append,
    ) -> list[int]:
        if not self.may_be_timer(key, invisible_ms, now_ms):
            return list(offsets)
        ack = Acknowledgement(key, offsets, self.broker_name)
        tag, body = ack.encode()
        due_ms = key.pop_ms + invisible_ms
        properties = {props.TIMER_DELIVER_MS: str(due_ms), **ack_properties(ack, tag)}
        message = MessageInner(self.topic, revive_queue, body, born_timestamp=now_ms, born_host=self.host)
        message.properties = props.encode(properties).encode()
        to_timer_message(message, due_ms)
        append(message)
        return []

    # -- reviving -----------------------------------------------------------------------------

    def revive(self, now_ms: int, count_max: int) -> int:
        """Append up to about `count_max` messages whose time is over to their retry topics, and write them.

        Returns their number. Nothing is revived before all records are read: an acknowledgement may be among
        them. Raises StoreError when nothing else is due; the next call tries again.
        """
        if self.is_behind:
            return 0
        copied: list[tuple[CheckPoint, list[int]]] = []
        count, unread, failure = 0, None, None
        try:
            for point in self.in_flight.due(now_ms):
                if count >= count_max or len(copied) >= count_max:
                    break
                if point.may_have_timers and self.timers_late():
                    self.in_flight.postpone(point, now_ms + _POSTPONE_MS)
                    continue
                done: list[int] = []
                copied.append((point, done))
                for offset in point.left():
                    try:
                        copy = self._find_copy(point, offset)
                    except StoreError as error:  # maybe of one queue: those of others go on
                        unread = error
                        break
                    if copy is not None:
                        self._append_copy(copy)
                    done.append(offset)
                    count += 1
                self.in_flight.postpone(point, now_ms + _POSTPONE_MS)  # until it is written
            for point, done in copied:
                if done:
                    ack = Acknowledgement(point.key, done, self.broker_name)
                    self._append_ack(ack, point.revive_queue, now_ms, self.store.append)
        except StoreError as error:
            failure = error
        if copied:
            try:
                self.store.write_out()
            except StoreError:
                self.load()
                raise
        for point, done in copied:
            self.in_flight.done(point, point.bits_of(done))
        due_ms = self.in_flight.due_ms()
        if unread is not None and (due_ms is None or due_ms > now_ms):
            failure = failure or unread
        if failure is not None:
            raise failure
        return count

    def _find_copy(self, point: CheckPoint, offset: int) -> MessageInner | None:
        """Return the copy of a message to append; None if the message is gone. Raises StoreError."""
        record = self._record(point.key, offset)
        if record is None:
            return None
        group = self.find_group(point.key.group)
        if group is None or self.find_topic(normal_topic(record.topic, point.key.group)) is None:
            log.warning(
                "message %d of queue %d of topic %s is not delivered again to group %s: topic or group is "
                "deleted", offset, point.key.queue_id, record.topic, point.key.group,
            )  # fmt: skip
            return None
        copy = self._copy(point, record, group)
        if point.may_have_copies:
            counted = msgspec.structs.replace(record, reconsume_times=copy.reconsume_times)
            if has_copy(self.store, counted, copy.topic):
                return None
        return copy

    def _append_copy(self, copy: MessageInner) -> None:
        """Append a copy to its topic, which may be new. Raises StoreError."""
        self.ensure_topic(copy.topic)
        try:
            self.store.append(copy)
        except UsageError as error:
            log.error("a message of topic %s cannot be revived: %s", copy.topic, error)
            return
        if copy.topic.startswith(props.DLQ_TOPIC_PREFIX):
            self.dead_letters += 1
        else:
            self.revived += 1

    def _record(self, key: PointKey, offset: int) -> Record | None:
        units = self.store.units(key.topic, key.queue_id, offset, 1)
        data = self.store.look_message(units[0][0], units[0][1]) if units else None
        if data is None:
            log.error(
                "message %d of queue %d of topic %s is gone, so group %s does not get it again",
                offset, key.queue_id, key.topic, key.group,
            )  # fmt: skip
            return None
        return decode(data, check_crc=False)

    def _copy(self, point: CheckPoint, record: Record, group: SubscriptionGroupConfig) -> MessageInner:
        """Return the copy for the retry topic or, after too many tries, for the dead letters."""
        properties = props.decode(record.properties)
        times = max(record.reconsume_times, 0)
        if not times or FIRST_POP_MS not in properties:
            properties[FIRST_POP_MS] = str(point.key.pop_ms)
        if times >= group.retry_max_times:
            properties.setdefault(props.PROPERTY_RETRY_TOPIC, normal_topic(record.topic, point.key.group))
            props.set_reason(properties, f"not acknowledged in time, {times + 1} times")
            topic = props.DLQ_TOPIC_PREFIX + point.key.group
        elif record.topic.startswith(props.RETRY_TOPIC_PREFIX):
            topic = record.topic
        else:
            kind = TopicKind.RETRY_V2 if self.uses_retry_v2() else TopicKind.RETRY_V1
            topic = kind.topic(record.topic, point.key.group)
        copy = copy_to(record, topic, 0)
        copy.properties = props.encode(properties).encode()
        copy.reconsume_times = times + 1
        return copy

    # -- committing ---------------------------------------------------------------------------

    def renew(self, now_ms: int, count_max: int) -> int:
        """Store check points again that are far behind the end of their queue, or old; return their number.

        The queues take turns. Raises StoreError; the next call tries again.
        """
        count, turns = 0, deque(self._read_to.items())
        while turns and count < count_max:
            queue_id, end = turns.popleft()
            point = self.in_flight.first_of(queue_id)
            if point is None or (
                end - point.offset < self.records_max and now_ms - point.appended_ms < self.age_max_ms
            ):
                continue
            offset = self._append_point(point, now_ms, self.store.append, is_pop=False)
            self.in_flight.move(point, offset, now_ms)
            count += 1
            turns.append((queue_id, end))
        if count:
            try:
                self.store.write_out()
            except StoreError:
                self.load()
                raise
        return count

    @property
    def is_uncommitted(self) -> bool:
        """Whether another call of `committing` would change offsets."""
        return bool(self._popped) or self._last_seen != self._committed_seen

    def progress(self) -> Progress:
        """Return the offsets to commit once the log is flushed up to now."""
        self._reset.clear()
        popped = [(queue, entry.next_offset, entry.committed) for queue, entry in self._popped.items()]
        done = {}
        for queue_id, end in self._read_to.items():
            point = self.in_flight.first_of(queue_id)
            done[queue_id] = (end if point is None else min(end, point.offset)) - 1
        return Progress(popped, done, dict(self._read_to))

    def committing(self, progress: Progress, *, is_last: bool = False) -> Generator[None, None, None]:
        """Commit offsets, except those that were reset since. It yields after each `_COMMITTED_AT_ONCE`.

        The end of what these offsets include is committed by the next call, or by the last one at a stop: a
        save of the offsets takes a while, and may have it beside offsets of before.
        """
        for number, ((topic, group, queue_id), offset, committed) in enumerate(progress.popped, 1):
            if number % _COMMITTED_AT_ONCE == 0:
                yield
            was_reset = (topic, group, queue_id) in self._reset
            if self.offsets.get(group, topic, queue_id) != committed:
                self.next_offset(topic, group, queue_id)  # forgets what was popped before
            elif not was_reset:
                self.offsets.commit(group, topic, queue_id, offset, is_own=True)
                entry = self._popped.get((topic, group, queue_id))
                if entry is not None and entry.committed == committed:
                    if entry.next_offset == offset:
                        del self._popped[topic, group, queue_id]
                    else:
                        self._popped[topic, group, queue_id] = _Popped(entry.next_offset, offset)
        for queue_id, offset in progress.done.items():
            self.offsets.commit(REVIVE_GROUP, self.topic, queue_id, offset, is_own=True)
        self._committed_seen = progress.seen if is_last else self._last_seen
        for queue_id, offset in self._committed_seen.items():
            if offset or progress.popped or progress.done.get(queue_id, -1) >= 0:
                self.offsets.commit(SEEN_GROUP, self.topic, queue_id, offset, is_own=True)
        self._last_seen = progress.seen
