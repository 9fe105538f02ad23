"""Reads of consume queues in both forms."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpy.native import FORMS
from rocketpy.protocol.message.record import MESSAGE_MAGIC, encode_record
from rocketpy_broker.store.queue.consume_queue import BLANK_UNIT, UNIT
from rocketpy_broker.store.queue.unit_scan import select_units, take_records
from tests.native_forms import both, needs_native

pytestmark = needs_native
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
FILE_BYTES = 1 << 20
LOG_BEGIN, LOG_END = FILE_BYTES, 4 * FILE_BYTES - 5000
PLACES = st.one_of(st.integers(0, 4 * FILE_BYTES), st.integers(LOG_BEGIN, LOG_BEGIN + 20_000), I64)
UNITS = st.one_of(
    st.builds(UNIT.pack, PLACES, st.one_of(st.integers(80, 300), st.integers(0, 2_000_000), I32),
              st.one_of(st.integers(0, 3), I64)),
    st.just(BLANK_UNIT),
)  # fmt: skip
LIMITS = st.tuples(st.integers(0, 40), st.integers(0, 100_000))
HOST = b"\x7f\0\0\1\0\0\x12\x34"


def in_order(sizes: list[int], gaps: list[int], codes: list[int]) -> bytes:
    """Units of records one after the other, as a broker writes them."""
    at, units = LOG_BEGIN, b""
    for size, gap, code in zip(sizes, gaps, codes, strict=False):
        units += UNIT.pack(at, size, code)
        at += size + gap
    return units


SEQUENCES = st.builds(
    in_order,
    st.lists(st.integers(91, 2000), max_size=40),
    st.lists(st.sampled_from([0, 0, 0, 300, 16_384, 16_385, 500_000]), min_size=40, max_size=40),
    st.lists(st.integers(0, 3), min_size=40, max_size=40),
)


@st.composite
def mixed(draw: st.DrawFn) -> bytes:
    """Units in order, with a few others between them."""
    units = draw(SEQUENCES)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(units) // UNIT.size)) * UNIT.size
        other = draw(st.one_of(UNITS, st.just(BLANK_UNIT), st.just(UNIT.pack(LOG_BEGIN - 500, 400, 1))))
        units = units[:at] + other + units[at:]
    return units


MIXED = mixed()


@given(
    st.one_of(SEQUENCES, st.lists(UNITS, max_size=40).map(b"".join), MIXED, st.binary(max_size=90)),
    st.none() | st.frozensets(st.integers(0, 3)) | st.frozensets(st.integers()),
    st.integers(0, 4 * FILE_BYTES),
    LIMITS,
    LIMITS,
)
def test_both_forms_select_the_same_units(
    units: bytes,
    codes: frozenset[int] | None,
    memory_begin: int,
    in_memory: tuple[int, int],
    on_disk: tuple[int, int],
) -> None:
    """Consumers would get other messages, or be moved past some."""
    arguments = (units, codes, LOG_BEGIN, LOG_END, FILE_BYTES, memory_begin, in_memory, on_disk, None)
    try:
        both(select_units)(*arguments)
    except struct.error:
        assert len(units) % UNIT.size


def damaged(data: bytes, at: int, value: bytes) -> bytes:
    """The data with some bytes replaced."""
    return (data[:at] + value + data[at + len(value) :])[: len(data)]


@given(
    st.lists(st.binary(max_size=20), min_size=1, max_size=8),
    st.sampled_from([lambda data, _: data, damaged, lambda data, at: data[:at]]),
    st.integers(0, 1000),
    st.lists(st.integers(0, 9), max_size=8),
    st.sampled_from([0, 0, 0, -50, 50]),
)
def test_both_forms_take_the_same_records(
    bodies: list[bytes], change: Callable[..., bytes], at: int, selected: list[int], shift: int
) -> None:
    """Consumers would get bytes that are not a message."""
    data, units = b"", b""
    for number, body in enumerate(bodies):
        begin = 5000 + len(data)
        record = encode_record(b"T", 3, 0, 40 + number, begin, 0, 0, HOST, 0, HOST, 0, 0, body, b"")
        units += UNIT.pack(begin, len(record), 0)
        data += record
    data = change(data, at, b"\1\2\3") if change is damaged else change(data, at)
    try:
        both(take_records)(data, 5000 + shift, units, selected, 3, 40)
    except IndexError:
        assert max(selected) >= len(bodies)
    assert both(take_records)(data, 5000, units, range(len(bodies)), 4, 40) == (b"", 0)


@given(st.binary(max_size=400), I64, st.lists(UNITS, max_size=3).map(b"".join), I32, I64)
def test_no_bytes_are_a_record_in_one_form_only(
    data: bytes, begin: int, units: bytes, queue_id: int, first: int
) -> None:
    """A panic of one pull would end the connection of its consumer."""
    both(take_records)(data, begin, units, range(len(units) // UNIT.size), queue_id, first)
    both(take_records)(
        struct.pack(">iI", len(data) + 8, MESSAGE_MAGIC) + data, begin, UNIT.pack(begin, len(data) + 8, 0),
        [0], queue_id, first,
    )  # fmt: skip


def test_usual_reads_use_the_native_form() -> None:
    """It might leave everything to Python."""
    select, take = FORMS["select_units"].native, FORMS["take_records"].native
    assert select is not None
    assert take is not None
    record = encode_record(b"T", 3, 0, 40, 5000, 0, 0, HOST, 0, HOST, 0, 0, b"body", b"")
    units = UNIT.pack(5000, len(record), 7)
    for codes in (None, frozenset({7})):
        found = select(units, codes, 0, 9000, FILE_BYTES, 0, (32, 9000), (8, 9000), None)
        assert found == ([0], [(5000, 5000 + len(record), 1)], 1, 5000, False)
    assert take(record, 5000, units, [0], 3, 40) == (record, 1)


@pytest.mark.parametrize("arguments", [("text", 0, b"", [], 0, 0), (b"", 0, b"", [None], 0, 0)])
def test_other_types_are_an_error_and_no_panic(arguments: tuple[object, ...]) -> None:
    """A panic would be reported as a defect of the package."""
    native = FORMS["take_records"].native
    assert native is not None
    with pytest.raises(TypeError):
        native(*arguments)
