"""The fields of records, and the entries of an index file, in both forms."""

from __future__ import annotations

import struct
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from rocketpy.native import FORMS
from rocketpy.protocol.message.record import encode_blank, encode_record
from rocketpy_broker.store.index.index_file import ROW, link_entries
from rocketpy_broker.store.queue.log_fields import WITHOUT_LIMIT, LogFields, read_log_fields
from tests.native_forms import both, needs_native

pytestmark = needs_native
TOPICS = st.sampled_from([b"T", b"Topic", "Тема".encode(), b"SCHEDULE_TOPIC_XXXX", b"", b"a\0b", b"\xff"])
VALUES = st.sampled_from(
    [b"", b"a", b"a b  c", "ключ😀".encode(), b"\xff\xfe", b"x\x01", b"x\x01y", b"3", b"99", b" 4", b"-1",
     b"polygenelubricants", b"\0"]
)  # fmt: skip
PIECES = st.tuples(
    st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"XKEYS", b""]),
    st.sampled_from([b"\x01", b""]),
    VALUES,
    st.sampled_from([b"\x02", b"\x02", b""]),
).map(b"".join)
TIMES = st.integers(0, 5) | st.sampled_from([-1, 1_700_000_000_000, WITHOUT_LIMIT])
CHANGES = st.sampled_from([0, 1, 4, 0x10, 0x30, 0x7F, 0x80, 0xFF])


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, int]:
    """Records, often followed by other bytes, often with changed bytes; and the offset of the first."""
    base = draw(st.sampled_from([0, 5000, 1 << 40]))
    data = bytearray()
    for _ in range(draw(st.integers(0, 8))):
        sys_flag = draw(st.sampled_from([0, 0, 0, 4, 8, 12, 0x10, 0x20, 0x30]))
        data += encode_record(
            draw(TOPICS),
            draw(st.sampled_from([0, 0, 1, -1])),
            0,
            draw(st.integers(0, 4)),
            base + len(data) if draw(st.integers(0, 9)) else draw(TIMES),
            sys_flag,
            1,
            bytes(20 if sys_flag & 0x10 else 8),
            draw(TIMES),
            bytes(20 if sys_flag & 0x20 else 8),
            0,
            0,
            draw(st.sampled_from([b"", b"body"])),
            b"".join(draw(st.lists(PIECES, max_size=4))),
        )
    data += draw(st.sampled_from([b"", bytes(100), encode_blank(50), b"\0\0\0\x5b\xda\xa3\x20\xa7"]))
    for _ in range(draw(st.integers(0, 2))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(CHANGES)
    return bytes(data), base


@given(logs(), st.booleans(), st.booleans(), st.lists(st.integers(0, 10**6), max_size=3), st.integers(0, 3))
def test_both_forms_read_the_same_fields(
    log: tuple[bytes, int], is_based: bool, check_crc: bool, delays_ms: list[int], refused: int
) -> None:
    """Queues and index would depend on whether a package is installed."""
    data, base = log

    def accept(_topic: bytes, _queue_id: int, queue_offset: int, end: int) -> int:
        if refused == 1 and queue_offset == 3:
            return end - 1
        return end if refused == 2 else WITHOUT_LIMIT

    read = both(read_log_fields)
    with suppress(struct.error):  # a due time that does not fit into a unit
        fields = LogFields(
            *read(data, 0, base if is_based else -1, check_crc, delays_ms, accept if refused else None)
        )
        if fields.records:  # reading again from any record has the rest
            read(data, fields.position, base if is_based else -1, check_crc, delays_ms, None)


def test_usual_records_are_read_by_the_native_form() -> None:
    """It might leave everything to Python."""
    host, text = bytes(8), b"TAGS\x01t\x02KEYS\x01k\x02"
    record = encode_record(b"T", 0, 0, 0, 0, 0, 1, host, 2, host, 0, 0, b"x" * 100_000, text)
    native = FORMS["read_log_fields"].native
    assert native is not None
    assert LogFields(*native(record, 0, 0, True, [], None)).records == 1


BIG = st.integers(-(1 << 62), 1 << 62)
ROWS = st.lists(
    st.tuples(st.integers(0, (1 << 31) - 1), BIG, BIG | TIMES).map(lambda row: ROW.pack(*row)), max_size=20
).map(b"".join)


@given(
    ROWS,
    st.lists(st.sampled_from([0, 1, 2, 30, -1, -(1 << 31), (1 << 31) - 1]), min_size=1, max_size=7),
    st.integers(1, 40),
    st.integers(0, 1 << 42) | TIMES,
)
def test_both_forms_link_the_same_entries(rows: bytes, slots: list[int], first: int, begin_ms: int) -> None:
    """A query would find other messages, or run in a circle."""
    python, native = FORMS[link_entries.__name__]
    assert native is not None
    tables = [memoryview(bytearray(4 * len(slots))).cast("i") for _ in range(2)]
    for table in tables:
        for at, number in enumerate(slots):
            table[at] = number
    assert python(tables[0], rows, first, begin_ms) == native(tables[1], rows, first, begin_ms)
    assert tables[0] == tables[1]
