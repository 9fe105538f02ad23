"""Stored timers in both forms: as units of the timer log, and as messages that are due."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from rocketpy.protocol.message.record import encode_record
from rocketpy_broker.services.timers.batches import due_messages, timer_units
from rocketpy_broker.services.timers.formats import NO_UNIT, UNIT, Unit
from tests.native_forms import both, needs_native

pytestmark = needs_native
BEGIN, NOW_MS, READ_MS, WINDOW_MS = 5000, 1_000_500, 1_000_000, 60_000
V4, V6 = b"\x7f\0\0\1\0\0\x12\x34", bytes(20)
TIMES = st.one_of(
    st.integers(900_000, 1_200_000), st.sampled_from([0, 1, 999, 10**12, 10**15, 2**62, 10**18, 10**30])
).map(lambda number: b"%d" % number)
NUMBERS = st.one_of(TIMES, st.sampled_from([b"", b"-5", b"+7", b"1_0", b" 9", b"x", b"5\x01", b"1\x012"]))
REAL = st.builds(
    lambda topic, queue: [b"REAL_TOPIC\x01" + topic, b"REAL_QID\x01" + queue],
    st.sampled_from([b"T", b"Other", "Thema ü".encode(), b"\xff", b"", b"T\x01"]),
    st.one_of(st.sampled_from([b"0", b"3", b"2147483647", b"2147483648"]), NUMBERS),
)
OTHERS = st.lists(
    st.one_of(
        st.sampled_from([
            b"", b"TAGS\x01a", b"UNIQ_KEY\x01id", b"TIMER_DEL_UNIQKEY\x01T+id", b"TIMER_ENQUEUE_MS\x015",
            b"TIMER_DEQUEUE_MS\x01\x01", b"NOT_TIMER_ENQUEUE_MS\x015", b"__TIMER_DUE_MS", b"\xff\x01\xfe",
        ]),
        NUMBERS.map(lambda text: b"TIMER_OUT_MS\x01" + text),
        NUMBERS.map(lambda text: b"__TIMER_DUE_MS\x01" + text),
    ),
    max_size=4,
)  # fmt: skip


@st.composite
def property_texts(draw: st.DrawFn) -> bytes:
    """The properties of a timer, mostly usual ones."""
    out = draw(st.integers(990, 1300)) * 1000
    due = out + draw(st.integers(-1, 1002))
    usual = [b"A\x01b", b"TIMER_OUT_MS\x01%d" % out, b"__TIMER_DUE_MS\x01%d" % due]
    real = draw(st.one_of(st.just([b"REAL_TOPIC\x01T", b"REAL_QID\x013"]), REAL))
    pieces = [*usual, *real]
    if draw(st.booleans()):
        pieces = draw(st.permutations([*pieces, *draw(OTHERS)]))
    if draw(st.integers(0, 5)) == 0:
        pieces = pieces[: draw(st.integers(0, len(pieces)))]
    return b"\x02".join(pieces) + draw(st.sampled_from([b"\x02", b"\x02", b"", b"\x02\x02"]))


RECORDS = st.lists(
    st.tuples(
        property_texts(),
        st.binary(max_size=8),
        st.sampled_from([b"rmq_sys_wheel_timer"] * 6 + [b"T", "ü".encode()]),
        st.sampled_from([0, 0, 0, 0, 1, 0x10, 0x20, 0x30]),
        st.sampled_from([1_000_100, 1_000_100, 1_000_100, 940_000, 0, -1, 2**63 - 1, -(2**63)]),
    ),
    max_size=6,
)


def stored(
    records: list[tuple[bytes, bytes, bytes, int, int]],
) -> tuple[bytes, list[tuple[int, int]]]:
    """Records of the log, and where they are."""
    data, places = b"", []
    for properties, body, topic, sys_flag, stored_ms in records:
        born, host = (V6 if sys_flag & flag else V4 for flag in (0x10, 0x20))
        begin = BEGIN + len(data)
        record = encode_record(
            topic, 0, 7, 3, begin, sys_flag, 9, born, stored_ms, host, 2, 0, body, properties
        )
        places.append((begin, len(record)))
        data += record
    return data, places


@given(RECORDS, st.sampled_from([WINDOW_MS, WINDOW_MS, 2000, 172_800_000]))
def test_both_forms_make_the_same_units(
    records: list[tuple[bytes, bytes, bytes, int, int]], window_ms: int
) -> None:
    """A timer would be late, or be delivered by one replica and not by another."""
    data, places = stored(records)
    arguments = data, BEGIN, places, 520, NOW_MS, READ_MS, window_ms
    units, slots, topics = both(timer_units)(*arguments)
    assert sum(timers for *_, timers in slots) == sum(timers for *_, timers in topics)
    ends = {second: NO_UNIT for second, *_ in slots}
    for at in range(0, len(units), UNIT.size):
        unit = Unit.decode(units, at)
        assert unit is not None
        assert unit.previous == ends[unit.slot_ms // 1000]
        ends[unit.slot_ms // 1000] = 520 + at
    assert ends == {second: last for second, _, last, _ in slots}


@given(
    RECORDS,
    st.lists(st.sampled_from([1, 1, 1, 1, 1, 1, 3, 5, 9]), min_size=6, max_size=6),
    st.sampled_from([0, 0, 0, BEGIN + 100]),
)
def test_both_forms_deliver_the_same_messages(
    records: list[tuple[bytes, bytes, bytes, int, int]], kinds: list[int], copies_below: int
) -> None:
    """Consumers would get other bytes, depending on how the broker is installed."""
    data, places = stored(records)
    units = b"".join(
        Unit(NO_UNIT, kind, NOW_MS, NOW_MS + 1000, physical, size, -7).encode()
        for kind, (physical, size) in zip(kinds, places, strict=False)
    )
    for fields in both(due_messages)(units, data, BEGIN, copies_below, NOW_MS + 5):
        physical, topic_hash, topic, queue_id, body, properties, flag, sys_flag, *rest = fields
        number = [offset for offset, _ in places].index(physical)
        assert (body, flag, topic_hash, sys_flag) == (records[number][1], 7, -7, records[number][3] & 1)
        assert f"REAL_TOPIC\x01{topic}".encode() in properties
        assert b"REAL_QID\x01%d" % queue_id in properties or queue_id in {7, 9, 10}
        assert properties.endswith(
            b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (NOW_MS, NOW_MS + 5)
        )
        assert rest == [9, bytes(20) if records[number][3] & 0x10 else V4, 2]


@given(RECORDS, st.integers(0, 600), st.binary(max_size=4), st.booleans(), st.integers(-300, 300))
def test_damaged_records_end_both_forms(
    records: list[tuple[bytes, bytes, bytes, int, int]], at: int, value: bytes, cut: bool, shift: int
) -> None:
    """A panic would stop all timers."""
    data, places = stored(records)
    data = data[:at] if cut else (data[:at] + value + data[at + len(value) :])[: len(data)]
    places = [(physical + shift * (physical % 2), size) for physical, size in places]
    both(timer_units)(data, BEGIN, places, 0, NOW_MS, READ_MS, WINDOW_MS)
    units = b"".join(UNIT.pack(UNIT.size, 0, 1, NOW_MS, 0, physical, size, 0, 0) for physical, size in places)
    both(due_messages)(units, data, BEGIN, 0, NOW_MS)


@given(
    st.binary(max_size=300),
    st.integers(0, 2**63 - 1),
    st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(1, 2**31 - 1)), max_size=3),
    st.binary(max_size=110),
)
def test_no_bytes_are_a_timer_in_one_form_only(
    data: bytes, begin: int, places: list[tuple[int, int]], units: bytes
) -> None:
    """Bytes and places from a damaged disk."""
    both(timer_units)(data, begin, places, 0, NOW_MS, READ_MS, WINDOW_MS)
    try:
        both(due_messages)(units, data, begin, 0, NOW_MS)
    except struct.error:
        assert len(units) % UNIT.size
