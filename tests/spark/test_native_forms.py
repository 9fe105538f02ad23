"""The Spark integration's functions with native forms: both must have the same results."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.record_arrays import property_buffers, record_parts, record_starts, scan
from rocketpy.errors import RecordCorrupt
from rocketpy.native import FORMS
from rocketpy.protocol.message.record import encode_record, host_bytes
from tests.native_forms import both, needs_native
from tests.spark.test_record_arrays import records

pytestmark = [pytest.mark.spark, needs_native]

PIECES = st.sampled_from(
    [b"\x01", b"\x02", b"\x01\x01\x02", b"TAGS", b"a", b"b", b"\xc3\xbc", b"\xff", b"\xe2\x82", b" ", b"\0"]
)
TEXTS = st.lists(st.lists(PIECES, max_size=24).map(b"".join), min_size=1, max_size=20)
NAMES = st.lists(st.sampled_from([b"TAGS", b"a", b"b", b"\xc3\xbc", b"", b"c"]), unique=True)
HOST = host_bytes("10.0.0.7", 10911)


def damage(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    """Data with some bytes changed."""
    damaged = bytearray(data)
    for at, change in changes:
        damaged[at % len(damaged)] ^= change
    return bytes(damaged)


CHANGES = st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 255)), max_size=3)


@given(st.lists(records(), min_size=1, max_size=5).map(b"".join), CHANGES, st.integers(0, 9))
def test_records_are_found_and_checked_alike(data: bytes, changes: list[tuple[int, int]], cut: int) -> None:
    """A damaged record would become a row, or a valid one be reported as lost."""
    damaged = damage(data, changes)
    found = both(record_starts)(damaged[: len(damaged) - cut])
    starts = scan(data) if found is None else np.frombuffer(found, np.int64)
    assert starts is not None
    with contextlib.suppress(RecordCorrupt, IndexError):
        both(record_parts)(damaged, starts.tobytes())


@given(st.binary(max_size=400), st.lists(st.integers(-9, 2**63 - 1), max_size=3))
def test_any_bytes_are_no_records(data: bytes, starts: list[int]) -> None:
    """A panic would end the task."""
    both(record_starts)(data)
    native = FORMS["record_parts"].native
    assert native is not None
    assert native(data, np.array(starts, np.int64).tobytes()) is None or not starts


@given(TEXTS, NAMES, st.none() | NAMES)
def test_properties_are_split_alike(
    texts: list[bytes], names: list[bytes], hidden: list[bytes] | None
) -> None:
    """A property would be in the row of another message, or be missing."""
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    begins = ends - np.array([len(text) for text in texts], np.int64)
    both(property_buffers)(b"".join(texts), begins.tobytes(), ends.tobytes(), names, hidden)


def test_usual_records_are_left_to_the_native_forms() -> None:
    """They might leave everything to Python."""
    text = b"UNIQ_KEY\x01id\x02TAGS\x01a\x02shop\x01b\x02"
    data = encode_record(b"T", 3, 0, 0, 0, 0, 1, HOST, 2, HOST, 0, 0, b"x", text)
    found = [FORMS[form.__name__].native for form in (record_starts, record_parts, property_buffers)]
    starts_of, parts_of, properties_of = found
    assert starts_of is not None
    assert parts_of is not None
    assert properties_of is not None
    parts = parts_of(data, starts_of(data))
    assert parts is not None
    begins = (np.frombuffer(parts[2], np.int64) + 2).tobytes()
    assert properties_of(data, begins, parts[3], [b"TAGS"], [b"UNIQ_KEY"]) is not None
