"""The Spark integration's functions with native forms: both must have the same results."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.encoded_rows import encode_rows, joined_keys, maps_of, texts_of
from pyspark_rocketmq.record_arrays import property_buffers, record_parts, record_starts, scan
from rocketpy.errors import MessageInvalid, RecordCorrupt
from rocketpy.native import FORMS
from rocketpy.protocol.message.batch import decode_batch
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


TEXT = st.text(max_size=12) | st.sampled_from(
    ["a", "a||b", " a", "a ", "k1 k2", "\x01", " ", "\u00a0", "\x1f"]
)
FRAMES = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.none() | st.binary(max_size=9),
            "tags": st.none() | TEXT,
            "keys": st.none() | TEXT,
            "properties": st.none()
            | st.dictionaries(st.sampled_from(["a", "b", "ü", "", "SPARK_BODY", "ROW"]), st.none() | TEXT),
            "flag": st.integers(-(2**31), 2**31 - 1),
        }
    ),
    min_size=1,
    max_size=12,
)
MAP = pa.map_(pa.string(), pa.string())


@given(FRAMES, st.integers(0, 11), st.sampled_from([None, (b"ROW", b"run/0/0/")]), st.booleans())
def test_rows_are_encoded_alike(
    rows: list[dict[str, Any]], first: int, row_ids: tuple[bytes, bytes] | None, has_all: bool
) -> None:
    """A row would have the tag or property of another row, or an invalid one be stored."""
    given_rows = rows[min(first, len(rows) - 1) :]

    def column(name: str, kind: pa.DataType) -> pa.Array:
        whole = pa.array([row[name] for row in rows], kind)
        return whole.slice(len(rows) - len(given_rows))

    count = len(given_rows)
    maps = pa.array(
        [None if row["properties"] is None else [*row["properties"].items()] for row in rows], MAP
    )
    arguments = (
        b"".join(b"%032d" % number for number in range(count)),
        np.arange(7, 7 + count).tobytes(),
        texts_of(column("body", pa.binary())),
        texts_of(column("tags", pa.string())) if has_all else None,
        texts_of(column("keys", pa.large_string())) if has_all else None,
        maps_of(maps.slice(len(rows) - count)) if has_all else None,
        np.array([row["flag"] for row in given_rows], np.int32).tobytes() if has_all else None,
        row_ids,
    )
    with contextlib.suppress(MessageInvalid):
        body, names = both(encode_rows)(*arguments)
        assert len(decode_batch(body)) == count
        assert not has_all or set(names) >= {
            name.encode() for row in given_rows for name in row["properties"] or {} if name not in OURS
        }


OURS = {"SPARK_BODY", "ROW"}
BUFFERS = st.tuples(st.none() | st.binary(max_size=2), st.binary(max_size=24), st.binary(max_size=9))


@given(BUFFERS, BUFFERS, BUFFERS, st.binary(max_size=24), st.integers(0, 4))
def test_any_buffers_are_no_panic(bodies: Any, names: Any, values: Any, offsets: bytes, count: int) -> None:
    """A panic would end the task."""
    native = FORMS["encode_rows"].native
    assert native is not None
    ids, numbers = b"i" * 32 * count, bytes(8 * count)
    native(ids, numbers, bodies, names, values, (offsets, names, values), offsets, None)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([["a", "b"], None, [], ["c"]], pa.list_(pa.string())).slice(1),
        pa.array([["a", "b"], None, [], ["c"]], pa.large_list(pa.string())).slice(1),
        pa.array(
            [["a", "b"], None, [], ["c"]], pa.list_(pa.field("element", pa.string(), nullable=False))
        ).slice(1),
        pa.array(["a b", None, "", "c"]).slice(1),
    ],
)
def test_keys_become_one_text(column: pa.Array) -> None:
    """A row would have the keys of another row."""
    texts = joined_keys(column).to_pylist()
    assert [text or None for text in texts] == [None, None, "c"]


@pytest.mark.parametrize("keys", [["a b"], [""], [None]])
def test_invalid_keys_of_an_array_are_refused(keys: list[str | None]) -> None:
    """A query for the key would not find its row."""
    with pytest.raises(ValueError, match="a key is missing, or contains a space"):
        joined_keys(pa.array([["x"], keys], pa.list_(pa.string())))


def test_usual_rows_are_left_to_the_native_form() -> None:
    """It might leave everything to Python."""
    native = FORMS["encode_rows"].native
    assert native is not None
    maps = pa.array([[("shop", "north"), ("ü", None)], None, [("other", "ß")]], MAP)
    texts = texts_of(pa.array(["a", None, "b c"]))
    given_ids = (b"i" * 96, bytes(24))
    assert native(*given_ids, texts, None, texts, maps_of(maps), None, (b"ROW", b"run/")) is not None


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
