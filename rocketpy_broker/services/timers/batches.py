"""Reads stored timers many at a time: into units of the timer log, and into messages that are due.

Both functions have a native form. They end before the first record that is not usual; the caller handles it
individually. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rocketpy.errors import MessageInvalid
from rocketpy.native import has_native_form
from rocketpy.protocol.java import utf8_hash
from rocketpy.protocol.message.record import decode, intact_properties, is_intact
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.services.delay.topic_rewrite import real_queue
from rocketpy_broker.services.timers.formats import (
    KIND,
    KIND_RECALL,
    KIND_ROLL,
    NO_UNIT,
    PRECISION_MS,
    UNIT,
    WHEEL_MS,
    Unit,
)
from rocketpy_broker.services.timers.messages import TIMER_TOPIC, Timer, properties_of_due
from rocketpy_broker.store.log.messages import timestamp_in

_BLANK_MS: Final = 60 * PRECISION_MS
_V6: Final = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6

NewInSlot = tuple[int, int, int, int]
"""Second of a slot, positions of its first and last new unit, and the change of its number of timers."""
NewOfTopic = tuple[bytes, int, int]
"""A real topic in UTF-8, its hash, and the change of its number of timers."""
DueMessage = tuple[int, int, str, int, bytes, bytes, int, int, int, bytes, int]
"""Physical offset of the timer, hash of the real topic, and the first fields of a `MessageInner`."""


@has_native_form
def timer_units(
    data: bytes,
    begin: int,
    places: Sequence[tuple[int, int]],
    position: int,
    now_ms: int,
    read_ms: int,
    window_ms: int,
) -> tuple[bytes, list[NewInSlot], list[NewOfTopic]]:
    """Return the encoded units of timers, up to the first record that is none.

    begin: physical offset of `data`. places: physical offsets and sizes of the records in it. position: of
    the first unit in the timer log. read_ms: time of the slot that is being read. window_ms: after how long a
    message rolls. The first unit of each slot has no previous one yet.
    """
    units: list[bytes] = []
    slots: dict[int, NewInSlot] = {}
    topics: dict[bytes, NewOfTopic] = {}
    for physical, size in places:
        record = data[physical - begin : physical - begin + size]
        if not is_intact(record, physical):
            break
        try:
            timer = Timer.read(intact_properties(record))
        except MessageInvalid:
            break
        kind, slot_ms, due_ms = KIND | KIND_RECALL * timer.recalls, timer.out_ms, timer.due_ms
        # From the store time, so that all replicas place it in the same slot.
        stored_ms = timestamp_in(record) // PRECISION_MS * PRECISION_MS
        if slot_ms - stored_ms >= window_ms:
            kind |= KIND_ROLL
            window = window_ms // PRECISION_MS
            is_almost = slot_ms - stored_ms - window_ms < window // 3 * PRECISION_MS
            slot_ms = due_ms = stored_ms + (window // 2 if is_almost else window) * PRECISION_MS
        slot_ms = max(slot_ms, read_ms)
        if slot_ms > read_ms + WHEEL_MS - _BLANK_MS:  # the clock was wrong when it was stored
            kind |= KIND_ROLL
            slot_ms = due_ms = read_ms + window_ms
        second, change = slot_ms // PRECISION_MS, -1 if timer.recalls else 1
        _, first, last, timers = slots.get(second, (second, position, NO_UNIT, 0))
        slots[second] = second, first, position, timers + change
        topic = timer.real_topic
        _, topic_hash, count = topics.get(topic) or (topic, utf8_hash(topic), 0)
        topics[topic] = topic, topic_hash, count + change
        units.append(Unit(last, kind, now_ms, slot_ms, physical, size, topic_hash, due_ms).encode())
        position += UNIT.size
    return b"".join(units), list(slots.values()), list(topics.values())


@has_native_form
def due_messages(units: bytes, data: bytes, begin: int, copies_below: int, now_ms: int) -> list[DueMessage]:
    """Return the fields of the messages to deliver for these units, up to the first unusual one.

    Unusual are rolls, recalls, records below the physical offset `copies_below`, and those that are damaged
    or name no real queue. data, begin: as in `timer_units`.
    """
    found: list[DueMessage] = []
    for _, _, kind, enqueued_ms, _, physical, size, topic_hash, _ in UNIT.iter_unpack(units):
        record_bytes = data[physical - begin : physical - begin + size]
        if kind != KIND or physical < copies_below or not is_intact(record_bytes, physical):
            break
        record = decode(record_bytes, check_crc=False)
        if record.topic != TIMER_TOPIC:
            break
        try:
            topic, queue_id = real_queue(record.properties)
        except MessageInvalid:
            break
        found.append((
            physical, topic_hash, topic, queue_id, record.body,
            properties_of_due(record.properties, enqueued_ms, now_ms), record.flag, record.sys_flag & ~_V6,
            record.born_timestamp, record.born_host, record.reconsume_times,
        ))  # fmt: skip
    return found
